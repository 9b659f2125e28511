//! RMSNorm over the last axis: `y = x * rsqrt(mean(x^2) + eps) * weight`
//! (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019).

use super::case::{Case, CaseTensor, Data, U};
use crate::gpu::{Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/rms_norm.wgsl`.
    pub struct RmsNormParams {
        /// Rows of `x` and `y`.
        pub num_rows: u32,
        /// Columns.
        pub hidden: u32,
        /// Added to the mean square.
        pub eps: f32,
    }
}

const PARTS: &[Part] = &[wgsl!("rms_norm.wgsl")];

/// The kernel.
pub static RMS_NORM: Kernel = Kernel::new::<RmsNormParams>("rms_norm", PARTS);

/// The widest row: the shader keeps one partial sum per 32 elements in workgroup memory.
pub const MAX_HIDDEN: usize = 32 * 1024;

/// The CPU twin, in f64: the reference must be the more exact of the two.
pub fn reference(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    x.chunks(weight.len())
        .flat_map(|row| {
            let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / row.len() as f64;
            let scale = 1.0 / (mean + f64::from(eps)).sqrt();
            row.iter()
                .zip(weight)
                .map(move |(&v, &w)| f64::from(v) * scale * f64::from(w))
        })
        .collect()
}

/// `y[r, c]` for `num_rows` rows of `x: [rows, hidden]` (or fewer than its rows).
pub fn record(
    rec: &mut Recorder,
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
    num_rows: usize,
    y: &Tensor,
) {
    let [x_rows, hidden] = x.dims();
    let [y_rows, y_hidden] = y.dims();
    assert_eq!(weight.dims(), [hidden]);
    assert_eq!(y_hidden, hidden);
    assert!(
        num_rows <= x_rows && num_rows <= y_rows && hidden <= MAX_HIDDEN,
        "{num_rows} rows of {hidden}"
    );
    rec.dispatch(
        &Variant::new(&RMS_NORM),
        &[("x", x), ("weight", weight), ("y", y)],
        RmsNormParams {
            num_rows: num_rows as u32,
            hidden: hidden as u32,
            eps,
        },
        [num_rows as u32, 1, 1],
    );
}

/// There is only one.
pub fn variants() -> Vec<Variant> {
    vec![Variant::new(&RMS_NORM)]
}

/// Ragged widths first: 1, around a partial, around a workgroup, a prime; then widths models use.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 1),
        (2, 31),
        (3, 32),
        (1, 33),
        (5, 63),
        (2, 65),
        (3, 577),
        (1, 2049),
        (7, 576),
        (2, 4096),
    ];
    shapes
        .iter()
        .enumerate()
        .map(|(seed, &(rows, hidden))| case(seed as u64, rows, hidden))
        .collect()
}

fn case(seed: u64, rows: usize, hidden: usize) -> Case {
    let mut data = Data::new(seed);
    let (x, weight) = (data.normal(rows * hidden), data.normal(hidden));
    let eps = 1e-5;
    let expected = reference(&x, &weight, eps);
    // (K + 2) / 2 roundings in the mean square become half as many in its root; 4 ulp for the rest.
    let relative = ((hidden as f64 + 2.0) / 2.0 + 4.0) * U;
    let bound = expected
        .iter()
        .map(|v| v.abs() * relative + 1e-30)
        .collect();
    Case::new(&RMS_NORM, format!("{rows}x{hidden}"))
        .tensor(CaseTensor::f32("x", &[rows, hidden], &x))
        .tensor(CaseTensor::f32("weight", &[hidden], &weight))
        .tensor(CaseTensor::output_f32(
            "y",
            &[rows, hidden],
            expected,
            bound,
        ))
        .work(3.0 * (rows * hidden) as f64, 8.0 * (rows * hidden) as f64)
        .record(move |rec, t| record(rec, t.get("x"), t.get("weight"), eps, rows, t.get("y")))
}
