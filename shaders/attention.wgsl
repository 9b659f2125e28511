// Causal attention over paged keys and values, any number of query heads to a key head.
//   out[t, h] = sum_j p_j v[j, h / G],  p = softmax over j <= position[t] of q[t, h] . k[j, h / G] * scale
//
// Shapes   q, out: [num_tokens, num_heads, head_dim] f32; k, v: [page][kv_head][16][head_dim];
//          partials: [slot][head][head_dim + 4] f32: unnormalised result, then m, l, 0, 0.
// Items    eight words each in step_meta from items_at on; all pages an item reads are in this slab:
//            0 token0      first row of q and out     4 first_split  split s is keys 256 s ..
//            1 num_tokens  rows, of one sequence      5 num_splits   splits to walk
//            2 position0   position of token0         6 slot0        row of partials of token0
//            3 table_at    page table, in step_meta   7 partial      1: write the state of the one
//                                                                       split; 0: fold, write out
// Order    inside a split, pages ascending: m = max(m, page's), l and o rescaled, then l += sum of
//          the page, o += p v key by key; scores are one vec4 fma per four dims ascending, then
//          (x + y) + (z + w), then the scale. Splits are folded by lib/softmax. A row's bits depend
//          on its position and the cache alone; masked keys, pages and splits are exact no-ops.
// Dispatch x, y: items; z: kv heads times chunks of their query heads. A workgroup has up to 16 rows
//          (token, query head) and takes 64 keys at a time: invocations are keys in the scores,
//          (row, page) in the softmax, (row, four dims) in the sum of values.
// Parts    kv/*, attention/pieces_*, lib/softmax
const ATTENTION_WG: u32 = 64u;
const ATTENTION_ROWS: u32 = 16u;
const ATTENTION_KEYS: u32 = 64u; // four pages

struct Params {
    items_at: u32, num_items: u32, num_heads: u32, num_kv_heads: u32, head_dim: u32,
    chunk_heads: u32, first_page: u32, num_pages: u32, scale_log2e: f32,
}

@group(0) @binding(0) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> step_meta: array<u32>;
@group(0) @binding(2) var<storage, read> k: array<KvQuad>;
@group(0) @binding(3) var<storage, read> v: array<KvQuad>;
@group(0) @binding(4) var<storage, read_write> partials: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> scores: array<f32, 1024>;     // [row][key], then p
var<workgroup> page_max: array<f32, 64>;     // [row][page of the four]
var<workgroup> page_sum: array<f32, 64>;
var<workgroup> page_keep: array<f32, 64>;
var<workgroup> row_head: array<u32, 16>;     // token * num_heads + head
var<workgroup> row_position: array<u32, 16>;
var<workgroup> row_m: array<f32, 16>;        // of the split at hand
var<workgroup> row_l: array<f32, 16>;
var<workgroup> folds: array<SoftmaxFold, 16>;

// Where the keys (and values) of `key`'s page begin for `kv_head`, in units of four dims.
fn attention_page(table_at: u32, key: u32, kv_head: u32) -> u32 {
    let page = min(step_meta[table_at + key / 16u] - params.first_page, params.num_pages - 1u);
    return (page * params.num_kv_heads + kv_head) * 4u * params.head_dim;
}

fn attention_join(dot: vec4<f32>) -> f32 {
    return ((dot.x + dot.y) + (dot.z + dot.w)) * params.scale_log2e;
}

// Scores of all rows for one key. Keys past `last` hold anything, even NaN.
fn attention_scores(lane: u32, key: u32, last: u32, rows: u32, table_at: u32, kv_head: u32) {
    let quads = params.head_dim / 4u;
    let k_at = attention_page(table_at, min(key, last), kv_head) + (key % 16u) * quads;
    for (var row = 0u; row < rows; row += 4u) {
        let q0 = row_head[row] * quads;
        let q1 = row_head[row + 1u] * quads;
        let q2 = row_head[row + 2u] * quads;
        let q3 = row_head[row + 3u] * quads;
        var dot0 = vec4<f32>(0.0);
        var dot1 = vec4<f32>(0.0);
        var dot2 = vec4<f32>(0.0);
        var dot3 = vec4<f32>(0.0);
        for (var d = 0u; d < quads; d++) {
            let key_quad = select(vec4<f32>(0.0), kv_unpack(k[k_at + d]), key <= last);
            dot0 = fma(q[q0 + d], key_quad, dot0);
            dot1 = fma(q[q1 + d], key_quad, dot1);
            dot2 = fma(q[q2 + d], key_quad, dot2);
            dot3 = fma(q[q3 + d], key_quad, dot3);
        }
        let at = row * ATTENTION_KEYS + lane;
        scores[at] = select(SOFTMAX_MASKED, attention_join(dot0), key <= row_position[row]);
        scores[at + 64u] = select(SOFTMAX_MASKED, attention_join(dot1), key <= row_position[row + 1u]);
        scores[at + 128u] = select(SOFTMAX_MASKED, attention_join(dot2), key <= row_position[row + 2u]);
        scores[at + 192u] = select(SOFTMAX_MASKED, attention_join(dot3), key <= row_position[row + 3u]);
    }
}

// Turns a page's scores of one row into p, under the maximum of all pages up to it.
fn attention_weights(lane: u32, first_key: u32) {
    let row = lane / 4u;
    var before = row_m[row];
    for (var page = row * 4u; page < lane; page++) {
        before = max(before, page_max[page]);
    }
    let top = max(before, page_max[lane]);
    var sum = 0.0;
    for (var i = 0u; i < 16u; i++) {
        let p = select(0.0, exp2(scores[lane * 16u + i] - top), first_key + i <= row_position[row]);
        scores[lane * 16u + i] = p;
        sum += p;
    }
    page_sum[lane] = sum;
    page_keep[lane] = softmax_rescale(before, top);
}

@compute @workgroup_size(ATTENTION_WG)
fn attention(@builtin(workgroup_id) workgroup: vec3<u32>,
             @builtin(num_workgroups) workgroups: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
    let item = workgroup.y * workgroups.x + workgroup.x;
    let at = params.items_at + min(item, params.num_items - 1u) * 8u;
    let token0 = step_meta[at];
    let num_tokens = step_meta[at + 1u];
    let position0 = step_meta[at + 2u];
    let table_at = step_meta[at + 3u];
    let first_split = step_meta[at + 4u];
    // Workgroups past the last item walk nothing: barriers follow, so they may not return.
    let num_splits = select(0u, step_meta[at + 5u], item < params.num_items);
    let slot0 = step_meta[at + 6u];
    let partial = step_meta[at + 7u] == 1u;

    let group_heads = params.num_heads / params.num_kv_heads;
    let chunks = (group_heads + params.chunk_heads - 1u) / params.chunk_heads;
    let kv_head = workgroup.z / chunks;
    let first_head = (workgroup.z % chunks) * params.chunk_heads;
    let heads = min(params.chunk_heads, group_heads - first_head);
    let rows = num_tokens * heads;
    let last = position0 + num_tokens - 1u;
    if (lane < ATTENTION_ROWS) {
        let row = min(lane, rows - 1u);
        row_head[lane] = (token0 + row / heads) * params.num_heads + kv_head * group_heads + first_head + row % heads;
        row_position[lane] = position0 + row / heads;
        row_m[lane] = SOFTMAX_MASKED;
        row_l[lane] = 0.0;
        folds[lane] = SoftmaxFold(SOFTMAX_MASKED, 0.0, 1.0, 0.0);
    }
    workgroupBarrier();

    // Lanes side by side have the dims of one row; each holds PIECES rows of its four dims.
    let quads = params.head_dim / 4u;
    let rows_at_once = ATTENTION_WG / quads;
    let quad = lane % quads;
    var piece_row: array<u32, PIECES>;
    var piece_position: array<u32, PIECES>;
    var o: array<vec4<f32>, PIECES>;
    var folded: array<vec4<f32>, PIECES>;
    for (var i = 0u; i < PIECES; i++) {
        piece_row[i] = min(lane / quads + i * rows_at_once, rows - 1u);
        piece_position[i] = row_position[piece_row[i]];
        o[i] = vec4<f32>(0.0);
        folded[i] = vec4<f32>(0.0);
    }

    for (var split = first_split; split < first_split + num_splits; split++) {
        let end = min((split + 1u) * 256u, last + 1u);
        for (var step = split * 256u; step < end; step += ATTENTION_KEYS) {
            attention_scores(lane, step + lane, last, rows, table_at, kv_head);
            workgroupBarrier();
            if (lane < rows * 4u) {
                var top = SOFTMAX_MASKED;
                for (var i = 0u; i < 16u; i++) {
                    top = max(top, scores[lane * 16u + i]);
                }
                page_max[lane] = top;
            }
            workgroupBarrier();
            if (lane < rows * 4u) {
                attention_weights(lane, step + (lane % 4u) * 16u);
            }
            workgroupBarrier();

            if (lane < rows) {
                for (var page = lane * 4u; page < lane * 4u + 4u; page++) {
                    row_l[lane] = fma(row_l[lane], page_keep[page], page_sum[page]);
                    row_m[lane] = max(row_m[lane], page_max[page]);
                }
            }
            for (var page = 0u; page < 4u; page++) {
                let first_key = step + page * 16u;
                if (first_key >= end) {
                    break;
                }
                for (var i = 0u; i < PIECES; i++) {
                    o[i] *= page_keep[piece_row[i] * 4u + page];
                }
                let v_at = attention_page(table_at, first_key, kv_head) + quad;
                for (var slot = 0u; slot < 16u; slot++) {
                    let key = first_key + slot;
                    let value = select(vec4<f32>(0.0), kv_unpack(v[v_at + slot * quads]), key <= last);
                    for (var i = 0u; i < PIECES; i++) {
                        let p = scores[piece_row[i] * ATTENTION_KEYS + page * 16u + slot];
                        o[i] = select(o[i], fma(vec4<f32>(p), value, o[i]), key <= piece_position[i]);
                    }
                }
            }
            workgroupBarrier();
        }

        if (lane < ATTENTION_ROWS && !partial) {
            folds[lane] = softmax_fold(folds[lane].m, folds[lane].l, row_m[lane], row_l[lane]);
            row_m[lane] = SOFTMAX_MASKED;
            row_l[lane] = 0.0;
        }
        workgroupBarrier();
        if (!partial) {
            for (var i = 0u; i < PIECES; i++) {
                let fold = folds[piece_row[i]];
                folded[i] = softmax_fold_values(folded[i], o[i], fold.keep, fold.add);
                o[i] = vec4<f32>(0.0);
            }
        }
    }

    for (var i = 0u; i < PIECES; i++) {
        let row = lane / quads + i * rows_at_once;
        if (lane / quads < rows_at_once && row < rows && num_splits > 0u) {
            let head_row = row_head[row];
            if (partial) {
                let to = (slot0 + row / heads) * params.num_heads + head_row % params.num_heads;
                partials[to * (quads + 1u) + quad] = o[i];
                if (quad == 0u) {
                    partials[to * (quads + 1u) + quads] = vec4<f32>(row_m[row], row_l[row], 0.0, 0.0);
                }
            } else {
                out[head_row * quads + quad] = softmax_normalise(folded[i], folds[row].l);
            }
        }
    }
}
