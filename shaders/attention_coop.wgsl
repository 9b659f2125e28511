// Causal attention over paged keys and values by cooperative matrices, f16 times f16 with f32 sums: the
// attention of many tokens in the fast mode, which leaves the contract that attention keeps.
//   out[t, h] = sum_j p_j f16(v[j, h / G]) / sum_j p_j,   p_j = f16(2^15 * exp2(s_j - the largest s)),
//   s_j = scale * log2(e) * sum_d f16(q[t, h, d]) * f16(k[j, h / G, d]), or cap * tanh(that / cap), for
//   position[t] - window < j <= position[t]
//
// Shapes   as for attention; partials: [slot][head][head_dim + 4] f32, m being 15 less than the largest s.
// Order    chunks of COOP_KEYS keys ascending, in each the sums as the hardware adds; o and l are rescaled
//          in f32 where a chunk has a new maximum. Queries are rounded after a power of two that brings a
//          row's largest to 2^10 .. 2^11; keys and values of an f32 cache are, saturating at 65504; the
//          p that are summed are the rounded ones. A p below 2^-29 of the largest is as good as none.
// Dispatch a workgroup for each tile of ROW_FOURS * 4 rows (lib/attention_items), folded over x and y; four
//          invocations a row. Keys and values come into workgroup memory in slices of 32 dims. Subgroups
//          take the matrices of a product in turn. o stays with its row's invocations, eight dims of each
//          slice; it goes through workgroup memory to have p v added, since elements of a matrix cannot be
//          touched.
// Parts    kv/*, attention/coop_8 or coop_16, attention/coop_dims_*, attention/score_*, attention/out_* with
//          act/f32 and act/f32_store, lib/softmax, lib/attention_items
const ATTENTION_FOLD: u32 = 0xFFFFFFFFu;
const ATTENTION_ROWS: u32 = ROW_FOURS * 4u;
const ATTENTION_ABOVE: f32 = 15.0; // the largest p is 2^15
const WG: u32 = ATTENTION_ROWS * 4u;
const COOP_SLICE: u32 = 32u;
// From a row to the next: multiples of 16 bytes, and rows begin in different banks.
const COOP_Q: u32 = COOP_DIMS + 8u;
const COOP_KV: u32 = COOP_SLICE + 8u;
const COOP_P: u32 = COOP_KEYS + 8u;
const COOP_SUMS: u32 = COOP_KEYS + 4u; // at least COOP_SLICE
override HEAD_DIM: u32 = 64u;

struct Params {
    items_at: u32, num_items: u32, num_heads: u32, num_kv_heads: u32, tiles: u32,
    first_page: u32, num_pages: u32, scale_log2e: f32,
    window: u32, cap_log2e: f32, cap_rate: f32,
}

@group(0) @binding(1) var<storage, read> step_meta: array<u32>;
@group(0) @binding(2) var<storage, read_write> partials: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> k: array<KvOct>;
@group(0) @binding(5) var<storage, read> v: array<KvOct>;
@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> attention_q: array<f16, ATTENTION_ROWS * COOP_Q>;      // [row][dim], all dims
var<workgroup> attention_kv: array<f16, COOP_KEYS * COOP_KV>;         // [key][dim of the slice]
var<workgroup> attention_p: array<f16, ATTENTION_ROWS * COOP_P>;      // [row][key]
var<workgroup> attention_sums: array<f32, ATTENTION_ROWS * COOP_SUMS>; // [row][key], or [row][dim of the slice]
var<workgroup> attention_quarters: array<f32, WG>;                    // a number of each invocation

// What the four invocations of a row said, `said` being the own word.
fn attention_four(said: f32, index: u32) -> vec4<f32> {
    workgroupBarrier(); // what was there may still be read
    attention_quarters[index] = said;
    workgroupBarrier();
    let first = index / 4u * 4u;
    return vec4<f32>(attention_quarters[first], attention_quarters[first + 1u],
                     attention_quarters[first + 2u], attention_quarters[first + 3u]);
}

fn attention_top(four: vec4<f32>) -> f32 {
    return max(max(four.x, four.y), max(four.z, four.w));
}

// Four sums, on their way to the matrices and back.
fn attention_lay_four(at: u32, value: vec4<f32>) {
    attention_sums[at] = value.x;
    attention_sums[at + 1u] = value.y;
    attention_sums[at + 2u] = value.z;
    attention_sums[at + 3u] = value.w;
}

fn attention_take_four(at: u32) -> vec4<f32> {
    return vec4<f32>(attention_sums[at], attention_sums[at + 1u], attention_sums[at + 2u], attention_sums[at + 3u]);
}

// What eight neighbours hold, as attention/out_* asks for it: through the memory of sums.
fn team_all(value: vec4<f32>, slot: u32, speaks: bool) -> array<vec4<f32>, 8> {
    workgroupBarrier(); // what was there may still be read
    if (speaks) { attention_lay_four(slot * 4u, value); }
    workgroupBarrier();
    let at = slot / 8u * 32u;
    return array<vec4<f32>, 8>(attention_take_four(at), attention_take_four(at + 4u),
                               attention_take_four(at + 8u), attention_take_four(at + 12u),
                               attention_take_four(at + 16u), attention_take_four(at + 20u),
                               attention_take_four(at + 24u), attention_take_four(at + 28u));
}

fn attention_half(value: vec4<f32>) -> vec4<f16> {
    return vec4<f16>(clamp(value, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
}

// Four invocations bring a row's queries, eight dims at a time, zeros past the last. What a product of
// theirs has to be multiplied by to be a score: with the scale what the power of two is undone by.
fn attention_queries(tile: AttentionTile, row: u32, quarter: u32, index: u32) -> f32 {
    let group = params.num_heads / params.num_kv_heads;
    let own = min(tile.row0 + row, max(tile.rows, 1u) - 1u); // rows past the last repeat it
    let head = (tile.token0 + own / group) * params.num_heads + tile.kv_head * group + own % group;
    let at = head * (HEAD_DIM / 4u);
    var peaks = vec4<f32>(0.0);
    for (var oct = quarter; oct < HEAD_DIM / 8u; oct += 4u) {
        peaks = max(peaks, max(abs(q[at + oct * 2u]), abs(q[at + oct * 2u + 1u])));
    }
    let peak = attention_top(attention_four(attention_top(peaks), index));
    // Of a largest value in 2^a .. 2^(a + 1) the biased exponent, kept where both powers of two are
    // normal numbers.
    let exponent = clamp(bitcast<u32>(peak) >> 23u, 11u, 254u);
    let scale = bitcast<f32>((264u - exponent) << 23u);
    for (var oct = quarter; oct < COOP_DIMS / 8u; oct += 4u) {
        let there = oct < HEAD_DIM / 8u;
        let from_oct = at + min(oct, HEAD_DIM / 8u - 1u) * 2u;
        let low = attention_half(select(vec4<f32>(0.0), q[from_oct] * scale, there));
        let high = attention_half(select(vec4<f32>(0.0), q[from_oct + 1u] * scale, there));
        let to = row * COOP_Q + oct * 8u;
        attention_q[to] = low.x;
        attention_q[to + 1u] = low.y;
        attention_q[to + 2u] = low.z;
        attention_q[to + 3u] = low.w;
        attention_q[to + 4u] = high.x;
        attention_q[to + 5u] = high.y;
        attention_q[to + 6u] = high.z;
        attention_q[to + 7u] = high.w;
    }
    return bitcast<f32>((exponent - 10u) << 23u) * params.scale_log2e;
}

// Where oct `oct` of key `key` is: of the tile's last page and the head's last oct where that is nowhere.
fn attention_place(tile: AttentionTile, key: u32, oct: u32) -> u32 {
    let page = min(key / 16u, tile.first_page + max(tile.num_pages, 1u) - 1u);
    return attention_page(tile, page) + key % 16u * (HEAD_DIM / 8u) + min(oct, HEAD_DIM / 8u - 1u);
}

// Brings eight dims of a key or a value; zeros instead of what nobody may see, since it may be NaN.
fn attention_bring(item: u32, packed: KvOct, seen: bool) {
    let value = kv_unpack(kv_seen(packed, seen));
    let low = attention_half(value[0]);
    let high = attention_half(value[1]);
    let to = item / 4u * COOP_KV + item % 4u * 8u;
    attention_kv[to] = low.x;
    attention_kv[to + 1u] = low.y;
    attention_kv[to + 2u] = low.z;
    attention_kv[to + 3u] = low.w;
    attention_kv[to + 4u] = high.x;
    attention_kv[to + 5u] = high.y;
    attention_kv[to + 6u] = high.z;
    attention_kv[to + 7u] = high.w;
}

// Whether some row of the tile sees it: the difference wraps around for keys after the last token.
fn attention_seen(tile: AttentionTile, key: u32, oct: u32) -> bool {
    return tile.last - key < tile.span && oct < HEAD_DIM / 8u;
}

fn attention_keys(tile: AttentionTile, first_key: u32, slice: u32, index: u32) {
    for (var item = index; item < COOP_KEYS * 4u; item += WG) {
        let key = first_key + item / 4u;
        let oct = slice * 4u + item % 4u;
        attention_bring(item, k[attention_place(tile, key, oct)], attention_seen(tile, key, oct));
    }
}

fn attention_values(tile: AttentionTile, first_key: u32, slice: u32, index: u32) {
    for (var item = index; item < COOP_KEYS * 4u; item += WG) {
        let key = first_key + item / 4u;
        let oct = slice * 4u + item % 4u;
        attention_bring(item, v[attention_place(tile, key, oct)], attention_seen(tile, key, oct));
    }
}

// Adds a slice's products of queries and keys to the sums.
fn attention_add_scores(slice: u32, subgroup: u32, subgroups: u32) {
    let across = COOP_KEYS / COOP_SIZE;
    for (var matrix = subgroup; matrix < ATTENTION_ROWS / COOP_SIZE * across; matrix += subgroups) {
        let row = matrix / across * COOP_SIZE;
        let key = matrix % across * COOP_SIZE;
        var sum = coopLoadT<CoopSum>(&attention_sums[row * COOP_SUMS + key], COOP_SUMS);
        for (var dim = 0u; dim < COOP_SLICE; dim += COOP_SIZE) {
            let left = coopLoadT<CoopLeft>(&attention_q[row * COOP_Q + slice * COOP_SLICE + dim], COOP_Q);
            let right = coopLoad<CoopRight>(&attention_kv[key * COOP_KV + dim], COOP_KV);
            sum = coopMultiplyAdd(left, right, sum);
        }
        coopStoreT(sum, &attention_sums[row * COOP_SUMS + key], COOP_SUMS);
    }
}

// Adds a chunk's p v to a slice of o.
fn attention_add_values(subgroup: u32, subgroups: u32) {
    let across = COOP_SLICE / COOP_SIZE;
    for (var matrix = subgroup; matrix < ATTENTION_ROWS / COOP_SIZE * across; matrix += subgroups) {
        let row = matrix / across * COOP_SIZE;
        let dim = matrix % across * COOP_SIZE;
        var sum = coopLoadT<CoopSum>(&attention_sums[row * COOP_SUMS + dim], COOP_SUMS);
        for (var key = 0u; key < COOP_KEYS; key += COOP_SIZE) {
            let left = coopLoadT<CoopLeft>(&attention_p[row * COOP_P + key], COOP_P);
            let right = coopLoadT<CoopRight>(&attention_kv[key * COOP_KV + dim], COOP_KV);
            sum = coopMultiplyAdd(left, right, sum);
        }
        coopStoreT(sum, &attention_sums[row * COOP_SUMS + dim], COOP_SUMS);
    }
}

// Eight dims of o.
fn attention_lay(at: u32, value: mat2x4<f32>) {
    attention_lay_four(at, value[0]);
    attention_lay_four(at + 4u, value[1]);
}

fn attention_take(at: u32) -> mat2x4<f32> {
    return mat2x4<f32>(attention_take_four(at), attention_take_four(at + 4u));
}

// The keys of a chunk that a row sees.
struct AttentionSeen { first: u32, count: u32 }

// Whether `key` of the chunk is one of them: before the first the difference wraps around.
fn attention_sees(seen: AttentionSeen, key: u32) -> bool {
    return key - seen.first < seen.count;
}

// The largest score of the own quarter of a row's keys, each fourth; keys that it may not see have none.
fn attention_own_top(row: u32, quarter: u32, factor: f32, seen: AttentionSeen) -> f32 {
    var top = SOFTMAX_MASKED;
    for (var key = quarter; key < COOP_KEYS; key += 4u) {
        let score = attention_score_one(attention_sums[row * COOP_SUMS + key] * factor);
        top = max(top, select(SOFTMAX_MASKED, score, attention_sees(seen, key)));
    }
    return top;
}

// Leaves the p of those keys for the matrices. Their sum.
fn attention_weigh(row: u32, quarter: u32, factor: f32, seen: AttentionSeen, m: f32) -> f32 {
    var sum = 0.0;
    for (var key = quarter; key < COOP_KEYS; key += 4u) {
        let weight = exp2(attention_score_one(attention_sums[row * COOP_SUMS + key] * factor) - m);
        // A compiler may take f32(f16(x)) for x, and this not: what is summed is what is multiplied.
        let p = quantizeToF16(select(0.0, weight, attention_sees(seen, key)));
        attention_p[row * COOP_P + key] = f16(p);
        sum += p;
    }
    return sum;
}

// Stores eight dims of a row: the result, or the split's own state.
fn attention_store(tile: AttentionTile, row: u32, oct: u32, index: u32, value: mat2x4<f32>, m: f32, l: f32) {
    let group = params.num_heads / params.num_kv_heads;
    let token = (tile.row0 + row) / group;
    let head = tile.kv_head * group + (tile.row0 + row) % group;
    let own = tile.row0 + row < tile.rows && oct < HEAD_DIM / 8u;
    let whole = tile.slot0 == ATTENTION_FOLD;
    let result = mat2x4<f32>(softmax_normalise(value[0], l), softmax_normalise(value[1], l));
    attention_out(tile.token0 + token, head, oct, result, index, own && whole);
    if (own && !whole) {
        let to = ((tile.slot0 + token) * params.num_heads + head) * (HEAD_DIM / 4u + 1u);
        partials[to + oct * 2u] = value[0];
        partials[to + oct * 2u + 1u] = value[1];
        if (oct == 0u) {
            partials[to + HEAD_DIM / 4u] = vec4<f32>(m, l, 0.0, 0.0);
        }
    }
}

@compute @workgroup_size(WG)
fn attention_coop(@builtin(workgroup_id) workgroup: vec3<u32>,
                  @builtin(num_workgroups) workgroups: vec3<u32>,
                  @builtin(subgroup_id) subgroup: u32,
                  @builtin(num_subgroups) subgroups: u32,
                  @builtin(local_invocation_index) index: u32) {
    let tile = attention_tile(workgroup.y * workgroups.x + workgroup.x);
    let slices = (HEAD_DIM + COOP_SLICE - 1u) / COOP_SLICE;
    let row = index / 4u;
    let quarter = index % 4u;
    let own = row * COOP_SUMS + quarter * 8u; // of a slice of o
    let group = params.num_heads / params.num_kv_heads;
    let position = tile.position0 + min(tile.row0 + row, max(tile.rows, 1u) - 1u) / group;
    let factor = attention_queries(tile, row, quarter, index);

    var m = SOFTMAX_MASKED;
    var l = 0.0; // of the own quarter
    var o: array<mat2x4<f32>, COOP_DIMS / COOP_SLICE>;
    for (var walked = 0u; walked < tile.num_pages; walked += COOP_KEYS / 16u) {
        let first_key = (tile.first_page + walked) * 16u;
        // places in the chunk, where it has so many; no more than none of them where it begins after the row
        let unseen = max(attention_first(position), first_key) - first_key;
        let seen = AttentionSeen(unseen, max(position + 1u, first_key) - first_key - unseen);
        for (var slice = 0u; slice < slices; slice++) {
            workgroupBarrier(); // what was there may still be read
            attention_keys(tile, first_key, slice, index);
            if (slice == 0u) {
                for (var i = index; i < ATTENTION_ROWS * COOP_SUMS; i += WG) { attention_sums[i] = 0.0; }
            }
            workgroupBarrier();
            attention_add_scores(slice, subgroup, subgroups);
        }
        workgroupBarrier(); // the scores are there
        let top = attention_top(attention_four(attention_own_top(row, quarter, factor, seen), index));
        let raised = max(m, top - ATTENTION_ABOVE);
        let keep = softmax_rescale(m, raised);
        l = fma(l, keep, attention_weigh(row, quarter, factor, seen, raised));
        m = raised;
        workgroupBarrier(); // the scores may be replaced
        for (var slice = 0u; slice < slices; slice++) {
            attention_values(tile, first_key, slice, index);
            attention_lay(own, o[slice] * keep);
            workgroupBarrier();
            attention_add_values(subgroup, subgroups);
            workgroupBarrier();
            o[slice] = attention_take(own);
        }
    }
    let all = attention_four(l, index);
    let whole_l = (all.x + all.y) + (all.z + all.w);
    for (var slice = 0u; slice < slices; slice++) {
        attention_store(tile, row, slice * 4u + quarter, index, o[slice], m, whole_l);
    }
}
