//! What attention and its merge must do: batches of ragged sequences over scattered pages, with NaN
//! in everything that no row may see.

use super::attention::{self, ATTENTION, AttentionShape, Scratch};
use super::attention_batch::Batch;
use super::attention_merge::{self, ATTENTION_MERGE};
use super::attention_plan::{MergeRow, scores_for};
use super::attention_scores::{self, ATTENTION_SCORES};
use super::case::{Case, CaseTensor, Data, U, dot_bound};
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE, PageGeometry, pages_for};

fn shape(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        num_heads,
        num_kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
    }
}

/// Heads first: every ratio of query to key heads with every width, each with sequences around pages
/// and splits; then batches that mix chunks and single tokens, in one slab and in two.
pub fn attention() -> Vec<Case> {
    let shapes = [
        (1, 1, 32),
        (4, 2, 64),
        (9, 3, 64),
        (4, 1, 128),
        (7, 1, 80),
        (16, 2, 96),
        (16, 1, 64),
        (32, 1, 32),
        (20, 1, 256),
        (3, 1, 40),
    ];
    // contexts of 1, 15, 16, 17, 255, 256, 257 and 600 as single tokens
    let single = [
        (0, 1),
        (14, 1),
        (15, 1),
        (16, 1),
        (254, 1),
        (255, 1),
        (256, 1),
        (599, 1),
    ];
    let chunks = [
        (0, 1),
        (0, 15),
        (1, 16),
        (15, 17),
        (240, 33),
        (255, 2),
        (270, 5),
    ];
    let mut all = Vec::new();
    for (i, &(heads, kv_heads, dim)) in shapes.iter().enumerate() {
        let format = KvFormat::ALL[i % 2];
        let shape = shape(heads, kv_heads, dim);
        let (batch, slots) = if i % 4 < 2 {
            (&single[..], 0)
        } else {
            (&chunks[..], 0)
        };
        all.push(case(i as u64, shape, format, 160, batch, slots));
    }
    for (i, format) in KvFormat::ALL.into_iter().enumerate() {
        let seed = 100 + i as u64;
        let mixed = [(0, 33), (599, 1), (300, 16), (511, 2), (0, 1)];
        all.push(case(seed, shape(9, 3, 64), format, 160, &mixed, 0));
        all.push(case(seed + 10, shape(8, 2, 128), format, 48, &mixed, 24));
        all.push(case(seed + 20, shape(2, 2, 64), format, 32, &[(700, 9)], 7));
    }
    all
}

/// `partial_slots` 0 is a plan that folds in place; otherwise it makes partial results.
fn case(
    seed: u64,
    shape: AttentionShape,
    format: KvFormat,
    slab_pages: usize,
    sequences: &[(usize, usize)],
    partial_slots: usize,
) -> Case {
    let geometry = PageGeometry::new(160, slab_pages);
    let batch = Batch::new(seed, shape, format, geometry, sequences);
    let wanted = if partial_slots == 0 { 0 } else { usize::MAX };
    let all_scores: usize = sequences
        .iter()
        .map(|&(p, n)| n * scores_for(p + n - 1, shape.num_heads))
        .sum();
    // room for all, or for a part of the step at a time
    let scores_len = if partial_slots == 0 {
        all_scores
    } else {
        all_scores / 2
    };
    let step = batch.step(wanted, partial_slots, scores_len);
    let width = shape.num_heads * shape.head_dim;
    let (values, bounds) = batch.expected();
    let keys: usize = sequences
        .iter()
        .map(|&(p, n)| (0..n).map(|t| p + t + 1).sum::<usize>())
        .sum();
    let contexts: usize = sequences.iter().map(|&(p, n)| p + n).sum();
    let name = format!(
        "{}/{}x{} {} {sequences:?} {} slabs{}",
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        format.name(),
        geometry.num_slabs(),
        if partial_slots == 0 { "" } else { " merged" }
    );
    let slots = partial_slots.max(1);
    let mut partials = CaseTensor::f32(
        "partials",
        &shape.partials_dims(slots),
        &vec![f32::NAN; shape.partials_dims(slots).iter().product()],
    );
    if partial_slots > 0 {
        partials = partials.judged(|_| Ok(())); // scratch
    }
    let kv_row = shape.num_kv_heads * shape.head_dim * format.dtype().bytes() as usize;
    let mut case = Case::new(&ATTENTION, name)
        .work(
            4.0 * (keys * width) as f64,
            (2 * contexts * kv_row + 8 * batch.q.len()) as f64,
        )
        .tensor(CaseTensor::f32("q", &[batch.num_tokens(), width], &batch.q))
        .tensor(CaseTensor::u32("step_meta", &[step.meta.len()], &step.meta))
        .tensor(partials)
        .tensor(
            CaseTensor::f32("scores", &[scores_len], &vec![f32::NAN; scores_len])
                .judged(|_| Ok(())),
        )
        .tensor(CaseTensor::output_f32(
            "out",
            &[batch.num_tokens(), width],
            values,
            bounds,
        ));
    const NAMES: [[&str; 2]; 5] = [
        ["k0", "v0"],
        ["k1", "v1"],
        ["k2", "v2"],
        ["k3", "v3"],
        ["k4", "v4"],
    ];
    for (slab, names) in NAMES.iter().enumerate().take(geometry.num_slabs()) {
        for (which, &name) in names.iter().enumerate() {
            let (bytes, dims) = batch.slab_bytes(slab, which);
            case = case.tensor(CaseTensor::input(name, format.dtype(), &dims, bytes));
        }
    }
    case.record(move |rec, t| {
        let scratch = Scratch {
            scores: t.get("scores"),
            partials: t.get("partials"),
        };
        let (q, meta, out) = (t.get("q"), t.get("step_meta"), t.get("out"));
        for round in &step.rounds {
            for (slab, &items) in round.slabs.iter().enumerate() {
                let [k, v] = NAMES[slab].map(|name| t.get(name).clone());
                let pages = geometry.pages_of(slab);
                let slab = KvSlab {
                    first_page: pages.start,
                    num_pages: pages.len(),
                    k,
                    v,
                };
                attention::record(rec, &shape, &slab, q, meta, items, scratch, out);
            }
            let (rows_at, num_rows) = round.merge;
            attention_merge::record(rec, &shape, meta, rows_at, num_rows, scratch.partials, out);
        }
    })
}

/// Heads in chunks or not, keys of several shares, pages that end inside an invocation's four keys.
pub fn scores() -> Vec<Case> {
    let batches = [
        ((1, 1, 32), &[(0, 1), (16, 1)][..]),
        ((9, 3, 64), &[(3, 5), (1100, 1)][..]),
        ((20, 1, 40), &[(250, 9), (0, 2)][..]),
        ((8, 2, 128), &[(30, 17)][..]),
    ];
    let mut all = Vec::new();
    for (seed, ((heads, kv_heads, dim), sequences)) in batches.into_iter().enumerate() {
        for format in KvFormat::ALL {
            let shape = shape(heads, kv_heads, dim);
            all.push(scores_case(seed as u64, shape, format, sequences));
        }
    }
    all
}

fn scores_case(
    seed: u64,
    shape: AttentionShape,
    format: KvFormat,
    sequences: &[(usize, usize)],
) -> Case {
    let batch = Batch::new(seed, shape, format, PageGeometry::new(96, 96), sequences);
    let step = batch.step(0, 0, 1 << 20);
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    let (mut token0, mut keys) = (0, 0);
    for (&(position0, tokens), table) in sequences.iter().zip(&batch.tables) {
        for first in (0..tokens).step_by(shape.tile_tokens()) {
            let tile = shape.tile_tokens().min(tokens - first);
            let num_keys = position0 + first + tile;
            let padding = pages_for(num_keys) * PAGE_SIZE - num_keys;
            for row in (token0 + first) * shape.num_heads..(token0 + first + tile) * shape.num_heads
            {
                let kv_head = row % shape.num_heads / (shape.num_heads / shape.num_kv_heads);
                let k = batch.gather(table, kv_head, num_keys, 0);
                let q = &batch.q[row * shape.head_dim..][..shape.head_dim];
                for (score, abs) in attention_scores::reference(q, &k, shape.scale) {
                    values.push(score);
                    bounds.push(dot_bound(shape.head_dim / 4, abs) + 3.0 * U * score.abs());
                }
                values.extend(vec![0.0; padding]);
                bounds.extend(vec![1e-30; padding]);
                keys += num_keys;
            }
        }
        token0 += tokens;
    }
    let items = step.rounds[0].slabs[0];
    let width = shape.num_heads * shape.head_dim;
    let (k, dims) = batch.slab_bytes(0, 0);
    let num_pages = dims[0];
    Case::new(
        &ATTENTION_SCORES,
        format!(
            "{}/{}x{} {} {sequences:?}",
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            format.name()
        ),
    )
    .work((2 * keys * shape.head_dim) as f64, (4 * keys) as f64)
    .tensor(CaseTensor::f32("q", &[token0, width], &batch.q))
    .tensor(CaseTensor::u32("step_meta", &[step.meta.len()], &step.meta))
    .tensor(CaseTensor::input("k", format.dtype(), &dims, k))
    .tensor(CaseTensor::output_f32(
        "scores",
        &[values.len()],
        values,
        bounds,
    ))
    .record(move |rec, t| {
        let slab = KvSlab {
            first_page: 0,
            num_pages,
            k: t.get("k").clone(),
            v: t.get("k").clone(),
        };
        let (q, meta) = (t.get("q"), t.get("step_meta"));
        attention_scores::record(rec, &shape, &slab, q, meta, items, t.get("scores"));
    })
}

/// One split and many, slots in any order and at any distance, splits that add nothing.
pub fn merge() -> Vec<Case> {
    let shapes = [
        (1, 1, 8, 1),
        (2, 3, 40, 3),
        (5, 9, 64, 3),
        (3, 8, 128, 17),
        (2, 2, 256, 64),
    ];
    shapes
        .iter()
        .enumerate()
        .map(|(seed, &(rows, heads, dim, splits))| {
            merge_case(seed as u64, rows, heads, dim, splits)
        })
        .collect()
}

fn merge_case(
    seed: u64,
    num_rows: usize,
    num_heads: usize,
    head_dim: usize,
    max_splits: usize,
) -> Case {
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
            let spread = states
                .iter()
                .filter(|s| s.1 > 0.0)
                .map(|s| f64::from(s.0))
                .fold((f64::MAX, f64::MIN), |(a, b), m| (a.min(m), b.max(m)));
            let abs: Vec<Vec<f32>> = states
                .iter()
                .map(|s| s.2.iter().map(|o| o.abs()).collect())
                .collect();
            let abs: Vec<_> = states
                .iter()
                .zip(&abs)
                .map(|(s, abs)| (s.0, s.1, abs.as_slice()))
                .collect();
            // per split: exp2 to 3 + 2 |x| ulp twice, the difference, three roundings; then the division
            let relative =
                (num_splits as f64 * 2.0 * U * (6.0 + 5.0 * (spread.1 - spread.0)) + 8.0 * U) * 2.0;
            bounds.extend(
                attention_merge::reference(&abs)
                    .iter()
                    .map(|abs| abs * relative + 1e-30),
            );
            values.extend(attention_merge::reference(&states));
        }
    }
    let width = num_heads * head_dim;
    Case::new(
        &ATTENTION_MERGE,
        format!("{num_rows} rows {num_heads}x{head_dim} {max_splits} splits"),
    )
    .work(2.0 * (slots * width) as f64, 4.0 * partials.len() as f64)
    .tensor(CaseTensor::u32("step_meta", &[meta.len()], &meta))
    .tensor(CaseTensor::f32(
        "partials",
        &shape.partials_dims(slots),
        &partials,
    ))
    .tensor(CaseTensor::output_f32(
        "out",
        &[num_rows, width],
        values,
        bounds,
    ))
    .record(move |rec, t| {
        attention_merge::record(
            rec,
            &shape,
            t.get("step_meta"),
            rows_at,
            num_rows,
            t.get("partials"),
            t.get("out"),
        );
    })
}
