// Draws one token id per row of logits. In this order:
//   temperature   p(id) ~ exp((logit - largest) / temperature); at 0 the largest logit is taken
//   top-k         the k largest, and every logit equal to the k-th
//   top-p         of those, the fewest largest whose mass reaches top_p of theirs, and every logit
//                 equal to the last of them
//   min-p         of those, p >= min_p * largest p
//   draw          the largest (logit - largest) / temperature + Gumbel(seed, position, id); ties, and
//                 equal logits at temperature 0, go to the lowest id
// A row may have a list: a token that was drafted, and what it was drawn from. Then, but at temperature
// 0, the draw is another one of the same distribution, which keeps that token as often as can be:
// sample/drafted. A row without a list draws the same beside it, and where no row has one nothing of this is
// in the kernel: sample/drafted_none.
//
// Shapes   logits: [num_rows, vocab_size] f32 as bits; rows: the words of a step, 9 per row:
//            temperature, top_k (0: all), top_p (1: all), min_p (0: all), seed (low, high), position,
//            first entry of its list (as word number), entries (0: no list; 32 at most);
//            entry  id, probability      each id once, the drafted one first
//          ids: [num_rows]
// Exact    the k-th logit and the last of top_p are found by radix selection on integer keys: by
//          counting, and by mass in fixed point. A token's mass is exp(..) of the largest's in units
//          of 2^-30; sums are 64-bit integers, so independent of order. What the unit and exp()
//          itself leave open is which token top-p ends with where that is decided by less than
//          2^-18 + vocab_size * 2^-30 of the mass.
// Short    where a few tokens are sure to hold the result they are listed once, and only the list is
//          looked at from there on. Which tokens are listed changes nothing but the time.
// Never    a NaN, unless there is nothing else: then id 0. Logits beyond 1e30 weigh as 1e30.
// Dispatch one workgroup per row.
// Parts    lib/order, lib/rng; sample/drafted or sample/drafted_none
const SAMPLE_WG: u32 = 256u;
const SAMPLE_ROW: u32 = 9u;
const SAMPLE_UNIT: f32 = 1073741824.0; // 2^30: the largest token's mass
const SAMPLE_LIST: u32 = 1024u;
// A list holds the tokens not below the n-th of the lanes' largest: at least n, and for tokens in any
// order about -256 ln(1 - n / 256). Up to this n they are few; without top-k, half of it is tried.
const SAMPLE_RANK: u32 = 192u;

struct Params { rows_at: u32, vocab_size: u32 }

@group(0) @binding(0) var<storage, read> logits: array<u32>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(1) @binding(0) var<uniform> params: Params;

// Each lane's best (key, id), and the best of each sixteen lanes.
var<workgroup> sample_best: array<vec2<u32>, SAMPLE_WG>;
var<workgroup> sample_best16: array<vec2<u32>, 16>;
// 64-bit sums, low words and high words: one per digit, or one per lane; and of each sixteen.
var<workgroup> sample_low: array<atomic<u32>, SAMPLE_WG>;
var<workgroup> sample_high: array<atomic<u32>, SAMPLE_WG>;
var<workgroup> sample_sums: array<vec2<u32>, 16>;
// Listed tokens (key, id), in no order, and how many there are.
var<workgroup> sample_list: array<vec2<u32>, SAMPLE_LIST>;
var<workgroup> sample_listed: atomic<u32>;
// What one lane has to tell all.
var<workgroup> sample_found: vec3<u32>;

// Tokens to look at: a whole row, or the list.
struct SampleTokens { first: u32, num: u32, listed: u32 }
struct SampleScale { largest: f32, inverse: f32 }
// Keys below `lowest` are out, and whose mass is below `min_p`, but for the best (key, id).
struct SampleKept { lowest: u32, best: vec2<u32>, min_p: f32, scale: SampleScale }
// A lane's best (score, id), and the id that is written where no lane has one.
struct SampleDrawn { token: vec2<u32>, otherwise: u32 }

fn sample_token(tokens: SampleTokens, i: u32) -> vec2<u32> {
    if (tokens.listed == 1u) { return sample_list[i]; }
    return vec2<u32>(order_key(logits[tokens.first + i]), i);
}

fn sample_finite(key: u32) -> f32 {
    // Clamped as bits: infinities never become floats.
    let bits = order_bits(key);
    let magnitude = min(bits & 0x7fffffffu, 0x7149f2cau); // 1e30
    return bitcast<f32>((bits & 0x80000000u) | magnitude);
}

// (logit - largest) / temperature: at most 0, finite.
fn sample_scaled(key: u32, scale: SampleScale) -> f32 {
    return min((sample_finite(key) - scale.largest) * scale.inverse, 0.0);
}

fn sample_mass(key: u32, scale: SampleScale) -> u32 {
    return u32(exp(sample_scaled(key, scale)) * SAMPLE_UNIT);
}

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

// The share `top_p` of a mass, rounded down, but not to nothing: the largest token is always in.
fn sample_share(total: vec2<u32>, top_p: f32) -> vec2<u32> {
    let part = u32(clamp(top_p, 0.0, 0.99999994) * 4294967296.0);
    let share = sample_add64(sample_mul32(total.y, part), vec2<u32>(sample_mul32(total.x, part).y, 0u));
    return select(share, vec2<u32>(1u, 0u), share.x == 0u && share.y == 0u);
}

fn sample_better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

// The best of all lanes' candidates (key, id): largest key, then lowest id. Keeps them in sample_best.
fn sample_reduce(candidate: vec2<u32>, lane: u32) -> vec2<u32> {
    sample_best[lane] = candidate;
    workgroupBarrier();
    if (lane < 16u) {
        var best = sample_best[lane * 16u];
        for (var i = 1u; i < 16u; i++) { best = sample_better(best, sample_best[lane * 16u + i]); }
        sample_best16[lane] = best;
    }
    workgroupBarrier();
    if (lane == 0u) {
        var best = sample_best16[0];
        for (var i = 1u; i < 16u; i++) { best = sample_better(best, sample_best16[i]); }
        sample_found = vec3<u32>(best, 0u);
    }
    let found = workgroupUniformLoad(&sample_found);
    return found.xy;
}

// Sums by sixteens what sample_low and sample_high hold.
fn sample_fold(lane: u32) {
    workgroupBarrier();
    if (lane < 16u) {
        var sum = vec2<u32>(0u);
        for (var i = lane * 16u; i < lane * 16u + 16u; i++) {
            sum = sample_add64(sum, vec2<u32>(atomicLoad(&sample_low[i]), atomicLoad(&sample_high[i])));
        }
        sample_sums[lane] = sum;
    }
    workgroupBarrier();
}

// What all lanes' 64-bit sums come to.
fn sample_joined(sum: vec2<u32>, lane: u32) -> vec2<u32> {
    atomicStore(&sample_low[lane], sum.x);
    atomicStore(&sample_high[lane], sum.y);
    sample_fold(lane);
    if (lane == 0u) {
        var total = vec2<u32>(0u);
        for (var i = 0u; i < 16u; i++) { total = sample_add64(total, sample_sums[i]); }
        sample_found = vec3<u32>(total, 0u);
    }
    let found = workgroupUniformLoad(&sample_found);
    return found.xy;
}

// The mass of all tokens that are not below `lowest`.
fn sample_total(tokens: SampleTokens, lowest: u32, scale: SampleScale, lane: u32) -> vec2<u32> {
    var sum = vec2<u32>(0u);
    for (var i = lane; i < tokens.num; i += SAMPLE_WG) {
        let key = sample_token(tokens, i).x;
        if (key >= lowest) { sum = sample_add64(sum, vec2<u32>(sample_mass(key, scale), 0u)); }
    }
    return sample_joined(sum, lane);
}

// The digit, from above, with which the sums reach `wanted`, and what is wanted of that digit. Where
// they never do, digit 0.
fn sample_digit(wanted: vec2<u32>, lane: u32) -> vec3<u32> {
    sample_fold(lane);
    if (lane == 0u) {
        var rest = wanted;
        var sixteen = 15u;
        while (sixteen > 0u && sample_less64(sample_sums[sixteen], rest)) {
            rest = sample_sub64(rest, sample_sums[sixteen]);
            sixteen--;
        }
        var digit = sixteen * 16u + 15u;
        while (digit > sixteen * 16u) {
            let sum = vec2<u32>(atomicLoad(&sample_low[digit]), atomicLoad(&sample_high[digit]));
            if (!sample_less64(sum, rest)) { break; }
            rest = sample_sub64(rest, sum);
            digit--;
        }
        sample_found = vec3<u32>(digit, rest);
    }
    let found = workgroupUniformLoad(&sample_found);
    return found;
}

// The largest key so that the tokens not below it are `wanted` by count, or by mass; not under
// `lowest`. Radix selection, from the highest digit of 8 bits.
fn sample_select(tokens: SampleTokens, lowest: u32, wanted: vec2<u32>, by_mass: bool, scale: SampleScale, lane: u32) -> u32 {
    var rest = wanted;
    var prefix = 0u;
    for (var shift = 32u; shift > 0u; shift -= 8u) {
        atomicStore(&sample_low[lane], 0u);
        atomicStore(&sample_high[lane], 0u);
        workgroupBarrier();
        for (var i = lane; i < tokens.num; i += SAMPLE_WG) {
            let key = sample_token(tokens, i).x;
            if (key >= lowest && (shift == 32u || (key >> (shift & 31u)) == prefix)) {
                var amount = 1u;
                if (by_mass) { amount = sample_mass(key, scale); }
                if (amount > 0u) {
                    let digit = (key >> (shift - 8u)) & 255u;
                    let before = atomicAdd(&sample_low[digit], amount);
                    if (before + amount < before) { atomicAdd(&sample_high[digit], 1u); }
                }
            }
        }
        let found = sample_digit(rest, lane);
        prefix = (prefix << 8u) | found.x;
        rest = found.yz;
    }
    return max(prefix, lowest);
}

// The `rank`-th largest of the lanes' keys in sample_best, 1 at least.
fn sample_bound(rank: u32, lane: u32) -> u32 {
    let key = sample_best[lane].x;
    var larger = 0u;
    for (var i = 0u; i < SAMPLE_WG; i++) {
        let other = sample_best[i].x;
        larger += select(0u, 1u, other > key || (other == key && i < lane));
    }
    if (larger == rank - 1u) { sample_found = vec3<u32>(max(key, 1u), 0u, 0u); }
    let found = workgroupUniformLoad(&sample_found);
    return found.x;
}

// Lists the tokens whose key is not below `bound`; how many there are, listed or not.
fn sample_shortlist(tokens: SampleTokens, bound: u32, lane: u32) -> u32 {
    if (lane == 0u) { atomicStore(&sample_listed, 0u); }
    workgroupBarrier();
    for (var i = lane; i < tokens.num; i += SAMPLE_WG) {
        let token = sample_token(tokens, i);
        if (token.x >= bound) {
            let at = atomicAdd(&sample_listed, 1u);
            if (at < SAMPLE_LIST) { sample_list[at] = token; }
        }
    }
    workgroupBarrier();
    if (lane == 0u) { sample_found = vec3<u32>(atomicLoad(&sample_listed), 0u, 0u); }
    let found = workgroupUniformLoad(&sample_found);
    return found.x;
}

// The best (score, id) that this lane sees.
fn sample_draw(row: u32, tokens: SampleTokens, kept: SampleKept, lane: u32) -> vec2<u32> {
    var drawn = vec2<u32>(0u, 0xffffffffu);
    let stream = rng_stream(rows[row + 4u], rows[row + 5u], rows[row + 6u]);
    for (var i = lane; i < tokens.num; i += SAMPLE_WG) {
        let token = sample_token(tokens, i);
        if (token.x >= kept.lowest) {
            let scaled = sample_scaled(token.x, kept.scale);
            if (token.x == kept.best.x || exp(scaled) >= kept.min_p) {
                let score = order_key(bitcast<u32>(scaled + rng_gumbel(rng_bits(stream, token.y))));
                drawn = sample_better(drawn, vec2<u32>(score, token.y));
            }
        }
    }
    return drawn;
}

@compute @workgroup_size(SAMPLE_WG)
fn sample(@builtin(workgroup_id) workgroup: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
    let row = params.rows_at + workgroup.x * SAMPLE_ROW;
    let temperature = bitcast<f32>(rows[row]);
    let top_k = rows[row + 1u];
    let top_p = bitcast<f32>(rows[row + 2u]);
    let min_p = bitcast<f32>(rows[row + 3u]);
    let greedy = !(temperature > 0.0);
    let by_count = !greedy && top_k > 0u && top_k < params.vocab_size;
    let by_mass = !greedy && top_p < 1.0;

    // The largest logit; at temperature 0 it is the result. NaN has key 0.
    var tokens = SampleTokens(workgroup.x * params.vocab_size, params.vocab_size, 0u);
    var candidate = vec2<u32>(0u, 0xffffffffu);
    for (var i = lane; i < tokens.num; i += SAMPLE_WG) {
        candidate = sample_better(candidate, sample_token(tokens, i));
    }
    let best = sample_reduce(candidate, lane);
    let scale = SampleScale(sample_finite(best.x), 1.0 / max(temperature, 1e-5));

    // Keys below `lowest` are out.
    var lowest = 1u;
    var wanted = vec2<u32>(0u);
    if (by_mass && !by_count) {
        wanted = sample_share(sample_total(tokens, lowest, scale, lane), top_p);
    }
    if ((by_count && top_k <= SAMPLE_RANK) || (by_mass && !by_count)) {
        let bound = sample_bound(select(SAMPLE_RANK / 2u, top_k, by_count), lane);
        let num = sample_shortlist(tokens, bound, lane);
        if (num <= SAMPLE_LIST) {
            let list = SampleTokens(0u, num, 1u);
            if (by_count) {
                tokens = list;
            } else if (!sample_less64(sample_total(list, lowest, scale, lane), wanted)) {
                tokens = list;
            }
        }
    }
    if (by_count) {
        lowest = sample_select(tokens, lowest, vec2<u32>(top_k, 0u), false, scale, lane);
        if (by_mass) {
            wanted = sample_share(sample_total(tokens, lowest, scale, lane), top_p);
        }
    }
    if (by_mass) {
        lowest = sample_select(tokens, lowest, wanted, true, scale, lane);
    }

    var drawn = SampleDrawn(vec2<u32>(0u, 0xffffffffu), best.y);
    if (!greedy) {
        let kept = SampleKept(lowest, best, min_p, scale);
        drawn = drafted_row(row, workgroup.x * params.vocab_size, tokens, kept, lane);
    }
    let winner = sample_reduce(drawn.token, lane);
    if (lane == 0u) {
        ids[workgroup.x] = select(winner.y, drawn.otherwise, greedy || winner.y == 0xffffffffu);
    }
}
