//! What twins can do at best: what the processor reads on all cores, and the sums of products that a
//! matmul's twin is made of.

use super::twin::{matmul, parallel};
use std::hint::black_box;

/// Words that are read, 64 MiB, and of a turn of a thread.
const STREAM_WORDS: usize = 16 << 20;
const TURN_WORDS: usize = 1 << 18;
/// Factors of a sum, and sums of a turn. Both factors stay in the nearest cache.
const FACTORS: usize = 1024;
const SUMS: usize = 256;
const TURNS: usize = 16;
/// Measurements of each, of which the fastest counts.
const REPEATS: usize = 8;

/// Bytes a second that are read, and operations a second.
pub(super) fn measure(clock: &mut dyn FnMut() -> f64) -> (f64, f64) {
    let words = vec![1u32; STREAM_WORDS];
    let read = |turn: usize| -> u32 {
        let words = &words[turn * TURN_WORDS..][..TURN_WORDS];
        words.iter().fold(0, |sum, word| sum ^ word)
    };
    let stream = best(clock, || {
        black_box(parallel::map(STREAM_WORDS / TURN_WORDS, read));
    });
    let (a, b) = ([1.5f32; FACTORS], [0.5f32; FACTORS]);
    let sum = |_| {
        (0..SUMS)
            .map(|_| matmul::fast_dot(black_box(&a), &b).0)
            .sum::<f64>()
    };
    let sums = best(clock, || {
        black_box(parallel::map(TURNS, sum));
    });
    let operations = 2 * FACTORS * SUMS * TURNS;
    (4.0 * STREAM_WORDS as f64 / stream, operations as f64 / sums)
}

/// Seconds of the fastest call.
fn best(clock: &mut dyn FnMut() -> f64, mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..REPEATS {
        let start = clock();
        work();
        best = best.min(clock() - start);
    }
    best.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_call_counts_and_each_is_made() {
        let mut now = 0.0;
        let mut times = [9.0, 5.0, 3.0, 8.0].into_iter().cycle();
        let mut clock = || {
            let before = now;
            now += times.next().unwrap();
            before
        };
        let mut calls = 0;
        assert_eq!(best(&mut clock, || calls += 1), 3.0);
        assert_eq!(calls, REPEATS);
    }
}
