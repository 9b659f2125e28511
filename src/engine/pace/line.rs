//! A line through what was measured, tracked by recursive least squares with a random walk: what steps
//! do not tell apart stays as it was, what they tell is followed.
//!
//! Its terms are none below zero. Two rules keep it sane. The uncertainty of a term is bounded, so that no
//! single step turns everything over; and a time that does not fit at all is set aside until the next one
//! says the same: then the device as a whole has become slower or faster, and all terms move together.

/// Terms of a step's cost: one, decodes, what these attend to, prompt tokens, what these attend to.
pub(super) const TERMS: usize = 5;
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

/// What each term costs, as far as steps have told.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// Seconds for one of each term; none before the first step.
    costs: Option<[f64; TERMS]>,
    covariance: [[f64; TERMS]; TERMS],
    /// Seconds that a token of a prompt was expected to take after the first step.
    scale: f64,
    /// Mean deviation of times from what was expected, relative.
    spread: f64,
    /// Whether the last time was set aside, and in which direction it missed.
    misfit: Option<bool>,
}

impl Line {
    /// Seconds for a step of these terms; `None` before the first.
    pub fn at(&self, terms: &[f64; TERMS]) -> Option<f64> {
        self.costs.map(|costs| dot(&costs, terms))
    }

    /// By how much times deviate from what is expected, relative.
    pub fn spread(&self) -> f64 {
        self.spread.max(LEAST_NOISE)
    }

    /// Takes note of a step of these terms that took `seconds`, above 0.
    pub fn learn(&mut self, terms: &[f64; TERMS], seconds: f64) {
        let Some(mut costs) = self.costs else {
            self.scale = seconds / dot(&SHAPE, terms);
            self.costs = Some(SHAPE.map(|share| share * self.scale));
            self.spread = LEAST_NOISE;
            self.widen(0.0, MOST_UNSURE);
            return;
        };
        self.widen(DRIFT, DRIFT);
        let expected = dot(&costs, terms);
        let error = seconds - expected;
        // of a load whose terms were all found to cost nothing, nothing is expected
        let deviation = (error.abs() / expected).min(1.0 / LEAST_NOISE);
        let noise = (1.25 * self.spread).max(LEAST_NOISE) * expected;
        let mut direction = times(&self.covariance, terms);
        let mut variance = dot(&direction, terms) + noise * noise;
        if error.abs() > MISFIT * variance.sqrt() {
            let slower = error > 0.0;
            if self.misfit.replace(slower) != Some(slower) {
                return;
            }
            self.widen(deviation, 0.0);
            direction = times(&self.covariance, terms);
            variance = dot(&direction, terms) + noise * noise;
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

    /// Whether everything that is known is a number, and no cost below zero.
    #[cfg(test)]
    pub fn is_sane(&self) -> bool {
        let costs = self.costs.unwrap_or_default();
        let numbers = costs.iter().chain(self.covariance.as_flattened());
        numbers.chain([&self.spread]).all(|x| x.is_finite()) && costs.iter().all(|&c| c >= 0.0)
    }
}

fn dot(a: &[f64; TERMS], b: &[f64; TERMS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn times(m: &[[f64; TERMS]; TERMS], v: &[f64; TERMS]) -> [f64; TERMS] {
    std::array::from_fn(|i| dot(&m[i], v))
}
