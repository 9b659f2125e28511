//! What attention must do where tokens see a window of keys, and where scores have a cap: batches as those
//! of the other cases, with NaN in all that lies before the windows, and pages there that are none.

use super::attention::AttentionShape;
use super::attention_cases::{Mode, case, shape};
use super::case::Case;
use crate::kv::KvFormat;

/// Heads, how the cache is stored, and which [`Mode`]: of variants that other cases have too, since a variant
/// costs more to compile than to run.
const BASES: [(usize, usize, usize, KvFormat, usize); 6] = [
    (9, 3, 64, KvFormat::ALL[0], 1),
    (8, 2, 128, KvFormat::ALL[1], 2),
    (3, 1, 80, KvFormat::ALL[0], 4),
    (9, 3, 64, KvFormat::ALL[1], 3),
    (2, 1, 256, KvFormat::ALL[0], 8),
    (8, 2, 128, KvFormat::ALL[0], 0),
];

/// Windows of one key, of some that begin inside of pages and of splits and at their edges, of several
/// splits, and longer than all; every width with single tokens and chunks, folded in place and by splits.
pub(super) fn windows() -> Vec<Case> {
    // with 16 keys from 544 on, a page's first, and from 545 on, its second; with 300, a chunk's windows
    // begin on both sides of a split's first key
    let sequences = [(559, 1), (560, 1), (540, 19), (250, 16), (0, 40), (0, 1)];
    let mut all = Vec::new();
    for (i, window) in [1, 2, 16, 17, 100, 256, 300, 1000].into_iter().enumerate() {
        let (heads, kv_heads, dim, format, mode) = BASES[i % BASES.len()];
        let (seed, shape) = (200 + i as u64, shape(heads, kv_heads, dim));
        // merged in one slab, in rounds and in several slabs
        let (pages, slots) = [(160, 256), (160, 24), (48, 64)][i % 3];
        let mode = |slots| Mode::of(mode, dim, slots).with_window(window);
        all.push(case(seed, shape, format, 160, &sequences, mode(0)));
        let some = &sequences[usize::from(pages < 160)..]; // several slabs have less room
        all.push(case(seed, shape, format, pages, some, mode(slots)));
    }
    all
}

/// Caps from one that leaves little of scores to one that they hardly feel, alone and with a window, in place
/// and merged.
pub(super) fn caps() -> Vec<Case> {
    let sequences = [(0, 17), (300, 16), (511, 2), (599, 1)];
    let mut all = Vec::new();
    for (i, (heads, kv_heads, dim, format, mode)) in BASES.into_iter().enumerate() {
        let shape = AttentionShape {
            score_cap: Some([0.5, 5.0, 50.0][i % 3]),
            scale: [1.0, 0.125][i % 2],
            ..shape(heads, kv_heads, dim)
        };
        let plain = Mode::of(mode, dim, [0, 128][i / 3]);
        let mode = match i {
            2 | 3 => plain.with_window(280),
            _ => plain,
        };
        all.push(case(300 + i as u64, shape, format, 160, &sequences, mode));
    }
    all
}
