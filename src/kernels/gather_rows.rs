//! Rows of words by number: `y[r, :] = x[rows[r], :]`. The head only sees rows that are sampled.

use super::case::{Case, CaseTensor, Data};
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/gather_rows.wgsl`.
    pub struct GatherRowsParams {
        /// Rows of `y` in use.
        pub num_rows: u32,
        /// Where the row numbers start among the words of the step.
        pub rows_at: u32,
        /// Columns, a multiple of 4.
        pub columns: u32,
        /// Rows of `x`.
        pub x_rows: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("gather_rows.wgsl")];
const WG: usize = 64;

/// The kernel.
pub static GATHER_ROWS: Kernel = Kernel::new::<GatherRowsParams>("gather_rows", PARTS);

/// The CPU twin.
pub fn reference(x: &[f32], columns: usize, rows: &[u32]) -> Vec<f32> {
    rows.iter()
        .flat_map(|&row| &x[row as usize * columns..][..columns])
        .copied()
        .collect()
}

/// The first `num_rows` rows of `y: [.., columns]` from `x: [.., columns]`, by the row numbers that
/// start at word `rows_at` of `step`.
pub fn record(
    rec: &mut Recorder,
    x: &Tensor,
    step: &Tensor,
    rows_at: usize,
    num_rows: usize,
    y: &Tensor,
) {
    let [x_rows, columns] = x.dims();
    let [y_rows, y_columns] = y.dims();
    let [words] = step.dims();
    assert_eq!(y_columns, columns, "columns of y");
    assert!(columns.is_multiple_of(4), "{columns} columns");
    assert!(
        num_rows <= y_rows && rows_at + num_rows <= words,
        "{num_rows} rows at {rows_at} of {words} words, {y_rows} rows"
    );
    rec.dispatch(
        &Variant::new(&GATHER_ROWS),
        &[("x", x), ("rows", step), ("y", y)],
        GatherRowsParams {
            num_rows: num_rows as u32,
            rows_at: rows_at as u32,
            columns: columns as u32,
            x_rows: x_rows as u32,
        },
        grid((num_rows * columns / 4).div_ceil(WG)),
    );
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: GatherRowsParams = call.params();
    let (columns, rows_at) = (p.columns as usize, p.rows_at as usize);
    let rows = call.read_range("rows", rows_at..rows_at + p.num_rows as usize)?;
    let ranges: Vec<_> = rows
        .iter()
        .map(|&row| row as usize * columns..(row as usize + 1) * columns)
        .collect();
    let words = call.read_ranges("x", &ranges)?;
    Ok(vec![Piece::exact("y", 0, words.to_vec())])
}

/// There is only one.
pub fn variants() -> Vec<Variant> {
    vec![Variant::new(&GATHER_ROWS)]
}

/// Rows at both ends, repeated; widths around a workgroup.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 1, 4),
        (3, 2, 20),
        (7, 5, 252),
        (5, 9, 260),
        (64, 3, 576),
    ];
    shapes
        .iter()
        .enumerate()
        .map(|(seed, &(x_rows, num_rows, columns))| {
            let mut data = Data::new(seed as u64);
            let x = data.normal(x_rows * columns);
            let rows_at = 2 * seed;
            let mut step = vec![u32::MAX; rows_at];
            step.extend((0..num_rows).map(|_| data.below(x_rows) as u32));
            (step[rows_at], step[rows_at + num_rows - 1]) = (x_rows as u32 - 1, 0);
            let expected = reference(&x, columns, &step[rows_at..]);
            Case::new(&GATHER_ROWS, format!("{num_rows} of {x_rows}x{columns}"))
                .work(0.0, 8.0 * expected.len() as f64)
                .tensor(CaseTensor::f32("x", &[x_rows, columns], &x))
                .tensor(CaseTensor::u32("step", &[step.len()], &step))
                .tensor(CaseTensor::output_exact(
                    "y",
                    &[num_rows, columns],
                    &expected,
                ))
                .record(move |rec, t| {
                    record(
                        rec,
                        t.get("x"),
                        t.get("step"),
                        rows_at,
                        num_rows,
                        t.get("y"),
                    );
                })
        })
        .collect()
}
