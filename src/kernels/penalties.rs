//! Penalties and biases on the logits of single tokens, in place:
//! `l = l > 0 ? l / repeat : l * repeat`, `l -= presence + count * frequency`, `l += bias`
//! (repetition: Keskar et al., "CTRL", 2019; presence, frequency and bias as OpenAI's API defines them).

use super::case::{Case, CaseTensor, Data, U};
use super::twin::matmul::{f32_pieces, floats};
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/penalties.wgsl`.
    pub struct PenaltiesParams {
        /// Where the rows start among the words of the step.
        pub rows_at: u32,
        /// Logits of a row.
        pub vocab_size: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("penalties.wgsl")];
const WG: usize = 64;
const ROW_WORDS: usize = 5;
const ENTRY_WORDS: usize = 3;

/// The kernel.
pub static PENALTIES: Kernel = Kernel::new::<PenaltiesParams>("penalties", PARTS);

/// What is done to one row of logits.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Positive logits of seen tokens are divided by it, others multiplied; 1 does nothing.
    pub repeat: f32,
    /// Subtracted once from the logit of a seen token.
    pub presence: f32,
    /// Subtracted once per occurrence.
    pub frequency: f32,
    /// The tokens concerned, each once.
    pub entries: Vec<Entry>,
}

/// What is known of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// The token.
    pub id: u32,
    /// Occurrences in the window; 0 for a token that is only biased.
    pub count: u32,
    /// Added to the logit.
    pub bias: f32,
}

/// Words of a row with so many entries.
pub fn words(entries: usize) -> usize {
    ROW_WORDS + entries * ENTRY_WORDS
}

/// `rows` as words of a step that start at word `rows_at` of it.
pub fn encode(rows: &[Row], rows_at: usize) -> Vec<u32> {
    let mut words = Vec::new();
    let mut first = rows_at + rows.len() * ROW_WORDS;
    for row in rows {
        words.extend([first as u32, row.entries.len() as u32]);
        words.extend([row.repeat, row.presence, row.frequency].map(f32::to_bits));
        first += row.entries.len() * ENTRY_WORDS;
    }
    for entry in rows.iter().flat_map(|row| &row.entries) {
        words.extend([entry.id, entry.count, entry.bias.to_bits()]);
    }
    words
}

/// What [`encode`] made, its `headers` and the words of all their entries.
fn decode(headers: &[u32], entries: &[u32]) -> Vec<Row> {
    let mut entries = entries.chunks_exact(ENTRY_WORDS).map(|words| Entry {
        id: words[0],
        count: words[1],
        bias: f32::from_bits(words[2]),
    });
    let row = |words: &[u32]| Row {
        repeat: f32::from_bits(words[2]),
        presence: f32::from_bits(words[3]),
        frequency: f32::from_bits(words[4]),
        entries: entries.by_ref().take(words[1] as usize).collect(),
    };
    headers.chunks_exact(ROW_WORDS).map(row).collect()
}

/// The CPU twin for one row, in f64: the new logits, and the sum of magnitudes that each bound needs
/// (0 where a logit is as it was).
pub fn reference(logits: &[f32], row: &Row) -> Vec<(f64, f64)> {
    let mut out: Vec<(f64, f64)> = logits.iter().map(|&l| (f64::from(l), 0.0)).collect();
    for entry in &row.entries {
        if let Some(&logit) = logits.get(entry.id as usize) {
            out[entry.id as usize] = changed(logit, row, entry);
        }
    }
    out
}

/// One logit that is listed: what it becomes, and the sum of magnitudes.
fn changed(logit: f32, row: &Row, entry: &Entry) -> (f64, f64) {
    let (mut logit, bias) = (f64::from(logit), f64::from(entry.bias));
    let mut spent = 0.0;
    if entry.count > 0 {
        let repeat = f64::from(row.repeat);
        logit = if logit > 0.0 {
            logit / repeat
        } else {
            logit * repeat
        };
        spent = f64::from(row.presence) + f64::from(entry.count) * f64::from(row.frequency);
    }
    let magnitude = logit.abs()
        + f64::from(row.presence).abs()
        + f64::from(entry.count) * f64::from(row.frequency).abs()
        + bias.abs();
    (logit - spent + bias, magnitude)
}

/// With the bound: a division, a product, and four sums.
fn bounded((value, magnitude): (f64, f64)) -> (f64, f64) {
    (value, 8.0 * U * magnitude)
}

/// Changes the first rows of `logits: [.., vocab_size]` by `rows`, whose [`encode`]d words start at
/// word `rows_at` of `step`.
pub fn record(rec: &mut Recorder, logits: &Tensor, step: &Tensor, rows_at: usize, rows: &[Row]) {
    let [num_rows, vocab_size] = logits.dims();
    assert!(rows.len() <= num_rows, "{} rows of {num_rows}", rows.len());
    let most = rows.iter().map(|r| r.entries.len()).max().unwrap_or(0);
    rec.dispatch(
        &Variant::new(&PENALTIES),
        &[("rows", step), ("logits", logits)],
        PenaltiesParams {
            rows_at: rows_at as u32,
            vocab_size: vocab_size as u32,
        },
        [most.div_ceil(WG) as u32, rows.len() as u32, 1],
    );
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: PenaltiesParams = call.params();
    let (rows_at, vocab_size) = (p.rows_at as usize, p.vocab_size as usize);
    let num_rows = call.workgroups[1] as usize;
    let headers = rows_at..rows_at + num_rows * ROW_WORDS;
    let headers = call.read_range("rows", headers)?;
    let entries = headers.chunks_exact(ROW_WORDS).map(|words| {
        let first = words[0] as usize;
        first..first + words[1] as usize * ENTRY_WORDS
    });
    let entries = call.read_ranges("rows", &entries.collect::<Vec<_>>())?;
    let rows = decode(&headers, &entries);
    let listed = rows.iter().enumerate().flat_map(|(i, row)| {
        let known = row.entries.iter().filter(|e| e.id < p.vocab_size);
        known.map(move |entry| (i * vocab_size + entry.id as usize, row, entry))
    });
    let listed: Vec<_> = listed.collect();
    let places: Vec<_> = listed.iter().map(|(at, ..)| *at..at + 1).collect();
    let logits = floats(&call.read_ranges("logits", &places)?);
    let written = logits.into_iter().zip(listed);
    let written =
        written.map(|(logit, (at, row, entry))| (at, vec![bounded(changed(logit, row, entry))]));
    Ok(f32_pieces("logits", written.collect()))
}

/// There is only one.
pub fn variants() -> Vec<Variant> {
    vec![Variant::new(&PENALTIES)]
}

/// Rows without entries, with one, and around a workgroup of them; each penalty alone and all
/// together; ids at both ends of the vocabulary and beyond it.
pub fn cases() -> Vec<Case> {
    let row = |repeat, presence, frequency, ids: &[u32], seed| {
        let mut data = Data::new(seed);
        let entries = ids.iter().map(|&id| Entry {
            id,
            count: data.below(4) as u32,
            bias: if data.below(2) == 0 {
                0.0
            } else {
                (data.unit() * 200.0 - 100.0) as f32
            },
        });
        Row {
            repeat,
            presence,
            frequency,
            entries: entries.collect(),
        }
    };
    let many: Vec<u32> = (0..130).map(|i| i * 7).collect();
    let all = vec![
        row(1.1, 0.5, 0.25, &[], 0),
        row(1.3, 0.0, 0.0, &many, 1),
        row(1.0, 0.7, 0.0, &many[..64], 2),
        row(1.0, 0.0, -0.3, &many[..65], 3),
        row(0.8, -2.0, 2.0, &[0, 998, 999, 1000, u32::MAX], 4),
        row(1.0, 0.0, 0.0, &[999], 5),
    ];
    let single = Row {
        repeat: 2.0,
        presence: 0.5,
        frequency: 0.125,
        entries: vec![Entry {
            id: 0,
            count: 3,
            bias: 1.0,
        }],
    };
    vec![
        case("6x1000", all, 1000, 7),
        case("1x1", vec![single], 1, 0),
        case("2x64 unlisted", vec![Row::default(); 2], 64, 3),
    ]
}

fn case(name: &str, rows: Vec<Row>, vocab_size: usize, rows_at: usize) -> Case {
    let logits: Vec<f32> = Data::new(rows_at as u64)
        .normal(rows.len() * vocab_size)
        .iter()
        .map(|l| l * 5.0)
        .collect();
    let mut step = vec![u32::MAX; rows_at];
    step.extend(encode(&rows, rows_at));
    let (expected, bound) = logits
        .chunks(vocab_size)
        .zip(&rows)
        .flat_map(|(logits, row)| reference(logits, row))
        .map(bounded)
        .unzip();
    let shape = [rows.len(), vocab_size];
    let in_place = CaseTensor::output_f32("logits", &shape, expected, bound)
        .starting_as(bytemuck::cast_slice(&logits).to_vec());
    Case::new(&PENALTIES, name.to_owned())
        .tensor(CaseTensor::u32("step", &[step.len()], &step))
        .tensor(in_place)
        .record(move |rec, t| record(rec, t.get("logits"), t.get("step"), rows_at, &rows))
}
