//! How far a model's predictions are from those of another: Kullback-Leibler divergence, agreement of
//! the likeliest token, and what became of the right token's probability.

use serde::Serialize;

use super::base::Row;
use super::{LogSoftmax, standard_error};

/// Predictions beside those of a base, as they come.
#[derive(Debug, Clone, Default)]
pub struct Divergence {
    /// KL(base || this) of each prediction, in nats.
    kls: Vec<f32>,
    kl: (f64, f64),
    /// Differences of the right token's log-probability, base minus this, and of its probability, this
    /// minus base: sums and sums of squares.
    nll: (f64, f64),
    probability: (f64, f64),
    base_logprob: f64,
    agreed: u64,
}

impl Divergence {
    /// A prediction: the base's row, and this model's logits with what turns them into
    /// log-probabilities.
    pub fn add(&mut self, base: &Row, soft: &LogSoftmax, logits: &[f32], target: u32) {
        let kl = base.divergence(soft, logits);
        self.kls.push(kl as f32);
        add(&mut self.kl, kl);
        self.agreed += u64::from(base.best == soft.best);
        let (theirs, ours) = (
            f64::from(base.target),
            soft.logprob(logits[target as usize]),
        );
        add(&mut self.nll, theirs - ours);
        add(&mut self.probability, ours.exp() - theirs.exp());
        self.base_logprob += theirs;
    }

    /// Perplexity of the base over the same predictions; NaN before the first.
    pub fn base_ppl(&self) -> f64 {
        (-self.base_logprob / self.kls.len() as f64).exp()
    }

    /// What follows from all of it.
    ///
    /// # Panics
    /// Before the first prediction.
    pub fn summary(&self) -> Summary {
        let count = self.kls.len() as u64;
        assert!(count > 0, "no prediction was compared");
        let n = count as f64;
        let mut sorted = self.kls.clone();
        sorted.sort_unstable_by(f32::total_cmp);
        let quantile = |share: f64| quantile(&sorted, share);
        let top1 = self.agreed as f64 / n;
        let ratio_error = standard_error(count, self.nll.0, self.nll.1);
        let ratio = (self.nll.0 / n).exp();
        Summary {
            ratio,
            ratio_error: ratio * ratio_error,
            mean_kl: self.kl.0 / n,
            mean_kl_error: standard_error(count, self.kl.0, self.kl.1),
            max_kl: quantile(1.0),
            kl_p999: quantile(0.999),
            kl_p99: quantile(0.99),
            kl_p95: quantile(0.95),
            kl_median: quantile(0.5),
            top1_agree: top1,
            top1_agree_error: (top1 * (1.0 - top1) / (n - 1.0).max(1.0)).sqrt(),
            mean_delta_p: self.probability.0 / n,
            rms_delta_p: (self.probability.1 / n).sqrt(),
        }
    }
}

/// What [`Divergence`] comes to. Errors are standard errors; KL is in nats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Perplexity of this model over that of the base.
    pub ratio: f64,
    /// Of the ratio; smaller than the errors of both, since they see the same text.
    pub ratio_error: f64,
    /// Mean of KL(base || this).
    pub mean_kl: f64,
    /// Of that mean.
    pub mean_kl_error: f64,
    /// The largest.
    pub max_kl: f64,
    /// 99.9 % are at most that large.
    pub kl_p999: f64,
    /// 99 %.
    pub kl_p99: f64,
    /// 95 %.
    pub kl_p95: f64,
    /// Half of them.
    pub kl_median: f64,
    /// Predictions whose likeliest token is the base's, 0 to 1.
    pub top1_agree: f64,
    /// Of that share.
    pub top1_agree_error: f64,
    /// By how much the right token became likelier, as a difference of probabilities.
    pub mean_delta_p: f64,
    /// The root of the mean square of these differences.
    pub rms_delta_p: f64,
}

fn add(sums: &mut (f64, f64), value: f64) {
    sums.0 += value;
    sums.1 += value * value;
}

/// The value that a share of them is at most, between neighbours in proportion.
fn quantile(sorted: &[f32], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    let part = at - below as f64;
    f64::from(sorted[below]) * (1.0 - part) + f64::from(sorted[above]) * part
}

#[cfg(test)]
mod tests {
    use super::super::base;
    use super::*;

    /// Compares predictions of one model with those of another.
    fn compared(rows: &[(&[f32], &[f32], u32)]) -> (Summary, f64) {
        let mut all = Divergence::default();
        for (theirs, ours, target) in rows {
            let mut bytes = Vec::new();
            let soft = LogSoftmax::of(theirs).unwrap();
            base::put_row(&mut bytes, &soft, theirs, *target);
            let row = Row::parse(&bytes, theirs.len()).unwrap();
            all.add(&row, &LogSoftmax::of(ours).unwrap(), ours, *target);
        }
        (all.summary(), all.base_ppl())
    }

    #[test]
    fn known_distributions_have_the_divergence_of_the_formula() {
        let p = [0.5f64, 0.25, 0.25];
        let q = [0.25f64, 0.25, 0.5];
        let logits = |p: &[f64; 3]| p.map(|p| p.ln() as f32 + 3.0);
        let (theirs, ours) = (logits(&p), logits(&q));
        let expected: f64 = p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum();
        let (summary, base_ppl) = compared(&[(&theirs, &ours, 0), (&theirs, &theirs, 1)]);
        assert!((summary.max_kl - expected).abs() < 1e-5, "{summary:?}");
        assert!((summary.mean_kl - expected / 2.0).abs() < 1e-5);
        assert!((summary.mean_kl_error - expected / 2.0).abs() < 1e-5);
        assert_eq!(summary.top1_agree, 0.5);
        assert!((summary.mean_delta_p + 0.125).abs() < 1e-6);
        assert!((summary.rms_delta_p - 0.25 / 2f64.sqrt()).abs() < 1e-6);
        // probabilities of 1/2 and 1/4 there, twice 1/4 here
        assert!((base_ppl - 8f64.sqrt()).abs() < 1e-5);
        assert!((summary.ratio - 2f64.sqrt()).abs() < 1e-5);
    }

    #[test]
    fn the_same_model_has_no_divergence_to_speak_of() {
        let logits: Vec<f32> = (0..5000)
            .map(|i| ((i * 7919) % 4001) as f32 / 100.0)
            .collect();
        let (summary, _) = compared(&[(&logits, &logits, 17)]);
        // stored steps are 40 / 65535 wide
        assert!((0.0..1e-7).contains(&summary.mean_kl), "{summary:?}");
        assert_eq!(
            (summary.top1_agree, summary.mean_delta_p.abs() < 1e-9),
            (1.0, true)
        );
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let sorted = [0.0, 1.0, 2.0, 4.0];
        assert_eq!(quantile(&sorted, 0.5), 1.5);
        assert_eq!((quantile(&sorted, 0.0), quantile(&sorted, 1.0)), (0.0, 4.0));
        assert_eq!(quantile(&[3.0], 0.99), 3.0);
    }
}
