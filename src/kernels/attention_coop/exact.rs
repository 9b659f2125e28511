//! What attention by cooperative matrices must come to, and how far a device may be off: bounds for
//! operands of f16 and sums of f32.

use crate::kernels::attention_reference::{self, Scores};
use crate::kernels::case::{U, dot_bound};
use crate::kernels::matmul;
use crate::kv::KvFormat;
use std::f64::consts::LOG2_E;

/// The largest f16.
const MAX: f32 = 65504.0;

/// The fewest keys that a part takes at a time.
const LEAST_KEYS: usize = 32;

/// The CPU twin for one row, as [`attention::reference`](crate::kernels::attention::reference) in f64 and of
/// operands that are not rounded, though saturated at 65504 as the device has them; and how far each
/// element of the device's result may be off.
///
/// A value rounded to f16 is off by 2^-10 of itself, either neighbour being allowed, or by 2^-24 where
/// it is subnormal: `k` and `v` of an f32 cache; `q` after its row's largest became at least 2^10. The
/// weights `w_j`, the largest being 1, are multiplied by 2^15 before, and then become 0 where they would
/// be subnormal, less than 2^-14. With `d_j` the absolute error of score j in nats, and of exp2, weight j
/// is off by
///
/// ```text
/// e_j = w_j (exp(d_j) (1 + 2^-10) - 1) + min(2^-29, w_j)
/// ```
///
/// The sum that a result is divided by is that of the same rounded weights, `w'_j`. So
///
/// ```text
/// out' - out = (sum (w'_j - w_j) (v_j - out) + sum w'_j (v'_j - v_j)) / sum w'_j
/// ```
///
/// and on top comes what the two sums of so many keys round.
pub fn reference(
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    scores: Scores,
    format: KvFormat,
) -> (Vec<f64>, Vec<f64>) {
    let row = Row::new(q, keys, values, scores, format);
    let weights = row.weights(0.0);
    let sum: f64 = weights.iter().map(|w| w.0).sum();
    let least_sum = sum - weights.iter().map(|w| w.1).sum::<f64>();
    let dims = 0..q.len();
    let dims = dims.map(|d| {
        let out = row.sum(&weights, d) / sum;
        let (off, size) = row.off(&weights, d, out);
        let rounding = row.rounding() * (size / sum + out.abs());
        (out, off / least_sum + rounding + 1e-30)
    });
    dims.unzip()
}

/// The CPU twin of a partial result, as `attention`'s: m is 15 less than the largest score, and sums are of
/// weights times 2^15. Where a device finds the largest score off by `t` nats, every weight is by a factor
/// of `exp(t)` more. There may be no keys.
pub(super) fn partial(
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    scores: Scores,
    format: KvFormat,
) -> Vec<(f64, f64)> {
    if keys.is_empty() {
        return attention_reference::empty_partial(q.len());
    }
    let row = Row::new(q, keys, values, scores, format);
    let top_off = row.scores.iter().fold(0.0f64, |most, s| most.max(s.1));
    let weights = row.weights(top_off);
    let above = 2f64.powi(15);
    let dims = (0..q.len()).map(|d| {
        let (off, size) = row.off(&weights, d, 0.0);
        let bound = above * (off + row.rounding() * size) + 1e-30;
        (above * row.sum(&weights, d), bound)
    });
    let sum: f64 = weights.iter().map(|w| w.0).sum();
    let off = weights.iter().map(|w| w.1).sum::<f64>() + row.rounding() * sum;
    let top = row.top * LOG2_E - 15.0;
    let top = (top, top_off * LOG2_E + 4.0 * U * (top.abs() + 15.0));
    let rest = [top, (above * sum, above * off), (0.0, 0.0), (0.0, 0.0)];
    dims.chain(rest).collect()
}

/// What is exact about a row.
struct Row {
    /// The largest score, in nats.
    top: f64,
    /// Scores in nats, each with how far it may be off.
    scores: Vec<(f64, f64)>,
    values: Vec<f32>,
    /// What rounding a value costs, as a share of it, and at least.
    kv_step: f64,
    kv_least: f64,
    dim: usize,
}

/// The step of f16, either neighbour being allowed.
const STEP: f64 = 1.0 / 1024.0;

impl Row {
    fn new(q: &[f32], keys: &[f32], values: &[f32], scores: Scores, format: KvFormat) -> Row {
        let dim = q.len();
        let saturated = |x: &[f32]| -> Vec<f32> { x.iter().map(|v| v.clamp(-MAX, MAX)).collect() };
        let (keys, values) = (saturated(keys), saturated(values));
        let (kv_step, kv_least) = match format {
            KvFormat::F16 => (0.0, 0.0),
            KvFormat::F32 => (STEP, 2f64.powi(-24)),
        };
        let abs_sum = |x: &[f32]| x.iter().map(|v| f64::from(v.abs())).sum::<f64>();
        let q_peak = q.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
        let q_sum = abs_sum(q);
        let dots: Vec<(f64, f64)> = matmul::reference(&keys, q, dim);
        let score = |((dot, abs), key): (&(f64, f64), &[f32])| {
            let rounded = abs * ((1.0 + STEP) * (1.0 + kv_step) - 1.0)
                + 2f64.powi(-34) * q_peak * abs_sum(key)
                + kv_least * q_sum;
            scores.of(*dot, dot_bound(dim + 2, *abs) + rounded)
        };
        let scores: Vec<(f64, f64)> = dots.iter().zip(keys.chunks(dim)).map(score).collect();
        Row {
            top: scores.iter().map(|s| s.0).fold(f64::MIN, f64::max),
            scores,
            values,
            kv_step,
            kv_least,
            dim,
        }
    }

    fn rescalings(&self) -> f64 {
        attention_reference::rescalings(self.scores.len(), LEAST_KEYS)
    }

    /// Weights, the largest being 1, with how far each may be off where all scores are by `shift` more.
    fn weights(&self, shift: f64) -> Vec<(f64, f64)> {
        let weight = |&(score, off): &(f64, f64)| {
            let below = (self.top - score) * LOG2_E;
            // exp2 is good to 3 + 2 |x| ulp, once for the weight and once for each rescaling
            let exp2 = 2.0 * U * (3.0 * (1.0 + self.rescalings()) + 5.0 * (below + 15.0));
            let weight = (-below).exp2();
            let least = weight.min(2f64.powi(-29));
            let off = weight * ((off + shift + exp2).exp() * (1.0 + STEP) - 1.0) + least;
            (weight, off)
        };
        self.scores.iter().map(weight).collect()
    }

    /// The sum of weights times values of a dim.
    fn sum(&self, weights: &[(f64, f64)], d: usize) -> f64 {
        let values = self.values.chunks(self.dim);
        let products = weights.iter().zip(values);
        products.map(|(w, value)| w.0 * f64::from(value[d])).sum()
    }

    /// How far the same sum of `value - around` may be off, and the sum of its magnitudes without `around`.
    fn off(&self, weights: &[(f64, f64)], d: usize, around: f64) -> (f64, f64) {
        let (mut off, mut size) = (0.0, 0.0);
        for (&(weight, weight_off), value) in weights.iter().zip(self.values.chunks(self.dim)) {
            let v = f64::from(value[d]);
            off += weight_off * (v - around).abs();
            off += (weight + weight_off) * (v.abs() * self.kv_step + self.kv_least);
            size += weight * v.abs();
        }
        (off, size)
    }

    /// What sums over so many keys round, as a share of their magnitudes.
    fn rounding(&self) -> f64 {
        2.0 * (self.scores.len() as f64 + 2.0 * self.rescalings() + 8.0) * U
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::numbers::Data;

    fn half(v: f32) -> f32 {
        half::f16::from_f32(v.clamp(-MAX, MAX)).to_f32()
    }

    /// A split as the shader walks it, in f32, with sums in one of the orders that a device may have.
    fn walked(q: &[f32], keys: &[f32], values: &[f32], scores: Scores) -> Vec<f32> {
        let dim = q.len();
        let peak = q.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let exponent = (peak.to_bits() >> 23).clamp(11, 254);
        let up = f32::from_bits((264 - exponent) << 23);
        let factor = f32::from_bits((exponent - 10) << 23) * (scores.scale * LOG2_E) as f32;
        let q: Vec<f32> = q.iter().map(|v| half(v * up)).collect();
        let (mut m, mut l, mut o) = (-1e30f32, 0.0f32, vec![0.0f32; dim]);
        let chunks = keys.chunks(LEAST_KEYS * dim);
        for (keys, values) in chunks.zip(values.chunks(LEAST_KEYS * dim)) {
            let score = |key: &[f32]| {
                let products = key.iter().zip(&q).map(|(k, q)| half(*k) * q);
                let score = products.sum::<f32>() * factor;
                let Some(cap) = scores.cap else { return score };
                let t = (-score.abs() * (2.0 / cap) as f32).exp2();
                ((cap * LOG2_E) as f32 * ((1.0 - t) / (1.0 + t))).copysign(score)
            };
            let scores: Vec<f32> = keys.chunks(dim).map(score).collect();
            let raised = scores.iter().fold(m, |top, s| top.max(s - 15.0));
            let keep = if m == raised {
                1.0
            } else {
                (m - raised).exp2()
            };
            l *= keep;
            o.iter_mut().for_each(|o| *o *= keep);
            for (score, value) in scores.iter().zip(values.chunks(dim)) {
                let p = half((score - raised).exp2());
                l += p;
                o.iter_mut()
                    .zip(value)
                    .for_each(|(o, v)| *o += p * half(*v));
            }
            m = raised;
        }
        o.extend([m, l, 0.0, 0.0]);
        o
    }

    /// No adapter that tests may count on runs this kernel, and none shows its partial results to a case.
    #[test]
    fn a_split_in_f16_is_within_the_bounds_of_a_partial_result() {
        for (seed, keys) in [1, 31, 33, 200, 256].into_iter().enumerate() {
            for (format, scale, cap) in [
                (KvFormat::F16, 0.125, None),
                (KvFormat::F32, 0.125, None),
                (KvFormat::F16, 1.5, None),
                (KvFormat::F16, 0.125, Some(2.0)),
                (KvFormat::F32, 1.5, Some(50.0)),
            ] {
                let scores = Scores { scale, cap };
                let mut data = Data::new(seed as u64);
                let q = data.normal(64);
                let mut cached = || -> Vec<f32> {
                    let all = data.normal(keys * 64).into_iter();
                    match format {
                        KvFormat::F16 => all.map(half).collect(),
                        KvFormat::F32 => all.collect(),
                    }
                };
                let (keys, values) = (cached(), cached());
                let exact = partial(&q, &keys, &values, scores, format);
                let found = walked(&q, &keys, &values, scores);
                assert_eq!(exact.len(), found.len());
                for (i, (&(exact, bound), found)) in exact.iter().zip(found).enumerate() {
                    let off = (exact - f64::from(found)).abs();
                    assert!(off <= bound, "{i}: {found:e}, {exact:e} +- {bound:e}");
                }
                let (sum, bound) = exact[65];
                assert!(scale > 1.0 || bound < 0.05 * sum, "{sum:e} +- {bound:e}");
            }
        }
    }
}
