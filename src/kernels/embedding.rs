//! Token ids to rows of the packed table: `y[t, :] = table[ids[t], :]`.

use super::case::{Case, CaseTensor, Data};
use crate::gpu::recorder::grid;
use crate::gpu::{DType, Kernel, Part, Recorder, Tensor, Variant};
use crate::quant::{FORMATS, Format, Shard, Weights};
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
    }
}

const PARTS: &[Part] = &[wgsl!("embedding.wgsl")];
const WG: usize = 64;
const UNIT: usize = 16; // columns of an invocation

/// The kernel.
pub static EMBEDDING: Kernel = Kernel::new::<EmbeddingParams>("embedding", PARTS);

/// The CPU twin over `table: [rows, columns]` as the device sees it. Exact: nothing is added up.
pub fn reference(table: &[f32], columns: usize, ids: &[u32]) -> Vec<f32> {
    ids.iter()
        .flat_map(|&id| &table[id as usize * columns..][..columns])
        .copied()
        .collect()
}

/// Rows of `y: [.., columns]` for the `num_tokens` ids that start at word `ids_at` of `step`. An id
/// beyond the table leaves its row of `y` as it was: callers check the user's.
pub fn record(
    rec: &mut Recorder,
    table: &Weights,
    step: &Tensor,
    ids_at: usize,
    num_tokens: usize,
    y: &Tensor,
) {
    let [y_rows, y_columns] = y.dims();
    let [words] = step.dims();
    assert_eq!(y_columns, table.columns, "columns of y");
    assert!(
        num_tokens <= y_rows && ids_at + num_tokens <= words,
        "{num_tokens} tokens at {ids_at} of {words} words, {y_rows} rows"
    );
    assert!(table.columns.is_multiple_of(4), "{} columns", table.columns);
    let units = num_tokens * table.columns.div_ceil(UNIT);
    for shard in &table.shards {
        let params = EmbeddingParams {
            num_tokens: num_tokens as u32,
            ids_at: ids_at as u32,
            columns: table.columns as u32,
            first_row: shard.first_row as u32,
            num_rows: shard.rows as u32,
        };
        let mut tensors: Vec<(&str, &Tensor)> = shard.bindings().collect();
        tensors.extend([("ids", step), ("y", y)]);
        rec.dispatch(
            &variant(table.format),
            &tensors,
            params,
            grid(units.div_ceil(WG)),
        );
    }
}

fn variant(format: &'static Format) -> Variant {
    Variant::new(&EMBEDDING).part(&format.part)
}

/// One per format.
pub fn variants() -> Vec<Variant> {
    FORMATS.iter().copied().map(variant).collect()
}

/// Widths around a unit and a group, ids at both ends of the table, repeated, and out of order; a
/// table in two shards; then a width models use. The first words of the step are not ids.
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
    FORMATS
        .iter()
        .flat_map(|format| {
            let one = move |(seed, &shape)| case(format, shape, seed as u64);
            shapes.iter().enumerate().map(one)
        })
        .collect()
}

fn case(
    format: &'static Format,
    (num_tokens, rows, columns, first_shard): (usize, usize, usize, usize),
    seed: u64,
) -> Case {
    let mut data = Data::new(seed);
    let mut raw = data.normal(rows * columns);
    raw[0] = 60.0; // one outlier sets its group's scale
    raw[columns - 4..columns].fill(0.0);
    let ids_at = 3 * seed as usize;
    let mut step = vec![u32::MAX; ids_at];
    step.extend((0..num_tokens).map(|_| data.below(rows) as u32));
    (step[ids_at], step[ids_at + num_tokens - 1]) = (0, rows as u32 - 1);
    let expected = reference(&format.round_trip(&raw, columns), columns, &step[ids_at..]);

    let bytes = 4.0 * expected.len() as f64;
    let mut case = Case::new(
        &EMBEDDING,
        format!("{} {num_tokens} of {rows}x{columns}", format.name),
    )
    .work(
        0.0,
        bytes + bytes * (format.group_bytes + format.scale_bytes) as f64 / 128.0,
    )
    .tensor(CaseTensor::u32("step", &[step.len()], &step))
    .tensor(CaseTensor::output_exact(
        "y",
        &[num_tokens, columns],
        &expected,
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
        let (quants, scales) = format.pack_rows(values, columns);
        case = case.tensor(CaseTensor::input(w, DType::I8, &[quants.len()], quants));
        if !scales.is_empty() {
            case = case.tensor(CaseTensor::input(
                w_scales,
                DType::I8,
                &[scales.len()],
                scales,
            ));
        }
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
        record(rec, &table, t.get("step"), ids_at, num_tokens, t.get("y"));
    })
}
