// Causal attention over paged values, from the scores that attention_scores left.
//   out[t, h] = sum_j p_j v[j, h / G],  p = softmax over j <= position[t] of scores[t, h, j]
//
// Shapes   scores: laid out by the items (lib/attention_items); v: [page][kv_head][16][head_dim];
//          out: [num_tokens, num_heads, head_dim] f32; partials: [slot][head][head_dim + 4] f32, an
//          unnormalised result and then m, l, 0, 0.
// Order    inside a split, pages ascending: m = max(m, page's), l and o rescaled, then o += p v key
//          by key; the page's sum of p is (x + y) + (z + w) of four sums over every fourth key.
//          Splits are folded by lib/softmax. A row's bits depend on its position and the cache alone;
//          masked keys, pages and splits are exact no-ops.
// Dispatch x, y: items; z: chunks of query heads. An invocation has four dims of ROWS rows (token,
//          query head) and finds their p itself: that repeats every exp2 for each four dims, and
//          saves all barriers.
// Parts    kv/*, attention/rows_*, lib/softmax, lib/attention_items
const ATTENTION_WG: u32 = 64u;
const ATTENTION_FOLD: u32 = 0xFFFFFFFFu;

struct Params {
    items_at: u32, num_items: u32, num_heads: u32, num_kv_heads: u32, head_dim: u32,
    chunk_heads: u32, first_page: u32, num_pages: u32, scale_log2e: f32,
}

@group(0) @binding(0) var<storage, read> step_meta: array<u32>;
@group(0) @binding(1) var<storage, read> scores: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> v: array<KvQuad>;
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

// Which of four keys a row may see.
fn attention_visible(key: u32, position: u32) -> vec4<bool> {
    return vec4<u32>(key, key + 1u, key + 2u, key + 3u) <= vec4<u32>(position);
}

fn attention_value(at: u32, seen: bool) -> vec4<f32> {
    return select(vec4<f32>(0.0), kv_unpack(v[at]), seen);
}

@compute @workgroup_size(ATTENTION_WG)
fn attention(@builtin(workgroup_id) workgroup: vec3<u32>,
             @builtin(num_workgroups) workgroups: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.y * workgroups.x + workgroup.x;
    let dims = params.head_dim / 4u;
    let quad = lane % dims;
    let row0 = lane / dims * ROWS;
    if (index >= params.num_items || lane / dims >= ATTENTION_WG / dims) {
        return;
    }
    let item = attention_item(index, workgroup.z);
    if (row0 >= item.rows) {
        return;
    }

    var position: array<u32, ROWS>;
    var scores_at: array<u32, ROWS>; // minus the first page's
    var m: array<f32, ROWS>;
    var l: array<f32, ROWS>;
    var o: array<vec4<f32>, ROWS>;
    var folded_m: array<f32, ROWS>;
    var folded_l: array<f32, ROWS>;
    var folded: array<vec4<f32>, ROWS>;
    for (var i = 0u; i < ROWS; i++) {
        let row = min(row0 + i, item.rows - 1u);
        position[i] = item.position0 + row / item.heads;
        scores_at[i] = attention_scores_at(item, row) - item.first_split * 64u;
        folded_m[i] = SOFTMAX_MASKED;
        folded_l[i] = 0.0;
        folded[i] = vec4<f32>(0.0);
    }

    for (var split = item.first_split; split < item.first_split + item.num_splits; split++) {
        for (var i = 0u; i < ROWS; i++) {
            m[i] = SOFTMAX_MASKED;
            l[i] = 0.0;
            o[i] = vec4<f32>(0.0);
        }
        let end_page = min((split + 1u) * 16u, item.end_page);
        for (var page = split * 16u; page < end_page; page++) {
            var keep: array<f32, ROWS>;
            var sum: array<vec4<f32>, ROWS>;
            for (var i = 0u; i < ROWS; i++) {
                var top = vec4<f32>(m[i]);
                for (var four = page * 4u; four < page * 4u + 4u; four++) {
                    let seen = attention_visible(four * 4u, position[i]);
                    top = max(top, select(vec4<f32>(SOFTMAX_MASKED), scores[scores_at[i] + four], seen));
                }
                let new_m = max(max(top.x, top.y), max(top.z, top.w));
                keep[i] = softmax_rescale(m[i], new_m);
                m[i] = new_m;
                o[i] *= keep[i];
                sum[i] = vec4<f32>(0.0);
            }
            var v_at = attention_page(item, page) + quad;
            for (var four = page * 4u; four < page * 4u + 4u; four++) {
                let seen = attention_visible(four * 4u, item.last);
                let v0 = attention_value(v_at, seen.x);
                let v1 = attention_value(v_at + dims, seen.y);
                let v2 = attention_value(v_at + 2u * dims, seen.z);
                let v3 = attention_value(v_at + 3u * dims, seen.w);
                v_at += 4u * dims;
                for (var i = 0u; i < ROWS; i++) {
                    let own = attention_visible(four * 4u, position[i]);
                    let p = select(vec4<f32>(0.0), exp2(scores[scores_at[i] + four] - m[i]), own);
                    sum[i] += p;
                    o[i] = select(o[i], fma(vec4<f32>(p.x), v0, o[i]), own.x);
                    o[i] = select(o[i], fma(vec4<f32>(p.y), v1, o[i]), own.y);
                    o[i] = select(o[i], fma(vec4<f32>(p.z), v2, o[i]), own.z);
                    o[i] = select(o[i], fma(vec4<f32>(p.w), v3, o[i]), own.w);
                }
            }
            for (var i = 0u; i < ROWS; i++) {
                l[i] = fma(l[i], keep[i], (sum[i].x + sum[i].y) + (sum[i].z + sum[i].w));
            }
        }
        for (var i = 0u; i < ROWS; i++) {
            let fold = softmax_fold(folded_m[i], folded_l[i], m[i], l[i]);
            folded_m[i] = fold.m;
            folded_l[i] = fold.l;
            folded[i] = softmax_fold_values(folded[i], o[i], fold.keep, fold.add);
        }
    }

    for (var i = 0u; i < ROWS; i++) {
        let row = row0 + i;
        if (row < item.rows) {
            let token = row / item.heads;
            let head = item.first_head + row % item.heads;
            if (item.slot0 == ATTENTION_FOLD) {
                let to = (item.token0 + token) * params.num_heads + head;
                out[to * dims + quad] = softmax_normalise(folded[i], folded_l[i]);
            } else {
                // the one split's own state, not folded into the empty one
                let to = ((item.slot0 + token) * params.num_heads + head) * (dims + 1u);
                partials[to + quad] = o[i];
                if (quad == 0u) {
                    partials[to + dims] = vec4<f32>(m[i], l[i], 0.0, 0.0);
                }
            }
        }
    }
}
