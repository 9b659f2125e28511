// Draws one token id per row of logits. In this order:
//   temperature   p(id) ~ exp((logit - largest) / temperature); at 0 the largest logit is taken
//   top-k         the k largest, and every logit equal to the k-th
//   top-p         of those, the fewest largest whose mass reaches top_p of theirs, and every logit
//                 equal to the last of them
//   min-p         of those, p >= min_p * largest p
//   draw          the largest (logit - largest) / temperature + Gumbel(seed, position, id); ties, and
//                 equal logits at temperature 0, go to the lowest id
//
// Shapes   logits: [num_rows, vocab_size] f32 as bits; rows: the words of a step, 7 per row:
//            temperature, top_k (0: all), top_p (1: all), min_p (0: all), seed (low, high), position
//          ids: [num_rows]
// Exact    the k-th logit and the last of top_p are found by radix selection on integer keys: by
//          counting, and by mass in fixed point. A token's mass is exp(..) of the largest's in units
//          of 2^-30; sums are 64-bit integers, so independent of order. What the unit and exp()
//          itself leave open is which token top-p ends with where that is decided by less than
//          2^-18 + vocab_size * 2^-30 of the mass.
// Never    a NaN, unless there is nothing else: then id 0. Logits beyond 1e30 weigh as 1e30.
// Dispatch one workgroup per row.
// Parts    lib/order, lib/rng
const SAMPLE_WG: u32 = 256u;
const SAMPLE_ROW: u32 = 7u;
const SAMPLE_UNIT: f32 = 1073741824.0; // 2^30: a token's largest mass

struct Params { rows_at: u32, vocab_size: u32 }

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(1) @binding(0) var<uniform> params: Params;

// A histogram over one digit of the keys: 64-bit sums, low words and high words.
var<workgroup> sample_low: array<atomic<u32>, 256>;
var<workgroup> sample_high: array<atomic<u32>, 256>;
// Sums of 16 bins each.
var<workgroup> sample_sums: array<vec2<u32>, 16>;
var<workgroup> sample_best: array<vec2<u32>, SAMPLE_WG>;
var<workgroup> sample_found: vec3<u32>;

fn sample_add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn sample_sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn sample_less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn sample_mul32(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let mid = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let mid2 = (a & 0xffffu) * (b >> 16u) + (mid & 0xffffu);
    return vec2<u32>((mid2 << 16u) | (low & 0xffffu), (a >> 16u) * (b >> 16u) + (mid >> 16u) + (mid2 >> 16u));
}

// What part `part` / 2^32 of `total` is, rounded down.
fn sample_part(total: vec2<u32>, part: u32) -> vec2<u32> {
    return sample_add64(sample_mul32(total.y, part), vec2<u32>(sample_mul32(total.x, part).y, 0u));
}

// A key's (logit - largest) / temperature: at most 0, finite.
fn sample_scaled(key: u32, largest: f32, inverse: f32) -> f32 {
    return min((sample_finite(key) - largest) * inverse, 0.0);
}

fn sample_finite(key: u32) -> f32 {
    // Clamped as bits: infinities never become floats.
    let bits = order_bits(key);
    let magnitude = min(bits & 0x7fffffffu, 0x7149f2cau); // 1e30
    return bitcast<f32>((bits & 0x80000000u) | magnitude);
}

// The best of all lanes' candidates (score key, id), in every lane: largest key, then lowest id.
fn sample_reduce(candidate: vec2<u32>, lane: u32) -> vec2<u32> {
    sample_best[lane] = candidate;
    workgroupBarrier();
    for (var distance = SAMPLE_WG / 2u; distance > 0u; distance /= 2u) {
        if (lane < distance) {
            let a = sample_best[lane];
            let b = sample_best[lane + distance];
            sample_best[lane] = select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
        }
        workgroupBarrier();
    }
    let best = workgroupUniformLoad(&sample_best[0]);
    return best;
}

fn sample_clear(lane: u32) {
    atomicStore(&sample_low[lane], 0u);
    atomicStore(&sample_high[lane], 0u);
    workgroupBarrier();
}

fn sample_count(bin: u32, amount: u32) {
    let before = atomicAdd(&sample_low[bin], amount);
    if (before + amount < before) { atomicAdd(&sample_high[bin], 1u); }
}

fn sample_bin(bin: u32) -> vec2<u32> {
    return vec2<u32>(atomicLoad(&sample_low[bin]), atomicLoad(&sample_high[bin]));
}

// Sums the bins by sixteens.
fn sample_fold(lane: u32) {
    workgroupBarrier();
    if (lane < 16u) {
        var sum = vec2<u32>(0u);
        for (var i = 0u; i < 16u; i++) { sum = sample_add64(sum, sample_bin(lane * 16u + i)); }
        sample_sums[lane] = sum;
    }
    workgroupBarrier();
}

// The bin, from above, with which the sum reaches `wanted`; and what is wanted of that bin. Where the
// sum never does, bin 0.
fn sample_find(wanted: vec2<u32>, lane: u32) -> vec3<u32> {
    sample_fold(lane);
    if (lane == 0u) {
        var rest = wanted;
        var sixteen = 15u;
        while (sixteen > 0u && sample_less64(sample_sums[sixteen], rest)) {
            rest = sample_sub64(rest, sample_sums[sixteen]);
            sixteen--;
        }
        var bin = sixteen * 16u + 15u;
        while (bin > sixteen * 16u && sample_less64(sample_bin(bin), rest)) {
            rest = sample_sub64(rest, sample_bin(bin));
            bin--;
        }
        sample_found = vec3<u32>(bin, rest);
    }
    let found = workgroupUniformLoad(&sample_found);
    return found;
}

fn sample_total(lane: u32) -> vec2<u32> {
    sample_fold(lane);
    if (lane == 0u) {
        var sum = vec2<u32>(0u);
        for (var i = 0u; i < 16u; i++) { sum = sample_add64(sum, sample_sums[i]); }
        sample_found = vec3<u32>(0u, sum);
    }
    let found = workgroupUniformLoad(&sample_found);
    return found.yz;
}

@compute @workgroup_size(SAMPLE_WG)
fn sample(@builtin(workgroup_id) workgroup: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
    let row = params.rows_at + workgroup.x * SAMPLE_ROW;
    let temperature = bitcast<f32>(rows[row]);
    let top_k = rows[row + 1u];
    let top_p = bitcast<f32>(rows[row + 2u]);
    let min_p = bitcast<f32>(rows[row + 3u]);
    let first = workgroup.x * params.vocab_size;

    // The largest logit; at temperature 0 it is the result.
    var candidate = vec2<u32>(0u, 0xffffffffu);
    for (var id = lane; id < params.vocab_size; id += SAMPLE_WG) {
        let key = order_key(logits[first + id]);
        if (key > candidate.x || candidate.y == 0xffffffffu) { candidate = vec2<u32>(key, id); }
    }
    let best = sample_reduce(candidate, lane);
    let greedy = !(temperature > 0.0);
    let largest = sample_finite(best.x);
    let inverse = 1.0 / max(temperature, 1e-5);

    // Keys below this are out. NaN has key 0.
    var lowest = 1u;
    if (!greedy && top_k > 0u && top_k < params.vocab_size) {
        var wanted = vec2<u32>(top_k, 0u);
        var prefix = 0u;
        for (var shift = 32u; shift > 0u; shift -= 8u) {
            sample_clear(lane);
            for (var id = lane; id < params.vocab_size; id += SAMPLE_WG) {
                let key = order_key(logits[first + id]);
                if (key > 0u && (shift == 32u || key >> (shift & 31u) == prefix)) {
                    sample_count((key >> (shift - 8u)) & 255u, 1u);
                }
            }
            let found = sample_find(wanted, lane);
            prefix = (prefix << 8u) | found.x;
            wanted = found.yz;
        }
        lowest = max(prefix, 1u);
    }
    if (!greedy && top_p < 1.0) {
        let part = u32(clamp(top_p, 0.0, 0.99999994) * 4294967296.0);
        var wanted = vec2<u32>(0u);
        var prefix = 0u;
        for (var shift = 32u; shift > 0u; shift -= 8u) {
            sample_clear(lane);
            for (var id = lane; id < params.vocab_size; id += SAMPLE_WG) {
                let key = order_key(logits[first + id]);
                if (key >= lowest && (shift == 32u || key >> (shift & 31u) == prefix)) {
                    let mass = u32(exp(sample_scaled(key, largest, inverse)) * SAMPLE_UNIT);
                    if (mass > 0u) { sample_count((key >> (shift - 8u)) & 255u, mass); }
                }
            }
            if (shift == 32u) {
                // at least one unit: the largest token is always in
                let share = sample_part(sample_total(lane), part);
                wanted = select(share, vec2<u32>(1u, 0u), share.x == 0u && share.y == 0u);
            }
            let found = sample_find(wanted, lane);
            prefix = (prefix << 8u) | found.x;
            wanted = found.yz;
        }
        lowest = max(prefix, lowest);
    }

    var drawn = vec2<u32>(0u, 0xffffffffu);
    if (!greedy) {
        let stream = rng_stream(rows[row + 4u], rows[row + 5u], rows[row + 6u]);
        for (var id = lane; id < params.vocab_size; id += SAMPLE_WG) {
            let key = order_key(logits[first + id]);
            if (key >= lowest) {
                let scaled = sample_scaled(key, largest, inverse);
                if (key == best.x || exp(scaled) >= min_p) {
                    let score = order_key(bitcast<u32>(scaled + rng_gumbel(rng_bits(stream, id))));
                    if (score > drawn.x) { drawn = vec2<u32>(score, id); }
                }
            }
        }
    }
    let winner = sample_reduce(drawn, lane);
    if (lane == 0u) {
        ids[workgroup.x] = select(winner.y, best.y, greedy || winner.y == 0xffffffffu);
    }
}
