//! Activation records as rows of f16 with a factor for each token, for
//! [`matmul_coop`](super::matmul_coop): `y[t, k] = f16(x[t, k] * 2^e[t])` with the largest value of a
//! token in `2^10 .. 2^11`, and `factor[t] = 2^-e[t]` times the factor of the norm before.

use super::activations::Activations;
use super::case::{Case, CaseTensor, Data, U};
use super::matmul::{NORM_NONE, NORM_RMS, Norm};
use super::tuning::Tuning;
use super::twin::endings::norm_error;
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::quant::GROUP;
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/halve.wgsl`.
    pub struct HalveParams {
        /// Rows in use.
        pub num_tokens: u32,
        /// Records of a row.
        pub num_groups: u32,
        /// What the norm adds to the mean of squares.
        pub eps: f32,
        /// Columns the mean is of.
        pub norm_columns: f32,
    }
}

const PARTS: &[Part] = &[wgsl!("halve.wgsl")];

/// The kernel.
pub static HALVE: Kernel = Kernel::new::<HalveParams>("halve", PARTS);

/// Shape of a tensor of words for `tokens` rows of `columns`: values, then the factor and padding.
pub fn dims(tokens: usize, columns: usize) -> [usize; 2] {
    [tokens, columns.div_ceil(GROUP) * (GROUP / 2) + 4]
}

/// The CPU twin: whole rows of `columns`, and what the norm's factor is for each. Values are rounded
/// to nearest; the device may take either neighbour.
pub fn reference(x: &[f32], columns: usize, factors: &[f64]) -> Vec<u32> {
    let mut words = Vec::new();
    for (row, factor) in x.chunks(columns).zip(factors) {
        let scale = scale_of(row);
        let mut padded: Vec<f32> = row.iter().map(|v| v * scale).collect();
        padded.resize(columns.next_multiple_of(GROUP), 0.0);
        let bits = |v: f32| u32::from(half::f16::from_f32(v).to_bits());
        words.extend(padded.chunks(2).map(|p| bits(p[0]) | bits(p[1]) << 16));
        words.extend([((factor / f64::from(scale)) as f32).to_bits(), 0, 0, 0]);
    }
    words
}

/// Values of whole rows of words as stored, and the factor of each row.
pub fn unpack(words: &[u32], columns: usize) -> (Vec<f32>, Vec<f32>) {
    let [_, row_words] = dims(1, columns);
    let half = |w: u32| half::f16::from_bits(w as u16).to_f32();
    let mut values = Vec::new();
    for row in words.chunks(row_words) {
        let all = row[..row_words - 4]
            .iter()
            .flat_map(|&w| [half(w), half(w >> 16)]);
        values.extend(all.take(columns));
    }
    let factor = |row: &[u32]| f32::from_bits(row[row_words - 4]);
    (values, words.chunks(row_words).map(factor).collect())
}

/// The power of two that brings the largest value of `row` to `2^10 .. 2^11`.
fn scale_of(row: &[f32]) -> f32 {
    let peak = row.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    f32::from_bits((264 - (peak.to_bits() >> 23).clamp(11, 254)) << 23)
}

/// The first `num_tokens` rows of `x`, records of `columns` columns, in `halves`: words, at least as
/// many as [`dims`] tells.
pub fn record(
    rec: &mut Recorder,
    tuning: &Tuning,
    x: &Tensor,
    num_tokens: usize,
    columns: usize,
    norm: Option<Norm>,
    halves: &Tensor,
) {
    let ([x_rows, x_words], [rows, words]) = (x.dims(), halves.dims());
    let needed = dims(num_tokens, columns).iter().product::<usize>();
    assert_eq!(x_words, Activations::F32.dims(1, columns)[1], "words of x");
    assert!(
        num_tokens <= x_rows && needed <= rows * words,
        "{num_tokens} tokens of {x_rows}, {needed} words of {rows} x {words}"
    );
    let params = HalveParams {
        num_tokens: num_tokens as u32,
        num_groups: columns.div_ceil(GROUP) as u32,
        eps: norm.map_or(0.0, |n| n.eps),
        norm_columns: columns as f32,
    };
    rec.dispatch(
        &variant(tuning.team_workgroup(), norm.is_some()),
        &[("x", x), ("halves", halves)],
        params,
        grid(num_tokens),
    );
}

fn variant(workgroup: u32, norm: bool) -> Variant {
    Variant::new(&HALVE)
        .part(Activations::F32.part())
        .part(if norm { &NORM_RMS } else { &NORM_NONE })
        .set("WG", workgroup)
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: HalveParams = call.params();
    let (tokens, groups) = (p.num_tokens as usize, p.num_groups as usize);
    let activations = Activations::F32;
    let words = tokens * groups * activations.record_words();
    let words = call.read_range("x", 0..words)?;
    let columns = groups * GROUP;
    let x = activations.unpack(&words, columns);
    let factors = match call.has_part(NORM_RMS.name) {
        true => Norm { eps: p.eps }.factors(&activations.squares(&words), p.norm_columns as usize),
        false => vec![1.0; tokens],
    };
    let words = reference(&x, columns, &factors);
    let bound = factor_error(groups);
    let judge = move |bytes: &[u8]| {
        let found: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
        check(&found, &x, columns, &factors, bound)
    };
    Ok(vec![Piece::judged("halves", 0, words, judge)])
}

/// With a norm before it and without, in small workgroups and large.
pub fn variants() -> Vec<Variant> {
    let all = [(8, false), (8, true), (64, false), (64, true)];
    all.map(|(workgroup, norm)| variant(workgroup, norm))
        .to_vec()
}

/// Ragged widths; rows of zeros, of very large and of very small values.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for lanes in [1, 8] {
        for norm in [false, true] {
            for shape in [(1, 4), (3, 36), (5, 64), (17, 100), (2, 1028)] {
                all.push(case(lanes, norm, shape, all.len() as u64));
            }
        }
    }
    all
}

pub(super) fn case(
    lanes: u32,
    norm: bool,
    (num_tokens, columns): (usize, usize),
    seed: u64,
) -> Case {
    const EPS: f32 = 1e-5;
    let tuning = Tuning::plain(lanes);
    let mut data = Data::new(seed);
    let mut x = data.normal(num_tokens * columns);
    for (row, values) in x.chunks_mut(columns).enumerate() {
        let size = [1.0, 1e30, 1e-30, 0.0][row % 4];
        values.iter_mut().for_each(|v| *v *= size);
    }
    let groups = columns.div_ceil(GROUP);
    let squares: Vec<f32> = data
        .normal(num_tokens * groups)
        .iter()
        .map(|v| v * v)
        .collect();
    let norm = norm.then_some(Norm { eps: EPS });
    let factors = match norm {
        Some(norm) => norm.factors(&squares, columns),
        None => vec![1.0; num_tokens],
    };
    let words = Activations::F32.pack(&x, columns, Some(&squares));
    let expected = reference(&x, columns, &factors);
    let bound = factor_error(groups);
    let name = format!(
        "{num_tokens}x{columns} norm={} lanes={lanes}",
        norm.is_some()
    );
    Case::new(&HALVE, name)
        .tensor(CaseTensor::u32(
            "x",
            &Activations::F32.dims(num_tokens, columns),
            &words,
        ))
        .tensor(
            CaseTensor::output_u32("halves", &dims(num_tokens, columns), &expected).judged(
                move |bytes| {
                    let found: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
                    check(&found, &x, columns, &factors, bound)
                },
            ),
        )
        .record(move |rec, t| {
            let (x, halves) = (t.get("x"), t.get("halves"));
            record(rec, &tuning, x, num_tokens, columns, norm, halves);
        })
}

/// How far a factor may be off, as a share of it: that of the norm, and a product.
fn factor_error(groups: usize) -> f64 {
    norm_error(groups) + U
}

/// Holds rows as found on the device against exact values, either neighbour in f16 allowed.
fn check(
    found: &[u32],
    x: &[f32],
    columns: usize,
    factors: &[f64],
    bound: f64,
) -> Result<(), String> {
    let (values, found_factors) = unpack(found, columns);
    for (t, row) in x.chunks(columns).enumerate() {
        let scale = f64::from(scale_of(row));
        for (k, v) in row.iter().enumerate() {
            let (found, exact) = (f64::from(values[t * columns + k]), f64::from(*v) * scale);
            let allowed = exact.abs() / 1024.0 + 2f64.powi(-24);
            if (found - exact).abs() > allowed || found.is_nan() {
                return Err(format!(
                    "token {t}, column {k} is {found:e}, expected {exact:e}"
                ));
            }
        }
        let (found, exact) = (f64::from(found_factors[t]), factors[t] / scale);
        if (found - exact).abs() > exact * bound || found.is_nan() {
            return Err(format!("factor {t} is {found:e}, expected {exact:e}"));
        }
    }
    let [_, row_words] = dims(1, columns);
    let padding = |row: &[u32]| {
        row[columns.div_ceil(2)..row_words - 4]
            .iter()
            .all(|&w| w == 0)
    };
    let zeros = |row: &[u32]| row[row_words - 3..] == [0; 3];
    match found
        .chunks(row_words)
        .position(|row| !padding(row) || !zeros(row))
    {
        None => Ok(()),
        Some(t) => Err(format!("the padding of token {t} is not 0")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_scaled() {
        let x = [3.0f32, -1.0, 0.5, 1e-3, 0.0, 0.0, 0.0, 0.0];
        let words = reference(&x, 4, &[2.0, 1.0]);
        assert_eq!(words.len(), dims(2, 4).iter().product::<usize>());
        let (values, factors) = unpack(&words, 4);
        assert_eq!(values[..3], [1536.0, -512.0, 256.0]);
        assert_eq!(factors[0], 2.0 / 512.0);
        assert_eq!(values[4..], [0.0; 4]);
        check(&words, &x, 4, &[2.0, 1.0], 1e-7).unwrap();
        let mut wrong = words.clone();
        wrong[0] ^= 0x10;
        assert!(
            check(&wrong, &x, 4, &[2.0, 1.0], 1e-7)
                .unwrap_err()
                .contains("column 0")
        );
        assert!(
            check(&words, &x, 4, &[2.1, 1.0], 1e-7)
                .unwrap_err()
                .contains("factor 0")
        );
    }
}
