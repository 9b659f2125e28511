// Each head of queries and keys is normalised by itself:
//   n[d] = x[d] / sqrt(mean of x^2 over the head + eps) * weight[d]
//   q_weight, k_weight   [head_dim]
// Order    member m of a team of eight has every eighth four dims from the m-th on, each of the four a
//          chain; (0 + 1) + (2 + 3), then the tree of act_join.
// Dispatch a team of eight for each head of each token, eight teams in a workgroup.
@group(0) @binding(5) var<storage, read> q_weight: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> k_weight: array<vec4<f32>>;

fn rope_walk(workgroup: u32, lane: u32) {
    let quads = params.head_dim / 4u;
    let all_heads = params.num_heads + 2u * params.num_kv_heads;
    let number = workgroup * (ROPE_WG / 8u) + lane / 8u;
    let own_token = number / all_heads;
    let head = number - own_token * all_heads;
    let token = min(own_token, params.num_tokens - 1u);
    let at = (token * all_heads + head) * quads;
    let is_query = head < params.num_heads;
    let is_value = head >= params.num_heads + params.num_kv_heads;

    var squares = vec4<f32>(0.0);
    for (var quad = select(lane % 8u, quads, is_value); quad < quads; quad += 8u) {
        let value = qkv[at + quad];
        squares = fma(value, value, squares);
    }
    let own = (squares.x + squares.y) + (squares.z + squares.w);
    let total = act_join(team_all(vec4<f32>(own), lane, true));
    let factor = inverseSqrt(total / f32(params.head_dim) + params.eps);

    // a loop for each kind of head: two of them are over at once
    let first = select(quads, lane % 8u, own_token < params.num_tokens);
    let to_q = (token * params.num_heads + head) * quads;
    for (var quad = select(quads, first, is_query && params.write_q == 1u); quad < quads; quad += 8u) {
        q[to_q + quad] = rope_turned(token, quad, qkv[at + quad] * factor * q_weight[quad]);
    }
    if (is_query) {
        return;
    }
    let row = rope_row(token, head - params.num_heads - select(0u, params.num_kv_heads, is_value));
    let here = select(quads, first, row != ROPE_ELSEWHERE);
    for (var quad = select(here, quads, is_value); quad < quads; quad += 8u) {
        k[row * quads + quad] = kv_pack4(rope_turned(token, quad, qkv[at + quad] * factor * k_weight[quad]));
    }
    for (var quad = select(quads, here, is_value); quad < quads; quad += 8u) {
        v[row * quads + quad] = kv_pack4(qkv[at + quad]);
    }
}
