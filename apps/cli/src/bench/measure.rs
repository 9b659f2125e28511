//! Runs the tests.

use std::time::Instant;

use nelumbo::engine::{EngineCore, Trial};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::case::Data;
use nelumbo::kernels::peaks::Peaks;

use super::plan::{Test, Work};
use crate::exit::Failure;

/// Of the texts: the same in every run, so that figures compare.
const SEED: u64 = 512;

/// Seconds of a single measurement of a peak.
const PEAK_SPAN: f64 = 0.01;

/// What the adapter does at best. On a device of its own, so that nothing of it stays behind.
pub fn peaks(open: &OpenOptions) -> Result<Peaks, Failure> {
    let gpu = Gpu::open(open)?;
    let start = Instant::now();
    let mut clock = || start.elapsed().as_secs_f64();
    Ok(Peaks::measure(&gpu, &mut clock, PEAK_SPAN)?)
}

/// `count` ids that no text would have: no model is fast because it has seen them.
pub fn some_tokens(engine: &EngineCore, count: usize) -> Vec<u32> {
    let vocab_size = engine.decoder().config().vocab_size;
    let mut data = Data::new(SEED);
    (0..count).map(|_| data.below(vocab_size) as u32).collect()
}

/// Times `tests`, all at one depth, each once to warm up and then `repetitions` times: nanoseconds of
/// each. `progress` is told every run: its test, its number (0 to warm up), tokens a second.
///
/// The context before them is computed once, untimed, and every run goes back to its end: what is in
/// the cache is the same each time.
pub fn at_one_depth(
    engine: &mut EngineCore,
    tests: &[Test],
    repetitions: u32,
    progress: &mut dyn FnMut(&Test, u32, Option<f64>),
) -> Result<Vec<Vec<u64>>, Failure> {
    let depth = tests.first().map_or(0, |test| test.depth);
    assert!(
        tests.iter().all(|test| test.depth == depth),
        "one depth: {tests:?}"
    );
    let room = tests.iter().map(Test::room).max().unwrap_or(0);
    let tokens = some_tokens(engine, room + 1);
    let mut trial = engine.trial(room)?;
    let next = match depth {
        0 => tokens[0],
        _ => trial.feed(&tokens[..depth])?,
    };
    let mut samples_of = |test: &Test| {
        progress(test, 0, None);
        timed(&mut trial, test, &tokens[depth..], next)?;
        let run = |run| {
            let nanoseconds = timed(&mut trial, test, &tokens[depth..], next)?;
            let speed = test.tokens() as f64 * 1e9 / nanoseconds as f64;
            progress(test, run, Some(speed));
            Ok(nanoseconds)
        };
        (1..=repetitions).map(run).collect()
    };
    tests.iter().map(&mut samples_of).collect()
}

/// Nanoseconds of one run of `test` from its depth on: `tokens` at once, or one token after another,
/// each of them the likeliest after the one before, `next` the first.
fn timed(trial: &mut Trial, test: &Test, tokens: &[u32], next: u32) -> Result<u64, Failure> {
    trial.rewind(test.depth);
    let start = Instant::now();
    match test.work {
        Work::Prompt(count) => {
            trial.feed(&tokens[..count])?;
        }
        Work::Generation(count) => {
            let mut token = next;
            for _ in 0..count {
                token = trial.feed(&[token])?;
            }
        }
    }
    Ok(u64::try_from(start.elapsed().as_nanos())
        .unwrap_or(u64::MAX)
        .max(1))
}
