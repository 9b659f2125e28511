//! What steps cost, learned from those that were executed, and how much of a prompt fits into a step
//! that others wait for. Pure: times are data.
//!
//! ```text
//! seconds = fixed + a * decodes + b * decode_context + c * prompt_tokens + d * prompt_context
//! ```
//!
//! Prompt tokens are counted with what is missing to whole tiles of the matrices, which take as long.
//! The five terms, none below zero, are tracked by recursive least squares with a random walk: what
//! steps do not tell apart stays as it was, what they tell is followed. Two rules keep it sane. The
//! uncertainty of a term is bounded, so that no single step turns everything over; and a time that
//! does not fit at all is set aside until the next one says the same: then the device as a whole has
//! become slower or faster, and all terms move together.

use super::plan::Chunk;

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

/// Terms of a step's cost.
const TERMS: usize = 5;
/// Before anything is measured, the terms' sizes relative to each other: in tokens of a prompt.
const SHAPE: [f64; TERMS] = [8.0, 1.0, 1.0 / 2000.0, 1.0, 1.0 / 2000.0];
/// From step to step all terms together may drift by this share, and each by itself.
const DRIFT: f64 = 0.03;
/// A term is known at least to within itself, or so many times what it was expected to be.
const MOST_UNSURE: f64 = 4.0;
/// Deviations that are noise in any case, relative to the time.
const LEAST_NOISE: f64 = 0.04;
/// How many times the usual deviation does not fit.
const MISFIT: f64 = 4.0;
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

    fn terms(&self) -> [f64; TERMS] {
        [
            1.0,
            self.decodes as f64,
            self.decode_context as f64,
            // time is a stair: who does not fill a tile pays for it all the same
            match self.prompt_tokens {
                0 => 0.0,
                tokens => filled(tokens, self.decodes) as f64,
            },
            self.prompt_context as f64,
        ]
    }
}

/// What is known about the cost of steps on a device.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Seconds for one of each term; none before the first step.
    costs: Option<[f64; TERMS]>,
    covariance: [[f64; TERMS]; TERMS],
    /// Seconds that a token of a prompt was expected to take after the first step.
    scale: f64,
    /// Mean deviation of times from what was expected, relative.
    spread: f64,
    /// Whether the last time was set aside, and in which direction it missed.
    misfit: Option<bool>,
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
        let terms = load.terms();
        let Some(mut costs) = self.costs else {
            self.scale = seconds / dot(&SHAPE, &terms);
            self.costs = Some(SHAPE.map(|share| share * self.scale));
            self.spread = LEAST_NOISE;
            self.widen(0.0, MOST_UNSURE);
            return;
        };
        self.widen(DRIFT, DRIFT);
        let expected = dot(&costs, &terms);
        let error = seconds - expected;
        // of a load whose terms were all found to cost nothing, nothing is expected
        let deviation = (error.abs() / expected).min(1.0 / LEAST_NOISE);
        let noise = (1.25 * self.spread).max(LEAST_NOISE) * expected;
        let mut direction = times(&self.covariance, &terms);
        let mut variance = dot(&direction, &terms) + noise * noise;
        if error.abs() > MISFIT * variance.sqrt() {
            let slower = error > 0.0;
            if self.misfit.replace(slower) != Some(slower) {
                return;
            }
            self.widen(deviation, 0.0);
            direction = times(&self.covariance, &terms);
            variance = dot(&direction, &terms) + noise * noise;
        } else {
            self.misfit = None;
            self.spread += 0.1 * (deviation - self.spread);
        }
        for i in 0..TERMS {
            costs[i] = (costs[i] + direction[i] * error / variance).max(0.0);
            for j in 0..TERMS {
                self.covariance[i][j] -= direction[i] * direction[j] / variance;
            }
        }
        self.costs = Some(costs);
    }

    /// Adds to the uncertainty: that of all terms together, and of each, relative to their sizes.
    fn widen(&mut self, together: f64, each: f64) {
        let Some(costs) = self.costs else { return };
        let size = |i: usize| costs[i].max(SHAPE[i] * self.scale);
        for i in 0..TERMS {
            for j in 0..TERMS {
                self.covariance[i][j] += together * together * costs[i] * costs[j];
            }
            self.covariance[i][i] += (each * size(i)).powi(2);
        }
        for i in 0..TERMS {
            let most = (MOST_UNSURE * size(i)).powi(2);
            let now = self.covariance[i][i];
            if now > most {
                // rows and columns alike, so that it stays a covariance
                let factor = (most / now).sqrt();
                for j in 0..TERMS {
                    self.covariance[i][j] *= factor;
                    self.covariance[j][i] *= factor;
                }
            }
        }
    }

    /// Seconds that a step of `load` is expected to take: for what does not lie beyond twice the
    /// prompt tokens that were measured.
    pub fn expected(&self, load: &Load) -> Option<f64> {
        let known = load.prompt_tokens <= GROWTH * self.largest;
        self.costs
            .filter(|_| known)
            .map(|costs| dot(&costs, &load.terms()))
    }

    /// The same in two: what grows with tokens, and what grows with the tokens that they attend to.
    pub fn parts(&self, load: &Load) -> Option<(f64, f64)> {
        let costs = self.costs?;
        let terms = load.terms();
        let attention = costs[2] * terms[2] + costs[4] * terms[4];
        Some((dot(&costs, &terms) - attention, attention))
    }

    /// How many tokens of a prompt, from `position` on, a step has room for that shall take `limit`
    /// seconds, in the company of `others` who decode: 1 to `most`.
    ///
    /// A prompt does not starve: where steps within the limit would be so short that reading weights
    /// takes up most of them, the limit is exceeded by up to a fifth, and where those who decode
    /// exceed it by themselves, they are slowed down by a quarter.
    pub fn prompt_tokens(&self, limit: f64, others: &Load, position: usize, most: usize) -> usize {
        let Some(costs) = self.costs else {
            return FIRST_CHUNK.clamp(1, most.max(1));
        };
        let seconds = |n: usize| dot(&costs, &others.with_prompt(position, n).terms());
        let alone = seconds(0);
        let allowed = (limit / (1.0 + self.spread)).max(alone * (1.0 + SLOWDOWN));
        let token = costs[3] + costs[4] * position as f64;
        let spare = FAIR * seconds(most) / most as f64 - token;
        let fair = if spare > 0.0 {
            (alone / spare).ceil().min(most as f64) as usize
        } else {
            most
        };
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

fn dot(a: &[f64; TERMS], b: &[f64; TERMS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn times(m: &[[f64; TERMS]; TERMS], v: &[f64; TERMS]) -> [f64; TERMS] {
    std::array::from_fn(|i| dot(&m[i], v))
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests tell what they tried")]
#[path = "tests/pace.rs"]
mod tests;
