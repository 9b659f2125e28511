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
    let head = number % all_heads;
    let live = number / all_heads < params.num_tokens;
    let token = min(number / all_heads, params.num_tokens - 1u);
    let at = (token * all_heads + head) * quads;

    let is_query = head < params.num_heads;
    let is_value = head >= params.num_heads + params.num_kv_heads;
    var squares = vec4<f32>(0.0);
    for (var quad = lane % 8u; quad < quads && !is_value; quad += 8u) {
        let value = qkv[at + quad];
        squares = fma(value, value, squares);
    }
    let own = (squares.x + squares.y) + (squares.z + squares.w);
    let total = act_join(team_all(vec4<f32>(own), lane, true));
    let factor = inverseSqrt(total / f32(params.head_dim) + params.eps);

    for (var quad = lane % 8u; quad < quads && live; quad += 8u) {
        var value = qkv[at + quad];
        if (is_query) {
            value = value * factor * q_weight[quad];
        } else if (!is_value) {
            value = value * factor * k_weight[quad];
        }
        rope_put(token, head, quad, value);
    }
}
