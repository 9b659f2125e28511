//! What steps cost, learned from those that were executed, and how much of a prompt fits into a step
//! that others wait for. Pure: times are data.
//!
//! ```text
//! seconds = fixed + a * decodes + b * decode_context + c * prompt_tokens + d * prompt_context
//! ```
//!
//! Prompt tokens are counted with what is missing to whole tiles of the matrices, which take as long, and
//! without those that are free: a GPU that reads weights for few tokens does the arithmetic of some more
//! meanwhile. How many, nobody knows before; so there is a line for each of several answers, and the one
//! that foretold steps best lately counts. A single line without any would learn from short prompts that
//! tokens cost nothing, and then plan far more than a step has time for. How a line is tracked, [`Line`]
//! tells.

mod line;

use super::plan::Chunk;
use line::{Line, TERMS};

/// What a step's time depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Runs of a single token.
    pub decodes: usize,
    /// Over these, how many tokens each attends to.
    pub decode_context: usize,
    /// Tokens of longer runs.
    pub prompt_tokens: usize,
    /// Over these, how many tokens each attends to.
    pub prompt_context: usize,
}

/// Prompt tokens of a step when none was measured.
const FIRST_CHUNK: usize = 16;
/// A chunk may be so many times as large as the largest that was measured.
const GROWTH: usize = 2;
/// Where the limit is out of reach, those who decode are slowed down by this share for a prompt.
const SLOWDOWN: f64 = 0.25;
/// A prompt's token costs at most this many times what it costs in the largest step...
const FAIR: f64 = 1.7;
/// ... as long as the step exceeds the limit by no more than this share.
const STRETCH: f64 = 0.2;
/// Tokens that an invocation of matmul holds: one more costs as much as so many more.
const TILE: usize = 8;
/// Tokens of a step, decodes among them, after which those of prompts cost something: the first where
/// nothing tells them apart.
const KNEES: [usize; 11] = [0, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Of how well a line foretells, so much is the last step's; a step that it misses by more than this share is
/// one that it misses.
const RECENT: f64 = 0.02;
const MOST_MISSED: f64 = 0.5;
/// What lines foretell differently by that share tells them apart.
const TELLING: f64 = 0.1;
/// Another line counts from when its squared errors are below this share of those of the one that does.
const BETTER: f64 = 0.5;
/// Steps with prompts before lines are compared.
const FIRST_STEPS: usize = 16;

impl Load {
    /// Of a step with these chunks.
    pub fn of(chunks: &[Chunk]) -> Load {
        let mut load = Load::default();
        for chunk in chunks {
            load.add(chunk.start, chunk.len);
        }
        load
    }

    /// With `len` more tokens of one sequence, the first at position `start`.
    pub fn add(&mut self, start: usize, len: usize) {
        let context = len * start + len * (len + 1) / 2;
        if len == 1 {
            self.decodes += 1;
            self.decode_context += context;
        } else {
            self.prompt_tokens += len;
            self.prompt_context += context;
        }
    }

    /// With `len` tokens of a prompt, the first at `position`.
    pub(super) fn with_prompt(mut self, position: usize, len: usize) -> Load {
        self.prompt_tokens += len;
        self.prompt_context += len * position + len * (len + 1) / 2;
        self
    }

    /// What a step depends on, where prompts are free up to `knee` tokens.
    fn terms(&self, knee: usize) -> [f64; TERMS] {
        // time is a stair: who does not fill a tile pays for it all the same
        let tokens = match self.prompt_tokens {
            0 => 0,
            tokens => filled(tokens, self.decodes),
        };
        let free = knee.saturating_sub(self.decodes);
        [
            1.0,
            self.decodes as f64,
            self.decode_context as f64,
            tokens.saturating_sub(free) as f64,
            self.prompt_context as f64,
        ]
    }
}

/// What is known about the cost of steps on a device.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// One for each of [`KNEES`].
    lines: [Line; KNEES.len()],
    /// How far each was off lately: means of squares, relative.
    errors: [f64; KNEES.len()],
    /// Which counts.
    best: usize,
    /// Steps with prompts so far.
    compared: usize,
    /// The most prompt tokens of a step that was measured.
    largest: usize,
}

impl Pace {
    /// Takes note of a step of `load` that took `seconds`.
    pub fn learn(&mut self, load: &Load, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) {
            return; // a clock that went wrong
        }
        self.largest = self.largest.max(load.prompt_tokens);
        if load.prompt_tokens > 0 {
            self.compare(load, seconds);
        }
        for (line, knee) in self.lines.iter_mut().zip(KNEES) {
            line.learn(&load.terms(knee), seconds);
        }
    }

    /// Holds what each line foretold of a step with prompts against what it took.
    fn compare(&mut self, load: &Load, seconds: f64) {
        self.compared += 1;
        if self.compared <= FIRST_STEPS {
            return; // they only know what they began with
        }
        let mut missed = [0.0; KNEES.len()];
        for ((line, knee), missed) in self.lines.iter().zip(KNEES).zip(&mut missed) {
            let expected = line.at(&load.terms(knee)).unwrap_or(seconds);
            *missed = (expected / seconds - 1.0).clamp(-MOST_MISSED, MOST_MISSED);
        }
        let most = missed.iter().copied().fold(f64::MIN, f64::max);
        let least = missed.iter().copied().fold(f64::MAX, f64::min);
        // a step that all foretell alike says nothing, and makes nothing forgotten
        let told = RECENT * ((most - least) / TELLING).min(1.0);
        for (error, missed) in self.errors.iter_mut().zip(missed) {
            *error += told * (missed * missed - *error);
        }
        let best = (0..KNEES.len()).min_by(|&a, &b| self.errors[a].total_cmp(&self.errors[b]));
        if let Some(best) = best
            && self.errors[best] < BETTER * self.errors[self.best]
        {
            self.best = best;
        }
    }

    /// Seconds that a step of `load` takes, as far as anything is known.
    fn seconds(&self, load: &Load) -> Option<f64> {
        self.lines[self.best].at(&load.terms(KNEES[self.best]))
    }

    /// Seconds that a step of `load` is expected to take: for what does not lie beyond twice the
    /// prompt tokens that were measured.
    pub fn expected(&self, load: &Load) -> Option<f64> {
        let known = load.prompt_tokens <= GROWTH * self.largest;
        self.seconds(load).filter(|_| known)
    }

    /// The same in two: what grows with tokens, and what grows with the tokens that they attend to.
    pub fn parts(&self, load: &Load) -> Option<(f64, f64)> {
        let terms = load.terms(KNEES[self.best]);
        let attention = [0.0, 0.0, terms[2], 0.0, terms[4]];
        let attention = self.lines[self.best].at(&attention)?;
        Some((self.seconds(load)? - attention, attention))
    }

    /// How many tokens of a prompt, from `position` on, a step has room for that shall take `limit`
    /// seconds, in the company of `others` who decode: 1 to `most`.
    ///
    /// A prompt does not starve: where steps within the limit would be so short that reading weights
    /// takes up most of them, the limit is exceeded by up to a fifth, and where those who decode
    /// exceed it by themselves, they are slowed down by a quarter.
    pub fn prompt_tokens(&self, limit: f64, others: &Load, position: usize, most: usize) -> usize {
        let seconds = |n: usize| self.seconds(&others.with_prompt(position, n));
        let (Some(alone), Some(all)) = (seconds(0), seconds(most)) else {
            return FIRST_CHUNK.clamp(1, most.max(1));
        };
        let seconds = |n: usize| seconds(n).unwrap_or(alone);
        let allowed =
            (limit / (1.0 + self.lines[self.best].spread())).max(alone * (1.0 + SLOWDOWN));
        // tokens of shorter steps are dearer
        let dear = |n: usize| seconds(n) * most as f64 > FAIR * all * n as f64;
        let fair = (last_that(most, dear) + 1).min(most);
        let reach = most.min(GROWTH * self.largest.max(FIRST_CHUNK / GROWTH));
        let within = last_that(reach, |n| seconds(n) <= allowed);
        let stretched = last_that(reach, |n| {
            seconds(n) <= allowed.max(limit * (1.0 + STRETCH))
        });
        within.max(fair.min(stretched)).clamp(1, most.max(1))
    }
}

/// `tokens`, or as many more as fill the last tile with them and `others`.
fn filled(tokens: usize, others: usize) -> usize {
    (tokens + others).next_multiple_of(TILE) - others
}

/// The largest of `0 ..= most` for which `holds`, which holds up to there and not beyond; 0 where there
/// is none.
pub(super) fn last_that(most: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests tell what they tried")]
#[path = "tests/pace.rs"]
mod tests;
