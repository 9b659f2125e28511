//! What `attention` computes of a row, in f64, with bounds: the result, and a partial result. Of keys it is
//! given those that the row sees.

use super::case::{U, dot_bound};
use crate::kv::{PAGE_SIZE, SPLIT_SIZE};
use std::f64::consts::{LN_2, LOG2_E};

/// What scores are, of products of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Factor of the products.
    pub scale: f64,
    /// A score `s` becomes `cap * tanh(s / cap)`, in nats.
    pub cap: Option<f64>,
}

impl Scores {
    /// The score of a product, in nats, and how far it may be off where the product is by `product_off`.
    ///
    /// tanh is no steeper than 1, so that a cap makes nothing of that larger; and there is the error of the
    /// shader's `(1 - t) / (1 + t)` with `t = exp2(-x)`. exp2 is good to `3 + 2 x` ulp, its argument to two
    /// roundings; the difference, the sum, a division to 2.5 ulp, two factors of the cap and its own rounding
    /// are less than 10.
    pub(super) fn of(&self, product: f64, product_off: f64) -> (f64, f64) {
        let score = product * self.scale;
        let off = self.scale.abs() * product_off;
        let Some(cap) = self.cap else {
            return (score, off);
        };
        let tanh = (score / cap).tanh();
        let x = 2.0 * LOG2_E * (score / cap).abs();
        let t = (-x).exp2();
        let t_off = t * (2.0 * U * (3.0 + 2.0 * x) + 4.0 * U * LN_2 * x);
        let tanh_off = 2.0 * t_off / (1.0 + t).powi(2) + 10.0 * U * tanh.abs();
        (cap * tanh, off + cap * tanh_off)
    }
}

/// The CPU twin for one row: `q` (`[head_dim]`) against `keys` and `values` (`[num_keys, head_dim]`
/// as the device sees them), in f64. The result and how far each of its elements may be off.
///
/// With `d_j` the absolute error of score j in nats, the weight of j is off by a factor of about
/// `1 + d_j + e_j`, where `e_j` is exp2's own error and that of the later rescalings; the result is
/// then off by at most `2 max|v| sum_j w_j (d_j + e_j)`, plus what the sums round.
pub fn reference(q: &[f32], keys: &[f32], values: &[f32], scores: Scores) -> (Vec<f64>, f64) {
    let state = State::of(q, keys, values, scores);
    let bound = 2.0 * state.max_value * (state.off / state.sum + state.rounding) + 1e-30;
    let out = state.out.iter().map(|out| out / state.sum);
    (out.collect(), bound)
}

/// The CPU twin of a partial result: unnormalised dims, then the largest score in the domain of exp2, the
/// sum of weights, 0 and 0, each with its bound. A device that finds the largest score off by `t` nats has
/// all weights off by a factor of about `1 + t` more. There may be no keys.
pub(super) fn partial(q: &[f32], keys: &[f32], values: &[f32], scores: Scores) -> Vec<(f64, f64)> {
    if keys.is_empty() {
        return empty_partial(q.len());
    }
    let state = State::of(q, keys, values, scores);
    let off = 2.0 * (state.off + (state.rounding + state.top_off) * state.sum);
    let top = state.top * LOG2_E;
    let top_bound = state.top_off * LOG2_E + 2.0 * U * top.abs();
    let dims = state
        .out
        .iter()
        .map(|&out| (out, off * state.max_value + 1e-30));
    dims.chain([(top, top_bound), (state.sum, off), (0.0, 0.0), (0.0, 0.0)])
        .collect()
}

/// The partial result of a row that sees none of a split's keys.
pub(super) fn empty_partial(dim: usize) -> Vec<(f64, f64)> {
    let mut all = vec![(0.0, 0.0); dim + 4];
    all[dim].0 = f64::from(-1e30f32);
    all
}

/// How often sums of `keys` neighbours are rescaled at most, that are taken `step` at a time, from multiples
/// of `step` on, and split by split.
pub(super) fn rescalings(keys: usize, step: usize) -> f64 {
    (keys.div_ceil(step) + keys.div_ceil(SPLIT_SIZE) + 2) as f64
}

/// What is exact about a row: its largest score and how far that may be off, both in nats, and of weights
/// that are at most 1 the sum, the sum times values, and how far they may be off together.
struct State {
    top: f64,
    top_off: f64,
    sum: f64,
    off: f64,
    max_value: f64,
    /// What sums round, as a share of them.
    rounding: f64,
    out: Vec<f64>,
}

impl State {
    fn of(q: &[f32], keys: &[f32], values: &[f32], scores: Scores) -> State {
        let dim = q.len();
        let score = |(dot, abs)| scores.of(dot, dot_bound(dim + 2, abs));
        let products = super::matmul::reference(keys, q, dim).into_iter();
        let scores: Vec<(f64, f64)> = products.map(score).collect();
        let top = scores.iter().map(|s| s.0).fold(f64::MIN, f64::max);
        let rescalings = rescalings(scores.len(), PAGE_SIZE);
        let (mut sum, mut off, mut max_value, mut top_off) = (0.0, 0.0, 0.0f64, 0.0f64);
        let mut out = vec![0.0; dim];
        for (&(score, score_off), value) in scores.iter().zip(values.chunks(dim)) {
            let below = (top - score) * LOG2_E;
            let weight = (-below).exp2();
            top_off = top_off.max(score_off);
            // exp2 is good to 3 + 2 |x| ulp, once for the weight and once for each rescaling
            let exp2_error = 2.0 * U * (3.0 * (1.0 + rescalings) + 4.0 * below) + 2.0 * U * below;
            sum += weight;
            off += weight * (score_off + exp2_error);
            for (out, &v) in out.iter_mut().zip(value) {
                *out += weight * f64::from(v);
                max_value = max_value.max(f64::from(v).abs());
            }
        }
        State {
            top,
            top_off,
            sum,
            off,
            max_value,
            rounding: 2.0 * (scores.len() as f64 + 2.0 * rescalings + 4.0) * U,
            out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A capped score as the shader has it, in f32.
    fn capped(score_log2e: f32, cap: f32) -> f32 {
        let t = (-score_log2e.abs() * (2.0 / cap)).exp2();
        let cap_log2e = (f64::from(cap) * LOG2_E) as f32;
        (cap_log2e * ((1.0 - t) / (1.0 + t))).copysign(score_log2e)
    }

    #[test]
    fn a_capped_score_is_within_its_bound_whatever_its_size() {
        for cap in [1.0f32, 30.0, 50.0] {
            let scores = Scores {
                scale: 1.0,
                cap: Some(f64::from(cap)),
            };
            let mut size = 1e-6f32;
            while size < 1e6 {
                for product in [size, -size] {
                    // what the product alone rounds
                    let (score, off) = scores.of(f64::from(product), f64::from(size) * 2.0 * U);
                    let found =
                        f64::from(capped((f64::from(product) * LOG2_E) as f32, cap)) / LOG2_E;
                    assert!(score.abs() <= f64::from(cap) && score.signum() == found.signum());
                    let distance = (found - score).abs();
                    assert!(
                        distance <= off,
                        "{product:e} of {cap}: {distance:e} > {off:e}"
                    );
                    assert!(off <= f64::from(size) * 2.0 * U + f64::from(cap) * 20.0 * U);
                }
                size *= 1.37;
            }
        }
    }
}
