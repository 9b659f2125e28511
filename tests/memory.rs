//! What loading the real model, and writing it as other files, takes on the host, counted by the allocator.

mod common;

use common::{gpu, model_path};
use nelumbo::formats::ModelFiles;
use nelumbo::gpu::OpenOptions;
use nelumbo::model::convert::{Conversion, Layout, SHARD_BYTES, Target};
use nelumbo::quant::FORMATS;
use nelumbo::{LoadOptions, Model, formats};
use std::alloc::{self, GlobalAlloc, System};
use std::path::Path;
use std::sync::atomic::{AtomicIsize, Ordering};

static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

/// Counts live bytes over all threads.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: isize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

#[expect(
    unsafe_code,
    reason = "an allocator that counts can only be written so"
)]
// SAFETY: every call is handed to the system's allocator unchanged; the counters are plain atomics,
// which neither allocate nor unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: alloc::Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: alloc::Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: alloc::Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: alloc::Layout, size: usize) -> *mut u8 {
        // both exist while the content moves
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// What `work` returns, with the most bytes that lived meanwhile, and those that still do.
fn counted<T>(work: impl FnOnce() -> T) -> (T, isize, isize) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let done = work();
    let peak = PEAK.load(Ordering::Relaxed) - before;
    (done, peak, LIVE.load(Ordering::Relaxed) - before)
}

fn mib(bytes: isize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// One test, since others would be counted too.
#[test]
fn large_models_pass_through_little_memory() {
    let (_, seen, _) = counted(|| vec![1u8; 32 << 20]);
    assert!(seen >= 32 << 20, "the allocator counts: {seen}");
    let Some(path) = model_path() else { return };
    converting_peaks_at_some_pieces(&path);
    if gpu(&OpenOptions::default()).is_some() {
        loading_peaks_under_the_largest_tensor_and_64_mib(&path);
    }
}

/// Values of the largest tensor, and of all.
fn sizes(files: &ModelFiles) -> (usize, usize) {
    let values = |info: &formats::TensorInfo| info.rows() * info.columns();
    let sizes: Vec<usize> = files.checkpoint().tensors().map(values).collect();
    (*sizes.iter().max().unwrap(), sizes.iter().sum())
}

fn converting_peaks_at_some_pieces(path: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let files = formats::open(path).unwrap();
    let (largest, _) = sizes(&files);
    // so whoever had one large tensor as a whole would be seen
    let bound = 32 << 20;
    assert!(bound < 2 * largest as isize, "{bound} of {largest} values");
    let by_32 = Target::Int8 { group: Some(32) };
    for (target, layout, name) in [
        (Target::Int8 { group: None }, Layout::Directory, "rows"),
        (by_32, Layout::Directory, "groups"),
        (Target::F16, Layout::Gguf, "f16.gguf"),
        (Target::Q8_0, Layout::Gguf, "q8_0.gguf"),
    ] {
        let plan = Conversion::plan(&files, target, layout, SHARD_BYTES).unwrap();
        let out = folder.path().join(name);
        let (written, peak, _) = counted(|| plan.write(&out, &mut |_, _| ()));
        written.unwrap();
        println!(
            "{name}: peak {:.1} MiB of {:.1} permitted",
            mib(peak),
            mib(bound)
        );
        assert!(peak < bound, "{name}: {peak} bytes of {bound}");
    }
}

fn loading_peaks_under_the_largest_tensor_and_64_mib(path: &Path) {
    let (largest, all) = sizes(&formats::open(path).unwrap());
    let bound = (4 * largest + (64 << 20)) as isize;
    // so whoever made a copy of everything as f32, or f16, would be seen
    assert!(bound < 2 * all as isize, "{bound} of {all} values");
    for &weights in FORMATS {
        let options = LoadOptions {
            weights,
            ctx_size: Some(512),
            max_running: 1,
            ..LoadOptions::default()
        };
        let (model, peak, kept) = counted(|| Model::load(path, &options, &mut |_, _| ()).unwrap());
        drop(model);
        println!(
            "{} weights: peak {:.1} MiB of {:.1} permitted, {:.1} kept",
            weights.name,
            mib(peak),
            mib(bound),
            mib(kept)
        );
        assert!(peak < bound, "{}: {peak} bytes of {bound}", weights.name);
    }
}
