//! How near kernels come to the roofline of an adapter, measured on shapes of its own: whoever plans has
//! no model yet.
//!
//! Everything is timed in turn, round by round, so that a machine that becomes slower or faster does so
//! for all of it, and of each the median counts: a step is as slow as kernels usually are, not as fast
//! as they were once. Whoever measures brings the clock.

use super::rates::Roofline;
use super::reckon::{
    HEADS, ON_CPU, ON_GPU, Standard, Subject, Timed, VOCABULARY, What, attending, attending_step,
    from_seconds,
};
use super::step::Kind;
use crate::error::Result;
use crate::gpu::{DType, Gpu, Readback, Recorder};
use crate::kernels::attention_output::Output;
use crate::kernels::attention_plan::PlanLimits;
use crate::kernels::matmul::{self, Norm};
use crate::kernels::matmul_output::{MlpKind, Out};
use crate::kernels::peaks::Peaks;
use crate::kernels::{argmax, attention, attention_merge, gather_rows};
use crate::kv::{KvSlab, PAGE_SIZE, PageGeometry, PageId, SPLIT_PAGES};
use crate::model::room::wanted_teams;
use crate::model::rope::RopeTable;
use crate::model::step::{HeadRows, Span, Step};
use crate::model::tune;
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
impl Roofline {
    /// Measures `subject` on `gpu`, whose peaks are known. `clock` tells seconds; `span` is how many a
    /// single measurement should take (0.01 for a clock as fine as microseconds): all of it takes about
    /// 120 spans, on a busy machine up to 250, and the compilation of a dozen pipelines.
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

/// Records what is timed.
type Record = Box<dyn Fn(&mut Recorder)>;

/// One thing that is timed.
struct Test {
    what: What,
    dispatches: usize,
    record: Record,
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
                let kind = MlpKind::SwiGlu;
                let out = Out::Gated { act, kind };
                matmul::record(rec, &subject.tuning, weights, x, tokens, norm, None, out);
            }
        };
        tests.push(Test {
            what: What::Matmul(tokens),
            dispatches,
            record: Box::new(record),
        });
    }
    let narrow = &standard.narrow;
    let (x, act) = (act(narrow.columns)?, act(narrow.rows / 2)?);
    let matrices = (0..narrow.matrices)
        .map(|_| tune::matrix(gpu, subject.weights, "narrow", narrow.rows, narrow.columns))
        .collect::<Result<Vec<_>>>()?;
    for tokens in narrow.tokens {
        let (matrices, x, act) = (matrices.clone(), x.clone(), act.clone());
        let record = move |rec: &mut Recorder| {
            for weights in &matrices {
                let norm = Some(Norm { eps: 1e-5 });
                let (act, kind) = (&act, MlpKind::SwiGlu);
                let out = Out::Gated { act, kind };
                matmul::record(rec, &subject.tuning, weights, &x, tokens, norm, None, out);
            }
        };
        tests.push(Test {
            what: What::Narrow(tokens),
            dispatches: narrow.matrices,
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

fn attention_test(
    gpu: &Arc<Gpu>,
    subject: Subject,
    standard: &Standard,
    index: usize,
    kind: Kind,
) -> Result<Record> {
    let model = attending(standard, subject.kv, index);
    let (shape, c) = (model.attention(), &model.config);
    let tokens = attending_step(standard, kind).tokens();
    let end = standard.depth + 1;
    let num_pages = end.div_ceil(PAGE_SIZE).next_multiple_of(SPLIT_PAGES);
    let pages: Vec<PageId> = (0..num_pages as PageId).collect();
    let pages = [pages];
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
    let ropes = [RopeTable::new(&c.ropes[0], c.head_dim)];
    let step = Step::new(&[span], &ropes, &[(None, limits)], false);
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
            for round in step.attention.iter().flatten() {
                for &(_, items) in &round.items {
                    attention::record(
                        rec, &tuning, &shape, slab, &q, &meta, items, None, &partials, output, &out,
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
