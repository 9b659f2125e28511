//! A norm of what attention or MLP made, added to the residual stream, which is packed for what follows:
//! `hidden += scale * y / rms(y) * weight`, `rms(y) = sqrt(mean(y^2) + eps)`
//! (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).

use super::case::{Case, CaseTensor, Data, U};
use super::pack::records;
use super::row;
use super::tuning::Tuning;
use super::twin::endings::{Exact, Residual, residual};
use super::twin::matmul::floats;
use super::twin::{Effort, Piece};
use super::{Activations, distinct};
use crate::error::Result;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/add_norm.wgsl`.
    pub struct AddNormParams {
        /// Rows in use.
        pub num_tokens: u32,
        /// Columns, a multiple of 4.
        pub columns: u32,
        /// Records of a token that a workgroup writes.
        pub slice: u32,
        /// Added to the mean of squares.
        pub eps: f32,
        /// Factor of what is added.
        pub scale: f32,
    }
}

const PARTS: &[Part] = &[wgsl!("add_norm.wgsl")];

/// The kernel.
pub static ADD_NORM: Kernel = Kernel::new::<AddNormParams>("add_norm", PARTS);

/// The CPU twin in f64: what is added for whole rows of `y: [.., weight.len()]`.
pub fn reference(y: &[f32], weight: &[f32], eps: f32, scale: f32) -> Vec<f64> {
    let row = |row: &[f32]| -> Vec<f64> {
        let squares: f64 = row.iter().map(|&v| f64::from(v).powi(2)).sum();
        let mean = squares / row.len() as f64 + f64::from(eps);
        let factor = f64::from(scale) / mean.sqrt();
        let terms = row.iter().zip(weight);
        terms
            .map(|(&v, &w)| f64::from(v) * factor * f64::from(w))
            .collect()
    };
    y.chunks(weight.len()).flat_map(row).collect()
}

/// The same with bounds; a square goes through `steps` roundings.
fn exact(y: &[f32], weight: &[f32], eps: f32, scale: f32, steps: usize) -> Vec<Exact> {
    // the root, times scale, times y; the product with the weight is not rounded
    let relative = row::root_error(steps) + 2.0 * U;
    let terms = reference(y, weight, eps, scale).into_iter();
    terms
        .map(|term| (term, term.abs() * relative + 1e-30))
        .collect()
}

/// Adds to the first `num_tokens` rows of `hidden: [.., columns]` those of `y: [.., columns]`, normalised
/// and times `weight: [columns]` and `scale`, and leaves `hidden * gamma` as records in `act`.
#[expect(clippy::too_many_arguments, reason = "tensors and two numbers")]
pub fn record(
    rec: &mut Recorder,
    tuning: &Tuning,
    y: &Tensor,
    num_tokens: usize,
    weight: &Tensor,
    eps: f32,
    scale: f32,
    hidden: &Tensor,
    gamma: &Tensor,
    act: &Tensor,
) {
    let columns = row::check_shapes(
        tuning.activations,
        num_tokens,
        &[("y", y), ("hidden", hidden)],
        &[("weight", weight), ("gamma", gamma)],
        act,
    );
    let (slice, workgroups) = row::slices(tuning, num_tokens, columns);
    rec.dispatch(
        &variant(tuning),
        &[
            ("y", y),
            ("weight", weight),
            ("hidden", hidden),
            ("gamma", gamma),
            ("act_out", act),
        ],
        AddNormParams {
            num_tokens: num_tokens as u32,
            columns: columns as u32,
            slice,
            eps,
            scale,
        },
        workgroups,
    );
}

fn variant(tuning: &Tuning) -> Variant {
    row::parts(Variant::new(&ADD_NORM), tuning)
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: AddNormParams = call.params();
    let columns = p.columns as usize;
    let all = 0..p.num_tokens as usize * columns;
    let y = floats(&call.read_range("y", all.clone())?);
    let before = floats(&call.read_range("hidden", all)?);
    let weight = floats(&call.read_range("weight", 0..columns)?);
    let gamma = floats(&call.read_range("gamma", 0..columns)?);
    let steps = row::steps_of(call, columns);
    let out = exact(&y, &weight, p.eps, p.scale, steps);
    let Residual {
        hidden,
        normed,
        squares,
    } = residual(&out, 1.0, &before, &gamma);
    let activations = Activations::stored_by(call);
    Ok(vec![
        Piece::f32("hidden", 0, hidden),
        activations.piece("act_out", 0, columns, normed, Some(squares)),
    ])
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
        (1, 260),
        (2, 576),
        (7, 1028),
        (300, 68),
        (1, 4096),
    ];
    row::cases(&row::tunings(variant), &shapes, case)
}

/// Widths of models, for one token and for a chunk of a prompt.
pub fn timings() -> Vec<Case> {
    let shapes = [(1, 1152), (1, 4096), (64, 1152), (64, 4096)];
    let mut tunings = row::tunings(variant);
    tunings.retain(|t| t.activations == Activations::F32);
    row::cases(&tunings, &shapes, case)
}

/// Rows of usual size, very small ones, for which eps counts, and large ones.
pub(super) fn case(tuning: Tuning, (num_tokens, columns): (usize, usize), seed: u64) -> Case {
    const EPS: f32 = 1e-6;
    let mut data = Data::new(seed);
    let mut y = data.normal(num_tokens * columns);
    for (row, values) in y.chunks_mut(columns).enumerate() {
        let size = [1.0, 1e-3, 1e4, 0.0][row % 4];
        values.iter_mut().for_each(|v| *v *= size);
    }
    let before = data.normal(num_tokens * columns);
    let (weight, gamma) = (data.normal(columns), data.normal(columns));
    let scale = [1.0, 0.22][seed as usize % 2];
    let lanes = tuning.team_workgroup() as usize;
    let out = exact(&y, &weight, EPS, scale, row::steps(lanes, columns));
    let Residual {
        hidden,
        normed,
        squares,
    } = residual(&out, 1.0, &before, &gamma);
    let (values, bounds) = hidden.into_iter().unzip();
    let activations = tuning.activations;
    let elements = (num_tokens * columns) as f64;
    let packed = row::packed_bytes(activations, num_tokens, columns);
    let dims = [num_tokens, columns];
    let name = format!("{num_tokens}x{columns} {}", tuning.describe());
    Case::new(&ADD_NORM, name)
        .needs(tuning)
        .work(8.0 * elements, 12.0 * elements + packed)
        .tensor(CaseTensor::f32("y", &dims, &y))
        .tensor(CaseTensor::f32("weight", &[columns], &weight))
        .tensor(
            CaseTensor::output_f32("hidden", &dims, values, bounds)
                .starting_as(bytemuck::cast_slice(&before).to_vec()),
        )
        .tensor(CaseTensor::f32("gamma", &[columns], &gamma))
        .tensor(records(
            "act_out",
            activations,
            num_tokens,
            columns,
            normed,
            Some(squares),
        ))
        .record(move |rec, t| {
            record(
                rec,
                &tuning,
                t.get("y"),
                num_tokens,
                t.get("weight"),
                EPS,
                scale,
                t.get("hidden"),
                t.get("gamma"),
                t.get("act_out"),
            );
        })
}
