//! How far apart two results are.

use crate::engine::perplexity::LogSoftmax;

/// How far a layer's residual stream is from the exact one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerError {
    /// Mean squared error as a share of the mean square.
    pub nmse: f64,
    /// Largest distance of an element.
    pub max_abs: f64,
}

/// How far a row of logits is from the exact one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// Kullback-Leibler divergence of the probabilities from the exact ones, in nats; not negative but
    /// for rounding, NaN where a logit is.
    pub kl: f64,
    /// Both find the same token likeliest; not where a logit is NaN.
    pub same_top: bool,
}

/// The error of `found` against `exact`. What is no number counts as infinitely far.
///
/// # Panics
/// When there are not as many of each.
pub fn layer_error(exact: &[f32], found: &[f32]) -> LayerError {
    assert_eq!(exact.len(), found.len(), "elements of a residual stream");
    let (mut error, mut size, mut max_abs) = (0.0f64, 0.0f64, 0.0f64);
    for (&e, &f) in exact.iter().zip(found) {
        let distance = (f64::from(f) - f64::from(e)).abs();
        let distance = if distance.is_nan() {
            f64::INFINITY
        } else {
            distance
        };
        error += distance * distance;
        size += f64::from(e) * f64::from(e);
        max_abs = max_abs.max(distance);
    }
    let nmse = if error == 0.0 { 0.0 } else { error / size };
    LayerError { nmse, max_abs }
}

/// The divergence of `found` from `exact`, two rows of logits.
///
/// # Panics
/// When there are not as many of each, or none.
pub fn divergence(exact: &[f32], found: &[f32]) -> Divergence {
    assert_eq!(exact.len(), found.len(), "logits of a row");
    let (Ok(p), Ok(q)) = (LogSoftmax::of(exact), LogSoftmax::of(found)) else {
        return Divergence {
            kl: f64::NAN,
            same_top: false,
        };
    };
    let kl = exact.iter().zip(found).map(|(&exact, &found)| {
        let log = p.logprob(exact);
        log.exp() * (log - q.logprob(found))
    });
    Divergence {
        kl: kl.sum(),
        same_top: p.best == q.best,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_results_have_no_error() {
        let x = [1.0, -2.0, 0.0];
        let none = LayerError {
            nmse: 0.0,
            max_abs: 0.0,
        };
        assert_eq!(layer_error(&x, &x), none);
        assert_eq!(layer_error(&[0.0], &[0.0]), none);
        let same = divergence(&x, &x);
        assert!(same.kl.abs() < 1e-15 && same.same_top);
    }

    #[test]
    fn errors_are_shares_and_nan_is_far_away() {
        let error = layer_error(&[3.0, 4.0], &[3.0, 4.5]);
        assert_eq!(
            error,
            LayerError {
                nmse: 0.25 / 25.0,
                max_abs: 0.5
            }
        );
        let lost = layer_error(&[1.0, 1.0], &[1.0, f32::NAN]);
        assert_eq!((lost.nmse, lost.max_abs), (f64::INFINITY, f64::INFINITY));
        assert!(divergence(&[1.0, 0.0], &[f32::NAN, 0.0]).kl.is_nan());
    }

    #[test]
    fn divergence_is_that_of_the_definition() {
        // p = (3/4, 1/4), q = (1/2, 1/2)
        let found = divergence(&[3f32.ln(), 0.0], &[7.0, 7.0]);
        let exact = 0.75 * (0.75f64 / 0.5).ln() + 0.25 * (0.25f64 / 0.5).ln();
        assert!((found.kl - exact).abs() < 1e-6, "{found:?}");
        assert!(found.same_top, "of equal ones the first");
        assert!(!divergence(&[3.0, 0.0], &[0.0, 1.0]).same_top);
    }
}
