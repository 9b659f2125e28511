//! What the merge of attention's partial results must do.

use super::attention_cases::{Mode, output_tensor, shape};
use super::attention_merge::{self, ATTENTION_MERGE};
use super::attention_plan::MergeRow;
use super::case::{Case, CaseTensor, Data};

/// One split and many, slots in any order and at any distance, splits that add nothing; each width
/// with each way to make teams and each output that it can have.
pub fn merge() -> Vec<Case> {
    let shapes = [
        (1, 1, 8, 1),
        (2, 3, 40, 3),
        (5, 9, 64, 3),
        (3, 8, 128, 17),
        (2, 2, 256, 64),
    ];
    let mut all = Vec::new();
    for (seed, (rows, heads, dim, splits)) in shapes.into_iter().enumerate() {
        for turn in 0..3 {
            let mode = Mode::of(seed + 4 * turn, dim, 0);
            all.push(merge_case(seed as u64, rows, heads, dim, splits, mode));
        }
    }
    all
}

pub(super) fn merge_case(
    seed: u64,
    num_rows: usize,
    num_heads: usize,
    head_dim: usize,
    max_splits: usize,
    mode: Mode,
) -> Case {
    let Mode { tuning, output, .. } = mode;
    let mut data = Data::new(seed);
    let shape = shape(num_heads, num_heads, head_dim);
    let slots = num_rows * max_splits;
    let stride = num_rows;
    let row_len = head_dim + 4;
    let mut partials = data.normal(slots * num_heads * row_len);
    for stats in partials.chunks_mut(row_len).map(|row| &mut row[head_dim..]) {
        let l = 1.0 + stats[1].abs() * 50.0;
        stats.copy_from_slice(&[stats[0] * 8.0, l, f32::NAN, f32::NAN]);
    }
    // rows have fewer splits one by one; the first row's last split, if it is not its only one, is empty
    let splits: Vec<usize> = (0..num_rows)
        .map(|r| (max_splits - r % max_splits).max(1))
        .collect();
    if max_splits > 1 {
        for head in 0..num_heads {
            let at = ((max_splits - 1) * stride * num_heads + head) * row_len;
            partials[at..at + head_dim].fill(0.0);
            partials[at + head_dim..at + head_dim + 2].copy_from_slice(&[-1e30, 0.0]);
        }
    }
    let rows_at = 3;
    let mut meta = vec![u32::MAX; rows_at];
    let (mut values, mut bounds) = (vec![], vec![]);
    for (row, &num_splits) in splits.iter().enumerate() {
        let words = MergeRow {
            token: row as u32,
            num_splits: num_splits as u32,
            slot0: row as u32,
            stride: stride as u32,
        };
        meta.extend(words.words());
        for head in 0..num_heads {
            let states: Vec<(f32, f32, &[f32])> = (0..num_splits)
                .map(|split| {
                    let at = ((row + split * stride) * num_heads + head) * row_len;
                    let state = &partials[at..at + row_len];
                    (state[head_dim], state[head_dim + 1], &state[..head_dim])
                })
                .collect();
            let (exact, exact_bounds): (Vec<f64>, Vec<f64>) =
                attention_merge::exact(&states).into_iter().unzip();
            values.extend(exact);
            bounds.extend(exact_bounds);
        }
    }
    let width = num_heads * head_dim;
    Case::new(
        &ATTENTION_MERGE,
        format!(
            "{num_rows} rows {num_heads}x{head_dim} {max_splits} splits {}",
            mode.name()
        ),
    )
    .work(2.0 * (slots * width) as f64, 4.0 * partials.len() as f64)
    .tensor(CaseTensor::u32("step_meta", &[meta.len()], &meta))
    .tensor(CaseTensor::f32(
        "partials",
        &shape.partials_dims(slots),
        &partials,
    ))
    .tensor(output_tensor(mode, num_rows, values, bounds))
    .needs(tuning)
    .record(move |rec, t| {
        attention_merge::record(
            rec,
            &tuning,
            &shape,
            t.get("step_meta"),
            rows_at,
            num_rows,
            t.get("partials"),
            output,
            t.get("out"),
        );
    })
}
