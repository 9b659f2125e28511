// All heads of a token's queries are normalised together, and all of its keys:
//   n[h, d] = x[h, d] / sqrt(mean of x^2 over the heads + eps) * weight[h, d]
//   q_weight   [num_heads * head_dim];   k_weight   [num_kv_heads * head_dim]
// Order    lane l has every 64th four dims from the l-th on, each of the four a chain; (0 + 1) +
//          (2 + 3), then the tree of lib/row_64.
// Dispatch a workgroup for each eight heads of a token's queries, keys or values; all add up the squares.
@group(0) @binding(5) var<storage, read> q_weight: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> k_weight: array<vec4<f32>>;

fn rope_walk(workgroup: u32, lane: u32) {
    let quads = params.head_dim / 4u;
    let all_heads = params.num_heads + 2u * params.num_kv_heads;
    let q_groups = (params.num_heads + 7u) / 8u;
    let kv_groups = (params.num_kv_heads + 7u) / 8u;
    let groups = q_groups + 2u * kv_groups;
    let number = workgroup % groups;
    let token = min(workgroup / groups, params.num_tokens - 1u);

    let is_query = number < q_groups;
    let is_value = number >= q_groups + kv_groups;
    // heads before those that belong together, how many these are, and the first of the eight among them
    let before = select(select(params.num_heads, params.num_heads + params.num_kv_heads, is_value), 0u, is_query);
    let heads = select(params.num_kv_heads, params.num_heads, is_query);
    let first = select((number - q_groups) % kv_groups, number, is_query) * 8u;
    let at = (token * all_heads + before) * quads;

    var squares = vec4<f32>(0.0);
    for (var quad = select(lane, heads * quads, is_value); quad < heads * quads; quad += ROPE_WG) {
        let value = qkv[at + quad];
        squares = fma(value, value, squares);
    }
    let total = row_sum((squares.x + squares.y) + (squares.z + squares.w), lane);
    let factor = inverseSqrt(total / f32(heads * params.head_dim) + params.eps);

    // a loop for each kind of head: two of them are over at once
    let end = min(first + 8u, heads) * quads;
    let start = select(end, first * quads + lane, workgroup / groups < params.num_tokens);
    let to_q = token * params.num_heads * quads;
    for (var at_q = select(end, start, is_query && params.write_q == 1u); at_q < end; at_q += ROPE_WG) {
        q[to_q + at_q] = rope_turned(token, at_q % quads, qkv[at + at_q] * factor * q_weight[at_q]);
    }
    for (var at_k = select(start, end, is_query || is_value); at_k < end; at_k += ROPE_WG) {
        let head = at_k / quads;
        let quad = at_k - head * quads;
        let row = rope_row(token, head);
        if (row != ROPE_ELSEWHERE) {
            k[row * quads + quad] = kv_pack4(rope_turned(token, quad, qkv[at + at_k] * factor * k_weight[at_k]));
        }
    }
    for (var at_v = select(end, start, is_value); at_v < end; at_v += ROPE_WG) {
        let head = at_v / quads;
        let row = rope_row(token, head);
        if (row != ROPE_ELSEWHERE) {
            v[row * quads + at_v - head * quads] = kv_pack4(qkv[at + at_v]);
        }
    }
}
