//! What a family does to its logits before anybody draws from them, in place: `l = l * scale`, and where
//! there is a cap `l = cap * tanh(l / cap)` (Bello et al., "Neural Combinatorial Optimization with
//! Reinforcement Learning", 2017, for the cap).

use super::case::{Case, CaseTensor, Data, U};
use super::twin::matmul::floats;
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/finish_logits.wgsl`.
    pub struct FinishLogitsParams {
        /// Logits of all rows.
        pub num_logits: u32,
        /// What they are multiplied with.
        pub scale: f32,
        /// What they stay below, where there is a cap.
        pub cap: f32,
    }
}

const PARTS: &[Part] = &[wgsl!("finish_logits.wgsl")];
static CAP_NONE: Part = wgsl!("finish_logits/cap_none.wgsl");
static CAP_TANH: Part = wgsl!("finish_logits/cap_tanh.wgsl");
/// Logits of a workgroup, as in the shader.
const TILE: usize = 256;

/// The kernel.
pub static FINISH_LOGITS: Kernel = Kernel::new::<FinishLogitsParams>("finish_logits", PARTS);

/// The CPU twin of one logit, in f64.
pub fn reference(logit: f32, scale: f32, cap: Option<f32>) -> f64 {
    let scaled = f64::from(logit) * f64::from(scale);
    match cap.map(f64::from) {
        Some(cap) => cap * (scaled / cap).tanh(),
        None => scaled,
    }
}

/// The same with its bound.
fn exact(logit: f32, scale: f32, cap: Option<f32>) -> (f64, f64) {
    let value = reference(logit, scale, cap);
    let Some(cap) = cap.map(f64::from) else {
        return (value, U * value.abs() + 1e-30);
    };
    // a, after a product and a division good to 2.5 ulp, is off by 6 U a; so e = exp(-2 a) by 12 U a of
    // itself, and by 3 + 4 a ulp as every exponential. Of that a tanh has at most twice. Then there are a
    // difference, a sum, a quotient and a product.
    let a = (f64::from(logit) * f64::from(scale) / cap).abs();
    let e = (-2.0 * a).exp();
    let error = U * e * (12.0 * a + 2.0 * (3.0 + 4.0 * a));
    (value, cap * 2.0 * error + 9.0 * U * value.abs() + 1e-30)
}

/// Changes the first `num_rows` rows of `logits: [.., vocab_size]`.
///
/// # Panics
/// When the cap is not above 0: callers check the file's.
pub fn record(rec: &mut Recorder, logits: &Tensor, num_rows: usize, scale: f32, cap: Option<f32>) {
    let [rows, vocab_size] = logits.dims();
    assert!(num_rows <= rows, "{num_rows} rows of {rows}");
    assert!(cap.is_none_or(|cap| cap > 0.0), "a cap of {cap:?}");
    let num_logits = num_rows * vocab_size;
    rec.dispatch(
        &variant(cap.is_some()),
        &[("logits", logits)],
        FinishLogitsParams {
            num_logits: num_logits as u32,
            scale,
            cap: cap.unwrap_or(1.0),
        },
        grid(num_logits.div_ceil(TILE)),
    );
}

fn variant(capped: bool) -> Variant {
    Variant::new(&FINISH_LOGITS).part(if capped { &CAP_TANH } else { &CAP_NONE })
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: FinishLogitsParams = call.params();
    let cap = call.has_part(CAP_TANH.name).then_some(p.cap);
    let logits = floats(&call.read_range("logits", 0..p.num_logits as usize)?);
    let finished = logits.into_iter().map(|l| exact(l, p.scale, cap));
    Ok(vec![Piece::f32("logits", 0, finished.collect())])
}

/// With a cap and without.
pub fn variants() -> Vec<Variant> {
    [false, true].map(variant).to_vec()
}

/// Lengths around a workgroup's; logits around 0, around the cap, and far beyond it on both sides.
pub fn cases() -> Vec<Case> {
    let shapes = [(1, 1), (3, 7), (2, 255), (1, 256), (1, 257), (5, 1003)];
    let finishes = [
        (0.125, None),
        (1.0, Some(30.0)),
        (3.0, Some(0.5)),
        (-0.25, Some(50.0)),
    ];
    let mut all = Vec::new();
    for (scale, cap) in finishes {
        for shape in shapes {
            all.push(case(shape, scale, cap, all.len() as u64));
        }
    }
    all
}

/// The vocabularies of a large family, capped, for one row and some.
pub fn timings() -> Vec<Case> {
    let shapes = [(1, 256_000), (16, 49_155)];
    let finishes = [None, Some(30.0)];
    let of = |shape| finishes.map(|cap| case(shape, 0.5, cap, 1));
    shapes.into_iter().flat_map(of).collect()
}

/// One row more than are finished: that stays as it is.
pub(super) fn case(
    (num_rows, vocab_size): (usize, usize),
    scale: f32,
    cap: Option<f32>,
    seed: u64,
) -> Case {
    let mut data = Data::new(seed);
    let mut logits = data.normal((num_rows + 1) * vocab_size);
    let size = cap.unwrap_or(10.0) / scale;
    logits.iter_mut().for_each(|l| *l *= size);
    for (l, edge) in logits.iter_mut().zip([1e30, -1e30, 0.0, 1e-20, -1e-3]) {
        *l = edge;
    }
    let finished = num_rows * vocab_size;
    let judged = logits.iter().enumerate().map(|(i, &l)| match i < finished {
        true => exact(l, scale, cap),
        false => (f64::from(l), 0.0),
    });
    let (values, bounds) = judged.unzip();
    let dims = [num_rows + 1, vocab_size];
    let flops = if cap.is_some() { 8.0 } else { 1.0 };
    let name = format!("{num_rows}x{vocab_size} scale={scale} cap={cap:?}");
    Case::new(&FINISH_LOGITS, name)
        .work(flops * finished as f64, 8.0 * finished as f64)
        .tensor(
            CaseTensor::output_f32("logits", &dims, values, bounds)
                .starting_as(bytemuck::cast_slice(&logits).to_vec()),
        )
        .record(move |rec, t| record(rec, t.get("logits"), num_rows, scale, cap))
}
