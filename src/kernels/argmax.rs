//! The id of the largest logit of each row. Ties go to the lowest id; NaN loses to every number.
//!
//! Two dispatches: many workgroups reduce slices of a row, then one workgroup a row's candidates.

use super::case::{Case, CaseTensor, Data};
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/argmax.wgsl`.
    pub struct ArgmaxParams {
        /// Logits, or candidates, of a row.
        pub width: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("lib/order.wgsl"), wgsl!("argmax.wgsl")];
static LOGITS: Part = wgsl!("argmax/logits.wgsl");
static CANDIDATES: Part = wgsl!("argmax/candidates.wgsl");

/// Elements that one workgroup reduces.
const SLICE: usize = 2048;

/// The kernel.
pub static ARGMAX: Kernel = Kernel::new::<ArgmaxParams>("argmax", PARTS);

/// Words of scratch that `num_rows` rows of `vocab_size` logits need: (key, id) of each slice.
pub fn scratch_words(num_rows: usize, vocab_size: usize) -> usize {
    2 * num_rows * vocab_size.div_ceil(SLICE)
}

/// f32 as a key in the same order, NaN lowest: the twin of `order_key` in `shaders/lib/order.wgsl`.
pub fn order_key(value: f32) -> u32 {
    if value.is_nan() {
        return 0;
    }
    let bits = (value + 0.0).to_bits(); // -0 becomes +0
    if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    }
}

/// The CPU twin for one row: not a NaN unless there is nothing else.
pub fn reference(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &value) in logits.iter().enumerate() {
        if order_key(value) > order_key(logits[best]) {
            best = id;
        }
    }
    best as u32
}

/// Ids of the first `num_rows` rows of `logits: [.., vocab_size]` into `ids: [..]`. `scratch` has
/// [`scratch_words`] words.
pub fn record(
    rec: &mut Recorder,
    logits: &Tensor,
    num_rows: usize,
    scratch: &Tensor,
    ids: &Tensor,
) {
    let [rows, vocab_size] = logits.dims();
    let [room] = ids.dims();
    let [words] = scratch.dims();
    assert!(
        num_rows <= rows && num_rows <= room && scratch_words(num_rows, vocab_size) <= words,
        "{num_rows} rows of {rows} and {room}, {words} words of scratch"
    );
    assert!(
        vocab_size <= SLICE * SLICE,
        "{vocab_size} logits: the second dispatch has one slice"
    );
    let slices = vocab_size.div_ceil(SLICE) as u32;
    rec.dispatch(
        &Variant::new(&ARGMAX).part(&LOGITS),
        &[("x", logits), ("y", scratch)],
        ArgmaxParams {
            width: vocab_size as u32,
        },
        [slices, num_rows as u32, 1],
    );
    rec.dispatch(
        &Variant::new(&ARGMAX).part(&CANDIDATES),
        &[("x", scratch), ("y", ids)],
        ArgmaxParams { width: slices },
        [1, num_rows as u32, 1],
    );
}

/// What a dispatch writes: candidates of each slice, or ids.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let width = call.params::<ArgmaxParams>().width as usize;
    let [slices, rows, _] = call.workgroups.map(|n| n as usize);
    let mut words = Vec::new();
    if call.has_part(LOGITS.name) {
        let x = call.read_range("x", 0..rows * width)?;
        let logits: Vec<f32> = x.iter().map(|&w| f32::from_bits(w)).collect();
        for row in logits.chunks(width) {
            for (slice, values) in row.chunks(SLICE).enumerate() {
                let best = reference(values);
                let id = (slice * SLICE) as u32 + best;
                words.extend([order_key(values[best as usize]), id]);
            }
        }
        assert_eq!(words.len(), 2 * rows * slices, "candidates");
    } else {
        let x = call.read_range("x", 0..2 * rows * width)?;
        for row in x.chunks(2 * width) {
            // keys ascend with the logits, and of equal ones the first slice has the lowest id
            let best = row.chunks(2).reduce(|a, b| if b[0] > a[0] { b } else { a });
            words.push(best.expect("a candidate")[1]);
        }
    }
    Ok(vec![Piece::exact("y", 0, words)])
}

/// Both stages.
pub fn variants() -> Vec<Variant> {
    [&LOGITS, &CANDIDATES]
        .map(|part| Variant::new(&ARGMAX).part(part))
        .to_vec()
}

/// Widths around a workgroup and a slice and of real vocabularies; ties within and across slices,
/// zeros of both signs, infinities, and NaNs of both signs, up to a row of nothing else.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 1),
        (2, 2),
        (3, 63),
        (1, 65),
        (2, 257),
        (1, 2048),
        (3, 2049),
        (4, 49152),
        (1, 151_936),
    ];
    let mut all: Vec<Case> = shapes
        .iter()
        .enumerate()
        .map(|(seed, &(rows, width))| {
            let logits = Data::new(seed as u64).normal(rows * width);
            case(format!("{rows}x{width}"), rows, &logits)
        })
        .collect();
    let base = Data::new(99).normal(5000);
    let with = |edits: &[(usize, f32)]| {
        let mut row = base.clone();
        for &(at, value) in edits {
            row[at] = value;
        }
        row
    };
    let negative_nan = f32::from_bits(0xFFC0_0001);
    let rows = [
        with(&[(4999, 50.0), (64, 50.0), (2047, 50.0), (65, 50.0)]),
        with(&[
            (0, f32::NAN),
            (1, negative_nan),
            (4999, f32::NAN),
            (2048, 40.0),
        ]),
        with(&[(3000, f32::INFINITY), (4000, f32::INFINITY), (2, f32::NAN)]),
        with(&[(4100, f32::MAX), (7, f32::MIN)]),
        vec![f32::NAN; 5000],
        vec![f32::NEG_INFINITY; 5000],
        [vec![f32::NAN; 4998], vec![f32::NEG_INFINITY, -1e38]].concat(),
        [vec![negative_nan; 4999], vec![f32::NEG_INFINITY]].concat(),
        // both zeros are equal; the smallest numbers are not zero
        [vec![-1.0; 10], vec![-0.0, 0.0], vec![-2.0; 4988]].concat(),
        [vec![0.0; 4000], vec![f32::from_bits(1)], vec![-0.0; 999]].concat(),
    ];
    all.push(case("edges".to_owned(), rows.len(), &rows.concat()));
    all
}

pub(super) fn case(name: String, rows: usize, logits: &[f32]) -> Case {
    let width = logits.len() / rows;
    let expected: Vec<u32> = logits.chunks(width).map(reference).collect();
    let words = scratch_words(rows, width);
    let scratch = CaseTensor::output_u32("scratch", &[words], &vec![0; words]).judged(|_| Ok(()));
    Case::new(&ARGMAX, name)
        .work(0.0, 4.0 * logits.len() as f64)
        .tensor(CaseTensor::f32("logits", &[rows, width], logits))
        .tensor(scratch)
        .tensor(CaseTensor::output_u32("ids", &[rows], &expected))
        .record(move |rec, t| record(rec, t.get("logits"), rows, t.get("scratch"), t.get("ids")))
}
