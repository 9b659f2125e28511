//! What the times of standard shapes say about an adapter.

use super::products::Products;
use super::rates::{AttentionShares, Roofline, Shares};
use super::sizes::{KvForm, ModelShape, WeightForm};
use super::step::{Division, KernelWork, Kind, StepShape};
use crate::kernels::peaks::Peaks;
use crate::kernels::{Activations, Tuning};
use crate::kv::KvFormat;
use crate::model::Config;
use crate::model::room::wanted_teams;
use crate::quant::Format;

/// No kernel is taken for better or worse than this: a clock that jumped would say so.
const SHARES: std::ops::RangeInclusive<f64> = 1e-4..=4.0;
/// Rows of logits that a token is drawn from.
pub(super) const VOCABULARY: usize = 1 << 17;

/// What is measured.
#[derive(Clone, Copy)]
pub struct Subject {
    /// How kernels divide their work.
    pub tuning: Tuning,
    /// How weights are kept.
    pub weights: &'static Format,
    /// How keys and values are kept.
    pub kv: KvFormat,
}

/// How large the shapes are: more than caches hold, and no more than a second or so fills.
pub(super) struct Standard {
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    /// Rows of activations, ascending.
    pub tokens: [usize; 5],
    /// Matrices of few columns, and with how many rows of activations they are multiplied.
    pub narrow: Narrow,
    /// Tokens before those that attend, and how many do where it is many.
    pub depth: usize,
    pub chunk: usize,
    /// Layers of keys and values.
    pub caches: usize,
}

/// Matrices of `[rows, columns]`, of which the products are few beside what else a result takes.
pub(super) struct Narrow {
    pub rows: usize,
    pub columns: usize,
    pub matrices: usize,
    pub tokens: [usize; 2],
}

pub(super) const ON_CPU: Standard = Standard {
    hidden: 1024,
    intermediate: 2816,
    layers: 6,
    tokens: [1, 2, 4, 8, 64],
    narrow: Narrow {
        rows: 8192,
        columns: 128,
        matrices: 24,
        tokens: [1, 64],
    },
    depth: 1023,
    chunk: 64,
    caches: 2,
};
pub(super) const ON_GPU: Standard = Standard {
    hidden: 2048,
    intermediate: 5632,
    layers: 10,
    tokens: [1, 2, 4, 8, 512],
    narrow: Narrow {
        rows: 16384,
        columns: 256,
        matrices: 24,
        tokens: [1, 512],
    },
    depth: 4095,
    chunk: 512,
    caches: 8,
};
/// Query heads, key heads, and their dims.
pub(super) const HEADS: [(usize, usize, usize); 2] = [(12, 4, 64), (16, 4, 128)];

/// What a test took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timed {
    pub what: What,
    pub dispatches: usize,
    /// Of one call, the median of the rounds.
    pub seconds: f64,
}

/// What a test is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    /// Dispatches that wait for one another.
    Dispatch,
    /// A submit with one dispatch, whose result is read back.
    Step,
    /// All matrices, with so many rows of activations.
    Matmul(usize),
    /// The narrow ones.
    Narrow(usize),
    /// Attention over all caches, of single tokens or many, by its place in [`HEADS`].
    Attention(Kind, usize),
    /// A token is drawn.
    Draw,
}

/// The shape whose attention is measured: a layer for each cache, and nothing else of a model.
pub(super) fn attending(standard: &Standard, kv: KvFormat, index: usize) -> ModelShape {
    let (num_heads, num_kv_heads, head_dim) = HEADS[index];
    let config = Config {
        architecture: "calibration".to_owned(),
        num_layers: standard.caches,
        hidden_size: num_heads * head_dim,
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size: 4,
        vocab_size: 4,
        max_position_embeddings: 1 << 17,
        tied_head: true,
        ..Config::default()
    };
    ModelShape::new(config, WeightForm::Q8, KvForm::from(kv), u64::MAX)
}

/// The step that attends.
pub(super) fn attending_step(standard: &Standard, kind: Kind) -> StepShape {
    match kind {
        Kind::AttentionOfMany => {
            StepShape::chunk(standard.depth + 1 - standard.chunk, standard.chunk, false)
        }
        _ => StepShape::decode(standard.depth),
    }
}

impl Standard {
    /// How often matrices of which rows and columns are multiplied in a test.
    pub fn matrices(&self, of: What) -> Vec<(usize, usize, usize)> {
        let (h, i, layers) = (self.hidden, self.intermediate, self.layers);
        match of {
            What::Narrow(_) => {
                vec![(self.narrow.matrices, self.narrow.rows, self.narrow.columns)]
            }
            _ => vec![(layers, 2 * i, h), (layers, h, i)],
        }
    }
}

/// The share of the peaks that `works` reached, which took `seconds` with so many dispatches.
pub(super) fn share(
    roofline: &Roofline,
    works: &[KernelWork],
    seconds: f64,
    dispatches: usize,
) -> f64 {
    let least: f64 = works
        .iter()
        .map(|work| work.times as f64 * roofline.least_seconds(work))
        .sum();
    // where next to nothing is left beside dispatches, a share would mean nothing
    let rest = seconds - dispatches as f64 * roofline.dispatch_s;
    let rest = rest.max(0.1 * seconds);
    (least / rest).clamp(*SHARES.start(), *SHARES.end())
}

/// What the medians say.
pub(super) fn from_seconds(
    is_software: bool,
    subject: Subject,
    peaks: Peaks,
    standard: &Standard,
    medians: &[Timed],
) -> Roofline {
    let timed = |what: What| -> Timed {
        let found = medians.iter().find(|timed| timed.what == what);
        *found.expect("every test was timed")
    };
    let of = |what| timed(what).seconds;
    let dispatch_s = of(What::Dispatch);
    let mut roofline = Roofline {
        matmul_ops_s: match subject.tuning.activations {
            Activations::F32 => peaks.fma_flops,
            Activations::Q8 => peaks.dot4_ops,
        },
        dispatch_s,
        step_s: (of(What::Step) - dispatch_s).max(0.0),
        division: Division {
            tile_tokens: subject.tuning.tile_tokens as usize,
            wanted_teams: wanted_teams(is_software),
        },
        ..Roofline::at_best(peaks)
    };
    let products = Products {
        roofline: &roofline,
        format: subject.weights,
        standard,
        timed: &timed,
    };
    let result_s = products.result_seconds();
    let matmul = products.shares(&result_s);
    let attention = (0..HEADS.len()).map(|index| {
        let model = attending(standard, subject.kv, index);
        let shares = [Kind::AttentionOfOne, Kind::AttentionOfMany].map(|kind| {
            let step = attending_step(standard, kind);
            let kernels = model.kernels(&step, &roofline.division);
            let is_own = |k: &KernelWork| k.name.starts_with("attention");
            let works: Vec<KernelWork> = kernels.into_iter().filter(is_own).collect();
            let dispatches = works.iter().map(|work| work.times * work.dispatches).sum();
            share(
                &roofline,
                &works,
                timed(What::Attention(kind, index)).seconds,
                dispatches,
            )
        });
        AttentionShares {
            head_dim: HEADS[index].2,
            of_one: shares[0],
            of_many: shares[1],
        }
    });
    let draw = KernelWork {
        name: "draw",
        times: 1,
        dispatches: 2,
        kind: Kind::Memory,
        bytes: 4.0 * VOCABULARY as f64,
        ops: 0.0,
    };
    roofline.shares = Shares {
        matmul,
        result_s,
        attention: attention.collect(),
        memory: share(&roofline, &[draw], of(What::Draw), draw.dispatches),
    };
    roofline
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::sample;
    use super::*;
    use crate::quant::q8;

    const SUBJECT: Subject = Subject {
        tuning: Tuning {
            activations: Activations::Q8,
            lanes: 1,
            workgroup: 8,
            tile_tokens: 8,
            subgroups: true,
            wide: false,
        },
        weights: &q8::Q8,
        kv: KvFormat::F16,
    };

    /// What an adapter like [`sample`] would take.
    fn medians(truth: &Roofline) -> Vec<Timed> {
        let timed = |what, dispatches, seconds| Timed {
            what,
            dispatches,
            seconds,
        };
        let mut all = vec![
            timed(What::Dispatch, 1, truth.dispatch_s),
            timed(What::Step, 1, truth.dispatch_s + truth.step_s),
        ];
        let wide = ON_CPU.tokens.map(What::Matmul);
        for what in wide
            .into_iter()
            .chain(ON_CPU.narrow.tokens.map(What::Narrow))
        {
            let (What::Matmul(tokens) | What::Narrow(tokens)) = what else {
                unreachable!("matmuls alone")
            };
            let (mut dispatches, mut seconds) = (0, 0.0);
            for (times, rows, columns) in ON_CPU.matrices(what) {
                let work = KernelWork {
                    name: "matmul",
                    times,
                    dispatches: 1,
                    kind: Kind::Matmul { tokens, rows },
                    bytes: 1.0625 * (rows * columns) as f64,
                    ops: 2.0 * (rows * columns * tokens) as f64,
                };
                dispatches += times;
                seconds += times as f64 * truth.kernel_seconds(&work, 64);
            }
            all.push(timed(what, dispatches, seconds));
        }
        for index in 0..HEADS.len() {
            let model = attending(&ON_CPU, KvFormat::F16, index);
            for kind in [Kind::AttentionOfOne, Kind::AttentionOfMany] {
                let kernels = truth.kernels(&model, &attending_step(&ON_CPU, kind));
                let own = kernels.iter().filter(|k| k.work.name == "attention");
                let seconds = own.map(|k| k.seconds).sum();
                all.push(timed(What::Attention(kind, index), 4, seconds));
            }
        }
        let bytes = 4.0 * VOCABULARY as f64;
        let draw = bytes / truth.peaks.stream_bytes_s / truth.shares.memory;
        all.push(timed(What::Draw, 2, 2.0 * truth.dispatch_s + draw));
        all
    }

    #[test]
    fn the_shares_that_made_the_times_come_back() {
        let truth = sample();
        let found = from_seconds(true, SUBJECT, truth.peaks, &ON_CPU, &medians(&truth));
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6 * b;
        assert!(near(found.dispatch_s, truth.dispatch_s) && near(found.step_s, truth.step_s));
        assert_eq!(found.matmul_ops_s, truth.peaks.dot4_ops);
        for (tokens, share) in [(1, 0.8), (8, 0.4), (64, 0.2)] {
            let of = found.shares.matmul.iter().find(|(of, _)| *of == tokens);
            assert!(near(of.unwrap().1, share), "{tokens}: {of:?}");
        }
        for (found, truth) in found.shares.result_s.iter().zip(&truth.shares.result_s) {
            assert!(found.0 == truth.0 && near(found.1, truth.1), "{found:?}");
        }
        assert!(near(found.shares.memory, 0.5));
        for (of, truth) in found.shares.attention.iter().zip(&truth.shares.attention) {
            assert!(
                near(of.of_one, truth.of_one) && near(of.of_many, truth.of_many),
                "{of:?}"
            );
        }
        assert_eq!(found.division, truth.division);
    }

    #[test]
    fn a_clock_that_stands_still_or_jumps_makes_no_share_that_is_no_number() {
        let truth = sample();
        for seconds in [1e-12, 1e9] {
            let medians: Vec<_> = medians(&truth)
                .iter()
                .map(|timed| Timed { seconds, ..*timed })
                .collect();
            let found = from_seconds(true, SUBJECT, truth.peaks, &ON_CPU, &medians);
            let attention = found.shares.attention.iter();
            let all = found
                .shares
                .matmul
                .iter()
                .map(|(_, share)| *share)
                .chain(attention.flat_map(|a| [a.of_one, a.of_many]))
                .chain([found.shares.memory]);
            for share in all {
                assert!(SHARES.contains(&share), "{share}");
            }
        }
    }
}
