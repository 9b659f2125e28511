//! One token id per row of logits: temperature, top-k, top-p, min-p, then a seeded draw by the
//! Gumbel-max trick (Maddison et al., "A* Sampling", 2014). Only ids leave the device.
//!
//! Two rules where others differ: every token that ties with the last one of top-k or of top-p
//! stays, and what is drawn depends on (seed, position, logits) alone, not on the batch.
//!
//! A row that has a [`Drafted`] token draws otherwise, from the same distribution: it keeps that token
//! with the probability `min(1, p / q)`, and else draws from what `q` leaves of `p` (Leviathan et al.,
//! "Fast Inference from Transformers via Speculative Decoding", 2023). At temperature 0 it changes nothing.

use super::twin::matmul::floats;
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};
pub use cases::cases;
pub(super) use cases::{case, draft_case, settings};
pub use drafted::{Drafted, MOST_CHOICES, draw_alike, draw_from};
pub use exact::{check, draw, reference};

mod cases;
mod drafted;
mod exact;
mod random;

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
static DRAFTED: Part = wgsl!("sample/drafted.wgsl");
static DRAFTED_NONE: Part = wgsl!("sample/drafted_none.wgsl");

/// Words of a row in a step, its list aside.
pub const ROW_WORDS: usize = 9;

/// Temperatures between 0 and this are taken as this.
pub const MIN_TEMPERATURE: f32 = 1e-5;

/// The kernel.
pub static SAMPLE: Kernel = Kernel::new::<SampleParams>("sample", PARTS);

/// How one row is sampled.
#[derive(Clone, Debug, PartialEq)]
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
    /// A token that was drawn for that position from something else, to be kept where that can be.
    pub drafted: Option<Drafted>,
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
        drafted: None,
    };

    /// The row's own words, with its list at word `list_at` of the step.
    fn words(&self, list_at: usize) -> [u32; ROW_WORDS] {
        let entries = self.drafted.as_ref().map_or(0, |d| d.choices.len());
        [
            self.temperature.to_bits(),
            self.top_k,
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.position,
            if entries > 0 { list_at as u32 } else { 0 },
            entries as u32,
        ]
    }
}

/// `rows` as words of a step that start at word `rows_at` of it: the rows, then their lists.
///
/// # Panics
/// Where a list is none of a vocabulary of `vocab_size` tokens, as [`Drafted::choices`] says.
pub fn encode(rows: &[Row], rows_at: usize, vocab_size: usize) -> Vec<u32> {
    let lists: Vec<Vec<u32>> = rows
        .iter()
        .map(|row| {
            row.drafted
                .as_ref()
                .map_or(Vec::new(), |d| d.words(vocab_size))
        })
        .collect();
    let mut words = Vec::new();
    let mut list_at = rows_at + rows.len() * ROW_WORDS;
    for (row, list) in rows.iter().zip(&lists) {
        words.extend(row.words(list_at));
        list_at += list.len();
    }
    words.extend(lists.concat());
    words
}

/// What [`encode`] made, its `headers` and the words of all lists.
fn decode(headers: &[u32], lists: &[u32]) -> Vec<Row> {
    let mut rest = lists;
    let row = |words: &[u32]| {
        let (list, others) = rest.split_at(2 * words[8] as usize);
        rest = others;
        Row {
            temperature: f32::from_bits(words[0]),
            top_k: words[1],
            top_p: f32::from_bits(words[2]),
            min_p: f32::from_bits(words[3]),
            seed: u64::from(words[4]) | u64::from(words[5]) << 32,
            position: words[6],
            drafted: Drafted::from_words(list),
        }
    };
    headers.chunks_exact(ROW_WORDS).map(row).collect()
}

/// Ids of the first `num_rows` rows of `logits: [.., vocab_size]` into `ids: [..]`, by rows whose
/// [`encode`]d words start at word `rows_at` of `step`; `drafted` where one of them may have a list.
pub fn record(
    rec: &mut Recorder,
    logits: &Tensor,
    step: &Tensor,
    rows_at: usize,
    num_rows: usize,
    drafted: bool,
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
        &variant(drafted),
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
    let headers = call.read_range("rows", rows_at..rows_at + num_rows * ROW_WORDS)?;
    let lists = headers.chunks_exact(ROW_WORDS).map(|words| {
        let first = words[7] as usize;
        first..first + 2 * words[8] as usize
    });
    let lists = call.read_ranges("rows", &lists.collect::<Vec<_>>())?;
    let rows = decode(&headers, &lists);
    let logits = floats(&call.read_range("logits", 0..num_rows * vocab_size)?);
    let draws = logits.chunks(vocab_size).zip(&rows);
    let ids = draws.map(|(logits, row)| draw(logits, row)).collect();
    let judge = move |bytes: &[u8]| check_all(&logits, &rows, bytes);
    Ok(vec![Piece::judged("ids", 0, ids, judge)])
}

/// With lists, and without.
pub fn variants() -> Vec<Variant> {
    vec![variant(false), variant(true)]
}

/// A step without lists does not pay for them: on a software adapter drawing would take a twentieth longer.
fn variant(drafted: bool) -> Variant {
    Variant::new(&SAMPLE).part(if drafted { &DRAFTED } else { &DRAFTED_NONE })
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
