//! What an adapter does in a second, and so how long a step takes.

use super::sizes::ModelShape;
use super::step::{Division, KernelWork, Kind, StepShape};
use crate::kernels::peaks::Peaks;

/// The share of the roofline that kernels of each kind reach, beside what their dispatches cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    /// Of matmul, for so many tokens, ascending; between them it goes by the logarithm.
    pub matmul: Vec<(usize, f64)>,
    /// Seconds that a result of a matmul takes beside its products, for so many tokens, ascending; between
    /// them as shares. Matrices with few columns are slower for it.
    pub result_s: Vec<(usize, f64)>,
    /// Of attention, for heads of so many dims, ascending.
    pub attention: Vec<AttentionShares>,
    /// Of kernels that read and write.
    pub memory: f64,
}

/// The shares of attention at one width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShares {
    /// Dims of a head.
    pub head_dim: usize,
    /// With single tokens.
    pub of_one: f64,
    /// With pieces of prompts.
    pub of_many: f64,
}

/// An adapter as far as the time of a step goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// What it does at best.
    pub peaks: Peaks,
    /// Operations a second that matmul could do at best, by the arithmetic that it uses.
    pub matmul_ops_s: f64,
    /// How near kernels come to that.
    pub shares: Shares,
    /// Seconds from one dispatch to the next that waits for it, as it usually is.
    pub dispatch_s: f64,
    /// Seconds of a step beside its kernels: submit and read-back.
    pub step_s: f64,
    /// How kernels divide their work.
    pub division: Division,
}

/// A kernel with the time that it should take, all times that it is recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelCost {
    /// What it does.
    pub work: KernelWork,
    /// Seconds, dispatches included.
    pub seconds: f64,
}

impl Roofline {
    /// The bound: kernels that reach what the adapter does at best.
    pub fn at_best(peaks: Peaks) -> Roofline {
        Roofline {
            peaks,
            matmul_ops_s: peaks.matmul_flops(),
            shares: Shares {
                matmul: Vec::new(),
                result_s: Vec::new(),
                attention: Vec::new(),
                memory: 1.0,
            },
            dispatch_s: peaks.dispatch_s,
            step_s: 0.0,
            division: Division {
                tile_tokens: 1,
                wanted_teams: 1,
            },
        }
    }

    /// The least seconds that one dispatch of `work` takes at the peaks.
    pub fn least_seconds(&self, work: &KernelWork) -> f64 {
        let ops_s = match work.kind {
            Kind::Matmul { .. } => self.matmul_ops_s,
            _ => self.peaks.fma_flops,
        };
        self.peaks.least_seconds(work.bytes, work.ops, ops_s)
    }

    /// Seconds that `work` takes each time that it is recorded.
    pub fn kernel_seconds(&self, work: &KernelWork, head_dim: usize) -> f64 {
        let share = match work.kind {
            Kind::Matmul { tokens, .. } => between(&self.shares.matmul, tokens),
            Kind::AttentionOfOne => self.attention(head_dim, |shares| shares.of_one),
            Kind::AttentionOfMany => self.attention(head_dim, |shares| shares.of_many),
            Kind::Memory => self.shares.memory,
        };
        let dispatches = work.dispatches as f64 * self.dispatch_s;
        dispatches + self.result_seconds(work) + self.least_seconds(work) / share
    }

    /// What the results of a matmul take beside their products.
    fn result_seconds(&self, work: &KernelWork) -> f64 {
        match work.kind {
            Kind::Matmul { tokens, rows } if !self.shares.result_s.is_empty() => {
                (rows * tokens) as f64 * between(&self.shares.result_s, tokens)
            }
            _ => 0.0,
        }
    }

    fn attention(&self, head_dim: usize, which: impl Fn(&AttentionShares) -> f64) -> f64 {
        let known: Vec<(usize, f64)> = self
            .shares
            .attention
            .iter()
            .map(|shares| (shares.head_dim, which(shares)))
            .collect();
        between(&known, head_dim)
    }

    /// The kernels of `step`, each with its time.
    pub fn kernels(&self, shape: &ModelShape, step: &StepShape) -> Vec<KernelCost> {
        let cost = |work: KernelWork| KernelCost {
            seconds: work.times as f64 * self.kernel_seconds(&work, shape.config.head_dim),
            work,
        };
        let kernels = shape.kernels(step, &self.division);
        kernels.into_iter().map(cost).collect()
    }

    /// Seconds that `step` takes, from its words to the tokens that come back.
    pub fn step_seconds(&self, shape: &ModelShape, step: &StepShape) -> f64 {
        let kernels = self.kernels(shape, step);
        self.step_s + kernels.iter().map(|kernel| kernel.seconds).sum::<f64>()
    }

    /// Seconds from a prompt of `tokens` after `depth` others to its first token, in steps of at most
    /// `step_tokens`.
    pub fn prompt_seconds(
        &self,
        shape: &ModelShape,
        depth: usize,
        tokens: usize,
        step_tokens: usize,
    ) -> f64 {
        let step_tokens = step_tokens.max(1);
        let steps = (0..tokens).step_by(step_tokens).map(|done| {
            let count = step_tokens.min(tokens - done);
            StepShape::chunk(depth + done, count, done + count == tokens)
        });
        steps.map(|step| self.step_seconds(shape, &step)).sum()
    }

    /// Seconds for `tokens` tokens of one sequence, one after another, the first after `depth` others.
    pub fn decode_seconds(&self, shape: &ModelShape, depth: usize, tokens: usize) -> f64 {
        let at = |i: usize| self.step_seconds(shape, &StepShape::decode(depth + i));
        (0..tokens).map(at).sum()
    }
}

/// The value at `x` of a line through `points`, over the logarithm; beyond them that of the nearest,
/// and 1 without any.
pub(super) fn between(points: &[(usize, f64)], x: usize) -> f64 {
    let after = points.partition_point(|(at, _)| *at < x);
    match (after.checked_sub(1).map(|i| points[i]), points.get(after)) {
        (None, None) => 1.0,
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (Some((left, low)), Some(&(right, high))) => {
            let log = |n: usize| (n as f64).ln();
            let part = (log(x) - log(left)) / (log(right) - log(left));
            low + part * (high - low)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::sizes::tests::tiny;
    use super::*;

    /// An adapter of round numbers.
    pub fn sample() -> Roofline {
        let peaks = Peaks {
            stream_bytes_s: 10e9,
            fma_flops: 100e9,
            dot4_ops: 200e9,
            dispatch_s: 1e-5,
        };
        Roofline {
            matmul_ops_s: 200e9,
            shares: Shares {
                matmul: vec![(1, 0.8), (8, 0.4), (64, 0.2)],
                result_s: vec![(1, 2e-8), (64, 1e-8)],
                attention: vec![
                    AttentionShares {
                        head_dim: 64,
                        of_one: 0.1,
                        of_many: 0.2,
                    },
                    AttentionShares {
                        head_dim: 128,
                        of_one: 0.2,
                        of_many: 0.4,
                    },
                ],
                memory: 0.5,
            },
            dispatch_s: 2e-5,
            step_s: 1e-4,
            division: Division {
                tile_tokens: 8,
                wanted_teams: 2,
            },
            peaks,
        }
    }

    fn matmul(tokens: usize, bytes: f64, ops: f64) -> KernelWork {
        KernelWork {
            name: "o",
            times: 1,
            dispatches: 1,
            kind: Kind::Matmul { tokens, rows: 1000 },
            bytes,
            ops,
        }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * b.abs()
    }

    #[test]
    fn a_kernel_takes_the_longer_of_both_over_its_share_and_its_dispatches() {
        let roofline = sample();
        let seconds = |work: KernelWork| roofline.kernel_seconds(&work, 64);
        // a tenth of a second for the bytes, as much for half the operations; and a thousand results each
        assert!(near(seconds(matmul(1, 1e9, 10e9)), 4e-5 + 0.1 / 0.8));
        assert!(near(seconds(matmul(64, 1e9, 40e9)), 66e-5 + 0.2 / 0.2));
        assert!(near(seconds(matmul(512, 1e9, 40e9)), 514e-5 + 0.2 / 0.2));
        let attention = KernelWork {
            kind: Kind::AttentionOfOne,
            dispatches: 3,
            ..matmul(1, 0.0, 50e9)
        };
        assert!(near(seconds(attention), 6e-5 + 0.5 / 0.1));
        assert!(near(
            roofline.kernel_seconds(&attention, 256),
            6e-5 + 0.5 / 0.2
        ));
        let memory = KernelWork {
            kind: Kind::Memory,
            ..matmul(1, 1e9, 0.0)
        };
        assert!(near(seconds(memory), 2e-5 + 0.1 / 0.5));
    }

    #[test]
    fn shares_between_those_measured_go_by_the_logarithm() {
        let points = [(1, 0.8), (8, 0.4), (64, 0.2)];
        for (x, expected) in [
            (1, 0.8),
            (2, 0.8 - 0.4 / 3.0),
            (8, 0.4),
            (64, 0.2),
            (9999, 0.2),
        ] {
            assert!((between(&points, x) - expected).abs() < 1e-12, "{x}");
        }
        assert_eq!(between(&points[1..], 3), 0.4);
        assert_eq!(between(&[], 7), 1.0);
    }

    #[test]
    fn a_step_is_the_sum_of_its_kernels() {
        let (roofline, shape) = (sample(), tiny());
        let step = StepShape::decode(100);
        let kernels = roofline.kernels(&shape, &step);
        let dispatches: usize = kernels
            .iter()
            .map(|k| k.work.times * k.work.dispatches)
            .sum();
        // embedding, two layers of five, head, two to draw
        assert_eq!(dispatches, 1 + 2 * 5 + 1 + 2);
        let sum: f64 = kernels.iter().map(|k| k.seconds).sum();
        let seconds = roofline.step_seconds(&shape, &step);
        assert!(near(seconds, sum + 1e-4) && seconds > 14.0 * 2e-5);
        assert_eq!(
            roofline.step_seconds(&shape, &StepShape::default()),
            roofline.step_s
        );
    }

    #[test]
    fn prompts_and_answers_are_their_steps() {
        let (roofline, shape) = (sample(), tiny());
        let step =
            |first, n, last| roofline.step_seconds(&shape, &StepShape::chunk(first, n, last));
        let prompt = roofline.prompt_seconds(&shape, 10, 20, 8);
        let steps = step(10, 8, false) + step(18, 8, false) + step(26, 4, true);
        assert!(near(prompt, steps));
        let answer = roofline.decode_seconds(&shape, 5, 2);
        let one = |depth| roofline.step_seconds(&shape, &StepShape::decode(depth));
        assert!(near(answer, one(5) + one(6)));
    }

    #[test]
    fn the_bound_is_below_what_kernels_take() {
        let (roofline, shape) = (sample(), tiny());
        let best = Roofline::at_best(roofline.peaks);
        for step in [StepShape::decode(500), StepShape::chunk(0, 100, true)] {
            assert!(best.step_seconds(&shape, &step) < roofline.step_seconds(&shape, &step));
        }
    }
}
