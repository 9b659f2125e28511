//! Runs the tests.

use std::collections::BTreeMap;
use std::time::Instant;

use nelumbo::engine::{EngineCore, Trial};
use nelumbo::gpu::OpenOptions;
use nelumbo::kernels;
use nelumbo::kernels::case::Data;
use nelumbo::kernels::peaks::Peaks;
use nelumbo::model::Numerics;
use nelumbo::model::roofline::{Roofline, Subject};

use super::plan::{Test, Work};
use crate::exit::Failure;

/// Of the texts: the same in every run, so that figures compare.
const SEED: u64 = 512;

/// Seconds of a single measurement of a peak.
const PEAK_SPAN: f64 = 0.01;

/// What the adapter does at best. On a device of its own, so that nothing of it stays behind.
pub fn peaks(open: &OpenOptions) -> Result<Peaks, Failure> {
    let gpu = kernels::open(open)?;
    let start = Instant::now();
    let mut clock = || start.elapsed().as_secs_f64();
    let peaks = Peaks::measure(&gpu, &mut clock, PEAK_SPAN)?;
    peaks.keep(&gpu);
    Ok(peaks)
}

/// How near kernels come to `peaks`, divided as those of `engine`'s model are; measured on a device of
/// its own as well. `None` where nothing predicts the mode, and with a warning where it fails: a bench
/// goes on without predictions.
pub fn roofline(open: &OpenOptions, engine: &EngineCore, peaks: Peaks) -> Option<Roofline> {
    let decoder = engine.decoder();
    if decoder.numerics() != Numerics::Canonical {
        return None;
    }
    let subject = Subject {
        tuning: *decoder.tuning(),
        weights: decoder.weights().embedding.format,
        kv: decoder.kv().format(),
    };
    let start = Instant::now();
    let measured = kernels::open(open).and_then(|gpu| {
        let mut clock = || start.elapsed().as_secs_f64();
        let roofline = Roofline::measure(&gpu, subject, peaks, &mut clock, PEAK_SPAN)?;
        roofline.keep(&gpu, subject);
        Ok(roofline)
    });
    measured
        .inspect(|roofline| log::info!("{roofline:?} ({:.1} s)", start.elapsed().as_secs_f64()))
        .inspect_err(|error| log::warn!("nothing is predicted: {error}"))
        .ok()
}

/// `count` ids that no text would have: no model is fast because it has seen them.
pub fn some_tokens(engine: &EngineCore, count: usize) -> Vec<u32> {
    let vocab_size = engine.decoder().config().vocab_size;
    let mut data = Data::new(SEED);
    (0..count).map(|_| data.below(vocab_size) as u32).collect()
}

/// Times `tests` in rounds, one to warm up and then `repetitions`: nanoseconds of each. `progress` is
/// told every run: its test, its number (0 to warm up), tokens a second.
///
/// A round goes through the depths from one end to the other, and the next one back, so that a machine
/// that becomes slower or faster does so for all of them alike. The context before a depth is
/// computed untimed, as far as it is not there still.
pub fn in_rounds(
    engine: &mut EngineCore,
    tests: &[Test],
    repetitions: u32,
    progress: &mut dyn FnMut(&Test, u32, Option<f64>),
) -> Result<Vec<Vec<u64>>, Failure> {
    let room = tests.iter().map(Test::room).max().unwrap_or(0);
    let tokens = some_tokens(engine, room + 1);
    let mut context = Context {
        trial: engine.trial(room)?,
        next: BTreeMap::from([(0, tokens[0])]),
        tokens,
    };
    let mut samples = vec![Vec::new(); tests.len()];
    let mut upwards: Vec<usize> = (0..tests.len()).collect();
    upwards.sort_by_key(|&i| tests[i].depth);
    for round in 0..=repetitions {
        let mut order = upwards.clone();
        if round % 2 == 1 {
            order.reverse();
        }
        for i in order {
            let test = &tests[i];
            if round == 0 {
                progress(test, round, None);
            }
            let next = context.go_to(test.depth)?;
            let nanoseconds = context.timed(test, next)?;
            if round > 0 {
                let speed = test.tokens() as f64 * 1e9 / nanoseconds as f64;
                progress(test, round, Some(speed));
                samples[i].push(nanoseconds);
            }
        }
    }
    Ok(samples)
}

/// The sequence that tests are timed on, and its text.
struct Context<'a> {
    trial: Trial<'a>,
    tokens: Vec<u32>,
    /// The likeliest token after so many of the text.
    next: BTreeMap<usize, u32>,
}

impl Context<'_> {
    /// The first `depth` tokens of the text and no others; returns what is likeliest to follow.
    fn go_to(&mut self, depth: usize) -> Result<u32, Failure> {
        if self.trial.len() > depth && self.next.contains_key(&depth) {
            self.trial.rewind(depth)?;
        } else if self.trial.len() > depth {
            self.trial.rewind(0)?;
        }
        if self.trial.len() < depth {
            let next = self.trial.feed(&self.tokens[self.trial.len()..depth])?;
            self.next.insert(depth, next);
        }
        Ok(self.next[&depth])
    }

    /// Nanoseconds of one run of `test` from where it begins: tokens of the text at once, or one token
    /// after another, each of them the likeliest after the one before, `next` the first. They are
    /// forgotten again.
    fn timed(&mut self, test: &Test, next: u32) -> Result<u64, Failure> {
        let start = Instant::now();
        match test.work {
            Work::Prompt(count) => {
                let text = &self.tokens[test.depth..][..count];
                self.trial.feed(text)?;
            }
            Work::Generation(count) => {
                let mut token = next;
                for _ in 0..count {
                    token = self.trial.feed(&[token])?;
                }
            }
        }
        let nanoseconds = u64::try_from(start.elapsed().as_nanos());
        self.trial.rewind(test.depth)?;
        Ok(nanoseconds.unwrap_or(u64::MAX).max(1))
    }
}
