//! How an engine differs from what is expected.

use super::Expected;
use super::figures::{Divergence, LayerError, divergence, layer_error};
use super::tap::residual_streams;
use crate::engine::EngineCore;
use crate::error::Result;

/// Pairs of logits that are kept, for a picture: so many of a row, and of all rows.
const PAIRS_OF_A_ROW: usize = 24;
const MOST_PAIRS: usize = 768;

/// What an engine made of the text of an [`Expected`].
pub struct Found {
    /// The error of each layer's residual stream.
    pub layers: Vec<LayerError>,
    /// How far the logits at each token are off.
    pub divergences: Vec<Divergence>,
    /// Some logits: exact, found.
    pub pairs: Vec<(f32, f32)>,
}

impl Found {
    /// Computes the text on `engine`.
    ///
    /// # Errors
    /// As [`EngineCore::evaluate`].
    pub fn of(engine: &mut EngineCore, expected: &Expected) -> Result<Found> {
        let (mut divergences, mut pairs) = (Vec::new(), Vec::new());
        let rows_between = expected.tokens.len().div_ceil(MOST_PAIRS / PAIRS_OF_A_ROW);
        let mut each = |position: usize, logits: &[f32]| {
            let exact = &expected.logits[position];
            divergences.push(divergence(exact, logits));
            if position.is_multiple_of(rows_between) {
                let step = exact.len().div_ceil(PAIRS_OF_A_ROW);
                // a row begins elsewhere each time
                let ids = (position % step..exact.len()).step_by(step);
                pairs.extend(ids.map(|id| (exact[id], logits[id])));
            }
        };
        let streams = residual_streams(engine, &expected.tokens, &mut each)?;
        let layers = expected.layers.iter().zip(&streams);
        Ok(Found {
            layers: layers
                .map(|(exact, found)| layer_error(exact, found))
                .collect(),
            divergences,
            pairs,
        })
    }

    /// The share of tokens after which both find the same one likeliest.
    pub fn top1_agreement(&self) -> f64 {
        let same = self.divergences.iter().filter(|d| d.same_top).count();
        same as f64 / self.divergences.len().max(1) as f64
    }

    /// Mean and largest divergence, in nats. NaN where a logit is none.
    pub fn kl(&self) -> (f64, f64) {
        let all = || self.divergences.iter().map(|d| d.kl);
        let mean = all().sum::<f64>() / self.divergences.len().max(1) as f64;
        // unlike max, this keeps a NaN
        let max = all().fold(0.0, |a, b| if b <= a { a } else { b });
        (mean, max)
    }
}
