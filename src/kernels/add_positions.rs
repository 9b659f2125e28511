//! Learned positions, added to the residual stream: `hidden[t, :] += table[position[t], :]`
//! (Gehring et al., "Convolutional Sequence to Sequence Learning", 2017).

use super::case::{Case, CaseTensor, Data, U};
use super::twin::matmul::{f32_pieces, floats};
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/add_positions.wgsl`.
    pub struct AddPositionsParams {
        /// Rows of `hidden` in use.
        pub num_tokens: u32,
        /// Where the tokens' positions begin in the step's metadata.
        pub positions_at: u32,
        /// Columns, a multiple of 4.
        pub columns: u32,
        /// Rows of the table.
        pub num_positions: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("add_positions.wgsl")];
/// Invocations of a workgroup, as in the shader.
const WG: usize = 64;

/// The kernel.
pub static ADD_POSITIONS: Kernel = Kernel::new::<AddPositionsParams>("add_positions", PARTS);

/// The CPU twin in f64 for a row of the residual stream, and one of the table.
pub fn reference(hidden: &[f32], row: &[f32]) -> Vec<f64> {
    let sums = hidden.iter().zip(row);
    sums.map(|(&h, &r)| f64::from(h) + f64::from(r)).collect()
}

/// The same with bounds: a sum is rounded once.
fn exact(hidden: &[f32], row: &[f32]) -> Vec<(f64, f64)> {
    let sums = reference(hidden, row).into_iter();
    sums.map(|sum| (sum, U * sum.abs() + 1e-30)).collect()
}

/// Adds rows of `table: [num_positions, columns]` to the first `num_tokens` rows of
/// `hidden: [.., columns]`, by the positions that start at word `positions_at` of `step_meta`. A token
/// whose position is beyond the table is left as it is: callers keep contexts within it.
pub fn record(
    rec: &mut Recorder,
    table: &Tensor,
    step_meta: &Tensor,
    positions_at: usize,
    num_tokens: usize,
    hidden: &Tensor,
) {
    let ([num_positions, columns], [rows, width]) = (table.dims(), hidden.dims());
    let [words] = step_meta.dims();
    assert_eq!(width, columns, "columns of hidden");
    assert!(columns.is_multiple_of(4), "{columns} columns");
    assert!(
        num_tokens <= rows && positions_at + num_tokens <= words,
        "{num_tokens} tokens at {positions_at} of {words} words, {rows} rows"
    );
    rec.dispatch(
        &Variant::new(&ADD_POSITIONS),
        &[
            ("table", table),
            ("step_meta", step_meta),
            ("hidden", hidden),
        ],
        AddPositionsParams {
            num_tokens: num_tokens as u32,
            positions_at: positions_at as u32,
            columns: columns as u32,
            num_positions: num_positions as u32,
        },
        grid((num_tokens * columns / 4).div_ceil(WG)),
    );
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: AddPositionsParams = call.params();
    let (columns, positions_at) = (p.columns as usize, p.positions_at as usize);
    let positions = positions_at..positions_at + p.num_tokens as usize;
    let positions = call.read_range("step_meta", positions)?;
    let known: Vec<(usize, usize)> = positions
        .iter()
        .enumerate()
        .filter(|&(_, &position)| position < p.num_positions)
        .map(|(token, &position)| (token, position as usize))
        .collect();
    let row = |i: usize| i * columns..(i + 1) * columns;
    let own: Vec<_> = known.iter().map(|&(token, _)| row(token)).collect();
    let theirs: Vec<_> = known.iter().map(|&(_, position)| row(position)).collect();
    let hidden = floats(&call.read_ranges("hidden", &own)?);
    let rows = floats(&call.read_ranges("table", &theirs)?);
    let sums = hidden.chunks(columns).zip(rows.chunks(columns));
    let written = known.iter().zip(sums);
    let written = written.map(|(&(token, _), (h, r))| (token * columns, exact(h, r)));
    Ok(f32_pieces("hidden", written.collect()))
}

/// There is only one.
pub fn variants() -> Vec<Variant> {
    vec![Variant::new(&ADD_POSITIONS)]
}

/// Positions at both ends of the table, repeated, out of order, and beyond it; widths around a
/// workgroup.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 1, 4),
        (3, 5, 20),
        (9, 7, 252),
        (5, 3, 260),
        (33, 64, 768),
    ];
    shapes
        .iter()
        .enumerate()
        .map(|(seed, &shape)| case(shape, seed as u64))
        .collect()
}

pub(super) fn case((num_tokens, num_positions, columns): (usize, usize, usize), seed: u64) -> Case {
    let mut data = Data::new(seed);
    let table = data.normal(num_positions * columns);
    let before = data.normal(num_tokens * columns);
    let positions_at = 2 * seed as usize;
    let mut meta = vec![u32::MAX; positions_at];
    meta.extend((0..num_tokens).map(|_| data.below(num_positions) as u32));
    let last = num_positions as u32 - 1;
    for (token, position) in [(0, last), (1, last + 1), (2, 0), (3, u32::MAX)] {
        if token < num_tokens {
            meta[positions_at + token] = position;
        }
    }
    let rows = before.chunks(columns).zip(&meta[positions_at..]);
    let row = |(hidden, &position): (&[f32], &u32)| -> Vec<(f64, f64)> {
        match table.chunks(columns).nth(position as usize) {
            Some(row) => exact(hidden, row),
            None => hidden.iter().map(|&h| (f64::from(h), 0.0)).collect(),
        }
    };
    let (values, bounds) = rows.flat_map(row).unzip();
    let dims = [num_tokens, columns];
    let elements = (num_tokens * columns) as f64;
    Case::new(
        &ADD_POSITIONS,
        format!("{num_tokens} of {num_positions}x{columns}"),
    )
    .work(elements, 12.0 * elements)
    .tensor(CaseTensor::f32("table", &[num_positions, columns], &table))
    .tensor(CaseTensor::u32("step_meta", &[meta.len()], &meta))
    .tensor(
        CaseTensor::output_f32("hidden", &dims, values, bounds)
            .starting_as(bytemuck::cast_slice(&before).to_vec()),
    )
    .record(move |rec, t| {
        let (table, meta, hidden) = (t.get("table"), t.get("step_meta"), t.get("hidden"));
        record(rec, table, meta, positions_at, num_tokens, hidden);
    })
}
