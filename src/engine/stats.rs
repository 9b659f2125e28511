//! What an engine and its requests have done, in numbers. Plain values; who fills them in is
//! [`ledger`](super::ledger).

use super::sequence::Counts;
use super::speculate;
use std::collections::VecDeque;
use std::time::Duration;

/// Steps that means and percentiles look back at.
const WINDOW: usize = 1024;

/// What an engine has done since it started, and what it is at. Taken between two steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Pages of the cache.
    pub pages: PageCounts,
    /// Requests with pages of their own.
    pub running: usize,
    /// Requests without.
    pub waiting: usize,
    /// Steps that were computed.
    pub steps: u64,
    /// Milliseconds of a step, from its plan to its tokens; over the last 1024 steps, like the next two.
    pub step_ms: Spread,
    /// Sequences that a step computed tokens of.
    pub batch_size: Spread,
    /// Tokens that a step computed.
    pub step_tokens: Spread,
    /// Tokens computed in all, those that were computed again included.
    pub computed_tokens: u64,
    /// Tokens drawn in all.
    pub generated_tokens: u64,
    /// Tokens of prompts that were found in the cache instead of computed.
    pub cached_tokens: u64,
    /// Requests that are over, by how they ended.
    pub finished: Finished,
    /// How often a request's pages were taken for others.
    pub preemptions: u64,
    /// Steps that were planned and lost to a fault of the device.
    pub losses: u64,
    /// What was proposed, and what came of it.
    pub speculation: speculate::Totals,
}

/// Pages of the cache: together all that there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// With an owner or more.
    pub used: usize,
    /// With nothing in them.
    pub free: usize,
    /// Without an owner, kept for whoever begins with the same tokens, and given away when free ones
    /// are too few.
    pub cached: usize,
}

impl PageCounts {
    /// All of them.
    pub fn total(&self) -> usize {
        self.used + self.free + self.cached
    }
}

/// Requests that are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// By an end token.
    pub stop: u64,
    /// By `max_tokens` or the context.
    pub length: u64,
    /// By their callers.
    pub cancelled: u64,
    /// By an error.
    pub failed: u64,
}

impl Finished {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.stop + self.length + self.cancelled + self.failed
    }
}

/// How a figure is spread over the last steps; all 0 before the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Of the last step.
    pub last: f64,
    /// The mean.
    pub mean: f64,
    /// What half of the steps do not exceed.
    pub p50: f64,
    /// What 99 of 100 steps do not exceed.
    pub p99: f64,
}

/// What became of one request, and where its time went.
///
/// The time to its first token is told whole: `tokenise + queue + prefill + sample`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// What the cache had of them, and what went wrong under way.
    pub counts: Counts,
    /// Turning the text into tokens, as the caller told
    /// [`RequestHandle::tokenised_in`](super::RequestHandle::tokenised_in).
    pub tokenise: Duration,
    /// From the submission to the first step with tokens of the prompt.
    pub queue: Duration,
    /// From there until the step was computed that drew the first token. The draw is part of that step
    /// on the device, and so is waiting for pages after a preemption.
    pub prefill: Duration,
    /// From there until the first token was handed over.
    pub sample: Duration,
    /// When each token was handed over, since the submission.
    pub token_times: Vec<Duration>,
    /// From the submission to the end.
    pub total: Duration,
}

impl RequestStats {
    /// The time to the first token, tokenising included; `None` if it never came.
    pub fn ttft(&self) -> Option<Duration> {
        let first = self.token_times.first()?;
        Some(self.tokenise + *first)
    }

    /// Tokens that were generated.
    pub fn generated_tokens(&self) -> usize {
        self.token_times.len()
    }

    /// From the first token to the last.
    pub fn decode(&self) -> Duration {
        match self.token_times[..] {
            [first, .., last] => last - first,
            _ => Duration::ZERO,
        }
    }

    /// Between each token and the one before it.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.token_times.windows(2).map(|pair| pair[1] - pair[0])
    }
}

/// A figure of the last steps.
#[derive(Clone, Debug, Default)]
pub(super) struct Window(VecDeque<f64>);

impl Window {
    pub fn push(&mut self, value: f64) {
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    pub fn spread(&self) -> Spread {
        let Some(&last) = self.0.back() else {
            return Spread::default();
        };
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        // nearest rank: the smallest value that this share of all values does not exceed
        let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1];
        Spread {
            last,
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
            p50: at(50),
            p99: at(99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks_of_the_last_steps() {
        let mut window = Window::default();
        assert_eq!(window.spread(), Spread::default());
        window.push(7.0);
        let one = window.spread();
        assert_eq!((one.last, one.mean, one.p50, one.p99), (7.0, 7.0, 7.0, 7.0));
        let mut window = Window::default();
        (1..=200).rev().for_each(|i| window.push(f64::from(i)));
        let all = window.spread();
        assert_eq!(
            (all.last, all.mean, all.p50, all.p99),
            (1.0, 100.5, 100.0, 198.0)
        );
        (0..WINDOW).for_each(|_| window.push(3.0));
        assert_eq!(window.spread().mean, 3.0, "what is older is forgotten");
    }

    #[test]
    fn a_request_tells_its_gaps() {
        let ms = Duration::from_millis;
        let stats = RequestStats {
            tokenise: ms(1),
            token_times: vec![ms(10), ms(15), ms(35)],
            ..RequestStats::default()
        };
        assert_eq!(stats.ttft(), Some(ms(11)));
        assert_eq!(stats.decode(), ms(25));
        assert_eq!(stats.gaps().collect::<Vec<_>>(), [ms(5), ms(20)]);
        assert_eq!(RequestStats::default().ttft(), None);
        assert_eq!(RequestStats::default().decode(), Duration::ZERO);
    }
}
