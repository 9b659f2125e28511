//! What the times of matmuls say: the share of the peaks that products reach, and what a result takes beside
//! its products, which shows where these are few.

use super::rates::{Roofline, between};
use super::reckon::{Standard, Timed, What, share};
use super::step::{KernelWork, Kind};
use crate::quant::Format;

/// Matmuls that were timed on an adapter.
pub(super) struct Products<'a> {
    /// Peaks and dispatches.
    pub roofline: &'a Roofline,
    /// How weights are kept.
    pub format: &'static Format,
    pub standard: &'a Standard,
    pub timed: &'a dyn Fn(What) -> Timed,
}

impl Products<'_> {
    /// The matmuls of a test with so many rows of activations.
    fn works(&self, of: What, tokens: usize) -> Vec<KernelWork> {
        let work = |(times, rows, columns): (usize, usize, usize)| {
            let (weights, scales) = self.format.matrix_bytes(rows, columns);
            KernelWork {
                name: "matmul",
                times,
                dispatches: 1,
                kind: Kind::Matmul { tokens, rows },
                bytes: (weights + scales) as f64,
                ops: 2.0 * (rows * columns * tokens) as f64,
            }
        };
        self.standard.matrices(of).into_iter().map(work).collect()
    }

    /// Seconds that a result takes beside its products, by rows of activations.
    pub fn result_seconds(&self) -> Vec<(usize, f64)> {
        let of = |tokens: usize| {
            let padded = self.roofline.division.padded(tokens);
            let [wide, narrow] =
                [What::Matmul(tokens), What::Narrow(tokens)].map(|what| self.beside(what, padded));
            (padded, per_result(&wide, &narrow))
        };
        self.standard.narrow.tokens.map(of).to_vec()
    }

    /// The share of the peaks that wide matrices reach, by rows of activations, where a result takes
    /// `result_s` beside.
    pub fn shares(&self, result_s: &[(usize, f64)]) -> Vec<(usize, f64)> {
        let of = |tokens: usize| {
            let padded = self.roofline.division.padded(tokens);
            let works = self.works(What::Matmul(tokens), padded);
            let timed = (self.timed)(What::Matmul(tokens));
            let seconds = timed.seconds - results(&works) * between(result_s, padded);
            (
                padded,
                share(self.roofline, &works, seconds, timed.dispatches),
            )
        };
        self.standard.tokens.map(of).to_vec()
    }

    fn beside(&self, what: What, padded: usize) -> Beside {
        let (works, timed) = (self.works(what, padded), (self.timed)(what));
        let least = |work: &KernelWork| work.times as f64 * self.roofline.least_seconds(work);
        Beside {
            least: works.iter().map(least).sum(),
            results: results(&works),
            seconds: timed.seconds - timed.dispatches as f64 * self.roofline.dispatch_s,
        }
    }
}

/// What matmuls of a shape took beside their dispatches.
struct Beside {
    /// The least at the peaks.
    least: f64,
    results: f64,
    seconds: f64,
}

/// Results of matmuls.
fn results(works: &[KernelWork]) -> f64 {
    let of = |work: &KernelWork| match work.kind {
        Kind::Matmul { tokens, rows } => (work.times * rows * tokens) as f64,
        _ => 0.0,
    };
    works.iter().map(of).sum()
}

/// Seconds that a result takes beside its products, where both shapes reach the same share: the least
/// over the share, and so much for each result, is what they took.
fn per_result(wide: &Beside, narrow: &Beside) -> f64 {
    let beside = narrow.seconds * wide.least - wide.seconds * narrow.least;
    let results = narrow.results * wide.least - wide.results * narrow.least;
    // where nearly all would be for the results, a share of the rest would mean nothing
    let most = 0.5 * wide.seconds.max(0.0) / wide.results;
    (beside / results).clamp(0.0, most)
}
