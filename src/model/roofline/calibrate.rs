//! How near kernels come to the roofline of an adapter, measured on shapes of its own: whoever plans has
//! no model yet.
//!
//! Everything is timed in turn, round by round, so that a machine that becomes slower or faster does so
//! for all of it, and of each the median counts: a step is as slow as kernels usually are, not as fast
//! as they were once. Whoever measures brings the clock.

use super::rates::{AttentionShares, Roofline, Shares};
use super::sizes::{KvForm, ModelShape, WeightForm};
use super::step::{Division, KernelWork, Kind, StepShape};
use crate::error::Result;
use crate::gpu::{DType, Gpu, Readback, Recorder};
use crate::kernels::attention_output::Output;
use crate::kernels::attention_plan::PlanLimits;
use crate::kernels::matmul::{self, Norm};
use crate::kernels::matmul_output::Out;
use crate::kernels::peaks::Peaks;
use crate::kernels::{Activations, Tuning, argmax, attention, attention_merge, gather_rows};
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE, PageGeometry, PageId, SPLIT_PAGES};
use crate::model::decoder::wanted_teams;
use crate::model::rope::{Rope, RopeScaling, RopeTable};
use crate::model::step::{HeadRows, Span, Step};
use crate::model::{Config, tune};
use crate::quant::Format;
use std::sync::Arc;

/// Rounds that count, after one that tells how long things take, and fewer where time is over.
const ROUNDS: usize = 7;
const LEAST_ROUNDS: usize = 3;
/// Spans after which it is over.
const MOST_SPANS: f64 = 250.0;
/// Dispatches of a submit at most; it holds 4096.
const MOST_DISPATCHES: usize = 4000;
/// Calls of it at most.
const MOST_CALLS: usize = 500;
/// No kernel is taken for better or worse than this: a clock that jumped would say so.
const SHARES: std::ops::RangeInclusive<f64> = 1e-4..=4.0;
/// Rows of logits that a token is drawn from.
const VOCABULARY: usize = 1 << 17;

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
struct Standard {
    hidden: usize,
    intermediate: usize,
    layers: usize,
    /// Rows of activations, ascending.
    tokens: [usize; 5],
    /// Tokens before those that attend, and how many do where it is many.
    depth: usize,
    chunk: usize,
    /// Layers of keys and values.
    caches: usize,
}

const ON_CPU: Standard = Standard {
    hidden: 1024,
    intermediate: 2816,
    layers: 6,
    tokens: [1, 2, 4, 8, 64],
    depth: 1023,
    chunk: 64,
    caches: 2,
};
const ON_GPU: Standard = Standard {
    hidden: 2048,
    intermediate: 5632,
    layers: 10,
    tokens: [1, 2, 4, 8, 512],
    depth: 4095,
    chunk: 512,
    caches: 8,
};
/// Query heads, key heads, and their dims.
const HEADS: [(usize, usize, usize); 2] = [(12, 4, 64), (16, 4, 128)];

impl Roofline {
    /// Measures `subject` on `gpu`, whose peaks are known. `clock` tells seconds; `span` is how many a
    /// single measurement should take (0.01 for a clock as fine as microseconds): all of it takes about
    /// 100 spans, on a busy machine up to 250, and the compilation of a dozen pipelines.
    ///
    /// # Errors
    /// What the device reports, [`crate::Error::OutOfMemory`] among it.
    pub fn measure(
        gpu: &Arc<Gpu>,
        subject: Subject,
        peaks: Peaks,
        clock: &mut dyn FnMut() -> f64,
        span: f64,
    ) -> Result<Roofline> {
        let standard = if gpu.is_software() { &ON_CPU } else { &ON_GPU };
        let tests = tests(gpu, subject, standard)?;
        let medians = in_rounds(gpu, &tests, clock, span)?;
        Ok(from_seconds(
            gpu.is_software(),
            subject,
            peaks,
            standard,
            &medians,
        ))
    }
}

/// One thing that is timed.
struct Test {
    what: What,
    dispatches: usize,
    record: Box<dyn Fn(&mut Recorder)>,
}

/// What a test took.
#[derive(Clone, Copy, Debug)]
struct Timed {
    what: What,
    dispatches: usize,
    /// Of one call, the median of the rounds.
    seconds: f64,
}

/// What a test is about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// Dispatches that wait for one another.
    Dispatch,
    /// A submit with one dispatch, whose result is read back.
    Step,
    /// All matrices, with so many rows of activations.
    Matmul(usize),
    /// Attention over all caches, of single tokens or many, by its place in [`HEADS`].
    Attention(Kind, usize),
    /// A token is drawn.
    Draw,
}

fn tests(gpu: &Arc<Gpu>, subject: Subject, standard: &Standard) -> Result<Vec<Test>> {
    let words = |dims: &[usize]| gpu.tensor("calibration", DType::U32, dims);
    let (from, to, row) = (words(&[1, 4])?, words(&[1, 4])?, words(&[1])?);
    let tiny = move |rec: &mut Recorder| gather_rows::record(rec, &from, &row, 0, 1, &to);
    let mut tests = vec![
        Test {
            what: What::Step,
            dispatches: 1,
            record: Box::new(tiny.clone()),
        },
        Test {
            what: What::Dispatch,
            dispatches: 1,
            record: Box::new(tiny),
        },
    ];
    let shape = tune::Shape {
        hidden: standard.hidden,
        intermediate: standard.intermediate,
        vocab: 0,
        layers: standard.layers,
        format: subject.weights,
    };
    let layers = (0..standard.layers)
        .map(|_| tune::layer(gpu, &shape, u64::MAX))
        .collect::<Result<Vec<_>>>()?;
    let dispatches = layers.iter().flatten().map(|w| w.shards.len()).sum();
    let most = *standard.tokens.iter().max().expect("some");
    let act = |columns| words(&subject.tuning.activations.dims(most, columns));
    let inputs = [act(standard.hidden)?, act(standard.intermediate)?];
    let outputs = [act(standard.intermediate)?, act(standard.hidden / 2)?];
    for tokens in standard.tokens {
        let (layers, inputs, outputs) = (layers.clone(), inputs.clone(), outputs.clone());
        let record = move |rec: &mut Recorder| {
            for ((weights, x), act) in layers
                .iter()
                .flat_map(|l| l.iter().zip(&inputs).zip(&outputs))
            {
                let norm = Some(Norm { eps: 1e-5 });
                let out = Out::Gated { act };
                matmul::record(rec, &subject.tuning, weights, x, tokens, norm, out);
            }
        };
        tests.push(Test {
            what: What::Matmul(tokens),
            dispatches,
            record: Box::new(record),
        });
    }
    for index in 0..HEADS.len() {
        for kind in [Kind::AttentionOfOne, Kind::AttentionOfMany] {
            tests.push(Test {
                what: What::Attention(kind, index),
                // a list of items, and a merge where there is any
                dispatches: 2 * standard.caches,
                record: attention_test(gpu, subject, standard, index, kind)?,
            });
        }
    }
    let logits = gpu.tensor("calibration", DType::F32, &[1, VOCABULARY])?;
    let scratch = words(&[argmax::scratch_words(1, VOCABULARY)])?;
    let ids = words(&[1])?;
    tests.push(Test {
        what: What::Draw,
        dispatches: 2,
        record: Box::new(move |rec| argmax::record(rec, &logits, 1, &scratch, &ids)),
    });
    gpu.flush_uploads()?;
    Ok(tests)
}

/// The shape whose attention is measured: a layer for each cache, and nothing else of a model.
fn attending(standard: &Standard, kv: KvFormat, index: usize) -> ModelShape {
    let (num_heads, num_kv_heads, head_dim) = HEADS[index];
    ModelShape {
        config: Config {
            architecture: "calibration".to_owned(),
            num_layers: standard.caches,
            hidden_size: num_heads * head_dim,
            num_heads,
            num_kv_heads,
            head_dim,
            intermediate_size: 4,
            vocab_size: 4,
            rms_norm_eps: 1e-5,
            rope: Rope {
                theta: 10_000.0,
                scaling: RopeScaling::None,
            },
            max_position_embeddings: 1 << 17,
            tied_head: true,
        },
        extra_layer_params: 0,
        weights: WeightForm::Q8,
        kv: KvForm::from(kv),
        max_binding: u64::MAX,
    }
}

/// The step that attends.
fn attending_step(standard: &Standard, kind: Kind) -> StepShape {
    match kind {
        Kind::AttentionOfMany => {
            StepShape::chunk(standard.depth + 1 - standard.chunk, standard.chunk, false)
        }
        _ => StepShape::decode(standard.depth),
    }
}

fn attention_test(
    gpu: &Arc<Gpu>,
    subject: Subject,
    standard: &Standard,
    index: usize,
    kind: Kind,
) -> Result<Box<dyn Fn(&mut Recorder)>> {
    let model = attending(standard, subject.kv, index);
    let (shape, c) = (model.attention(), &model.config);
    let tokens = attending_step(standard, kind).tokens();
    let end = standard.depth + 1;
    let num_pages = end.div_ceil(PAGE_SIZE).next_multiple_of(SPLIT_PAGES);
    let pages: Vec<PageId> = (0..num_pages as PageId).collect();
    let dims = [num_pages, c.num_kv_heads, PAGE_SIZE, c.head_dim];
    let cache = || gpu.tensor("calibration", subject.kv.dtype(), &dims);
    let slabs = (0..standard.caches)
        .map(|_| {
            Ok(KvSlab {
                first_page: 0,
                num_pages,
                k: cache()?,
                v: cache()?,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let limits = PlanLimits {
        geometry: PageGeometry::new(num_pages, num_pages),
        tiling: shape.tiling(),
        wanted_teams: wanted_teams(gpu.is_software()),
        partial_slots: tokens * end.div_ceil(PAGE_SIZE * SPLIT_PAGES),
    };
    let span = Span {
        tokens: &vec![0; tokens],
        first_position: end - tokens,
        pages: &pages,
        head_rows: HeadRows::None,
    };
    let step = Step::new(&[span], &RopeTable::new(&c.rope, c.head_dim), &limits);
    let meta = gpu.tensor("calibration", DType::U32, &[step.words.len()])?;
    gpu.upload(&meta, 0, bytemuck::cast_slice(&step.words))?;
    let q = gpu.tensor("calibration", DType::F32, &[tokens, c.q_width()])?;
    let partials = gpu.tensor(
        "calibration",
        DType::F32,
        &shape.partials_dims(limits.partial_slots),
    )?;
    let output = Output::of(&shape);
    let dims = output.dims(subject.tuning.activations, tokens, c.q_width());
    let out = gpu.tensor("calibration", DType::U32, &dims)?;
    let tuning = subject.tuning;
    Ok(Box::new(move |rec| {
        for slab in &slabs {
            for round in &step.attention {
                for &(_, items) in &round.items {
                    attention::record(
                        rec, &tuning, &shape, slab, &q, &meta, items, &partials, output, &out,
                    );
                }
                let (at, rows) = (round.merge_at, round.merge_rows);
                attention_merge::record(
                    rec, &tuning, &shape, &meta, at, rows, &partials, output, &out,
                );
            }
        }
    }))
}

/// Times every test.
fn in_rounds(
    gpu: &Arc<Gpu>,
    tests: &[Test],
    clock: &mut dyn FnMut() -> f64,
    span: f64,
) -> Result<Vec<Timed>> {
    let mut rec = Recorder::new(gpu)?;
    rec.begin_notes();
    tests.iter().for_each(|test| (test.record)(&mut rec));
    let variants = rec.take_notes();
    gpu.prepare(&variants)?;
    let result = Readback::new(gpu, 16)?;
    let word = gpu.tensor("calibration", DType::U32, &[4])?;
    let mut call = |test: &Test, count: usize| -> Result<f64> {
        let start = clock();
        if test.what == What::Step {
            for _ in 0..count {
                (test.record)(&mut rec);
                rec.read_back(&word, &result);
                rec.submit()?;
                result.wait(gpu, |_| ())?;
            }
        } else {
            (0..count).for_each(|_| (test.record)(&mut rec));
            rec.submit()?;
            gpu.wait()?;
        }
        Ok((clock() - start) / count as f64)
    };
    let mut counts = Vec::new();
    for test in tests {
        call(test, 1)?; // drivers that compile at the first dispatch do it here
        let once = call(test, 1)?.max(1e-7);
        let most = (MOST_DISPATCHES / test.dispatches).clamp(1, MOST_CALLS);
        counts.push(((span / once) as usize).clamp(1, most));
    }
    let mut seconds = vec![Vec::with_capacity(ROUNDS); tests.len()];
    let mut taken = 0.0;
    for round in 0..ROUNDS {
        if round >= LEAST_ROUNDS && taken > MOST_SPANS * span {
            break;
        }
        let mut order: Vec<usize> = (0..tests.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for i in order {
            let each = call(&tests[i], counts[i])?;
            taken += each * counts[i] as f64;
            seconds[i].push(each);
        }
    }
    let medians = tests.iter().zip(seconds).map(|(test, mut seconds)| {
        seconds.sort_unstable_by(f64::total_cmp);
        Timed {
            what: test.what,
            dispatches: test.dispatches,
            seconds: seconds[seconds.len() / 2].max(1e-12),
        }
    });
    Ok(medians.collect())
}

/// What the medians say.
fn from_seconds(
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
    let share = |roofline: &Roofline, works: &[KernelWork], timed: Timed, dispatches: usize| {
        let least: f64 = works
            .iter()
            .map(|work| work.times as f64 * roofline.least_seconds(work))
            .sum();
        // where next to nothing is left beside dispatches, a share would mean nothing
        let rest = timed.seconds - dispatches as f64 * dispatch_s;
        let rest = rest.max(0.1 * timed.seconds);
        (least / rest).clamp(*SHARES.start(), *SHARES.end())
    };
    let matmuls = |tokens: usize| -> [KernelWork; 2] {
        let (h, i) = (standard.hidden, standard.intermediate);
        [(2 * i, h), (h, i)].map(|(rows, columns)| {
            let (weights, scales) = subject.weights.matrix_bytes(rows, columns);
            KernelWork {
                name: "matmul",
                times: standard.layers,
                dispatches: 1,
                kind: Kind::Matmul { tokens },
                bytes: (weights + scales) as f64,
                ops: 2.0 * (rows * columns * tokens) as f64,
            }
        })
    };
    let matmul = standard.tokens.map(|tokens| {
        let padded = roofline.division.padded(tokens);
        let timed = timed(What::Matmul(tokens));
        let share = share(&roofline, &matmuls(padded), timed, timed.dispatches);
        (padded, share)
    });
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
                timed(What::Attention(kind, index)),
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
        matmul: matmul.to_vec(),
        attention: attention.collect(),
        memory: share(&roofline, &[draw], timed(What::Draw), draw.dispatches),
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
        let (h, i) = (ON_CPU.hidden, ON_CPU.intermediate);
        for tokens in ON_CPU.tokens {
            let seconds = [(2 * i, h), (h, i)].map(|(rows, columns)| {
                let work = KernelWork {
                    name: "matmul",
                    times: 1,
                    dispatches: 1,
                    kind: Kind::Matmul { tokens },
                    bytes: 1.0625 * (rows * columns) as f64,
                    ops: 2.0 * (rows * columns * tokens) as f64,
                };
                truth.kernel_seconds(&work, 64)
            });
            let sum: f64 = seconds.iter().sum();
            let (layers, dispatches) = (ON_CPU.layers as f64, 2 * ON_CPU.layers);
            all.push(timed(What::Matmul(tokens), dispatches, layers * sum));
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
