//! The merge of attention's partial results: a fold over splits, ascending, by the function that
//! the attention kernel itself folds with.

use super::attention::AttentionShape;
use super::attention_output::{Output, tunings};
use super::case::Case;
use super::twin::{Effort, Piece};
use super::{Tuning, attention_merge_cases};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/attention_merge.wgsl`.
    pub struct AttentionMergeParams {
        /// Where the rows begin in the step's metadata.
        pub rows_at: u32,
        /// How many there are.
        pub num_rows: u32,
        /// Query heads.
        pub num_heads: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("lib/softmax.wgsl"), wgsl!("attention_merge.wgsl")];

/// The kernel.
pub static ATTENTION_MERGE: Kernel = Kernel::new::<AttentionMergeParams>("attention_merge", PARTS);

/// The CPU twin for one row and head, in f64: states `(m, l, o)` of splits in ascending order, and
/// the result.
pub fn reference(states: &[(f32, f32, &[f32])]) -> Vec<f64> {
    let top = states
        .iter()
        .fold(f64::MIN, |top, s| top.max(f64::from(s.0)));
    let mut sum = 0.0;
    let mut out = vec![0.0; states[0].2.len()];
    for &(m, l, o) in states {
        let factor = (f64::from(m) - top).exp2();
        sum += f64::from(l) * factor;
        for (out, &o) in out.iter_mut().zip(o) {
            *out += f64::from(o) * factor;
        }
    }
    out.iter_mut().for_each(|out| *out /= sum);
    out
}

/// Folds `num_rows` rows, listed in `step_meta` from word `rows_at` on, from `partials` into `out`, as
/// `output` tells. With none, the kernel is only made ready: the first decode step beyond a split has
/// rows to fold.
#[expect(
    clippy::too_many_arguments,
    reason = "each is one tensor or one choice"
)]
pub fn record(
    rec: &mut Recorder,
    tuning: &Tuning,
    shape: &AttentionShape,
    step_meta: &Tensor,
    rows_at: usize,
    num_rows: usize,
    partials: &Tensor,
    output: Output,
    out: &Tensor,
) {
    shape.check();
    let [slots, ..] = partials.dims::<3>();
    assert_eq!(partials.dims(), shape.partials_dims(slots), "partials");
    output.check(tuning.activations, shape, out);
    let (teams, variant) = variant(tuning, shape.head_dim, output);
    let octs = num_rows * shape.num_heads * shape.head_dim / 8;
    rec.dispatch(
        &variant,
        &[
            (output.binding(), out),
            ("step_meta", step_meta),
            ("partials", partials),
        ],
        AttentionMergeParams {
            rows_at: rows_at as u32,
            num_rows: num_rows as u32,
            num_heads: shape.num_heads as u32,
        },
        grid(octs.div_ceil(teams * 8)),
    );
}

/// The variant, and the teams of a workgroup.
fn variant(tuning: &Tuning, head_dim: usize, output: Output) -> (usize, Variant) {
    let teams = tuning.team_workgroup() as usize / 8;
    let variant = output.parts(tuning, teams as u32 * 8, Variant::new(&ATTENTION_MERGE));
    (teams, variant.set("HEAD_DIM", head_dim as u32))
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    unimplemented!("{}", call.variant)
}

/// One for each output and each way to make teams.
pub fn variants() -> Vec<Variant> {
    tunings()
        .iter()
        .flat_map(|tuning| {
            [Output::Rows, Output::Records].map(|output| variant(tuning, 64, output).1)
        })
        .collect()
}

/// See `attention_merge_cases`.
pub fn cases() -> Vec<Case> {
    attention_merge_cases::merge()
}
