//! Layer norm of the residual stream, as activations for what follows:
//! `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, `var(x) = mean((x - mean(x))^2)`
//! (Ba, Kiros and Hinton, "Layer Normalization", 2016).

use super::case::{Case, CaseTensor, Data, U};
use super::pack::records;
use super::row;
use super::tuning::Tuning;
use super::twin::endings::Exact;
use super::twin::matmul::floats;
use super::twin::{Effort, Piece};
use super::{Activations, distinct};
use crate::error::Result;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/layer_norm.wgsl`.
    pub struct LayerNormParams {
        /// Rows in use.
        pub num_tokens: u32,
        /// Columns, a multiple of 4.
        pub columns: u32,
        /// Records of a token that a workgroup writes.
        pub slice: u32,
        /// Added to the variance.
        pub eps: f32,
    }
}

const PARTS: &[Part] = &[wgsl!("layer_norm.wgsl")];

/// The kernel.
pub static LAYER_NORM: Kernel = Kernel::new::<LayerNormParams>("layer_norm", PARTS);

/// What a row's norm comes from, in f64.
struct Moments {
    mean: f64,
    variance: f64,
    /// The mean of magnitudes, on which the error of the mean depends.
    magnitude: f64,
}

impl Moments {
    fn of(row: &[f32]) -> Moments {
        let mean_of = |f: &dyn Fn(f64) -> f64| {
            let sum: f64 = row.iter().map(|&v| f(f64::from(v))).sum();
            sum / row.len() as f64
        };
        let mean = mean_of(&|v| v);
        Moments {
            mean,
            variance: mean_of(&|v| (v - mean).powi(2)),
            magnitude: mean_of(&f64::abs),
        }
    }
}

/// The CPU twin in f64, for whole rows of `x: [.., weight.len()]`.
pub fn reference(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f64> {
    let row = |row: &[f32]| -> Vec<f64> {
        let m = Moments::of(row);
        let factor = 1.0 / (m.variance + f64::from(eps)).sqrt();
        let affine = weight.iter().zip(bias);
        let terms = row.iter().zip(affine);
        terms
            .map(|(&v, (&w, &b))| (f64::from(v) - m.mean) * factor * f64::from(w) + f64::from(b))
            .collect()
    };
    x.chunks(weight.len()).flat_map(row).collect()
}

/// The same with bounds; an element of a sum goes through `steps` roundings.
fn exact(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, steps: usize) -> Vec<Exact> {
    let columns = weight.len();
    let values = reference(x, weight, bias, eps);
    let rows = x.chunks(columns).zip(values.chunks(columns));
    let row = |(row, values): (&[f32], &[f64])| -> Vec<Exact> {
        let m = Moments::of(row);
        let power = m.variance + f64::from(eps);
        let factor = 1.0 / power.sqrt();
        // the sum, and a division good to 2.5 ulp
        let mean_error = 1.001 * (steps + 5) as f64 * U * m.magnitude;
        // squares of what is centred by a mean that is off add the square of that to the variance; the
        // difference that is squared is rounded, and large where the mean is off by much
        let shift = mean_error.powi(2) / power;
        let relative = row::root_error(steps) + 2.0 * U + shift;
        let bound = |(i, &value): (usize, &f64)| {
            let centred = (f64::from(row[i]) - m.mean).abs() + mean_error;
            // rounded as a difference and as a product
            let normed = mean_error + centred * (relative + 2.0 * U);
            let term = normed * factor * (1.0 + relative) * f64::from(weight[i]).abs();
            (value, term + U * (value.abs() + term) + 1e-30)
        };
        values.iter().enumerate().map(bound).collect()
    };
    rows.flat_map(row).collect()
}

/// The first `num_tokens` rows of `hidden: [.., columns]`, normalised, times `weight: [columns]` and plus
/// `bias: [columns]`, as records in `act`.
#[expect(clippy::too_many_arguments, reason = "tensors and a number")]
pub fn record(
    rec: &mut Recorder,
    tuning: &Tuning,
    hidden: &Tensor,
    num_tokens: usize,
    weight: &Tensor,
    bias: &Tensor,
    eps: f32,
    act: &Tensor,
) {
    let columns = row::check_shapes(
        tuning.activations,
        num_tokens,
        &[("hidden", hidden)],
        &[("weight", weight), ("bias", bias)],
        act,
    );
    let (slice, workgroups) = row::slices(tuning, num_tokens, columns);
    rec.dispatch(
        &variant(tuning),
        &[
            ("hidden", hidden),
            ("weight", weight),
            ("bias", bias),
            ("act_out", act),
        ],
        LayerNormParams {
            num_tokens: num_tokens as u32,
            columns: columns as u32,
            slice,
            eps,
        },
        workgroups,
    );
}

fn variant(tuning: &Tuning) -> Variant {
    row::parts(Variant::new(&LAYER_NORM), tuning)
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: LayerNormParams = call.params();
    let columns = p.columns as usize;
    let all = 0..p.num_tokens as usize * columns;
    let x = floats(&call.read_range("hidden", all)?);
    let weight = floats(&call.read_range("weight", 0..columns)?);
    let bias = floats(&call.read_range("bias", 0..columns)?);
    let normed = exact(&x, &weight, &bias, p.eps, row::steps_of(call, columns));
    let activations = Activations::stored_by(call);
    Ok(vec![activations.piece("act_out", 0, columns, normed, None)])
}

/// Every way to talk and to add up, for every way to pass activations.
pub fn variants() -> Vec<Variant> {
    distinct(row::tunings(variant).iter().map(variant))
}

/// Ragged widths around a record, a team's turn and a workgroup's; one token, few, and so many that a
/// workgroup has whole rows.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 4),
        (3, 36),
        (4, 260),
        (2, 768),
        (7, 1028),
        (300, 68),
        (1, 4096),
    ];
    row::cases(&row::tunings(variant), &shapes, case)
}

/// Widths of models, for one token and for a chunk of a prompt.
pub fn timings() -> Vec<Case> {
    let shapes = [(1, 768), (1, 1600), (64, 768), (64, 1600)];
    let mut tunings = row::tunings(variant);
    tunings.retain(|t| t.activations == Activations::F32);
    row::cases(&tunings, &shapes, case)
}

/// Rows around 0, far beside it, so small that eps counts, and all the same.
pub(super) fn case(tuning: Tuning, (num_tokens, columns): (usize, usize), seed: u64) -> Case {
    const EPS: f32 = 1e-5;
    let mut data = Data::new(seed);
    let mut x = data.normal(num_tokens * columns);
    for (row, values) in x.chunks_mut(columns).enumerate() {
        let (size, middle) = [(1.0, 0.5), (1.0, -300.0), (1e-3, 0.0), (0.0, 2.0)][row % 4];
        values.iter_mut().for_each(|v| *v = *v * size + middle);
    }
    let (weight, bias) = (data.normal(columns), data.normal(columns));
    let lanes = tuning.team_workgroup() as usize;
    let normed = exact(&x, &weight, &bias, EPS, row::steps(lanes, columns));
    let activations = tuning.activations;
    let elements = (num_tokens * columns) as f64;
    let packed = row::packed_bytes(activations, num_tokens, columns);
    let name = format!("{num_tokens}x{columns} {}", tuning.describe());
    Case::new(&LAYER_NORM, name)
        .needs(tuning)
        .work(7.0 * elements, 4.0 * elements + packed)
        .tensor(CaseTensor::f32("hidden", &[num_tokens, columns], &x))
        .tensor(CaseTensor::f32("weight", &[columns], &weight))
        .tensor(CaseTensor::f32("bias", &[columns], &bias))
        .tensor(records(
            "act_out",
            activations,
            num_tokens,
            columns,
            normed,
            None,
        ))
        .record(move |rec, t| {
            record(
                rec,
                &tuning,
                t.get("hidden"),
                num_tokens,
                t.get("weight"),
                t.get("bias"),
                EPS,
                t.get("act_out"),
            );
        })
}
