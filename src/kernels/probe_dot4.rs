//! What products of packed 8-bit integers give at best: tiles of `dot4I8Packed` in registers. The
//! denominator of [`super::peaks`] for kernels that multiply integers.

use super::case::{Case, CaseTensor, Data};
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/probe_dot4.wgsl`.
    pub struct ProbeDot4Params {
        /// Elements of `y`.
        pub num_invocations: u32,
        /// Times 4 tiles; at least 1.
        pub rounds: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("probe_dot4.wgsl")];

/// The kernel.
pub static PROBE_DOT4: Kernel = Kernel::new::<ProbeDot4Params>("probe_dot4", PARTS);

/// Invocations of a workgroup.
const WORKGROUP: u32 = 64;

/// Multiplications and additions of one invocation in one round: 4 tiles of 16 words of 4.
pub const OPS_A_ROUND: f64 = 4.0 * 16.0 * 8.0;

/// The CPU twin. `x`: for each invocation 4 words of `w`, then 4 of `q`.
pub fn reference(x: &[u32], rounds: usize) -> Vec<u32> {
    x.chunks_exact(8)
        .flat_map(|words| {
            let mut w: [u32; 4] = std::array::from_fn(|r| words[r]);
            let mut sums = [[0u32; 4]; 4];
            for _ in 0..4 * rounds {
                for (column, q) in sums.iter_mut().zip(&words[4..]) {
                    for (sum, w) in column.iter_mut().zip(w) {
                        *sum = sum.wrapping_add(dot4(w, *q) as u32);
                    }
                }
                w = sums[0];
            }
            std::array::from_fn::<u32, 4, _>(|r| sums.iter().fold(0, |all, s| all ^ s[r]))
        })
        .collect()
}

fn dot4(a: u32, b: u32) -> i32 {
    let bytes = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    bytes
        .map(|(a, b)| i32::from(a as i8) * i32::from(b as i8))
        .sum()
}

/// `y: [num_invocations, 4]` from `x: [2 num_invocations, 4]`, both u32.
///
/// # Panics
/// Without a round.
pub fn record(rec: &mut Recorder, x: &Tensor, rounds: usize, y: &Tensor) {
    let [count, four] = y.dims();
    assert_eq!((four, x.dims()), (4, [2 * count, 4]));
    assert!(rounds > 0, "at least one round");
    rec.dispatch(
        &variant(),
        &[("x", x), ("y", y)],
        ProbeDot4Params {
            num_invocations: count as u32,
            rounds: rounds as u32,
        },
        [(count as u32).div_ceil(WORKGROUP), 1, 1],
    );
}

fn variant() -> Variant {
    Variant::new(&PROBE_DOT4).set("WG", WORKGROUP)
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: ProbeDot4Params = call.params();
    let x = call.read_range("x", 0..8 * p.num_invocations as usize)?;
    Ok(vec![Piece::exact("y", 0, reference(&x, p.rounds as usize))])
}

/// There is only one.
pub fn variants() -> Vec<Variant> {
    vec![variant()]
}

/// Counts around a workgroup, one round and many: sums wrap on the way.
pub fn cases() -> Vec<Case> {
    [(1, 1), (63, 2), (65, 3), (130, 100)]
        .iter()
        .enumerate()
        .map(|(seed, &(count, rounds))| case(seed as u64, count, rounds))
        .collect()
}

fn case(seed: u64, count: usize, rounds: usize) -> Case {
    let mut data = Data::new(seed);
    let x: Vec<u32> = (0..8 * count).map(|_| data.bits() as u32).collect();
    let y = reference(&x, rounds);
    Case::new(&PROBE_DOT4, format!("{count} x {rounds}"))
        .tensor(CaseTensor::u32("x", &[2 * count, 4], &x))
        .tensor(CaseTensor::output_u32("y", &[count, 4], &y))
        .work(OPS_A_ROUND * (count * rounds) as f64, 48.0 * count as f64)
        .record(move |rec, t| record(rec, t.get("x"), rounds, t.get("y")))
}
