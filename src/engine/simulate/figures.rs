//! What came of a simulation, in figures.

use super::run::{Outcome, Served, Standing};

/// What users are promised, in seconds; what is `None` does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// To the first token.
    pub ttft: Option<f64>,
    /// For a token after the first, on average over the answer.
    pub tpot: Option<f64>,
    /// Between any two tokens.
    pub itl: Option<f64>,
}

impl Slo {
    /// Whether the request got what was promised.
    pub fn is_met(&self, served: &Served) -> bool {
        let within = |value: f64, limit: Option<f64>| limit.is_none_or(|limit| value <= limit);
        within(served.first - served.arrival, self.ttft)
            && within(served.tpot().unwrap_or(0.0), self.tpot)
            && within(served.longest_gap, self.itl)
    }
}

/// How memory was used, as sums over time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryUse {
    /// The most requests that had memory at a time.
    pub most_running: usize,
    /// Seconds in which others waited.
    pub crowded_seconds: f64,
    /// Requests that had memory, times seconds in which others waited.
    running_while_crowded: f64,
    /// Tokens given room, times seconds.
    reserved: f64,
    /// Tokens known of those who had memory, times seconds.
    held: f64,
}

impl MemoryUse {
    /// `seconds` of a step; `outside` tells that there is a queue before the queue.
    pub(super) fn add(&mut self, standing: Standing, outside: bool, seconds: f64) {
        self.most_running = self.most_running.max(standing.running);
        if standing.waiting || outside {
            self.crowded_seconds += seconds;
            self.running_while_crowded += standing.running as f64 * seconds;
        }
        self.reserved += standing.reserved as f64 * seconds;
        self.held += standing.held as f64 * seconds;
    }

    /// Requests that had memory while others waited, on average; `None` where nobody waited.
    pub fn mean_running(&self) -> Option<f64> {
        let crowded = self.crowded_seconds;
        (crowded > 0.0).then(|| self.running_while_crowded / crowded)
    }

    /// Of the memory that was given out, the share that held nothing, over time.
    pub fn waste(&self) -> f64 {
        if self.reserved > 0.0 {
            1.0 - self.held / self.reserved
        } else {
            0.0
        }
    }
}

/// A mean, and what half, 95 and 99 of a hundred do not exceed; zeros of nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
}

impl Quantiles {
    /// Of these values, in any order.
    pub fn of(mut values: Vec<f64>) -> Quantiles {
        values.sort_unstable_by(f64::total_cmp);
        let Some(last) = values.len().checked_sub(1) else {
            return Quantiles::default();
        };
        let at = |share: f64| values[(last as f64 * share).ceil() as usize];
        Quantiles {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
        }
    }
}

/// What users saw; times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Requests that came to their end.
    pub completed: usize,
    /// Those of them that got what was promised.
    pub met: usize,
    /// From the first arrival to the last token.
    pub duration: f64,
    /// Requests a second.
    pub request_throughput: f64,
    /// Those that got what was promised, a second.
    pub goodput: f64,
    /// Tokens of answers a second.
    pub output_throughput: f64,
    /// Tokens of prompts and answers a second.
    pub total_throughput: f64,
    /// To the first token.
    pub ttft: Quantiles,
    /// For a token after the first, a mean for each request.
    pub tpot: Quantiles,
    /// Between any two tokens.
    pub itl: Quantiles,
    /// To the last token.
    pub e2e: Quantiles,
}

impl Outcome {
    /// The figures, with `slo` promised.
    pub fn figures(&self, slo: &Slo) -> Figures {
        let begin = self
            .served
            .iter()
            .map(|s| s.arrival)
            .fold(f64::MAX, f64::min);
        let end = self.served.iter().map(|s| s.end).fold(0.0, f64::max);
        let duration = (end - begin).max(0.0);
        let rate = |count: usize| {
            if duration > 0.0 {
                count as f64 / duration
            } else {
                0.0
            }
        };
        let met = self
            .served
            .iter()
            .filter(|served| slo.is_met(served))
            .count();
        let tokens: usize = self.served.iter().map(|s| s.tokens).sum();
        let of = |value: &dyn Fn(&Served) -> Option<f64>| {
            Quantiles::of(self.served.iter().filter_map(value).collect())
        };
        Figures {
            completed: self.served.len(),
            met,
            duration,
            request_throughput: rate(self.served.len()),
            goodput: rate(met),
            output_throughput: rate(tokens),
            total_throughput: rate(tokens + self.prompt_tokens),
            ttft: of(&|s| Some(s.first - s.arrival)),
            tpot: of(&Served::tpot),
            itl: Quantiles::of(self.gaps.iter().map(|&gap| f64::from(gap)).collect()),
            e2e: of(&|s| Some(s.end - s.arrival)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(first: f64, end: f64, tokens: usize, longest_gap: f64) -> Served {
        Served {
            index: 0,
            arrival: 1.0,
            first,
            end,
            tokens,
            longest_gap,
        }
    }

    #[test]
    fn what_is_promised_is_held_against_each_request() {
        let slo = Slo {
            ttft: Some(0.5),
            tpot: Some(0.1),
            itl: None,
        };
        let outcome = Outcome {
            served: vec![
                served(1.5, 2.5, 11, 0.3),
                served(1.6, 2.5, 11, 0.1),
                served(1.2, 2.4, 11, 0.2),
                served(1.4, 1.4, 1, 0.0),
            ],
            gaps: vec![0.1, 0.2, 0.3],
            prompt_tokens: 66,
            ..Outcome::default()
        };
        let figures = outcome.figures(&slo);
        assert_eq!(
            (figures.completed, figures.met, figures.duration),
            (4, 2, 1.5)
        );
        assert_eq!(figures.goodput, 2.0 / 1.5);
        assert_eq!(figures.output_throughput, 34.0 / 1.5);
        assert!((figures.total_throughput - 100.0 / 1.5).abs() < 1e-12);
        assert!((figures.ttft.p50 - 0.5).abs() < 1e-12 && (figures.ttft.p99 - 0.6).abs() < 1e-12);
        assert!((figures.itl.mean - 0.2).abs() < 1e-6);
        let strict = Slo {
            itl: Some(0.25),
            ..slo
        };
        assert_eq!(outcome.figures(&strict).met, 1);
        assert_eq!(outcome.figures(&Slo::default()).met, 4);
        let nothing = Outcome::default().figures(&slo);
        assert_eq!(
            (nothing.duration, nothing.goodput, nothing.ttft.p99),
            (0.0, 0.0, 0.0)
        );
    }

    #[test]
    fn memory_is_weighed_by_time() {
        let mut memory = MemoryUse::default();
        assert_eq!((memory.mean_running(), memory.waste()), (None, 0.0));
        let standing = Standing {
            running: 4,
            waiting: true,
            reserved: 100,
            held: 90,
        };
        memory.add(standing, false, 3.0);
        let alone = Standing {
            running: 9,
            waiting: false,
            reserved: 100,
            held: 50,
        };
        memory.add(alone, false, 1.0);
        memory.add(
            Standing {
                running: 2,
                ..alone
            },
            true,
            1.0,
        );
        assert_eq!(memory.mean_running(), Some(14.0 / 4.0));
        assert_eq!(memory.most_running, 9);
        assert!((memory.waste() - (1.0 - 370.0 / 500.0)).abs() < 1e-12);
    }
}
