// Scores of queries against the keys in their sequence's pages, for the attention kernel.
//   scores[t, h, j] = q[t, h] . k[j, h / G] * scale * log2(e)
//
// Shapes   q: [num_tokens, num_heads, head_dim] f32; k: [page][kv_head][16][head_dim]; scores: four
//          keys to a vec4, laid out by the items (lib/attention_items).
// Order    one vec4 fma per four dims ascending, (x + y) + (z + w), then the scale.
// Dispatch x, y: items; z: chunks of query heads times SHARES of the keys. An invocation takes four
//          keys and four rows (token, query head) at a time: no barrier, and few loads. Keys past
//          the last token hold anything, even NaN, and count as 0.
// Parts    kv/*, lib/attention_items
const ATTENTION_SCORES_WG: u32 = 64u;
const ATTENTION_SCORES_SHARES: u32 = 4u;
const ATTENTION_SCORES_TILE: u32 = 4u;

struct Params {
    items_at: u32, num_items: u32, num_heads: u32, num_kv_heads: u32, head_dim: u32,
    chunk_heads: u32, first_page: u32, num_pages: u32, scale_log2e: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> step_meta: array<u32>;
@group(0) @binding(2) var<storage, read> k: array<KvOct>;
@group(0) @binding(3) var<storage, read_write> scores: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

fn attention_key(at: u32, seen: bool) -> mat2x4<f32> {
    let key = kv_unpack(k[at]);
    return mat2x4<f32>(select(vec4<f32>(0.0), key[0], seen), select(vec4<f32>(0.0), key[1], seen));
}

fn attention_scores_join(dot: vec4<f32>) -> f32 {
    return (dot.x + dot.y) + (dot.z + dot.w);
}

@compute @workgroup_size(ATTENTION_SCORES_WG)
fn attention_scores(@builtin(workgroup_id) workgroup: vec3<u32>,
                    @builtin(num_workgroups) workgroups: vec3<u32>,
                    @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.y * workgroups.x + workgroup.x;
    if (index >= params.num_items) {
        return;
    }
    let share = workgroup.z % ATTENTION_SCORES_SHARES;
    let item = attention_item(index, workgroup.z / ATTENTION_SCORES_SHARES);
    let octs = params.head_dim / 8u;

    for (var four = share * ATTENTION_SCORES_WG + lane; four < item.quads; four += ATTENTION_SCORES_SHARES * ATTENTION_SCORES_WG) {
        let page = item.first_split * 16u + four / 4u;
        let key = page * 16u + (four % 4u) * 4u;
        let k_at = attention_page(item, page) + (four % 4u) * 4u * octs;
        for (var row0 = 0u; row0 < item.rows; row0 += ATTENTION_SCORES_TILE) {
            var q_from: array<u32, ATTENTION_SCORES_TILE>;
            var dot0: array<vec4<f32>, ATTENTION_SCORES_TILE>;
            var dot1: array<vec4<f32>, ATTENTION_SCORES_TILE>;
            var dot2: array<vec4<f32>, ATTENTION_SCORES_TILE>;
            var dot3: array<vec4<f32>, ATTENTION_SCORES_TILE>;
            for (var i = 0u; i < ATTENTION_SCORES_TILE; i++) {
                let row = min(row0 + i, item.rows - 1u);
                let head = item.first_head + row % item.heads;
                // from twice a key's eight dims to the query's first four; it may wrap around
                q_from[i] = ((item.token0 + row / item.heads) * params.num_heads + head) * octs * 2u - k_at * 2u;
                dot0[i] = vec4<f32>(0.0);
                dot1[i] = vec4<f32>(0.0);
                dot2[i] = vec4<f32>(0.0);
                dot3[i] = vec4<f32>(0.0);
            }
            // Not from 0 to octs: lavapipe compiles a kernel anew at each dispatch if the bound of
            // a loop hangs on params alone.
            for (var d = k_at; d < k_at + octs; d++) {
                let k0 = attention_key(d, key <= item.last);
                let k1 = attention_key(d + octs, key + 1u <= item.last);
                let k2 = attention_key(d + 2u * octs, key + 2u <= item.last);
                let k3 = attention_key(d + 3u * octs, key + 3u <= item.last);
                for (var i = 0u; i < ATTENTION_SCORES_TILE; i++) {
                    let q0 = q[q_from[i] + 2u * d];
                    let q1 = q[q_from[i] + 2u * d + 1u];
                    dot0[i] = fma(q1, k0[1], fma(q0, k0[0], dot0[i]));
                    dot1[i] = fma(q1, k1[1], fma(q0, k1[0], dot1[i]));
                    dot2[i] = fma(q1, k2[1], fma(q0, k2[0], dot2[i]));
                    dot3[i] = fma(q1, k3[1], fma(q0, k3[0], dot3[i]));
                }
            }
            for (var i = 0u; i < ATTENTION_SCORES_TILE; i++) {
                if (row0 + i < item.rows) {
                    let joined = vec4<f32>(attention_scores_join(dot0[i]), attention_scores_join(dot1[i]),
                                           attention_scores_join(dot2[i]), attention_scores_join(dot3[i]));
                    scores[attention_scores_at(item, row0 + i) + four] = joined * params.scale_log2e;
                }
            }
        }
    }
}
