//! What f32 arithmetic gives at best: independent chains of fma in registers. The denominator of
//! [`super::peaks`] for kernels that are bound by arithmetic in f32.

use super::case::{Case, CaseTensor, Data, U};
use super::twin::matmul::floats;
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/probe_fma.wgsl`.
    pub struct ProbeFmaParams {
        /// Elements of `x` and `y`.
        pub num_invocations: u32,
        /// Times 16 operations in each chain.
        pub rounds: u32,
        /// What a chain is multiplied with.
        pub factor: f32,
        /// What is added to it.
        pub addend: f32,
    }
}

const PARTS: &[Part] = &[wgsl!("probe_fma.wgsl")];

/// The kernel.
pub static PROBE_FMA: Kernel = Kernel::new::<ProbeFmaParams>("probe_fma", PARTS);

/// Invocations of a workgroup.
const WORKGROUP: u32 = 64;

/// Multiplications and additions of one invocation in one round.
pub const FLOPS_A_ROUND: f64 = 2.0 * 16.0 * 12.0;

/// Below 1, so that a chain neither grows nor dies out, and errors are forgotten.
const FACTOR: f32 = -0.75;
const ADDEND: f32 = 1.5;

/// How far a result may be off. A chain stays below 6 + 2; every step adds at most two roundings of at most
/// 8 U each, of which the steps after it keep 0.75, 0.75^2, ...: at most 4 times as much. Three chains, two
/// sums.
const BOUND: f64 = 3.0 * 4.0 * 2.0 * 8.0 * U + 3.0 * 2.0 * 24.0 * U;

/// The CPU twin, in f64.
pub fn reference(x: &[f32], rounds: usize) -> Vec<f64> {
    let chain =
        |start: f64| (0..16 * rounds).fold(start, |c, _| c * f64::from(FACTOR) + f64::from(ADDEND));
    x.iter()
        .map(|&x| (0..3).map(|k| chain(f64::from(x) + f64::from(k))).sum())
        .collect()
}

/// `y` from `x`, both `[num_invocations, 4]` f32.
pub fn record(rec: &mut Recorder, x: &Tensor, rounds: usize, y: &Tensor) {
    let [count, four] = x.dims();
    assert_eq!((four, x.shape()), (4, y.shape()));
    rec.dispatch(
        &variant(),
        &[("x", x), ("y", y)],
        ProbeFmaParams {
            num_invocations: count as u32,
            rounds: rounds as u32,
            factor: FACTOR,
            addend: ADDEND,
        },
        [(count as u32).div_ceil(WORKGROUP), 1, 1],
    );
}

fn variant() -> Variant {
    Variant::new(&PROBE_FMA).set("WG", WORKGROUP)
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: ProbeFmaParams = call.params();
    let x = call.read_range("x", 0..4 * p.num_invocations as usize)?;
    let exact = reference(&floats(&x), p.rounds as usize).into_iter();
    let exact = exact.map(|value| (value, BOUND)).collect();
    Ok(vec![Piece::f32("y", 0, exact)])
}

/// There is only one.
pub fn variants() -> Vec<Variant> {
    vec![variant()]
}

/// Counts around a workgroup; no round, one, and many.
pub fn cases() -> Vec<Case> {
    [(1, 1), (63, 0), (65, 2), (200, 100)]
        .iter()
        .enumerate()
        .map(|(seed, &(count, rounds))| case(seed as u64, count, rounds))
        .collect()
}

fn case(seed: u64, count: usize, rounds: usize) -> Case {
    let x = Data::new(seed).normal(4 * count);
    let expected = reference(&x, rounds);
    let bound = vec![BOUND; expected.len()];
    Case::new(&PROBE_FMA, format!("{count} x {rounds}"))
        .tensor(CaseTensor::f32("x", &[count, 4], &x))
        .tensor(CaseTensor::output_f32("y", &[count, 4], expected, bound))
        .work(FLOPS_A_ROUND * (count * rounds) as f64, 32.0 * count as f64)
        .record(move |rec, t| record(rec, t.get("x"), rounds, t.get("y")))
}
