//! How a step's tokens are drawn: from rows with their sampling to words of the step and dispatches, and from
//! logits to the log-probabilities that are reported.

use super::batch::Row;
use super::request::TokenLogprob;
use crate::gpu::Tensor;
use crate::kernels::{argmax, penalties, sample};
use crate::model::Decoder;
use crate::model::step::Step;

/// Records the drawing of `num_rows` ids from the logits, penalties first.
pub(super) fn draw(
    decoder: &mut Decoder,
    plan: &SamplingPlan,
    num_rows: usize,
    scratch: &Tensor,
    ids: &Tensor,
) {
    let (logits, meta) = (decoder.logits().clone(), decoder.meta().clone());
    let rec = decoder.recorder();
    rec.at(None, "draw");
    if let Some((penalties_at, rows)) = &plan.penalties {
        penalties::record(rec, &logits, &meta, *penalties_at, rows);
    }
    match plan.sample_at {
        Some((at, drafted)) => sample::record(rec, &logits, &meta, at, num_rows, drafted, ids),
        None => argmax::record(rec, &logits, num_rows, scratch, ids),
    }
}

/// Where a step's metadata says how tokens are drawn; `None` where nothing is to be done.
pub(super) struct SamplingPlan {
    penalties: Option<(usize, Vec<penalties::Row>)>,
    /// Where the rows are, and whether any has a list.
    sample_at: Option<(usize, bool)>,
}

impl SamplingPlan {
    pub fn new(rows: &[Row], step: &mut Step, vocab_size: usize) -> SamplingPlan {
        let penalised = rows.iter().any(|row| row.sampling.has_penalties());
        let penalties = penalised.then(|| {
            let rows: Vec<penalties::Row> = rows.iter().map(penalties_of).collect();
            let at = step.words.len();
            step.words.extend(penalties::encode(&rows, at));
            (at, rows)
        });
        let sampled = rows.iter().any(|row| !row.sampling.is_greedy());
        let sample_at = sampled.then(|| {
            let at = step.words.len();
            let rows: Vec<sample::Row> = rows.iter().map(sampling_of).collect();
            step.words.extend(sample::encode(&rows, at, vocab_size));
            (at, rows.iter().any(|row| row.drafted.is_some()))
        });
        SamplingPlan {
            penalties,
            sample_at,
        }
    }
}

fn penalties_of(row: &Row) -> penalties::Row {
    let s = row.sampling;
    let mut counts = std::collections::BTreeMap::<u32, (u32, f32)>::new();
    for &token in row.window {
        counts.entry(token).or_default().0 += 1;
    }
    for &(token, bias) in &s.logit_bias {
        counts.entry(token).or_default().1 += bias;
    }
    penalties::Row {
        repeat: s.repeat_penalty,
        presence: s.presence_penalty,
        frequency: s.frequency_penalty,
        entries: counts
            .into_iter()
            .map(|(token, (count, bias))| penalties::Entry {
                id: token,
                count,
                bias,
            })
            .collect(),
    }
}

fn sampling_of(row: &Row) -> sample::Row {
    let s = row.sampling;
    sample::Row {
        temperature: if s.is_greedy() { 0.0 } else { s.temperature },
        // more than any vocabulary has is all of it
        top_k: u32::try_from(s.top_k).unwrap_or(u32::MAX),
        top_p: s.top_p,
        min_p: s.min_p,
        seed: row.seed,
        position: row.position as u32,
        drafted: row.drafted.clone(),
    }
}

/// The `count` largest log-probabilities of a row of logits, best first; ties by the lower id.
pub(super) fn top_logprobs(logits: &[f32], count: usize) -> Vec<TokenLogprob> {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let log_sum = sum.ln() + f64::from(max);
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let better = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    let count = count.min(order.len());
    if count < order.len() {
        order.select_nth_unstable_by(count, better);
        order.truncate(count);
    }
    order.sort_unstable_by(better);
    let logprob = |token: u32| (f64::from(logits[token as usize]) - log_sum) as f32;
    order
        .into_iter()
        .map(|token| TokenLogprob {
            token,
            logprob: logprob(token),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::Sampling;

    #[test]
    fn more_candidates_than_a_word_counts_are_all() {
        for (top_k, expected) in [
            (0, 0),
            (7, 7),
            ((1 << 32) + 1, u32::MAX),
            (1 << 32, u32::MAX),
        ] {
            let sampling = Sampling {
                top_k,
                ..Sampling::default()
            };
            let row = Row {
                sampling: &sampling,
                seed: 0,
                window: &[],
                position: 0,
                drafted: None,
                logprobs: 0,
            };
            assert_eq!(sampling_of(&row).top_k, expected, "{top_k}");
        }
    }

    #[test]
    fn logprobs_are_sorted_and_sum_to_one() {
        let top = top_logprobs(&[1.0, 3.0, 2.0, 3.0], 4);
        assert_eq!(
            top.iter().map(|t| t.token).collect::<Vec<_>>(),
            [1, 3, 2, 0]
        );
        let sum: f64 = top.iter().map(|t| f64::from(t.logprob).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert_eq!(top_logprobs(&[1.0, 3.0, 2.0, 3.0], 2), top[..2]);
    }
}
