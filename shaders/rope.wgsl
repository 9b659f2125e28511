// Rotary position embedding, and the way of K and V into their pages, where matmul/out_qkv cannot do
// it on its way: where a layer's pages are in several slabs, or queries and keys are normalised first.
//   n[t, h]          = what rope/norm_* makes of qkv[t, h], for heads of queries and keys
//   q[t, h, 2 i ..]  = rope_turn(n[t, h, 2 i ..])      dims (2 i, 2 i + 1) are rotated together
// K heads likewise, into the token's slot; V heads unchanged, into the same slot of V.
//
// Shapes   qkv: [num_tokens, (num_heads + 2 num_kv_heads) * head_dim] f32: queries, keys, values;
//          q: [num_tokens, num_heads * head_dim] f32; k, v: [page][kv_head][16][head_dim].
//          step_meta: at slots_at a slot (page * 16 + offset) per token; at rope_at, per token,
//          head_dim / 2 pairs (cos, sin) of f32 bits, computed on the host.
// Order    that of the norm's sums is told in rope/norm_*; then one product rounded and one fma (lib/rope).
// Dispatch a folded grid; which dims of which head an invocation has is told in rope/norm_*. Tokens
//          whose page is in another slab are skipped; q is written where write_q is 1.
// Parts    rope/norm_*, kv/*, lib/rope; lib/team_shared, act/record and lib/row_64 as the norm needs
const ROPE_WG: u32 = 64u;

struct Params {
    num_tokens: u32, num_heads: u32, num_kv_heads: u32, head_dim: u32,
    slots_at: u32, rope_at: u32, first_page: u32, num_pages: u32, write_q: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> step_meta: array<u32>;
@group(0) @binding(2) var<storage, read_write> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> k: array<KvQuad>;
@group(0) @binding(4) var<storage, read_write> v: array<KvQuad>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(ROPE_WG)
fn rope(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    rope_walk(workgroup.y * workgroups.x + workgroup.x, lane);
}

// What becomes of four dims of a head, counting queries, keys and values, after the norm.
fn rope_put(token: u32, head: u32, quad: u32, value: vec4<f32>) {
    let quads = params.head_dim / 4u;
    let angle = params.rope_at + token * params.head_dim + quad * 4u;
    let angles = vec4<u32>(step_meta[angle], step_meta[angle + 1u], step_meta[angle + 2u], step_meta[angle + 3u]);
    let turned = rope_turn(value, bitcast<vec4<f32>>(angles));

    if (head < params.num_heads) {
        if (params.write_q == 1u) {
            q[(token * params.num_heads + head) * quads + quad] = turned;
        }
        return;
    }
    let slot = step_meta[params.slots_at + token];
    let page = slot / 16u - params.first_page; // wraps far beyond num_pages below the slab
    if (page >= params.num_pages) {
        return;
    }
    let kv_head = (head - params.num_heads) % params.num_kv_heads;
    let to = ((page * params.num_kv_heads + kv_head) * 16u + slot % 16u) * quads + quad;
    if (head < params.num_heads + params.num_kv_heads) {
        k[to] = kv_pack4(turned);
    } else {
        v[to] = kv_pack4(value);
    }
}
