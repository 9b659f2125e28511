//! What a draft model chooses among. Pure arithmetic in f64.
//!
//! The model that verifies takes a token x that was drawn from q with probability min(1, p(x) / q(x)), whatever
//! q is. The nearer q is to p, the more is taken: so the request's own temperature and bounds are applied to
//! the draft's likeliest tokens. They are all that q has, since each of them is told to the kernel.

use crate::engine::request::{Sampling, TokenLogprob};
use crate::kernels::sample::MOST_CHOICES;

/// The likeliest of `top`, best first, with the probabilities that `sampling` leaves them, which sum to 1:
/// those below `vocab_size` alone. Penalties are left out. `None` where there is nothing to choose, or where
/// something is no number.
pub(super) fn choices(
    top: &[TokenLogprob],
    sampling: &Sampling,
    vocab_size: usize,
) -> Option<Vec<(u32, f32)>> {
    if top.iter().any(|choice| choice.logprob.is_nan()) {
        return None;
    }
    let known = top.iter().filter(|top| (top.token as usize) < vocab_size);
    let mut kept: Vec<&TokenLogprob> = known.take(MOST_CHOICES).collect();
    if sampling.top_k > 0 {
        kept.truncate(sampling.top_k);
    }
    let best = f64::from(kept.first()?.logprob);
    let temperature = f64::from(sampling.temperature);
    let weight = |choice: &TokenLogprob| ((f64::from(choice.logprob) - best) / temperature).exp();
    let mut weights: Vec<f64> = kept.iter().map(|choice| weight(choice)).collect();
    // the best has a weight of 1, so that it stays whatever is asked
    let enough = f64::from(sampling.top_p) * weights.iter().sum::<f64>();
    let mut before = 0.0;
    let by_mass = weights.iter().take_while(|&&weight| {
        let kept = before < enough;
        before += weight;
        kept
    });
    let by_mass = by_mass.count().max(1);
    let least = f64::from(sampling.min_p);
    let by_share = weights.iter().take_while(|&&weight| weight >= least);
    let count = by_mass.min(by_share.count().max(1));
    weights.truncate(count);
    let sum: f64 = weights.iter().sum();
    if !sum.is_finite() {
        return None; // the best is no likelier than what cannot be
    }
    let probable = kept.iter().zip(&weights);
    let probable = probable.map(|(choice, weight)| (choice.token, (weight / sum) as f32));
    Some(probable.filter(|&(_, q)| q > 0.0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(logprobs: &[f32]) -> Vec<TokenLogprob> {
        let logprob = |(token, &logprob)| TokenLogprob { token, logprob };
        (10..).zip(logprobs).map(logprob).collect()
    }

    fn drawn_at(temperature: f32) -> Sampling {
        Sampling {
            temperature,
            ..Sampling::default()
        }
    }

    fn close(found: &[(u32, f32)], expected: &[(u32, f64)]) {
        assert_eq!(found.len(), expected.len(), "{found:?}, {expected:?}");
        for (&(token, q), &(other, p)) in found.iter().zip(expected) {
            assert_eq!(token, other);
            assert!((f64::from(q) - p).abs() < 1e-6, "{found:?}, {expected:?}");
        }
    }

    #[test]
    fn the_requests_own_bounds_are_applied_one_after_another() {
        // 0.5, 0.25, 0.125
        let top = top(&[0.5_f32.ln(), 0.25_f32.ln(), 0.125_f32.ln()]);
        let with = |sampling: Sampling| choices(&top, &sampling, 100).unwrap();
        let whole = [(10, 4.0 / 7.0), (11, 2.0 / 7.0), (12, 1.0 / 7.0)];
        close(&with(drawn_at(1.0)), &whole);
        // at half the temperature shares are squared
        close(
            &with(drawn_at(0.5)),
            &[(10, 16.0 / 21.0), (11, 4.0 / 21.0), (12, 1.0 / 21.0)],
        );
        let two = [(10, 2.0 / 3.0), (11, 1.0 / 3.0)];
        let top_k = 2;
        close(
            &with(Sampling {
                top_k,
                ..drawn_at(1.0)
            }),
            &two,
        );
        let top_p = 0.6; // the best two have six of seven
        close(
            &with(Sampling {
                top_p,
                ..drawn_at(1.0)
            }),
            &two,
        );
        let min_p = 0.4;
        close(
            &with(Sampling {
                min_p,
                ..drawn_at(1.0)
            }),
            &two,
        );
        let (top_p, min_p) = (0.0, 1.0);
        close(
            &with(Sampling {
                top_p,
                min_p,
                ..drawn_at(1.0)
            }),
            &[(10, 1.0)],
        );
    }

    #[test]
    fn what_the_other_model_does_not_know_is_not_chosen() {
        let few = top(&[-1.0, -1.0, -2.0]);
        close(&choices(&few, &drawn_at(1.0), 11).unwrap(), &[(10, 1.0)]);
        assert_eq!(choices(&few, &drawn_at(1.0), 10), None);
        let many: Vec<f32> = (0..100).map(|i| -(i as f32) * 0.01).collect();
        let many = top(&many);
        assert_eq!(
            choices(&many, &drawn_at(1.0), 1000).unwrap().len(),
            MOST_CHOICES
        );
    }

    #[test]
    fn what_is_no_number_is_no_choice() {
        let never = f32::NEG_INFINITY;
        assert_eq!(choices(&[], &drawn_at(1.0), 100), None);
        assert_eq!(choices(&top(&[f32::NAN, -1.0]), &drawn_at(1.0), 100), None);
        assert_eq!(choices(&top(&[-1.0, f32::NAN]), &drawn_at(1.0), 100), None);
        assert_eq!(choices(&top(&[never, never]), &drawn_at(1.0), 100), None);
        let found = choices(&top(&[-1.0, never]), &drawn_at(1.0), 100).unwrap();
        close(&found, &[(10, 1.0)]);
        // so cold that the second is lost to rounding
        let found = choices(&top(&[-1.0, -2.0]), &drawn_at(1e-3), 100).unwrap();
        close(&found, &[(10, 1.0)]);
    }
}
