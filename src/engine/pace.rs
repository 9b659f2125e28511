//! What steps cost, learned from those that were executed, and how much of a prompt fits into a step
//! that others wait for. Pure: times are data.
//!
//! ```text
//! seconds  = max(alone, together)
//! alone    = fixed + a * decodes + b * decode_context
//! together = fixed + a * decodes + b * decode_context + c * prompt_tokens + d * prompt_context
//! ```
//!
//! Two lines, since a GPU that reads weights for few tokens does the arithmetic of some more meanwhile:
//! prompt tokens cost nothing up to a point, and their share of the arithmetic from there on. One line
//! through both sides of it would learn from short prompts that tokens are free, and then plan far more
//! than a step has time for. Where there is no such point, both lines agree about steps without prompts.
//!
//! Prompt tokens are counted with what is missing to whole tiles of the matrices, which take as long.
//! How a line is tracked, [`Line`] tells.

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

    /// What a step without the prompts depends on.
    fn alone(&self) -> [f64; TERMS] {
        [
            1.0,
            self.decodes as f64,
            self.decode_context as f64,
            0.0,
            0.0,
        ]
    }

    /// What a step with prompts depends on.
    fn together(&self) -> [f64; TERMS] {
        let [one, decodes, context, ..] = self.alone();
        // time is a stair: who does not fill a tile pays for it all the same
        let tokens = match self.prompt_tokens {
            0 => 0,
            tokens => filled(tokens, self.decodes),
        };
        [
            one,
            decodes,
            context,
            tokens as f64,
            self.prompt_context as f64,
        ]
    }
}

/// What is known about the cost of steps on a device.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Of those who decode, without prompts beside them: no step is shorter.
    alone: Line,
    /// Of steps with prompts, from where these take time.
    together: Line,
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
        let (alone, together) = (load.alone(), load.together());
        if load.prompt_tokens == 0 || self.prompts_are_free(load, seconds) {
            self.alone.learn(&alone, seconds);
        } else {
            self.together.learn(&together, seconds);
        }
    }

    /// Whether a step that took `seconds` is one of those that take no longer for its prompts, as far as
    /// is known: the time says nothing about what more tokens would cost, but that it is no more than this.
    fn prompts_are_free(&self, load: &Load, seconds: f64) -> bool {
        let (alone, together) = self.both(load);
        match (alone, together) {
            (Some(alone), Some(together)) => {
                together < alone && seconds <= alone * (1.0 + 2.0 * self.alone.spread())
            }
            _ => false,
        }
    }

    /// Seconds by each of the two lines.
    fn both(&self, load: &Load) -> (Option<f64>, Option<f64>) {
        let alone = self.alone.at(&load.alone());
        (alone, self.together.at(&load.together()))
    }

    /// Seconds that a step of `load` takes, as far as anything is known.
    fn seconds(&self, load: &Load) -> Option<f64> {
        match self.both(load) {
            (Some(alone), _) if load.prompt_tokens == 0 => Some(alone),
            (Some(alone), Some(together)) => Some(alone.max(together)),
            (alone, together) => alone.or(together),
        }
    }

    /// Seconds that a step of `load` is expected to take: for what does not lie beyond twice the
    /// prompt tokens that were measured.
    pub fn expected(&self, load: &Load) -> Option<f64> {
        let known = load.prompt_tokens <= GROWTH * self.largest;
        self.seconds(load).filter(|_| known)
    }

    /// The same in two: what grows with tokens, and what grows with the tokens that they attend to.
    pub fn parts(&self, load: &Load) -> Option<(f64, f64)> {
        let seconds = self.seconds(load)?;
        let (line, terms) = match self.both(load) {
            (Some(alone), _) if alone == seconds => (&self.alone, load.alone()),
            _ => (&self.together, load.together()),
        };
        let attention = line.at(&[0.0, 0.0, terms[2], 0.0, terms[4]])?;
        Some((seconds - attention, attention))
    }

    /// How many tokens of a prompt, from `position` on, a step has room for that shall take `limit`
    /// seconds, in the company of `others` who decode: 1 to `most`.
    ///
    /// A prompt does not starve: where steps within the limit would be so short that reading weights
    /// takes up most of them, the limit is exceeded by up to a fifth, and where those who decode
    /// exceed it by themselves, they are slowed down by a quarter.
    pub fn prompt_tokens(&self, limit: f64, others: &Load, position: usize, most: usize) -> usize {
        let first = FIRST_CHUNK.clamp(1, most.max(1));
        let seconds = |n: usize| self.seconds(&others.with_prompt(position, n));
        let (true, Some(alone), Some(all)) = (self.largest > 0, seconds(0), seconds(most)) else {
            return first;
        };
        let seconds = |n: usize| seconds(n).unwrap_or(alone);
        let allowed = (limit / (1.0 + self.together.spread())).max(alone * (1.0 + SLOWDOWN));
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
