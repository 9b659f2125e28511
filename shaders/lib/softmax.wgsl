// Online softmax in the domain of exp2: a state is (m, l, o), the largest score, the sum of
// exp2(score - m), and the same sum weighted by values. States of neighbouring splits are folded in
// ascending order by softmax_fold, always from the empty state, and by nothing else: so it does not
// matter where a fold happens.
const SOFTMAX_MASKED: f32 = -1e30; // finite: WGSL may assume that infinities do not occur

// What sums under the maximum `old` are worth under `top`. Exactly 1 where nothing changed.
fn softmax_rescale(old: f32, top: f32) -> f32 {
    return select(exp2(old - top), 1.0, old == top);
}

// The folded maximum and sum, and the factors of the two sides' values.
struct SoftmaxFold { m: f32, l: f32, keep: f32, add: f32 }

fn softmax_fold(m: f32, l: f32, split_m: f32, split_l: f32) -> SoftmaxFold {
    let top = max(m, split_m);
    let keep = softmax_rescale(m, top);
    let add = select(0.0, softmax_rescale(split_m, top), split_l > 0.0);
    return SoftmaxFold(top, fma(split_l, add, l * keep), keep, add);
}

// A split that adds nothing leaves every bit as it is, the sign of a zero too.
fn softmax_fold_values(values: vec4<f32>, split: vec4<f32>, keep: f32, add: f32) -> vec4<f32> {
    return select(fma(split, vec4<f32>(add), values * keep), values, add == 0.0);
}

// A zero comes out positive: which sign an underflow left may hang on keys that were masked.
fn softmax_normalise(values: vec4<f32>, l: f32) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(values / l);
    return bitcast<vec4<f32>>(select(bits, vec4<u32>(0u), bits == vec4<u32>(0x80000000u)));
}
