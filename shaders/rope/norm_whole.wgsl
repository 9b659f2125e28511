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
    let live = workgroup / groups < params.num_tokens;
    let token = min(workgroup / groups, params.num_tokens - 1u);

    let is_query = number < q_groups;
    let is_value = number >= q_groups + kv_groups;
    // heads before those that belong together, how many these are, and the first of the eight among them
    let before = select(select(params.num_heads, params.num_heads + params.num_kv_heads, is_value), 0u, is_query);
    let heads = select(params.num_kv_heads, params.num_heads, is_query);
    let first = select((number - q_groups) % kv_groups, number, is_query) * 8u;
    let at = (token * all_heads + before) * quads;

    var squares = vec4<f32>(0.0);
    for (var quad = lane; quad < heads * quads && !is_value; quad += ROPE_WG) {
        let value = qkv[at + quad];
        squares = fma(value, value, squares);
    }
    let total = row_sum((squares.x + squares.y) + (squares.z + squares.w), lane);
    let factor = inverseSqrt(total / f32(heads * params.head_dim) + params.eps);

    let end = min(first + 8u, heads) * quads;
    for (var quad = first * quads + lane; quad < end && live; quad += ROPE_WG) {
        var value = qkv[at + quad];
        if (is_query) {
            value = value * factor * q_weight[quad];
        } else if (!is_value) {
            value = value * factor * k_weight[quad];
        }
        rope_put(token, before + quad / quads, quad % quads, value);
    }
}
