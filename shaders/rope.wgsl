// Rotary position embedding, and the way of K and V into their pages, where matmul/out_qkv cannot do
// it on its way: where a layer's pages are in several slabs, or queries and keys are normalised first.
//   n[t, h]          = what rope/norm_* makes of qkv[t, h], for heads of queries and keys
//   q[t, h, 2 i ..]  = rope_turn(n[t, h, 2 i ..])      dims (2 i, 2 i + 1) are rotated together
// K heads likewise, into the token's slot; V heads unchanged, into the same slot of V.
//
// Shapes   qkv: [num_tokens, (num_heads + 2 num_kv_heads) * head_dim] f32: queries, keys, values;
//          q: [num_tokens, num_heads * head_dim] f32; k, v: [page][kv_head][16][head_dim].
//          step_meta: at slots_at a slot (page * 16 + offset) per token; at rope_at (a multiple of 4), per
//          token, head_dim / 2 pairs (cos, sin) of f32 bits, computed on the host.
// Order    that of the norm's sums is told in rope/norm_*; then one product rounded and one fma (lib/rope).
// Dispatch a folded grid; which dims of which head an invocation has is told in rope/norm_*. Tokens
//          whose page is in another slab are skipped; q is written where write_q is 1.
// Parts    rope/norm_*, kv/*, lib/rope; lib/team_shared, act/record and lib/row_64 as the norm needs
const ROPE_WG: u32 = 64u;
const ROPE_ELSEWHERE: u32 = 0xffffffffu;

struct Params {
    num_tokens: u32, num_heads: u32, num_kv_heads: u32, head_dim: u32,
    slots_at: u32, rope_at: u32, first_page: u32, num_pages: u32, write_q: u32, eps: f32,
}

@group(0) @binding(0) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> step_meta: array<vec4<u32>>;
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

// Four dims of a head, rotated.
fn rope_turned(token: u32, quad: u32, value: vec4<f32>) -> vec4<f32> {
    return rope_turn(value, bitcast<vec4<f32>>(step_meta[(params.rope_at + token * params.head_dim) / 4u + quad]));
}

// The row of the slab's pages that a token's head of keys or of values has: 16 for each of a page's heads.
// ROPE_ELSEWHERE where the page is in another slab.
fn rope_row(token: u32, kv_head: u32) -> u32 {
    let slot_at = params.slots_at + token;
    let slot = step_meta[slot_at / 4u][slot_at % 4u];
    let page = slot / 16u - params.first_page; // wraps far beyond num_pages below the slab
    return select(ROPE_ELSEWHERE, (page * params.num_kv_heads + kv_head) * 16u + slot % 16u, page < params.num_pages);
}
