//! The merge of attention's partial results: a fold over splits, ascending, by the function that
//! the attention kernel itself folds with.

use super::attention::AttentionShape;
use super::attention_output::{Output, tunings};
use super::attention_plan::MergeRow;
use super::case::{Case, U};
use super::twin::{self, Effort, Piece};
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

/// The same with the bound of each element: for a split exp2 to 3 + 2 |x| ulp twice, the difference and
/// three roundings; then the division.
pub(super) fn exact(states: &[(f32, f32, &[f32])]) -> Vec<(f64, f64)> {
    let tops = states.iter().filter(|s| s.1 > 0.0);
    let (low, high) = tops
        .map(|s| f64::from(s.0))
        .fold((f64::MAX, f64::MIN), |(a, b), m| (a.min(m), b.max(m)));
    let relative = (states.len() as f64 * 2.0 * U * (6.0 + 5.0 * (high - low)) + 8.0 * U) * 2.0;
    let abs = |o: &[f32]| o.iter().map(|o| o.abs()).collect();
    let abs: Vec<Vec<f32>> = states.iter().map(|s| abs(s.2)).collect();
    let abs = states.iter().zip(&abs);
    let abs: Vec<(f32, f32, &[f32])> = abs.map(|(s, abs)| (s.0, s.1, &abs[..])).collect();
    let bounds = reference(&abs)
        .into_iter()
        .map(|abs| abs * relative + 1e-30);
    reference(states).into_iter().zip(bounds).collect()
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
    let p: AttentionMergeParams = call.params();
    let head_dim = call.number("HEAD_DIM").expect("dims are set") as usize;
    let (rows_at, num_heads) = (p.rows_at as usize, p.num_heads as usize);
    let (head_words, width) = (head_dim + 4, num_heads * head_dim);
    let words = rows_at..rows_at + p.num_rows as usize * MergeRow::WORDS;
    let words = call.read_range("step_meta", words)?;
    let rows = words
        .chunks_exact(MergeRow::WORDS)
        .map(MergeRow::from_words);
    let mut written = Vec::new();
    for row in rows {
        let slot = |split: u32| (row.slot0 + split * row.stride) as usize;
        let state = |split| {
            slot(split) * num_heads * head_words..(slot(split) + 1) * num_heads * head_words
        };
        let ranges: Vec<_> = (0..row.num_splits).map(state).collect();
        let states = twin::matmul::floats(&call.read_ranges("partials", &ranges)?);
        let head = |head: usize| -> Vec<(f64, f64)> {
            let of_split = states.chunks_exact(num_heads * head_words).map(|split| {
                let (o, stats) = split[head * head_words..][..head_words].split_at(head_dim);
                (stats[0], stats[1], o)
            });
            exact(&of_split.collect::<Vec<_>>())
        };
        written.push((
            row.token as usize * width,
            (0..num_heads).flat_map(head).collect(),
        ));
    }
    Ok(twin::attention::output(call, width, written))
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
