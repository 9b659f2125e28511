//! From a plan to the words a step uploads.

use super::request::{Request, Sampling};
use super::scheduler::{Scheduler, StepPlan};
use crate::kernels::sample::Drafted;
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
    /// A token that was drawn for it from something else, and what from.
    pub drafted: Option<Drafted>,
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
        let mut verified = plan.verified.iter();
        for chunk in &plan.chunks {
            let sequence = scheduler.sequence(chunk.id);
            let verified = (chunk.proposed > 0).then(|| verified.next().expect("one for each"));
            // known tokens, or what was put together of them and of proposed ones
            let (text, end) = match verified {
                None => (&sequence.tokens[..], chunk.start + chunk.len),
                Some(verified) => (&verified.text[..], verified.text.len()),
            };
            batch.spans.push(Span {
                tokens: &text[end - chunk.len..end],
                first_position: chunk.start,
                pages: &sequence.pages,
                head_rows: match (chunk.draws, chunk.proposed) {
                    (0, _) => HeadRows::None,
                    (draws, 0) => HeadRows::Last(draws),
                    (draws, _) => HeadRows::Tail(draws),
                },
            });
            let Request {
                sampling, logprobs, ..
            } = &sequence.request;
            let seeds = sequence.seeds().take(chunk.draws - chunk.proposed);
            let drafted = |ahead: usize| verified.and_then(|v| v.proposal.drafted(ahead));
            let row = |seed, ahead: usize| {
                let seen = &text[..text.len() - chunk.proposed + ahead];
                Row {
                    sampling,
                    seed,
                    window: &seen[seen.len().saturating_sub(sampling.repeat_last_n)..],
                    position: sequence.tokens.len() + ahead,
                    drafted: drafted(ahead),
                    logprobs: *logprobs,
                }
            };
            batch.rows.extend(seeds.map(|seed| row(seed, 0)));
            let seed = sampling.seed;
            batch
                .rows
                .extend((1..=chunk.proposed).map(|ahead| row(seed, ahead)));
        }
        batch
    }
}
