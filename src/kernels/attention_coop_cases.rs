//! What `attention_coop` must do: batches like those of `attention`, with tiles that end in the middle
//! of tokens, chunks of keys that end in the middle of pages, and NaN in everything that no row may see.

use super::attention::AttentionShape;
use super::attention_cases::{Mode, case, shape};
use super::attention_output::Output;
use super::case::Case;
use super::tuning::Tuning;
use crate::gpu::Coop;
use crate::kv::KvFormat;

/// Sizes of matrices.
pub(super) const SIZES: [u32; 2] = [8, 16];

fn mode(i: usize, size: u32, head_dim: usize, partial_slots: usize) -> Mode {
    let rows = !head_dim.is_multiple_of(32) || i.is_multiple_of(3);
    Mode {
        tuning: Tuning::plain(if i.is_multiple_of(2) { 1 } else { 8 }),
        coop: Some(Coop { size, subgroup: 64 }),
        output: if rows { Output::Rows } else { Output::Records },
        partial_slots,
        window: None,
    }
}

/// Both sizes. Widths and ratios of query to key heads take turns with sequences that begin and end
/// around pages, chunks and splits; then batches in one slab and in several, folded in place or by
/// splits, that need rounds; then scores and queries of extreme size; then windows and caps.
pub fn cases() -> Vec<Case> {
    let shapes = [
        (1, 1, 32),
        (9, 3, 64),
        (4, 1, 128),
        (8, 1, 40),
        (3, 1, 256),
        (2, 2, 8),
        (4, 1, 80),
        (6, 2, 96),
        (5, 1, 136),
        (40, 1, 64),
        (20, 1, 72),
    ];
    let short = [(0, 1), (0, 15), (1, 16), (15, 17), (30, 3), (63, 2)];
    let long = [(240, 33), (255, 2), (270, 5), (599, 1), (0, 9)];
    let mut all = Vec::new();
    for size in SIZES {
        for (i, &(heads, kv_heads, dim)) in shapes.iter().enumerate() {
            let shape = shape(heads, kv_heads, dim);
            for (j, sequences) in [&short[..], &long].into_iter().enumerate() {
                let (seed, format) = ((20 * i + j) as u64, KvFormat::ALL[(i + j) % 2]);
                let mode = mode(i + j, size, dim, 0);
                all.push(case(seed, shape, format, 160, sequences, mode));
            }
        }
        for (i, format) in KvFormat::ALL.into_iter().enumerate() {
            let mixed = [(0, 33), (599, 1), (300, 16), (511, 2), (0, 1)];
            let seed = 300 + i as u64;
            let mut push = |shape: AttentionShape, pages, sequences: &[(usize, usize)], slots| {
                let mode = mode(i + all.len(), size, shape.head_dim, slots);
                all.push(case(seed, shape, format, pages, sequences, mode));
            };
            push(shape(9, 3, 64), 160, &mixed, 0);
            push(shape(9, 3, 64), 160, &mixed, 256);
            push(shape(8, 2, 128), 48, &mixed, 24);
            push(shape(2, 2, 40), 32, &[(700, 40)], 7);
            // weights from one to next to nothing, beyond what f16 holds of them unscaled
            let steep = AttentionShape {
                scale: 1.5,
                ..shape(4, 2, 64)
            };
            push(steep, 160, &[(300, 20)], 0);
            // no score differs from another, so that every weight is the same
            let flat = AttentionShape {
                scale: 0.0,
                ..shape(4, 2, 64)
            };
            push(flat, 160, &[(300, 20)], 0);
        }
        all.extend(windows_and_caps(size));
    }
    all
}

/// Windows that begin inside of pages, chunks and splits and at their edges; caps that scores feel a lot and
/// hardly.
fn windows_and_caps(size: u32) -> Vec<Case> {
    let shapes = [
        (9, 3, 64),
        (4, 1, 128),
        (2, 1, 256),
        (2, 2, 40),
        (32, 1, 32),
    ];
    let sequences = [(540, 40), (600, 33), (250, 16), (599, 1), (0, 20)];
    let mut all = Vec::new();
    let windows = [1, 16, 17, 33, 100, 256, 300, 1000].into_iter();
    for (i, window) in windows.enumerate() {
        let (heads, kv_heads, dim) = shapes[i % shapes.len()];
        let (seed, format) = (400 + i as u64, KvFormat::ALL[i % 2]);
        let shape = AttentionShape {
            score_cap: [None, Some(2.0), None, Some(50.0)][i % 4],
            ..shape(heads, kv_heads, dim)
        };
        for (pages, slots) in [(160, 0), [(160, 256), (48, 160)][i % 2]] {
            let mode = mode(i, size, dim, slots).with_window(window);
            all.push(case(seed, shape, format, pages, &sequences, mode));
        }
    }
    for (i, (heads, kv_heads, dim)) in shapes.into_iter().enumerate() {
        let shape = AttentionShape {
            score_cap: Some([0.5, 5.0, 50.0][i % 3]),
            scale: 1.0,
            ..shape(heads, kv_heads, dim)
        };
        let (seed, format) = (500 + i as u64, KvFormat::ALL[i % 2]);
        let mode = mode(i, size, dim, 0);
        all.push(case(seed, shape, format, 160, &[(300, 20), (0, 9)], mode));
    }
    all
}

/// Chunks of a prompt, and a prompt of 512 tokens at once, of a small chat model; chunks of a wider one.
pub fn timings() -> Vec<Case> {
    let mut all = Vec::new();
    for size in SIZES {
        let mode = Mode {
            output: Output::Rows,
            ..mode(0, size, 64, 0)
        };
        for (shape, chunk) in [
            (shape(9, 3, 64), (0, 512)),
            (shape(9, 3, 64), (0, 128)),
            (shape(9, 3, 64), (384, 128)),
            (shape(32, 8, 128), (0, 128)),
            (shape(32, 8, 128), (384, 128)),
        ] {
            all.push(case(7, shape, KvFormat::F16, 288, &[chunk], mode));
        }
    }
    all
}
