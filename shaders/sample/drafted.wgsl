// The draw of a row of `sample` for which a token may have been drafted: x, drawn on the host from the listed
// choices with their probabilities q (Leviathan et al., "Fast Inference from Transformers via
// Speculative Decoding", 2023). With p(t) = mass(t) / total over the tokens that were kept:
//   accept  x, where it is kept and u q(x) < p(x); u in (0, 1) from a stream of (seed, position) of its
//           own, neither that of the Gumbel noise nor that with which x was drawn
//   else    from max(p - q, 0), renormalised: the largest log(p - q) + Gumbel(seed, position, id); never x
// So ids are distributed as p, whatever q is. Both sides are multiplied by the total, and a token that is
// not listed scores as in a row without a list.
//
// Exact    masses are added in units of 2^-40 of the largest, as 64-bit integers, so independent of
//          order. What the unit leaves open is vocab_size * 2^-41 of the total, below 2e-7 for 262,144
//          tokens; f32 and exp() leave 2^-23 (4 + 6 |scaled|) of each p(t), so 5e-7 at most. Accepting and
//          drawing go by the same values: ids are distributed as these p(t), with no error of its own but
//          that of u, 2^-24.
// Nothing  left by rounding: p = q within it. Then x stands, or the largest logit where x is not kept.
const DRAFTED_STREAM: u32 = 0x61636365u;
const DRAFTED_NOTHING: f32 = 1e-37; // masses and rests up to here are none

// Entries (id, q) in the words of a step.
struct DraftedChoices { first: u32, num: u32 }

// A token's mass, the largest being 1; 0 where it is not kept.
fn drafted_mass(key: u32, kept: SampleKept) -> f32 {
    let mass = exp(sample_scaled(key, kept.scale));
    return select(0.0, mass, key >= kept.lowest && (key == kept.best.x || mass >= kept.min_p));
}

// The same for an id, of a row that begins at `first`.
fn drafted_mass_of(id: u32, first: u32, kept: SampleKept) -> f32 {
    if (id >= params.vocab_size) { return 0.0; }
    let mass = drafted_mass(order_key(logits[first + id]), kept);
    return select(0.0, mass, mass > DRAFTED_NOTHING);
}

// A mass in units of 2^-40, to the nearest: two exact steps of 2^20.
fn drafted_units(mass: f32) -> vec2<u32> {
    let coarse = mass * 1048576.0;
    let high = u32(coarse);
    let low = u32((coarse - f32(high)) * 1048576.0 + 0.5);
    return sample_add64(vec2<u32>(high << 20u, high >> 12u), vec2<u32>(low, 0u));
}

// The mass of all tokens that were kept.
fn drafted_total(tokens: SampleTokens, kept: SampleKept, lane: u32) -> f32 {
    var sum = vec2<u32>(0u);
    for (var i = lane; i < tokens.num; i += SAMPLE_WG) {
        sum = sample_add64(sum, drafted_units(drafted_mass(sample_token(tokens, i).x, kept)));
    }
    let total = sample_joined(sum, lane);
    return (f32(total.y) * 4294967296.0 + f32(total.x)) * 9.094947017729282e-13; // 2^-40
}

// Whether x stays, whose mass that is.
fn drafted_accepts(row: u32, choices: DraftedChoices, mass: f32, total: f32) -> bool {
    let stream = rng_stream_for(rows[row + 4u], rows[row + 5u], rows[row + 6u], DRAFTED_STREAM);
    // below 1, so that p(x) >= q(x) is always enough
    let luck = min((f32(rng_bits(stream, 0u)) + 0.5) * 2.3283064365386963e-10, 0.99999994);
    let share = bitcast<f32>(rows[choices.first + 1u]) * total;
    return luck * share < mass;
}

// The probability with which the list has `id`; 0 where it has not.
fn drafted_share(id: u32, choices: DraftedChoices) -> f32 {
    let end = choices.first + 2u * choices.num;
    for (var at = choices.first; at < end; at += 2u) {
        if (rows[at] == id) { return bitcast<f32>(rows[at + 1u]); }
    }
    return 0.0;
}

// The best (score, id) that this lane sees of what q leaves of p.
fn drafted_draw(row: u32, choices: DraftedChoices, tokens: SampleTokens, kept: SampleKept, total: f32, lane: u32) -> vec2<u32> {
    // A bit for each listed id, of its 13 lowest bits: few others are looked up. The sums are done with.
    atomicStore(&sample_low[lane], 0u);
    workgroupBarrier();
    if (lane < choices.num) {
        let id = rows[choices.first + 2u * lane];
        atomicOr(&sample_low[(id >> 5u) & 255u], 1u << (id & 31u));
    }
    workgroupBarrier();
    let stream = rng_stream(rows[row + 4u], rows[row + 5u], rows[row + 6u]);
    let drafted = rows[choices.first];
    var drawn = vec2<u32>(0u, 0xffffffffu);
    for (var i = lane; i < tokens.num; i += SAMPLE_WG) {
        let token = sample_token(tokens, i);
        let mass = drafted_mass(token.x, kept);
        var share = 0.0;
        let listed = atomicLoad(&sample_low[(token.y >> 5u) & 255u]) >> (token.y & 31u);
        if ((listed & 1u) == 1u) {
            share = drafted_share(token.y, choices);
        }
        let rest = mass - share * total;
        if (rest > DRAFTED_NOTHING && token.y != drafted) {
            let logarithm = select(sample_scaled(token.x, kept.scale), log(rest), share > 0.0);
            let score = order_key(bitcast<u32>(logarithm + rng_gumbel(rng_bits(stream, token.y))));
            drawn = sample_better(drawn, vec2<u32>(score, token.y));
        }
    }
    return drawn;
}

// The draw of a row whose logits begin at `first`.
fn drafted_row(row: u32, first: u32, tokens: SampleTokens, kept: SampleKept, lane: u32) -> SampleDrawn {
    var drawn = SampleDrawn(vec2<u32>(0u, 0xffffffffu), kept.best.y);
    let choices = DraftedChoices(rows[row + 7u], rows[row + 8u]);
    if (choices.num == 0u) {
        drawn.token = sample_draw(row, tokens, kept, lane);
    } else {
        let total = drafted_total(tokens, kept, lane);
        let drafted = rows[choices.first];
        let mass = drafted_mass_of(drafted, first, kept);
        if (mass > 0.0) { drawn.otherwise = drafted; }
        if (!drafted_accepts(row, choices, mass, total)) {
            drawn.token = drafted_draw(row, choices, tokens, kept, total, lane);
        }
    }
    return drawn;
}
