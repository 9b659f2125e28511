//! Perplexity of a text, and how far a model's predictions are from those of another: the pure part.
//!
//! ```text
//! token ids -> Windows -> EngineCore::score -> logits, target
//!                                                |
//!                 LogSoftmax::of ----------------+
//!                    |            |
//!               Perplexity    base::put  ...a file...  base::Row -> Divergence
//! ```
//!
//! A text is cut into windows that follow one another; each is evaluated by itself. All sums are f64.

pub mod base;
mod divergence;
mod windows;

pub use divergence::{Divergence, Summary};
pub use windows::{Scored, Windows};

use super::EngineCore;
use super::request::Failure;
use crate::error::Result;

/// What turns a row of logits into log-probabilities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogSoftmax {
    /// The largest logit.
    pub max: f32,
    /// Where it is; the first of equals.
    pub best: u32,
    /// The logarithm of the sum of all `exp(logit)`.
    pub log_sum: f64,
}

impl LogSoftmax {
    /// Of a row of logits, of which there is at least one.
    ///
    /// # Errors
    /// [`crate::Error::Device`] where they are not numbers.
    pub fn of(logits: &[f32]) -> Result<LogSoftmax> {
        let (mut best, mut max) = (0, f32::NEG_INFINITY);
        for (i, &logit) in logits.iter().enumerate() {
            if logit > max {
                (best, max) = (i as u32, logit);
            }
        }
        let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        let log_sum = sum.ln() + f64::from(max);
        if !log_sum.is_finite() {
            return Err(Failure::NotNumbers.into());
        }
        Ok(LogSoftmax { max, best, log_sum })
    }

    /// The log-probability of a token with this logit, in nats.
    pub fn logprob(&self, logit: f32) -> f64 {
        f64::from(logit) - self.log_sum
    }
}

/// Negative log-likelihoods as they come, and what follows from them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Perplexity {
    count: u64,
    sum: f64,
    squares: f64,
    window: (u64, f64),
    windows: Vec<f64>,
}

impl Perplexity {
    /// One prediction: the log-probability that the right token had, in nats.
    pub fn add(&mut self, logprob: f64) {
        self.count += 1;
        self.sum -= logprob;
        self.squares += logprob * logprob;
        self.window.0 += 1;
        self.window.1 -= logprob;
    }

    /// What came since the last call was a window.
    pub fn end_window(&mut self) {
        let (count, sum) = std::mem::take(&mut self.window);
        self.windows.push(sum / count.max(1) as f64);
    }

    /// Predictions.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Mean negative log-likelihood of each window, in nats.
    pub fn windows(&self) -> &[f64] {
        &self.windows
    }

    /// Mean negative log-likelihood, in nats; NaN before the first prediction.
    pub fn nll(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The standard error of [`Perplexity::nll`], as if predictions were independent of each other.
    pub fn nll_error(&self) -> f64 {
        standard_error(self.count, self.sum, self.squares)
    }

    /// The perplexity.
    pub fn ppl(&self) -> f64 {
        self.nll().exp()
    }

    /// Its standard error, to first order.
    pub fn ppl_error(&self) -> f64 {
        self.ppl() * self.nll_error()
    }
}

/// The standard error of the mean of `count` values with this sum and this sum of squares; 0 of one.
fn standard_error(count: u64, sum: f64, squares: f64) -> f64 {
    if count < 2 {
        return 0.0;
    }
    let n = count as f64;
    let variance = (squares / n - (sum / n).powi(2)).max(0.0);
    (variance / (n - 1.0)).sqrt()
}

impl EngineCore {
    /// Evaluates a window and calls `each(logits, target)` for its predictions from position `first`
    /// on, in order: the logits at a position, and the token that follows it in the window.
    ///
    /// # Errors
    /// As [`EngineCore::evaluate`], and what `each` reports.
    pub fn score(
        &mut self,
        window: &[u32],
        first: usize,
        mut each: impl FnMut(&[f32], u32) -> Result<()>,
    ) -> Result<()> {
        let chunk = self.decoder().max_batched_tokens();
        let mut result = Ok(());
        let known = &window[..window.len() - 1];
        self.evaluate(known, chunk, first, |position, logits| {
            if result.is_ok() {
                result = each(logits, window[position + 1]);
            }
        })?;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_sum_to_one_and_are_told_of_the_best() {
        let logits = [1.0f32, 3.0, -2.0, 3.0];
        let soft = LogSoftmax::of(&logits).unwrap();
        assert_eq!((soft.best, soft.max), (1, 3.0));
        let sum: f64 = logits.iter().map(|&l| soft.logprob(l).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        // large logits do not overflow
        let soft = LogSoftmax::of(&[1e4, 1e4]).unwrap();
        assert!((soft.logprob(1e4) + 2f64.ln()).abs() < 1e-9);
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(LogSoftmax::of(&[0.0, bad, 1.0]).is_err(), "{bad}");
        }
        assert!(LogSoftmax::of(&[f32::NEG_INFINITY; 3]).is_err());
        assert!(LogSoftmax::of(&[f32::NEG_INFINITY, 0.0]).is_ok());
    }

    #[test]
    fn perplexity_of_known_probabilities() {
        let mut all = Perplexity::default();
        for window in [[0.5f64, 0.25], [0.125, 1.0]] {
            window.iter().for_each(|p| all.add(p.ln()));
            all.end_window();
        }
        let ln2 = 2f64.ln();
        assert_eq!(all.count(), 4);
        assert!((all.nll() - 1.5 * ln2).abs() < 1e-12);
        assert!((all.ppl() - 2f64.powf(1.5)).abs() < 1e-12);
        assert!((all.windows()[0] - 1.5 * ln2).abs() < 1e-12 && all.windows().len() == 2);
        // of 1, 2, 3 and 0 times ln 2: a variance of 5 / 3 in the sample
        let error = (5.0 / 3.0f64 / 4.0).sqrt() * ln2;
        assert!((all.nll_error() - error).abs() < 1e-12);
        assert!((all.ppl_error() - error * all.ppl()).abs() < 1e-12);
        assert!(Perplexity::default().nll().is_nan());
    }
}
