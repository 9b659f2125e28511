//! One token id per row of logits: temperature, top-k, top-p, min-p, then a seeded draw by the
//! Gumbel-max trick (Maddison et al., "A* Sampling", 2014). Only ids leave the device.
//!
//! Two rules where others differ: every token that ties with the last one of top-k or of top-p
//! stays, and what is drawn depends on (seed, position, logits) alone, not on the batch.

use super::case::{Case, CaseTensor, Data};
use super::twin::matmul::floats;
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};
pub use exact::{check, draw, reference};

mod exact;

params! {
    /// Checked against `Params` in `shaders/sample.wgsl`.
    pub struct SampleParams {
        /// Where the rows start among the words of the step.
        pub rows_at: u32,
        /// Logits of a row.
        pub vocab_size: u32,
    }
}

const PARTS: &[Part] = &[
    wgsl!("lib/order.wgsl"),
    wgsl!("lib/rng.wgsl"),
    wgsl!("sample.wgsl"),
];

/// Words of a row in a step.
pub const ROW_WORDS: usize = 7;

/// Temperatures between 0 and this are taken as this.
pub const MIN_TEMPERATURE: f32 = 1e-5;

/// The kernel.
pub static SAMPLE: Kernel = Kernel::new::<SampleParams>("sample", PARTS);

/// How one row is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Divides the logits; 0 takes the largest.
    pub temperature: f32,
    /// Tokens kept by rank, with those that tie with the last; 0 keeps all.
    pub top_k: u32,
    /// Tokens kept by mass, largest first, until they reach this share; 1 keeps all.
    pub top_p: f32,
    /// Tokens kept by their probability relative to the largest; 0 keeps all.
    pub min_p: f32,
    /// The sequence's seed.
    pub seed: u64,
    /// The position that is drawn for.
    pub position: u32,
}

impl Row {
    /// The largest logit, whatever the seed.
    pub const GREEDY: Row = Row {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        position: 0,
    };

    /// What [`Row::words`] made.
    pub fn from_words(words: &[u32]) -> Row {
        Row {
            temperature: f32::from_bits(words[0]),
            top_k: words[1],
            top_p: f32::from_bits(words[2]),
            min_p: f32::from_bits(words[3]),
            seed: u64::from(words[4]) | u64::from(words[5]) << 32,
            position: words[6],
        }
    }

    /// The row as words of a step.
    pub fn words(&self) -> [u32; ROW_WORDS] {
        [
            self.temperature.to_bits(),
            self.top_k,
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.position,
        ]
    }
}

/// Ids of the first `num_rows` rows of `logits: [.., vocab_size]` into `ids: [..]`, by the
/// [`Row::words`] that start at word `rows_at` of `step`.
pub fn record(
    rec: &mut Recorder,
    logits: &Tensor,
    step: &Tensor,
    rows_at: usize,
    num_rows: usize,
    ids: &Tensor,
) {
    let [rows, vocab_size] = logits.dims();
    let [room] = ids.dims();
    let [words] = step.dims();
    assert!(
        num_rows <= rows && num_rows <= room && rows_at + num_rows * ROW_WORDS <= words,
        "{num_rows} rows of {rows} and {room}, at {rows_at} of {words} words"
    );
    rec.dispatch(
        &Variant::new(&SAMPLE),
        &[("logits", logits), ("rows", step), ("ids", ids)],
        SampleParams {
            rows_at: rows_at as u32,
            vocab_size: vocab_size as u32,
        },
        [num_rows as u32, 1, 1],
    );
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: SampleParams = call.params();
    let (rows_at, vocab_size) = (p.rows_at as usize, p.vocab_size as usize);
    let num_rows = call.workgroups[0] as usize;
    let words = rows_at..rows_at + num_rows * ROW_WORDS;
    let rows = call.read_range("rows", words)?;
    let rows: Vec<Row> = rows.chunks_exact(ROW_WORDS).map(Row::from_words).collect();
    let logits = floats(&call.read_range("logits", 0..num_rows * vocab_size)?);
    let draws = logits.chunks(vocab_size).zip(&rows);
    let ids = draws.map(|(logits, row)| draw(logits, row)).collect();
    let judge = move |bytes: &[u8]| check_all(&logits, &rows, bytes);
    Ok(vec![Piece::judged("ids", 0, ids, judge)])
}

/// There is only one.
pub fn variants() -> Vec<Variant> {
    vec![Variant::new(&SAMPLE)]
}

/// Each filter alone and all together, at several temperatures, on vocabularies of 1, 2, around a
/// workgroup and a real one; then ties, NaNs, infinities and logits too large to be subtracted.
pub fn cases() -> Vec<Case> {
    let settings = settings();
    let mut all = Vec::new();
    for (seed, vocab_size) in [1, 2, 255, 257, 1000].into_iter().enumerate() {
        let logits: Vec<f32> = Data::new(seed as u64)
            .normal(settings.len() * vocab_size)
            .iter()
            .map(|l| l * 3.0)
            .collect();
        all.push(case(vocab_size.to_string(), logits, settings.clone()));
    }
    let rows: Vec<Row> = settings.iter().copied().step_by(3).collect();
    let logits: Vec<f32> = Data::new(9)
        .normal(rows.len() * 49152)
        .iter()
        .map(|l| l * 3.0)
        .collect();
    all.push(case("49152".to_owned(), logits, rows));

    let base: Vec<f32> = Data::new(7).normal(300);
    for (name, edits) in edges() {
        let mut row = base.clone();
        for (range, value) in edits {
            row[range].fill(value);
        }
        all.push(case(
            name.to_owned(),
            row.repeat(settings.len()),
            settings.clone(),
        ));
    }
    all
}

type Edits = Vec<(std::ops::Range<usize>, f32)>;

fn edges() -> Vec<(&'static str, Edits)> {
    vec![
        (
            "ties",
            vec![(10..20, 4.0), (100..103, 5.0), (290..300, 4.0)],
        ),
        ("all equal", vec![(0..300, -2.5)]),
        (
            "NaNs",
            vec![(0..150, f32::NAN), (290..295, f32::from_bits(0xFFC0_0001))],
        ),
        ("only NaNs", vec![(0..300, f32::NAN)]),
        ("one number", vec![(0..300, f32::NAN), (299..300, -3e38)]),
        (
            "infinities",
            vec![(5..8, f32::INFINITY), (20..200, f32::NEG_INFINITY)],
        ),
        ("nothing allowed", vec![(0..300, f32::NEG_INFINITY)]),
        (
            "huge",
            vec![(0..100, -3e38), (100..102, 3e38), (102..103, 2.9e38)],
        ),
        (
            "zeros",
            vec![
                (0..200, -0.0),
                (200..250, 0.0),
                (250..300, f32::from_bits(1)),
            ],
        ),
    ]
}

pub(super) fn settings() -> Vec<Row> {
    let plain = Row {
        temperature: 1.0,
        seed: 0x0123_4567_89AB_CDEF,
        ..Row::GREEDY
    };
    let mut rows = vec![
        plain,
        Row::GREEDY,
        Row {
            temperature: 0.1,
            ..plain
        },
        Row {
            temperature: 5.0,
            ..plain
        },
        Row {
            temperature: 1e-20,
            ..plain
        },
        Row { top_k: 1, ..plain },
        Row { top_k: 40, ..plain },
        Row {
            top_k: u32::MAX,
            temperature: 2.0,
            ..plain
        },
        Row {
            top_p: 0.0,
            ..plain
        },
        Row {
            top_p: 0.5,
            temperature: 2.0,
            ..plain
        },
        Row {
            top_p: 0.95,
            ..plain
        },
        Row {
            top_p: 0.999,
            temperature: 3.0,
            ..plain
        },
        Row {
            min_p: 0.05,
            ..plain
        },
        Row {
            min_p: 1.0,
            ..plain
        },
        Row {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            ..plain
        },
        Row {
            temperature: 1.5,
            top_k: 5,
            top_p: 0.6,
            ..plain
        },
    ];
    for (i, row) in rows.iter_mut().enumerate() {
        row.position = 100 + i as u32 / 2;
    }
    rows
}

/// Holds the ids of all rows, as bytes, against their logits.
fn check_all(logits: &[f32], rows: &[Row], bytes: &[u8]) -> std::result::Result<(), String> {
    let ids: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
    let logits = logits.chunks(logits.len() / rows.len());
    for (i, ((logits, row), id)) in logits.zip(rows).zip(ids).enumerate() {
        check(logits, row, id).map_err(|problem| format!("row {i}: {problem}"))?;
    }
    Ok(())
}

pub(super) fn case(name: String, logits: Vec<f32>, rows: Vec<Row>) -> Case {
    let num_rows = rows.len();
    let vocab_size = logits.len() / num_rows;
    let rows_at = 5;
    let mut step = vec![u32::MAX; rows_at];
    step.extend(rows.iter().flat_map(Row::words));
    let shape = [num_rows, vocab_size];
    let input = CaseTensor::f32("logits", &shape, &logits);
    let judge = move |bytes: &[u8]| check_all(&logits, &rows, bytes);
    Case::new(&SAMPLE, name)
        .work(0.0, 4.0 * (num_rows * vocab_size) as f64)
        .tensor(input)
        .tensor(CaseTensor::u32("step", &[step.len()], &step))
        .tensor(CaseTensor::output_u32("ids", &[num_rows], &vec![0; num_rows]).judged(judge))
        .record(move |rec, t| {
            record(
                rec,
                t.get("logits"),
                t.get("step"),
                rows_at,
                num_rows,
                t.get("ids"),
            );
        })
}
