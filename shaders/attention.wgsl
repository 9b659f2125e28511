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
// Dispatch x, y: items; z: chunks of query heads. An invocation has eight dims of ROWS rows (token,
//          query head) and finds their p itself: that repeats every exp2 for each eight dims, and
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
@group(0) @binding(2) var<storage, read> v: array<KvOct>;
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

// Which of four keys a row may see.
fn attention_visible(key: u32, position: u32) -> vec4<bool> {
    return vec4<u32>(key, key + 1u, key + 2u, key + 3u) <= vec4<u32>(position);
}

fn attention_value(at: u32, seen: bool) -> mat2x4<f32> {
    let value = kv_unpack(v[at]);
    return mat2x4<f32>(select(vec4<f32>(0.0), value[0], seen), select(vec4<f32>(0.0), value[1], seen));
}

fn attention_add(o: mat2x4<f32>, p: f32, value: mat2x4<f32>, seen: bool) -> mat2x4<f32> {
    return mat2x4<f32>(select(o[0], fma(vec4<f32>(p), value[0], o[0]), seen),
                       select(o[1], fma(vec4<f32>(p), value[1], o[1]), seen));
}

@compute @workgroup_size(ATTENTION_WG)
fn attention(@builtin(workgroup_id) workgroup: vec3<u32>,
             @builtin(num_workgroups) workgroups: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
    let index = workgroup.y * workgroups.x + workgroup.x;
    let octs = params.head_dim / 8u;
    let oct = lane % octs;
    let row0 = lane / octs * ROWS;
    if (index >= params.num_items || lane / octs >= ATTENTION_WG / octs) {
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
    var o: array<mat2x4<f32>, ROWS>;
    var folded_m: array<f32, ROWS>;
    var folded_l: array<f32, ROWS>;
    var folded: array<mat2x4<f32>, ROWS>;
    for (var i = 0u; i < ROWS; i++) {
        let row = min(row0 + i, item.rows - 1u);
        position[i] = item.position0 + row / item.heads;
        scores_at[i] = attention_scores_at(item, row) - item.first_split * 64u;
        folded_m[i] = SOFTMAX_MASKED;
        folded_l[i] = 0.0;
        folded[i] = mat2x4<f32>();
    }

    for (var split = item.first_split; split < item.first_split + item.num_splits; split++) {
        for (var i = 0u; i < ROWS; i++) {
            m[i] = SOFTMAX_MASKED;
            l[i] = 0.0;
            o[i] = mat2x4<f32>();
        }
        let end_page = min((split + 1u) * 16u, item.end_page);
        for (var page = split * 16u; page < end_page; page++) {
            var p: array<vec4<f32>, 4u * ROWS>; // 16 keys of each row
            for (var i = 0u; i < ROWS; i++) {
                let at = scores_at[i] + page * 4u;
                let key = page * 16u;
                let own0 = attention_visible(key, position[i]);
                let own1 = attention_visible(key + 4u, position[i]);
                let own2 = attention_visible(key + 8u, position[i]);
                let own3 = attention_visible(key + 12u, position[i]);
                let s0 = select(vec4<f32>(SOFTMAX_MASKED), scores[at], own0);
                let s1 = select(vec4<f32>(SOFTMAX_MASKED), scores[at + 1u], own1);
                let s2 = select(vec4<f32>(SOFTMAX_MASKED), scores[at + 2u], own2);
                let s3 = select(vec4<f32>(SOFTMAX_MASKED), scores[at + 3u], own3);
                let top = max(max(s0, s1), max(s2, s3));
                let new_m = max(max(m[i], max(top.x, top.y)), max(top.z, top.w));
                let keep = softmax_rescale(m[i], new_m);
                let p0 = select(vec4<f32>(0.0), exp2(s0 - new_m), own0);
                let p1 = select(vec4<f32>(0.0), exp2(s1 - new_m), own1);
                let p2 = select(vec4<f32>(0.0), exp2(s2 - new_m), own2);
                let p3 = select(vec4<f32>(0.0), exp2(s3 - new_m), own3);
                let sum = ((p0 + p1) + p2) + p3;
                p[i * 4u] = p0;
                p[i * 4u + 1u] = p1;
                p[i * 4u + 2u] = p2;
                p[i * 4u + 3u] = p3;
                m[i] = new_m;
                l[i] = fma(l[i], keep, (sum.x + sum.y) + (sum.z + sum.w));
                o[i] = mat2x4<f32>(o[i][0] * keep, o[i][1] * keep);
            }
            var v_at = attention_page(item, page) + oct;
            // Counted from page * 4, so that it is not unrolled: lavapipe's code would outgrow the
            // instruction cache.
            for (var four = page * 4u; four < page * 4u + 4u; four++) {
                let seen = attention_visible(four * 4u, item.last);
                let v0 = attention_value(v_at, seen.x);
                let v1 = attention_value(v_at + octs, seen.y);
                let v2 = attention_value(v_at + 2u * octs, seen.z);
                let v3 = attention_value(v_at + 3u * octs, seen.w);
                v_at += 4u * octs;
                for (var i = 0u; i < ROWS; i++) {
                    let own = attention_visible(four * 4u, position[i]);
                    let p4 = p[i * 4u + four % 4u];
                    o[i] = attention_add(o[i], p4.x, v0, own.x);
                    o[i] = attention_add(o[i], p4.y, v1, own.y);
                    o[i] = attention_add(o[i], p4.z, v2, own.z);
                    o[i] = attention_add(o[i], p4.w, v3, own.w);
                }
            }
        }
        for (var i = 0u; i < ROWS; i++) {
            let fold = softmax_fold(folded_m[i], folded_l[i], m[i], l[i]);
            folded_m[i] = fold.m;
            folded_l[i] = fold.l;
            folded[i] = mat2x4<f32>(softmax_fold_values(folded[i][0], o[i][0], fold.keep, fold.add),
                                    softmax_fold_values(folded[i][1], o[i][1], fold.keep, fold.add));
        }
    }

    for (var i = 0u; i < ROWS; i++) {
        let row = row0 + i;
        if (row < item.rows) {
            let token = row / item.heads;
            let head = item.first_head + row % item.heads;
            if (item.slot0 == ATTENTION_FOLD) {
                let to = ((item.token0 + token) * params.num_heads + head) * octs * 2u + oct * 2u;
                out[to] = softmax_normalise(folded[i][0], folded_l[i]);
                out[to + 1u] = softmax_normalise(folded[i][1], folded_l[i]);
            } else {
                // the one split's own state, not folded into the empty one
                let to = ((item.slot0 + token) * params.num_heads + head) * (octs * 2u + 1u);
                partials[to + oct * 2u] = o[i][0];
                partials[to + oct * 2u + 1u] = o[i][1];
                if (oct == 0u) {
                    partials[to + octs * 2u] = vec4<f32>(m[i], l[i], 0.0, 0.0);
                }
            }
        }
    }
}
