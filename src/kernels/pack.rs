//! Rows of f32 as activation records, where the kernel that made them cannot pack them itself.

use super::activations::Activations;
use super::case::{Case, CaseTensor, Data};
use super::distinct;
use super::tuning::Tuning;
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::quant::{GROUP, q8};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/pack.wgsl`.
    pub struct PackParams {
        /// Rows in use.
        pub num_tokens: u32,
        /// Columns, a multiple of 4.
        pub columns: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("pack.wgsl")];

/// The kernel.
pub static PACK: Kernel = Kernel::new::<PackParams>("pack", PARTS);

/// The first `num_tokens` rows of `x: [.., columns]` as records in `act`. The CPU twin is
/// [`Activations::pack`].
pub fn record(rec: &mut Recorder, tuning: &Tuning, x: &Tensor, num_tokens: usize, act: &Tensor) {
    let ([x_rows, columns], [act_rows, words]) = (x.dims(), act.dims());
    assert_eq!(
        words,
        tuning.activations.dims(1, columns)[1],
        "words of act"
    );
    assert!(
        num_tokens <= x_rows && num_tokens <= act_rows && columns.is_multiple_of(4),
        "{num_tokens} tokens of {x_rows} and {act_rows}, {columns} columns"
    );
    let teams = num_tokens * columns.div_ceil(GROUP);
    rec.dispatch(
        &variant(tuning),
        &[("x", x), ("act_out", act)],
        PackParams {
            num_tokens: num_tokens as u32,
            columns: columns as u32,
        },
        grid((teams * 8).div_ceil(tuning.team_workgroup() as usize)),
    );
}

fn variant(tuning: &Tuning) -> Variant {
    let workgroup = tuning.team_workgroup();
    let variant = Variant::new(&PACK).part(tuning.activations.store_part());
    tuning.team(variant, workgroup).set("WG", workgroup)
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: PackParams = call.params();
    let (num_tokens, columns) = (p.num_tokens as usize, p.columns as usize);
    let words = call.read_range("x", 0..num_tokens * columns)?;
    let exact = words.iter().map(|&w| (f64::from(f32::from_bits(w)), 0.0));
    let activations = Activations::stored_by(call);
    Ok(vec![activations.piece(
        "act_out",
        0,
        columns,
        exact.collect(),
        None,
    )])
}

/// Every way to talk, for every way to pass activations.
pub fn variants() -> Vec<Variant> {
    distinct(Tuning::all_for(&q8::Q8).iter().map(variant))
}

/// Ragged widths, and several teams to a workgroup.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 4), (3, 36), (5, 64), (17, 100), (2, 576)];
    let mut all = Vec::new();
    for tuning in Tuning::all_for(&q8::Q8).into_iter().filter(|t| !t.wide) {
        for (seed, &shape) in shapes.iter().enumerate() {
            all.push(case(tuning, shape, seed as u64));
        }
    }
    all
}

pub(super) fn case(tuning: Tuning, (num_tokens, columns): (usize, usize), seed: u64) -> Case {
    let mut data = Data::new(seed);
    let mut x = data.normal(num_tokens * columns);
    x[..4].fill(0.0);
    let exact: Vec<(f64, f64)> = x.iter().map(|&v| (f64::from(v), 0.0)).collect();
    let name = format!("{num_tokens}x{columns} {}", tuning.describe());
    Case::new(&PACK, name)
        .needs(tuning)
        .tensor(CaseTensor::f32("x", &[num_tokens, columns], &x))
        .tensor(records(
            "act_out",
            tuning.activations,
            num_tokens,
            columns,
            exact,
            None,
        ))
        .record(move |rec, t| record(rec, &tuning, t.get("x"), num_tokens, t.get("act_out")))
}

/// An output of records: exact values with bounds, row by row, and sums of squares with bounds for
/// each record, or zeros.
pub(super) fn records(
    name: &'static str,
    activations: Activations,
    num_tokens: usize,
    columns: usize,
    exact: Vec<(f64, f64)>,
    squares: Option<Vec<(f64, f64)>>,
) -> CaseTensor {
    let dims = activations.dims(num_tokens, columns);
    let squares = squares.unwrap_or_else(|| vec![(0.0, 0.0); num_tokens * columns.div_ceil(GROUP)]);
    CaseTensor::output_u32(name, &dims, &vec![0; dims[0] * dims[1]]).judged(move |bytes| {
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
        activations.check(&words, columns, &exact, &squares)
    })
}
