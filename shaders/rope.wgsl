// Rotary position embedding by halves, and the way of K and V into their pages.
//   q[t, h, i]       = x[i] * cos - x[i + D/2] * sin      with x = qkv[t, h, ..], i < D/2
//   q[t, h, i + D/2] = x[i + D/2] * cos + x[i] * sin
// K heads likewise, into the token's slot; V heads unchanged, into the same slot of V.
//
// Shapes   qkv: [num_tokens, (num_heads + 2 num_kv_heads) * head_dim] f32: queries, keys, values;
//          q: [num_tokens, num_heads * head_dim] f32; k, v: [page][kv_head][16][head_dim].
//          step_meta: at slots_at a slot (page * 16 + offset) per token; at rope_at, per token,
//          head_dim / 2 pairs (cos, sin) of f32 bits, computed on the host.
// Order    one product rounded, then one fma.
// Dispatch one invocation per token, head and four dims: two, and two half a head away. Tokens
//          whose page is in another slab are skipped; q is written where write_q is 1.
// Parts    kv/*
const ROPE_WG: u32 = 64u;

struct Params {
    num_tokens: u32, num_heads: u32, num_kv_heads: u32, head_dim: u32,
    slots_at: u32, rope_at: u32, first_page: u32, num_pages: u32, write_q: u32,
}

@group(0) @binding(0) var<storage, read> qkv: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> step_meta: array<u32>;
@group(0) @binding(2) var<storage, read_write> q: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> k: array<KvPair>;
@group(0) @binding(4) var<storage, read_write> v: array<KvPair>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(ROPE_WG)
fn rope(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let half_pairs = params.head_dim / 4u; // pairs of dims in half a head
    let all_heads = params.num_heads + 2u * params.num_kv_heads;
    let index = (workgroup.y * workgroups.x + workgroup.x) * ROPE_WG + lane;
    let pair = index % half_pairs;
    let head = index / half_pairs % all_heads;
    let token = index / half_pairs / all_heads;
    if (token >= params.num_tokens) {
        return;
    }

    let source = (token * all_heads + head) * half_pairs * 2u + pair;
    let low = qkv[source];
    let high = qkv[source + half_pairs];
    let angle = params.rope_at + (token * half_pairs + pair) * 4u;
    let cosine = vec2<f32>(bitcast<f32>(step_meta[angle]), bitcast<f32>(step_meta[angle + 2u]));
    let sine = vec2<f32>(bitcast<f32>(step_meta[angle + 1u]), bitcast<f32>(step_meta[angle + 3u]));
    let turned_low = fma(low, cosine, -(high * sine));
    let turned_high = fma(high, cosine, low * sine);

    if (head < params.num_heads) {
        if (params.write_q == 1u) {
            let to = (token * params.num_heads + head) * half_pairs * 2u + pair;
            q[to] = turned_low;
            q[to + half_pairs] = turned_high;
        }
        return;
    }
    let slot = step_meta[params.slots_at + token];
    let page = slot / 16u - params.first_page; // wraps far beyond num_pages below the slab
    if (page >= params.num_pages) {
        return;
    }
    let kv_head = (head - params.num_heads) % params.num_kv_heads;
    let to = ((page * params.num_kv_heads + kv_head) * 16u + slot % 16u) * half_pairs * 2u + pair;
    if (head < params.num_heads + params.num_kv_heads) {
        k[to] = kv_pack(turned_low);
        k[to + half_pairs] = kv_pack(turned_high);
    } else {
        v[to] = kv_pack(low);
        v[to + half_pairs] = kv_pack(high);
    }
}
