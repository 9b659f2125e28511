//! Kernels that add up a row before they write it: the same bits for a token by itself as among others,
//! and whether invocations talk by subgroups or through workgroup memory.

use super::common;
use nelumbo::gpu::{DType, Gpu, OpenOptions, Recorder, Tensor};
use nelumbo::kernels::case::Data;
use nelumbo::kernels::rope::{self, QkNorm, QkNormWeights, RopeRows};
use nelumbo::kernels::{Activations, Tuning, add_norm, layer_norm};
use nelumbo::kv::{KvSlab, PAGE_SIZE};
use std::ops::Range;
use std::sync::Arc;

const TOKENS: usize = 33;
/// Numbers of tokens that the same are cut into.
const CHUNKS: [usize; 3] = [TOKENS, 4, 1];

fn tensor(gpu: &Gpu, dtype: DType, dims: &[usize], words: &[u32]) -> Tensor {
    let tensor = gpu.tensor("rows", dtype, dims).unwrap();
    gpu.upload(&tensor, 0, bytemuck::cast_slice(words)).unwrap();
    tensor
}

fn floats(gpu: &Gpu, dims: &[usize], values: &[f32]) -> Tensor {
    tensor(gpu, DType::F32, dims, bytemuck::cast_slice(values))
}

fn words(gpu: &Gpu, tensor: &Tensor) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(&gpu.download(tensor).unwrap())
}

/// What `of` leaves for each chunk of so many tokens, one after another.
fn chunked(chunk: usize, of: impl Fn(Range<usize>) -> Vec<u32>) -> Vec<u32> {
    let starts = (0..TOKENS).step_by(chunk);
    starts
        .flat_map(|start| of(start..TOKENS.min(start + chunk)))
        .collect()
}

/// Rows of `columns` of some tokens.
fn rows(values: &[f32], tokens: &Range<usize>, columns: usize) -> Vec<f32> {
    values[tokens.start * columns..tokens.end * columns].to_vec()
}

/// Residual streams and records after `add_norm`, then records of `layer_norm`, by chunks.
fn norms(gpu: &Arc<Gpu>, tuning: &Tuning, columns: usize, chunk: usize) -> [Vec<u32>; 3] {
    let mut data = Data::new(columns as u64);
    let (y, before) = (data.normal(TOKENS * columns), data.normal(TOKENS * columns));
    let [weight, gamma, bias] = [0; 3].map(|_| floats(gpu, &[columns], &data.normal(columns)));
    let act_dims = tuning.activations.dims(1, columns);
    let pass = |which: usize| {
        chunked(chunk, |tokens| {
            let n = tokens.len();
            let y = floats(gpu, &[n, columns], &rows(&y, &tokens, columns));
            let hidden = floats(gpu, &[n, columns], &rows(&before, &tokens, columns));
            let act = gpu.tensor("act", DType::U32, &[n, act_dims[1]]).unwrap();
            let mut rec = Recorder::new(gpu).unwrap();
            if which == 2 {
                layer_norm::record(&mut rec, tuning, &y, n, &weight, &bias, 1e-5, &act);
            } else {
                let (eps, scale) = (1e-6, 0.7);
                add_norm::record(
                    &mut rec, tuning, &y, n, &weight, eps, scale, &hidden, &gamma, &act,
                );
            }
            rec.submit().unwrap();
            words(gpu, if which == 0 { &hidden } else { &act })
        })
    };
    [pass(0), pass(1), pass(2)]
}

#[test]
fn norms_of_rows_are_those_of_a_token_alone_and_of_every_way_to_talk() {
    let Some(able) = common::gpu(&OpenOptions::default()) else {
        return;
    };
    let plain = OpenOptions {
        caps: Some("none".to_owned()),
        ..OpenOptions::default()
    };
    let plain = common::gpu(&plain).expect("as the one before");
    for (columns, lanes) in [(100, 1), (1028, 1), (100, 8), (1028, 8)] {
        for activations in Activations::ALL {
            let tuning = |gpu: &Gpu| Tuning {
                activations,
                ..Tuning::with_lanes(gpu, lanes)
            };
            let whole = norms(&able, &tuning(&able), columns, TOKENS);
            assert!(whole.iter().all(|all| all.iter().any(|&word| word != 0)));
            for chunk in CHUNKS {
                for gpu in [&able, &plain] {
                    let found = norms(gpu, &tuning(gpu), columns, chunk);
                    assert_eq!(found, whole, "{columns} columns, {lanes} lanes, by {chunk}");
                }
            }
        }
    }
}

/// Queries, keys and values as they are stored, by chunks. A token has a page to itself.
fn rotated(
    gpu: &Arc<Gpu>,
    kind: QkNorm,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    chunk: usize,
) -> [Vec<u32>; 3] {
    let mut data = Data::new(head_dim as u64);
    let width = (heads + 2 * kv_heads) * head_dim;
    let qkv = data.normal(TOKENS * width);
    let weights = [heads, kv_heads].map(|heads| {
        let count = match kind {
            QkNorm::Head => head_dim,
            QkNorm::Whole => heads * head_dim,
        };
        floats(gpu, &[count], &data.normal(count))
    });
    let angles = data.normal(TOKENS * head_dim);
    let page_dims = [TOKENS, kv_heads, PAGE_SIZE, head_dim];
    let empty = vec![0; page_dims.iter().product()];
    let slab = KvSlab {
        first_page: 0,
        num_pages: TOKENS,
        k: tensor(gpu, DType::F32, &page_dims, &empty),
        v: tensor(gpu, DType::F32, &page_dims, &empty),
    };
    let q = chunked(chunk, |tokens| {
        let n = tokens.len();
        let x = floats(gpu, &[n, width], &rows(&qkv, &tokens, width));
        let q = floats(
            gpu,
            &[n, heads * head_dim],
            &vec![0.0; n * heads * head_dim],
        );
        let mut meta: Vec<u32> = tokens.clone().map(|t| (t * PAGE_SIZE) as u32).collect();
        let rope_at = n.next_multiple_of(4);
        meta.resize(rope_at, 0);
        let angles = rows(&angles, &tokens, head_dim);
        meta.extend(angles.iter().map(|a| a.to_bits()));
        let meta = tensor(gpu, DType::U32, &[meta.len()], &meta);
        let norm = QkNormWeights {
            kind,
            q: &weights[0],
            k: &weights[1],
            eps: 1e-6,
        };
        let at = RopeRows {
            slots_at: 0,
            rope_at,
        };
        let mut rec = Recorder::new(gpu).unwrap();
        let slabs = std::slice::from_ref(&slab);
        rope::record(&mut rec, slabs, &x, n, &meta, at, Some(norm), &q);
        rec.submit().unwrap();
        words(gpu, &q)
    });
    [q, words(gpu, &slab.k), words(gpu, &slab.v)]
}

#[test]
fn queries_and_keys_are_normalised_alone_as_among_others() {
    let Some(gpu) = common::gpu(&OpenOptions::default()) else {
        return;
    };
    for kind in [QkNorm::Head, QkNorm::Whole] {
        for heads in [(3, 1, 36), (11, 9, 64)] {
            let whole = rotated(&gpu, kind, heads, TOKENS);
            assert!(whole.iter().all(|all| all.iter().any(|&word| word != 0)));
            for chunk in CHUNKS {
                let found = rotated(&gpu, kind, heads, chunk);
                assert!(found == whole, "{kind:?} of {heads:?}, by {chunk}");
            }
        }
    }
}
