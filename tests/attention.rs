//! A row of attention depends on its position and the cache alone: however a step is planned, cut
//! into chunks or spread over slabs, its bits are the same.

use nelumbo::gpu::{DType, Gpu, OpenOptions, Recorder, Tensor};
use nelumbo::kernels::Tuning;
use nelumbo::kernels::activations::Activations;
use nelumbo::kernels::attention::{self, AttentionShape};
use nelumbo::kernels::attention_batch::Batch;
use nelumbo::kernels::attention_merge;
use nelumbo::kernels::attention_output::Output;
use nelumbo::kv::{KvFormat, KvSlab, PageGeometry};
use std::sync::Arc;

/// Ends inside pages and splits, single tokens and chunks, one to three splits.
const SEQUENCES: [(usize, usize); 5] = [(0, 33), (599, 1), (250, 16), (511, 2), (0, 1)];
const PAGES: usize = 160;

/// A plan's limits: teams wanted, slots of partial results.
#[derive(Clone, Copy)]
struct Limits(usize, usize);

const FOLD: Limits = Limits(0, 0);
const MERGE: Limits = Limits(usize::MAX, 256);
const MERGE_IN_ROUNDS: Limits = Limits(usize::MAX, 8);

fn gpu() -> Option<Arc<Gpu>> {
    match Gpu::open(&OpenOptions::from_env().expect("test switches")) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            assert!(std::env::var_os("REQUIRE_GPU").is_none(), "{error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Where a team is one of several of a workgroup, or by what its members talk.
fn tuning(lanes: u32, subgroups: bool) -> Tuning {
    Tuning {
        activations: Activations::F32,
        lanes,
        workgroup: 64,
        tile_tokens: 8,
        subgroups,
        wide: false,
    }
}

fn assert_near(found: &[u32], (values, bounds): &(Vec<f64>, Vec<f64>), how: &str) {
    for (i, &bits) in found.iter().enumerate() {
        let distance = (f64::from(f32::from_bits(bits)) - values[i]).abs();
        assert!(
            distance <= bounds[i],
            "{how}: element {i} is off by {distance:e}"
        );
    }
}

fn assert_same(found: &[u32], expected: &[u32], how: &str) {
    assert_eq!(found.len(), expected.len(), "{how}");
    let wrong = found.iter().zip(expected).filter(|(f, e)| f != e).count();
    assert_eq!(wrong, 0, "{how}: {wrong} elements differ");
}

#[test]
fn bits_do_not_depend_on_plan_chunks_or_slabs() {
    let Some(gpu) = gpu() else {
        return;
    };
    let subgroups = gpu.caps().subgroup.is_some_and(|size| size >= 8);
    // single tokens whose heads fill a tile of four, some of it and more than it; heads that leave a
    // tile of eight rows ragged; one, two and four octs to a member
    for (num_heads, num_kv_heads, head_dim, format) in [
        (9, 3, 64, KvFormat::F16),
        (2, 2, 64, KvFormat::F32),
        (7, 1, 40, KvFormat::F16),
        (4, 1, 96, KvFormat::F16),
        (2, 1, 136, KvFormat::F16),
    ] {
        let shape = AttentionShape {
            num_heads,
            num_kv_heads,
            head_dim,
            scale: 0.125,
            score_cap: None,
        };
        let batch = |slab_pages| {
            let geometry = PageGeometry::new(PAGES, slab_pages);
            Batch::new(7, shape, format, geometry, &SEQUENCES)
        };
        let whole = batch(PAGES);
        let own = tuning(1, subgroups);
        let expected = run(&gpu, own, &whole, FOLD);
        assert_near(&expected, &whole.expected(), &format!("{shape:?}"));
        let same = |found: Vec<u32>, how: &str| {
            assert_same(&found, &expected, &format!("{shape:?} {how}"));
        };
        same(run(&gpu, own, &whole, FOLD), "run twice");
        same(run(&gpu, own, &whole, MERGE), "split and merged");
        same(run(&gpu, own, &whole, MERGE_IN_ROUNDS), "merged in rounds");
        same(run(&gpu, own, &batch(48), FOLD), "in four slabs");
        same(
            run(&gpu, own, &batch(32), MERGE_IN_ROUNDS),
            "in five slabs, in rounds",
        );
        for (teams, how) in [(1, "a shared team"), (8, "teams that share a workgroup")] {
            same(run(&gpu, tuning(teams, false), &whole, FOLD), how);
        }
        same(in_chunks(&gpu, own, &whole, 7, MERGE), "in merged chunks");
        if head_dim == 64 {
            same(run(&gpu, tuning(8, false), &whole, MERGE), "merged teams");
            same(in_chunks(&gpu, own, &whole, 1, FOLD), "token by token");
            same(in_chunks(&gpu, own, &whole, 1, MERGE), "merged, by token");
            same(in_chunks(&gpu, own, &whole, 7, FOLD), "in chunks");
        }
    }
}

/// Chunks of a windowed text, and single tokens, however they are planned: no key before a row's window
/// changes a bit of it, nor a page that is in the table there, nor who is beside it in a tile.
#[test]
fn bits_of_a_window_do_not_depend_on_plan_chunks_or_slabs() {
    let Some(gpu) = gpu() else {
        return;
    };
    let subgroups = gpu.caps().subgroup.is_some_and(|size| size >= 8);
    let sequences = [(530, 64), (0, 40), (250, 20), (599, 1)];
    let shapes = [
        (9, 3, 64, KvFormat::F16, None),
        (4, 1, 40, KvFormat::F32, Some(2.0)),
        (2, 2, 136, KvFormat::F16, None),
    ];
    // a key; the last page or split and a key more; some of these; all and more
    for (i, window) in [1, 16, 17, 100, 256, 257, 400, 10_000]
        .into_iter()
        .enumerate()
    {
        let (num_heads, num_kv_heads, head_dim, format, score_cap) = shapes[i % shapes.len()];
        let shape = AttentionShape {
            num_heads,
            num_kv_heads,
            head_dim,
            scale: 0.125,
            score_cap,
        };
        let batch = |slab_pages| {
            let geometry = PageGeometry::new(PAGES, slab_pages);
            Batch::new(11, shape, format, geometry, &sequences)
        };
        let windowed = |slab_pages| batch(slab_pages).windowed(Some(window));
        let (whole, own) = (windowed(PAGES), tuning(1, subgroups));
        let title = format!("{shape:?}, a window of {window}");
        let expected = run(&gpu, own, &whole, FOLD);
        assert_near(&expected, &whole.expected(), &title);
        let same = |found: Vec<u32>, how: &str| {
            assert_same(&found, &expected, &format!("{title}, {how}"));
        };
        same(run(&gpu, own, &whole, MERGE), "split and merged");
        same(run(&gpu, own, &whole, MERGE_IN_ROUNDS), "merged in rounds");
        same(run(&gpu, own, &windowed(48), MERGE), "in four slabs");
        same(run(&gpu, tuning(8, false), &whole, FOLD), "by many teams");
        same(run(&gpu, tuning(8, false), &whole, MERGE), "merged teams");
        if window > 700 {
            same(run(&gpu, own, &batch(PAGES), FOLD), "without a window");
        }
        for (j, chunk) in [1, 16, 64].into_iter().enumerate() {
            let limits = [FOLD, MERGE];
            let cut =
                |limits| in_windowed_chunks(&gpu, own, &batch(PAGES), chunk, limits, Some(window));
            same(cut(limits[(i + j) % 2]), &format!("in chunks of {chunk}"));
            if chunk == 16 {
                let how = "in chunks of 16, planned the other way";
                same(cut(limits[(i + j + 1) % 2]), how);
            }
        }
    }
}

/// Every sequence alone, `chunk` tokens at a time. The keys of later chunks are in the cache already:
/// a row may not see them.
fn in_chunks(
    gpu: &Arc<Gpu>,
    tuning: Tuning,
    batch: &Batch,
    chunk: usize,
    limits: Limits,
) -> Vec<u32> {
    in_windowed_chunks(gpu, tuning, batch, chunk, limits, None)
}

/// The same where a row sees `window` keys; before the window of a chunk's first row is nothing.
fn in_windowed_chunks(
    gpu: &Arc<Gpu>,
    tuning: Tuning,
    batch: &Batch,
    chunk: usize,
    limits: Limits,
    window: Option<usize>,
) -> Vec<u32> {
    let width = batch.shape.num_heads * batch.shape.head_dim;
    let mut all = Vec::new();
    let mut rows = batch.q.chunks(width);
    for (&(position0, tokens), table) in batch.sequences.iter().zip(&batch.tables) {
        for first in (0..tokens).step_by(chunk) {
            let tokens = chunk.min(tokens - first);
            let part = Batch {
                sequences: vec![(position0 + first, tokens)],
                tables: vec![table.clone()],
                q: rows.by_ref().take(tokens).flatten().copied().collect(),
                kv: batch.kv.clone(),
                ..*batch
            };
            all.extend(run(gpu, tuning, &part.windowed(window), limits));
        }
    }
    all
}

/// The bits of the result.
fn run(gpu: &Arc<Gpu>, tuning: Tuning, batch: &Batch, Limits(wanted, slots): Limits) -> Vec<u32> {
    // with several slabs even a plan that would fold needs room for partial results
    let slots = if batch.geometry.num_slabs() > 1 {
        slots.max(64)
    } else {
        slots
    };
    let step = batch.step(wanted, slots);
    let shape = batch.shape;
    let upload = |name: &str, dtype, dims: &[usize], bytes: &[u8]| -> Tensor {
        let tensor = gpu.tensor(name, dtype, dims).expect(name);
        gpu.upload(&tensor, 0, bytes).expect(name);
        tensor
    };
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let floats =
        |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };

    let dims = [batch.num_tokens(), shape.num_heads * shape.head_dim];
    let q = upload("q", DType::F32, &dims, &floats(&batch.q));
    let meta = upload(
        "step_meta",
        DType::U32,
        &[step.meta.len()],
        &words(&step.meta),
    );
    let out = upload(
        "out",
        DType::F32,
        &dims,
        &floats(&vec![f32::NAN; batch.q.len()]),
    );
    let partials_dims = shape.partials_dims(slots.max(1));
    let partials = gpu
        .tensor("partials", DType::F32, &partials_dims)
        .expect("partials");
    let slabs: Vec<KvSlab> = (0..batch.geometry.num_slabs())
        .map(|slab| {
            let [k, v] = [0, 1].map(|which| {
                let (bytes, dims) = batch.slab_bytes(slab, which);
                upload("kv", batch.format.dtype(), &dims, &bytes)
            });
            let pages = batch.geometry.pages_of(slab);
            KvSlab {
                first_page: pages.start,
                num_pages: pages.len(),
                k,
                v,
            }
        })
        .collect();

    let mut rec = Recorder::new(gpu).expect("recorder");
    for round in &step.rounds {
        for (slab, &items) in slabs.iter().zip(&round.slabs) {
            attention::record(
                &mut rec,
                &tuning,
                &shape,
                slab,
                &q,
                &meta,
                items,
                batch.window,
                &partials,
                Output::Rows,
                &out,
            );
        }
        let (rows_at, num_rows) = round.merge;
        attention_merge::record(
            &mut rec,
            &tuning,
            &shape,
            &meta,
            rows_at,
            num_rows,
            &partials,
            Output::Rows,
            &out,
        );
    }
    rec.submit().expect("submit");
    gpu.download_as(&out).expect("out")
}
