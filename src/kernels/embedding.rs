//! Token ids to rows of the packed table, `hidden[t, :] = table[ids[t], :] * scale`; and, times the weight of the
//! first norm, packed for the first matmul.

use super::activations::Activations;
use super::case::{Case, CaseTensor, Data, U, dot_bound};
use super::distinct;
use super::pack::records;
use super::tuning::Tuning;
use super::twin::endings::Exact;
use super::twin::matmul::floats;
use super::twin::packed::Packed;
use super::twin::runs::{Run, joined};
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::quant::{BLOCK_ROWS, FORMATS, Format, GROUP, Shard, Weights};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/embedding.wgsl`.
    pub struct EmbeddingParams {
        /// Rows of `y` in use.
        pub num_tokens: u32,
        /// Where the token ids start among the words of the step.
        pub ids_at: u32,
        /// Columns of the table.
        pub columns: u32,
        /// The shard's first row in the whole table.
        pub first_row: u32,
        /// Rows of the shard.
        pub num_rows: u32,
        /// Factor of every row.
        pub scale: f32,
    }
}

const PARTS: &[Part] = &[wgsl!("embedding.wgsl")];
static RECORD: Part = wgsl!("act/record.wgsl");

/// The kernel.
pub static EMBEDDING: Kernel = Kernel::new::<EmbeddingParams>("embedding", PARTS);

/// The CPU twin over `table: [rows, columns]` as the device sees it. Exact: nothing is added up, and a product
/// has one rounding.
pub fn reference(table: &[f32], columns: usize, ids: &[u32], scale: f32) -> Vec<f32> {
    ids.iter()
        .flat_map(|&id| &table[id as usize * columns..][..columns])
        .map(|v| v * scale)
        .collect()
}

/// Rows of `hidden: [.., columns]`, those of the table times `scale`, for the `num_tokens` ids that start at
/// word `ids_at` of `step`, and `hidden * gamma` as records in `act`. An id beyond the table leaves its rows as they were: callers
/// check the user's.
#[expect(
    clippy::too_many_arguments,
    reason = "tensors and where to look in them"
)]
pub fn record(
    rec: &mut Recorder,
    tuning: &Tuning,
    table: &Weights,
    step: &Tensor,
    ids_at: usize,
    num_tokens: usize,
    scale: f32,
    hidden: &Tensor,
    gamma: &Tensor,
    act: &Tensor,
) {
    let ([rows, columns], [act_rows, act_words]) = (hidden.dims(), act.dims());
    let [words] = step.dims();
    assert_eq!(columns, table.columns, "columns of hidden");
    assert_eq!(gamma.shape(), [columns], "gamma");
    assert_eq!(
        act_words,
        tuning.activations.dims(1, columns)[1],
        "words of act"
    );
    assert!(
        num_tokens <= rows.min(act_rows) && ids_at + num_tokens <= words,
        "{num_tokens} tokens at {ids_at} of {words} words, {rows} and {act_rows} rows"
    );
    assert!(columns.is_multiple_of(4), "{columns} columns");
    let teams = num_tokens * columns.div_ceil(GROUP);
    for shard in &table.shards {
        let params = EmbeddingParams {
            num_tokens: num_tokens as u32,
            ids_at: ids_at as u32,
            columns: columns as u32,
            first_row: shard.first_row as u32,
            num_rows: shard.rows as u32,
            scale,
        };
        let mut tensors: Vec<(&str, &Tensor)> = shard.bindings().collect();
        tensors.extend([
            ("ids", step),
            ("hidden", hidden),
            ("act_out", act),
            ("gamma", gamma),
        ]);
        rec.dispatch(
            &variant(tuning, table.format),
            &tensors,
            params,
            grid((teams * 8).div_ceil(tuning.team_workgroup() as usize)),
        );
    }
}

fn variant(tuning: &Tuning, format: &'static Format) -> Variant {
    let workgroup = tuning.team_workgroup();
    let mut variant = Variant::new(&EMBEDDING)
        .part(tuning.activations.store_part())
        .part(&RECORD);
    for part in format.parts(tuning.wide) {
        variant = variant.part(part);
    }
    tuning.team(variant, workgroup).set("WG", workgroup)
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: EmbeddingParams = call.params();
    let (ids_at, columns) = (p.ids_at as usize, p.columns as usize);
    let groups = columns.div_ceil(GROUP);
    let ids = call.read_range("ids", ids_at..ids_at + p.num_tokens as usize)?;
    let rows = ids.iter().map(|id| id.wrapping_sub(p.first_row)); // as in the shader
    let rows: Vec<(usize, usize)> = rows
        .enumerate()
        .filter(|(_, row)| *row < p.num_rows)
        .map(|(token, row)| (token, row as usize))
        .collect();
    let block = |&(_, row): &(usize, usize)| row / BLOCK_ROWS..row / BLOCK_ROWS + 1;
    let packed = Packed::read(call, &rows.iter().map(block).collect::<Vec<_>>(), groups)?;
    let gamma = floats(&call.read_range("gamma", 0..columns)?);
    let mut four = vec![0.0; BLOCK_ROWS * groups * GROUP];
    let mut written: Vec<Run<f32>> = Vec::new();
    for (block, (token, row)) in rows.into_iter().enumerate() {
        packed.unpack(block, &mut four);
        let values = &four[row % BLOCK_ROWS * groups * GROUP..][..columns];
        let values = values.iter().map(|v| v * p.scale);
        written.push((token * columns, values.collect()));
    }
    let activations = Activations::stored_by(call);
    let [_, row_words] = activations.dims(1, columns);
    let pieces = joined(written).into_iter().flat_map(|(at, values)| {
        let (normed, squares) = normed(&values, &gamma);
        let to = at / columns * row_words;
        let hidden = values.into_iter().map(f32::to_bits).collect();
        [
            Piece::exact("hidden", at, hidden),
            activations.piece("act_out", to, columns, normed, Some(squares)),
        ]
    });
    let mut pieces: Vec<Piece> = pieces.collect();
    pieces.sort_by_key(|piece| piece.tensor);
    Ok(pieces)
}

/// Every format, way to pass activations, and way to talk.
pub fn variants() -> Vec<Variant> {
    let all = FORMATS.iter().flat_map(|format| {
        let tunings = Tuning::all_for(format);
        tunings.into_iter().map(move |t| variant(&t, format))
    });
    distinct(all)
}

/// Widths around a unit and a group, ids at both ends of the table, repeated, and out of order; a
/// table in two shards; then a width models use. The first words of the step are not ids. Every other has a
/// factor.
pub fn cases() -> Vec<Case> {
    let shapes = [
        // tokens, rows, columns, rows of the first shard
        (1, 1, 4, 1),
        (3, 5, 20, 5),
        (5, 70, 36, 32),
        (17, 33, 64, 33),
        (2, 9, 68, 9),
        (9, 130, 576, 64),
        (130, 40, 48, 40),
    ];
    let mut all = Vec::new();
    for format in FORMATS {
        let tunings = Tuning::all_for(format);
        for (seed, &shape) in shapes.iter().enumerate() {
            // tunings take turns, so that each meets ragged and wide shapes
            for i in 0..3 {
                let tuning = tunings[(2 * seed + 5 * i) % tunings.len()];
                all.push(case(format, tuning, shape, seed as u64));
            }
        }
    }
    all
}

pub(super) fn case(
    format: &'static Format,
    tuning: Tuning,
    (num_tokens, rows, columns, first_shard): (usize, usize, usize, usize),
    seed: u64,
) -> Case {
    let mut data = Data::new(seed);
    let raw = data.weights(rows, columns);
    let ids_at = 3 * seed as usize;
    let mut step = vec![u32::MAX; ids_at];
    step.extend((0..num_tokens).map(|_| data.below(rows) as u32));
    (step[ids_at], step[ids_at + num_tokens - 1]) = (0, rows as u32 - 1);
    let scale = [1.0, 24.0f32.sqrt()][seed as usize % 2];
    let table = format.round_trip(&raw, columns);
    let expected = reference(&table, columns, &step[ids_at..], scale);

    let gamma = data.normal(columns);
    let (normed, squares) = normed(&expected, &gamma);

    let bytes = 4.0 * expected.len() as f64;
    let mut case = Case::new(
        &EMBEDDING,
        format!(
            "{} {num_tokens} of {rows}x{columns} {}",
            format.name,
            tuning.describe()
        ),
    )
    .needs(tuning)
    .work(
        0.0,
        bytes + bytes * (format.group_bytes + format.scale_bytes) as f64 / 128.0,
    )
    .tensor(CaseTensor::u32("step", &[step.len()], &step))
    .tensor(CaseTensor::f32("gamma", &[columns], &gamma))
    .tensor(CaseTensor::output_exact(
        "hidden",
        &[num_tokens, columns],
        &expected,
    ))
    .tensor(records(
        "act_out",
        tuning.activations,
        num_tokens,
        columns,
        normed,
        Some(squares),
    ));
    // each shard's tensors under names of their own
    let names = [["w", "w_scales"], ["w_1", "w_scales_1"]];
    let mut shards = Vec::new();
    for (range, [w, w_scales]) in [(0..first_shard), (first_shard..rows)]
        .into_iter()
        .zip(names)
    {
        if range.is_empty() {
            continue;
        }
        let values = &raw[range.start * columns..range.end * columns];
        case = case.packed([w, w_scales], format, values, columns);
        shards.push((range, w, w_scales));
    }
    // in either order, so that a shard that writes another's rows is seen
    if seed % 2 == 1 {
        shards.reverse();
    }
    case.record(move |rec, t| {
        let shards = shards.iter().map(|(range, w, w_scales)| {
            Shard::new(
                range.start,
                range.len(),
                t.get(w).clone(),
                t.find(w_scales).cloned(),
            )
        });
        let table = Weights {
            format,
            rows,
            columns,
            shards: shards.collect(),
        };
        record(
            rec,
            &tuning,
            &table,
            t.get("step"),
            ids_at,
            num_tokens,
            scale,
            t.get("hidden"),
            t.get("gamma"),
            t.get("act_out"),
        );
    })
}

/// Rows times the weight of a norm, and the sums of squares of their records, with bounds.
fn normed(rows: &[f32], gamma: &[f32]) -> (Vec<Exact>, Vec<Exact>) {
    let exact = |(i, &v): (usize, &f32)| {
        let product = f64::from(v) * f64::from(gamma[i % gamma.len()]);
        (product, U * product.abs())
    };
    let records = rows.chunks(gamma.len()).flat_map(|row| row.chunks(GROUP));
    let normed = rows.iter().enumerate().map(exact);
    (normed.collect(), records.map(squares_of).collect())
}

/// The sum of squares of a record, and its bound.
fn squares_of(values: &[f32]) -> (f64, f64) {
    let sum: f64 = values.iter().map(|&v| f64::from(v).powi(2)).sum();
    (sum, dot_bound(GROUP, sum))
}
