//! What attention must do where tokens see a window of keys, and where scores have a cap: batches as those
//! of the other cases, with NaN in all that lies before the windows, and pages there that are none.

use super::attention::AttentionShape;
use super::attention_cases::{Mode, case, shape};
use super::case::Case;
use crate::kv::KvFormat;

/// Windows of one key, of some that begin inside of pages and of splits and at their edges, of several
/// splits, and longer than all; every width with single tokens and chunks, folded in place or by splits.
pub(super) fn windows() -> Vec<Case> {
    let shapes = [
        (9, 3, 64),
        (4, 1, 32),
        (4, 2, 128),
        (2, 1, 256),
        (7, 1, 40),
        (6, 2, 96),
    ];
    // of 16 keys: from 544 on, a page's first, and from 545, its second; of 100: from 512 on, a split's first
    let single = [(559, 1), (560, 1), (611, 1), (40, 1), (0, 1)];
    let chunks = [(540, 19), (600, 33), (250, 16), (0, 40)];
    let mut all = Vec::new();
    for (i, window) in [1, 2, 16, 17, 100, 256, 300, 1000].into_iter().enumerate() {
        for (j, sequences) in [&single[..], &chunks].into_iter().enumerate() {
            let (heads, kv_heads, dim) = shapes[(i + 3 * j) % shapes.len()];
            let format = KvFormat::ALL[(i + j) % 2];
            let (seed, shape) = (200 + (2 * i + j) as u64, shape(heads, kv_heads, dim));
            // in place, and then merged: in one slab, in rounds and in several slabs
            let (pages, slots) = [(160, 256), (160, 24), (48, 64)][(i + j) % 3];
            let mode = |slots| Mode::of(i + j + slots, dim, slots).with_window(window);
            all.push(case(seed, shape, format, 160, sequences, mode(0)));
            all.push(case(seed, shape, format, pages, sequences, mode(slots)));
        }
    }
    all
}

/// Caps from one that leaves little of scores to one that they hardly feel, alone and with a window.
pub(super) fn caps() -> Vec<Case> {
    let shapes = [(9, 3, 64), (4, 2, 128), (2, 1, 256), (4, 2, 40), (8, 1, 64)];
    let mixed = [(0, 17), (300, 16), (511, 2), (599, 1)];
    let mut all = Vec::new();
    for (i, (heads, kv_heads, dim)) in shapes.into_iter().enumerate() {
        for (j, cap) in [0.5, 5.0, 50.0].into_iter().enumerate() {
            let shape = AttentionShape {
                score_cap: Some(cap),
                scale: [1.0, 0.125][(i + j) % 2],
                ..shape(heads, kv_heads, dim)
            };
            let slots = [0, 128][(i + j) % 2];
            let plain = Mode::of(i + 2 * j, dim, slots);
            let mode = match j {
                2 => plain.with_window(280),
                _ => plain,
            };
            let (seed, format) = (300 + (3 * i + j) as u64, KvFormat::ALL[j % 2]);
            all.push(case(seed, shape, format, 160, &mixed, mode));
        }
    }
    all
}
