// What becomes of four values of a matmul of queries, keys and values: rotary position embedding, and
// the way of keys and values into their pages. Rows of queries and keys are in pairs that rotate
// together, (i, i + head_dim / 2) side by side; the cache keeps them so.
//   q          [num_tokens, num_heads * head_dim] f32
//   k, v       [page][kv_head][16][head_dim], all pages
//   step_meta  at slots_at a slot (page * 16 + offset) per token; at rope_at (a multiple of 4), per
//              token, head_dim / 2 pairs (cos, sin) of f32 bits
@group(0) @binding(3) var<storage, read> step_meta: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> q: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> k: array<KvQuad>;
@group(0) @binding(6) var<storage, read_write> v: array<KvQuad>;

fn matmul_out(token: u32, unit: u32, value: vec4<f32>, live: bool, index: u32) {
    if (!live) {
        return;
    }
    let row = params.first_row + unit * 4u;
    let head = row / params.head_dim;
    let dim = row % params.head_dim;
    let turned = rope_turn(value, bitcast<vec4<f32>>(step_meta[(params.rope_at + token * params.head_dim + dim) / 4u]));
    if (head < params.num_heads) {
        q[(token * params.num_heads * params.head_dim + row) / 4u] = turned;
        return;
    }
    let slot_at = params.slots_at + token;
    let slot = step_meta[slot_at / 4u][slot_at % 4u];
    let kv_head = (head - params.num_heads) % params.num_kv_heads;
    let to = (((slot / 16u * params.num_kv_heads + kv_head) * 16u + slot % 16u) * params.head_dim + dim) / 4u;
    if (head < params.num_heads + params.num_kv_heads) {
        k[to] = kv_pack4(turned);
    } else {
        v[to] = kv_pack4(value);
    }
}
