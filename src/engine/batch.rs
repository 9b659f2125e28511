//! From a plan to the words a step uploads.

use super::request::Sampling;
use super::scheduler::{Scheduler, StepPlan};
use crate::kv::pages::PageCopy;
use crate::model::step::{HeadRows, Span};

/// What a step computes, with everything it reads. Borrows from the scheduler: built, run, dropped.
pub struct Batch<'a> {
    /// Pages to be copied first: to the second from the first.
    pub copies: &'a [PageCopy],
    /// Runs of tokens, in order.
    pub spans: Vec<Span<'a>>,
    /// One for each row of logits, in the order of the spans that have one.
    pub rows: Vec<Row<'a>>,
    /// Seconds that it will take, where somebody knows.
    pub expected_seconds: Option<f64>,
}

/// A row of logits and what becomes of it.
pub struct Row<'a> {
    /// How its token is drawn.
    pub sampling: &'a Sampling,
    /// In place of the one in `sampling`: several answers to a prompt draw with a seed each.
    pub seed: u64,
    /// Tokens that the penalties look at, oldest first.
    pub window: &'a [u32],
    /// Position of the token that is drawn: with the seed, what the draw depends on.
    pub position: usize,
    /// Log-probabilities to report.
    pub logprobs: usize,
}

impl<'a> Batch<'a> {
    /// The batch of `plan`.
    pub fn from_plan(plan: &'a StepPlan, scheduler: &'a Scheduler) -> Batch<'a> {
        let mut batch = Batch {
            copies: &plan.copies,
            spans: Vec::with_capacity(plan.chunks.len()),
            rows: Vec::new(),
            expected_seconds: None,
        };
        for chunk in &plan.chunks {
            let sequence = scheduler.sequence(chunk.id);
            batch.spans.push(Span {
                tokens: &sequence.tokens[chunk.start..chunk.start + chunk.len],
                first_position: chunk.start,
                pages: &sequence.pages,
                head_rows: match chunk.draws {
                    0 => HeadRows::None,
                    draws => HeadRows::Last(draws),
                },
            });
            let sampling = &sequence.request.sampling;
            let oldest = sequence.tokens.len().saturating_sub(sampling.repeat_last_n);
            batch
                .rows
                .extend(sequence.seeds().take(chunk.draws).map(|seed| Row {
                    sampling,
                    seed,
                    window: &sequence.tokens[oldest..],
                    position: sequence.tokens.len(),
                    logprobs: sequence.request.logprobs,
                }));
        }
        batch
    }
}
