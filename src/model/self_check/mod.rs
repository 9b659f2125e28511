//! Whether this adapter computes a model's kernels right, and what is done where it does not.
//!
//! The variants that a model of this shape dispatches run the cases of
//! [`CheckShape`](crate::kernels::check::CheckShape) against their twins on the CPU. That all are right
//! is kept for the adapter, driver, shaders, shape and tuning; that one is not is found out again each
//! time. A variant that is wrong is replaced: by another way to the same bits, where there is one that
//! is right, else by its twin on the host, which is slow.

mod secured;
mod ways;

use super::config::{Config, NormKind};
use super::decoder::Decoder;
use super::layer_pass::norm_before;
use crate::error::{Error, Result};
use crate::gpu::{Gpu, KeptFile, Recorder, Variant};
use crate::kernels::Tuning;
use crate::kernels::case::Case;
use crate::kernels::check::CheckShape;
use crate::kernels::twin::Replace;
use crate::kv::KvFormat;
use crate::quant::Format;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of the cases: what earlier ones proved is proved again.
const VERSION: u64 = 1;
/// What a file says when everything was right.
const RIGHT: &[u8] = b"right";

/// A case that an adapter gets wrong.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// The kernel.
    pub kernel: &'static str,
    /// Its variants in the case.
    pub variants: Vec<Variant>,
    /// Shape and choices, in words.
    pub case: String,
    /// What is wrong: tensor, element, found and expected.
    pub problem: String,
}

/// What came of the cases of a shape.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// Cases that ran; none where an earlier run's result was kept.
    pub cases: usize,
    /// An earlier run found everything right.
    pub cached: bool,
    /// Variants that ran.
    pub variants: Vec<Variant>,
    /// What is wrong.
    pub wrong: Vec<Wrong>,
    /// What it took without compilation.
    pub time: Duration,
    /// What compilation took meanwhile.
    pub compile_time: Duration,
}

impl Checked {
    /// Whether nothing is wrong.
    pub fn is_right(&self) -> bool {
        self.wrong.is_empty()
    }

    /// The kernels that are wrong.
    pub fn wrong_kernels(&self) -> BTreeSet<&'static str> {
        self.wrong.iter().map(|wrong| wrong.kernel).collect()
    }
}

/// What stands in for a kernel that is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Instead {
    /// All kernels work this way, which is right, to the same bits.
    OtherWay(Tuning),
    /// Long steps are computed like short ones, without cooperative matrices.
    Canonical,
    /// The CPU computes it.
    Host,
}

impl Instead {
    /// The word of reports.
    pub fn name(self) -> &'static str {
        match self {
            Instead::OtherWay(_) => "other-way",
            Instead::Canonical => "canonical",
            Instead::Host => "host",
        }
    }

    /// What is done, as part of a sentence.
    pub fn describe(self) -> String {
        match self {
            Instead::OtherWay(tuning) => {
                format!("it is computed another way ({})", tuning.describe())
            }
            Instead::Canonical => "long steps do without cooperative matrices".to_owned(),
            Instead::Host => "the CPU computes it, slowly".to_owned(),
        }
    }
}

/// A kernel that is not used as it was chosen.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The first case that it gets wrong.
    pub wrong: Wrong,
    /// What is used.
    pub instead: Instead,
}

/// What a model was found to need, and what it does instead.
#[derive(Clone, Debug, Default)]
pub struct Safety {
    /// Whether anybody looked, and what was found with the tuning that was chosen.
    pub checked: Option<Checked>,
    /// A finding for each kernel that is wrong.
    pub findings: Vec<Finding>,
    /// Variants that run on the host.
    pub replaced: Vec<Variant>,
}

/// The shape of models of `config` that serve one request at a time in canonical mode, whose cache is in
/// one piece.
pub fn shape_of(
    config: &Config,
    format: &'static Format,
    kv_format: KvFormat,
    tuning: Tuning,
) -> CheckShape {
    CheckShape {
        format,
        kv_format,
        tuning,
        coop: None,
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        num_heads: config.num_heads,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        mlp: config.mlp,
        layer_norm: config.norm == NormKind::Layer,
        norm_before: norm_before(config).is_some(),
        norm_after: config.norm_places.after,
        qk_norm: config.qk_norm,
        biases: [config.biases.qkv, config.biases.o, config.biases.mlp],
        positions: config.learned_positions,
        logits: (config.finishes_logits()).then_some((config.logit_scale, config.logit_cap)),
        score_cap: config.score_cap,
        windowed: config.windows().iter().any(Option::is_some),
        vocab: config.vocab_size,
        several_slabs: false,
        many_rows: false,
    }
}

/// The file in which it is kept that a shape is right.
pub fn file(gpu: &Gpu, shape: &CheckShape) -> Option<KeptFile> {
    let caps = format!("{} {:?}", gpu.caps(), gpu.caps().subgroup);
    let numbers = [VERSION, gpu.max_binding_bytes(), u64::from(gpu.checked())];
    let shape = shape.describe();
    let about = [
        shape.as_bytes(),
        caps.as_bytes(),
        bytemuck::cast_slice(&numbers),
    ];
    gpu.kept_file("selfcheck", &about)
}

/// Whether an earlier run found this shape right.
pub fn is_kept(gpu: &Gpu, shape: &CheckShape) -> bool {
    file(gpu, shape).and_then(|file| file.read()).as_deref() == Some(RIGHT)
}

/// Runs the cases of `shape` on `gpu`, or recalls that they were right.
///
/// # Errors
/// What the device reports, but for a variant that it cannot compile: that is one that is wrong.
pub fn check(gpu: &Arc<Gpu>, shape: &CheckShape) -> Result<Checked> {
    examine(gpu, shape, usize::MAX)
}

/// [`check`] that ends after `most_wrong` cases that are wrong.
fn examine(gpu: &Arc<Gpu>, shape: &CheckShape, most_wrong: usize) -> Result<Checked> {
    if is_kept(gpu, shape) {
        return Ok(Checked {
            cached: true,
            ..Checked::default()
        });
    }
    let checked = run(gpu, shape, most_wrong)?;
    if checked.is_right()
        && let Some(file) = file(gpu, shape)
    {
        file.write(RIGHT);
    }
    Ok(checked)
}

fn run(gpu: &Arc<Gpu>, shape: &CheckShape, most_wrong: usize) -> Result<Checked> {
    let (start, compiled) = (Instant::now(), gpu.compile_time());
    let mut checked = Checked::default();
    let (mut failed, mut ready) = (Vec::new(), Recorder::new(gpu)?);
    for case in shape.cases() {
        if failed.len() >= most_wrong {
            break;
        }
        if case.missing(gpu.caps()).is_some() {
            continue;
        }
        checked.cases += 1;
        gpu.count_as_compilation(|| make_ready(&case, &mut ready))?;
        let mut rec = Recorder::new(gpu)?;
        let problems = match case.run_with(&mut rec) {
            Ok(problems) => problems,
            Err(error @ Error::Shader { .. }) => vec![error.to_string()],
            Err(error) => return Err(error),
        };
        let variants = rec.variants(); // those that had work
        for variant in &variants {
            if !checked.variants.contains(variant) {
                checked.variants.push(*variant);
            }
        }
        if let Some(problem) = problems.into_iter().next() {
            failed.push(Failed {
                case,
                variants,
                problem,
            });
        }
    }
    checked.wrong = blame(failed);
    checked.compile_time = gpu.compile_time() - compiled;
    checked.time = start.elapsed().saturating_sub(checked.compile_time);
    Ok(checked)
}

/// Runs what of a case has not run yet with one workgroup: some drivers compile only then.
fn make_ready(case: &Case, rec: &mut Recorder) -> Result<()> {
    let tensors = case.upload(rec.gpu())?;
    rec.begin_rehearsal();
    case.dispatch(rec, &tensors);
    match rec.end_rehearsal() {
        Err(Error::Shader { .. }) => Ok(()), // the case tells of it
        ended => ended,
    }
}

struct Failed {
    case: Case,
    variants: Vec<Variant>,
    problem: String,
}

/// Whose fault each is: that of the case's own kernel, unless another that it goes through is wrong by
/// itself.
fn blame(failed: Vec<Failed>) -> Vec<Wrong> {
    let others = |f: &Failed| {
        let own = f.case.kernel.name;
        let names = f.variants.iter().map(|v| v.kernel.name);
        names.filter(|name| *name != own).collect::<BTreeSet<_>>()
    };
    let alone = failed.iter().filter(|f| others(f).is_empty());
    let guilty: BTreeSet<&str> = alone.map(|f| f.case.kernel.name).collect();
    let own = failed
        .into_iter()
        .filter(|f| guilty.contains(f.case.kernel.name) || others(f).is_disjoint(&guilty));
    own.map(|f| {
        let kernel = f.case.kernel.name;
        let mut variants = f.variants;
        variants.retain(|v| v.kernel.name == kernel);
        Wrong {
            kernel,
            variants,
            case: f.case.name,
            problem: f.problem,
        }
    })
    .collect()
}

/// The shape that is right, or has the fewest kernels that are not, beginning with `shape`, for which
/// `checked` is known; with what is wrong with it.
fn best_way(gpu: &Arc<Gpu>, shape: CheckShape, checked: &Checked) -> Result<(CheckShape, Checked)> {
    let mut best = (shape, checked.clone());
    let is_coop = |kernel: &&str| kernel.ends_with("_coop") || *kernel == "halve";
    if shape.coop.is_some() && checked.wrong_kernels().iter().any(is_coop) {
        let canonical = CheckShape {
            coop: None,
            ..shape
        };
        best = (canonical, check(gpu, &canonical)?);
    }
    let possible = |t: &Tuning| t.is_possible(shape.format) && t.missing(gpu.caps()).is_none();
    let plainest = CheckShape {
        tuning: ways::plainest(best.0.tuning),
        ..best.0
    };
    let count = |checked: &Checked| checked.wrong_kernels().len();
    if best.1.is_right() || !possible(&plainest.tuning) {
        return Ok(best);
    }
    let of_plainest = check(gpu, &plainest)?;
    let least = count(&of_plainest);
    if least >= count(&best.1) {
        return Ok(best); // every way is wrong
    }
    // where a way can be right, one wrong case is enough to leave another
    let most_wrong = if least == 0 { 1 } else { usize::MAX };
    for tuning in ways::ways(best.0.tuning) {
        let way = CheckShape { tuning, ..best.0 };
        if tuning == plainest.tuning || !possible(&tuning) {
            continue;
        }
        let found = examine(gpu, &way, most_wrong)?;
        if count(&found) <= least {
            return Ok((way, found));
        }
    }
    Ok((plainest, of_plainest))
}

/// A finding for each kernel that is wrong as it was chosen, and for each that is wrong as it is taken instead:
/// one way may be wrong where another is not. What is right by then is computed `otherwise`.
fn findings(chosen: &Checked, taken: &Checked, otherwise: Instead) -> Vec<Finding> {
    let (still, mut told) = (taken.wrong_kernels(), BTreeSet::new());
    let wrong = chosen.wrong.iter().chain(&taken.wrong);
    let first = wrong.filter(|wrong| told.insert(wrong.kernel));
    first
        .map(|wrong| Finding {
            wrong: wrong.clone(),
            instead: match still.contains(wrong.kernel) {
                true => Instead::Host,
                false => otherwise,
            },
        })
        .collect()
}

/// Checks the decoder's kernels, and puts in place what stands in for those that are wrong.
///
/// # Errors
/// What the device reports.
pub fn secure(decoder: &mut Decoder) -> Result<()> {
    let (gpu, shape) = (decoder.gpu().clone(), decoder.check_shape());
    if gpu.is_host() {
        return Ok(()); // by the twins themselves
    }
    let checked = check(&gpu, &shape)?;
    let mut safety = Safety::default();
    if checked.is_right() {
        let (cases, ms) = (checked.cases, checked.time.as_secs_f64() * 1e3);
        match checked.cached {
            true => log::info!("self-check: right (cached)"),
            false => log::info!("self-check: right, {cases} cases in {ms:.0} ms"),
        }
    } else {
        let (way, left) = best_way(&gpu, shape, &checked)?;
        let otherwise = match way.tuning == shape.tuning {
            true => Instead::Canonical,
            false => Instead::OtherWay(way.tuning),
        };
        safety.findings = findings(&checked, &left, otherwise);
        for variant in left.wrong.iter().flat_map(|wrong| &wrong.variants) {
            if !safety.replaced.contains(variant) {
                safety.replaced.push(*variant);
            }
        }
        decoder.choose_way(way.tuning, way.coop);
        let report = gpu.report();
        for Finding { wrong, instead } in &safety.findings {
            log::warn!(
                "{} ({}) computes {} wrongly ({}: {}); {}",
                report.name,
                report.backend,
                wrong.kernel,
                wrong.case,
                wrong.problem,
                instead.describe()
            );
        }
    }
    safety.checked = Some(checked);
    decoder.keep_safe(Arc::new(safety));
    Ok(())
}

/// What runs the variants on the host that `safety` names.
pub(super) fn replacement(safety: &Safety) -> Option<Box<Replace>> {
    let variants = safety.replaced.clone();
    (!variants.is_empty()).then(|| Box::new(Replace { variants }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_other_way_alone_gets_wrong_is_told_as_well() {
        let checked = |kernels: &[&'static str]| Checked {
            wrong: kernels
                .iter()
                .map(|&kernel| Wrong {
                    kernel,
                    variants: Vec::new(),
                    case: String::new(),
                    problem: String::new(),
                })
                .collect(),
            ..Checked::default()
        };
        let chosen = checked(&["embedding", "attention", "attention", "matmul"]);
        let taken = checked(&["matmul", "pack"]);
        let found = findings(&chosen, &taken, Instead::Canonical);
        let found: Vec<_> = found.iter().map(|f| (f.wrong.kernel, f.instead)).collect();
        let expected = [
            ("embedding", Instead::Canonical),
            ("attention", Instead::Canonical),
            ("matmul", Instead::Host),
            ("pack", Instead::Host),
        ];
        assert_eq!(found, expected);
    }
}
