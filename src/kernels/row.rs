//! Rows that a workgroup shares, for kernels that must have added up a row before they write any of it.
//!
//! A workgroup adds up a token's row and writes a slice of its records. Where tokens are few, slices are
//! short and many workgroups add up the same row, so that nobody waits for one. The order of a sum
//! hangs on [`Tuning::lanes`] and the number of columns alone.

use super::activations::Activations;
use super::case::Case;
use super::numbers::U;
use super::tuning::Tuning;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Part, Tensor, Variant};
use crate::quant::{GROUP, q8};
use crate::wgsl;
use std::collections::HashSet;

pub(super) static ROW_8: Part = wgsl!("lib/row_8.wgsl");
pub(super) static ROW_64: Part = wgsl!("lib/row_64.wgsl");
pub(super) static RECORD: Part = wgsl!("act/record.wgsl");

/// Workgroups that are worth adding up a row again for, where all are one team and where all are eight. On a
/// processor what is added up again takes as long again.
const WANTED: [usize; 2] = [1, 256];

/// Records of a slice, and the grid of the slices of `num_tokens` rows.
pub(super) fn slices(tuning: &Tuning, num_tokens: usize, columns: usize) -> (u32, [u32; 3]) {
    let records = columns.div_ceil(GROUP);
    let teams = tuning.team_workgroup() as usize / 8;
    let wanted = if teams == 1 { WANTED[0] } else { WANTED[1] };
    let count = (wanted / num_tokens.max(1)).clamp(1, records.div_ceil(teams));
    let slice = records.div_ceil(count).next_multiple_of(teams);
    (slice as u32, grid(num_tokens * records.div_ceil(slice)))
}

/// `variant` with what it stores records by, and what its workgroups add up by.
pub(super) fn parts(variant: Variant, tuning: &Tuning) -> Variant {
    let workgroup = tuning.team_workgroup();
    let row = if workgroup == 8 { &ROW_8 } else { &ROW_64 };
    let store = tuning.activations.store_part();
    let variant = variant.part(store).part(&RECORD).part(row);
    tuning.team(variant, workgroup)
}

/// One tuning for each variant that `of` makes.
pub(super) fn tunings(of: impl Fn(&Tuning) -> Variant) -> Vec<Tuning> {
    let mut seen = HashSet::new();
    let all = Tuning::all_for(&q8::Q8).into_iter();
    all.filter(|tuning| seen.insert(of(tuning))).collect()
}

/// A case of `num_tokens` rows of so many columns, by a seed.
type MakeCase = fn(Tuning, (usize, usize), u64) -> Case;

/// A case of each shape for each tuning.
pub(super) fn cases(tunings: &[Tuning], shapes: &[(usize, usize)], case: MakeCase) -> Vec<Case> {
    let of = |&tuning: &Tuning| {
        let seeds = 0..;
        let shapes = shapes.iter().zip(seeds);
        shapes.map(move |(&shape, seed)| case(tuning, shape, seed))
    };
    tunings.iter().flat_map(of).collect()
}

/// Bytes of the records of so many rows.
pub(super) fn packed_bytes(activations: Activations, num_tokens: usize, columns: usize) -> f64 {
    let words: usize = activations.dims(num_tokens, columns).iter().product();
    4.0 * words as f64
}

/// Roundings that an element of a row's sum may go through; `lanes` invocations share the row.
pub(super) fn steps(lanes: usize, columns: usize) -> usize {
    let join = if lanes == 8 { 3 } else { 6 };
    (columns / 4).div_ceil(lanes) + 2 + join
}

/// [`steps`] of a dispatch.
pub(super) fn steps_of(call: &Call<'_>, columns: usize) -> usize {
    let lanes = if call.has_part(ROW_8.name) { 8 } else { 64 };
    steps(lanes, columns)
}

/// How far `1 / sqrt(mean of squares + eps)` may be off, as a share of it, where each square goes through
/// `steps` roundings: with a division good to 2.5 ulp and the sum with eps at half weight, as the root takes
/// them, and an inverse root good to 2 ulp.
pub(super) fn root_error(steps: usize) -> f64 {
    ((steps + 6) as f64 / 2.0 + 4.0) * 1.001 * U
}

/// Rows of `tokens` in `f32` tensors and records, all wide enough.
///
/// # Panics
/// Where one is not.
pub(super) fn check_shapes(
    activations: Activations,
    num_tokens: usize,
    rows: &[(&str, &Tensor)],
    weights: &[(&str, &Tensor)],
    act: &Tensor,
) -> usize {
    let ([_, columns], [act_rows, words]) = (rows[0].1.dims(), act.dims());
    assert!(columns.is_multiple_of(4), "{columns} columns");
    assert_eq!(words, activations.dims(1, columns)[1], "words of act");
    assert!(
        num_tokens <= act_rows,
        "{num_tokens} tokens of {act_rows} in act"
    );
    for (name, tensor) in rows {
        let [there, own] = tensor.dims();
        assert_eq!(own, columns, "columns of {name}");
        assert!(
            num_tokens <= there,
            "{num_tokens} tokens of {there} in {name}"
        );
    }
    for (name, tensor) in weights {
        assert_eq!(tensor.shape(), [columns], "{name}");
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_a_row_and_are_many_where_tokens_are_few() {
        for lanes in [1, 8] {
            let tuning = Tuning::plain(lanes);
            let teams = tuning.team_workgroup() / 8;
            for columns in [4usize, 36, 576, 2048, 4096, 131_072] {
                let records = columns.div_ceil(GROUP) as u32;
                for tokens in [1, 3, 64, 512] {
                    let (slice, grid) = slices(&tuning, tokens, columns);
                    // as the shader counts them
                    let count = records.div_ceil(slice);
                    assert_eq!(grid[0] * grid[1], count * tokens as u32);
                    assert!(slice.is_multiple_of(teams) && (count - 1) * slice < records);
                }
            }
            let (slice, _) = slices(&tuning, 1, 4096);
            assert_eq!(slice, if lanes == 1 { 128 } else { 8 });
            let (slice, _) = slices(&tuning, 512, 4096);
            assert_eq!(slice, 128, "one for the whole row");
        }
    }
}
