//! Counts what a piece of code allocates, so that tests can bound it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// What the readers may take for an input: the bound of the fuzz targets.
pub const fn bound(input_bytes: usize) -> usize {
    (64 << 20) + 4 * input_bytes
}

/// Runs `work` and tells how far this thread's live bytes rose above where they were.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before).max(0) as usize)
}

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: isize) {
    LIVE.set(LIVE.get() + bytes);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

#[expect(
    unsafe_code,
    reason = "an allocator that counts can only be written so"
)]
// SAFETY: every call is handed to the system's allocator unchanged; the counters are plain cells
// without destructors, so that touching them neither allocates nor outlives a thread.
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
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[test]
fn a_peak_is_seen_after_it_has_passed() {
    let (len, peak) = peak(|| vec![1u8; 1 << 20].len());
    assert_eq!(len, 1 << 20);
    assert!((1 << 20..2 << 20).contains(&peak), "{peak}");
}
