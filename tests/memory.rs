//! What loading the real model takes on the host, counted by the allocator.

mod common;

use common::{gpu, model_path};
use nelumbo::gpu::OpenOptions;
use nelumbo::quant::FORMATS;
use nelumbo::{LoadOptions, Model, formats};
use std::alloc::{GlobalAlloc, Layout, System};
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
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // both exist while the content moves
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// One test, since others would be counted too.
#[test]
fn loading_peaks_under_the_largest_tensor_and_64_mib() {
    let buffer = vec![1u8; 32 << 20];
    let seen = PEAK.load(Ordering::Relaxed);
    assert!(seen >= 32 << 20, "the allocator counts: {seen}");
    drop(buffer);

    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    let Some(path) = model_path() else { return };
    let files = formats::open(&path).unwrap();
    let values = |info: &formats::TensorInfo| info.rows() * info.columns();
    let largest = files.checkpoint().tensors().map(values).max().unwrap();
    let all: usize = files.checkpoint().tensors().map(values).sum();
    drop(files);
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
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let model = Model::load(&path, &options, &mut |_, _| ()).unwrap();
        let peak = PEAK.load(Ordering::Relaxed) - before;
        let kept = LIVE.load(Ordering::Relaxed) - before;
        drop(model);
        let mib = |bytes: isize| bytes as f64 / f64::from(1 << 20);
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
