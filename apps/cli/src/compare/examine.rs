//! One adapter, held against what is expected.

use std::path::Path;
use std::time::Instant;

use nelumbo::engine::EngineCore;
use nelumbo::engine::compare::{Expected, Found, Looked, watch, watch_steps};
use nelumbo::{Error, LoadOptions, Model};

use super::outcome::{self, Figures, Layer, Outcome, Verdict};

/// What is the same for all adapters.
pub struct Task<'a> {
    pub path: &'a Path,
    /// Without an adapter.
    pub load: LoadOptions,
    pub expected: &'a Expected,
    /// Tokens that watched steps are made of.
    pub text: &'a [u32],
}

/// A binding as large as this part of a layer's largest matrix makes several shards and slabs.
const SHARDS: u64 = 16;
/// The least and the most that a binding is lowered to, in bytes.
const LEAST_BINDING: u64 = 1 << 20;
const MOST_BINDING: u64 = 64 << 20;

/// Everything about one adapter, as far as it gets. `progress` is told what comes next.
pub fn examine(task: &Task, outcome: &mut Outcome, progress: &mut dyn FnMut(&str)) {
    if let Err(error) = try_examine(task, outcome, progress) {
        outcome.fail_by(&error);
    }
}

fn try_examine(
    task: &Task,
    outcome: &mut Outcome,
    progress: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    let mut load = task.load.clone();
    load.open.selection.device = Some(outcome.index);
    progress("loading");
    let start = Instant::now();
    let model = Model::load(task.path, &load, &mut |_, _| ())?;
    let mut engine = EngineCore::unchecked(model.decoder)?;
    let mut figures = loaded(&engine, start.elapsed().as_secs_f64() * 1e3);

    let watching = watch(&mut engine, task.text, &Looked::Outer, &mut |step| {
        progress(&format!("checking {step}"));
    })?;
    let mut kernels: Vec<&str> = watching.variants.iter().map(|v| v.kernel.name).collect();
    (figures.dispatches_checked, figures.kernels_checked) = (watching.dispatches, 0);
    if let Some(bad) = watching.bad {
        outcome.blame(bad);
    }
    progress("layers and logits");
    let found = Found::of(&mut engine, task.expected)?;
    let off = outcome::judge(&found, &figures.activations, &figures.numerics);
    tell(&mut figures, found);
    outcome.figures = Some(figures.clone());
    if let (Some(_), Verdict::Right) = (&off, outcome.verdict) {
        // what the outer layers do not show, another one may
        let watching = watch_steps(&mut engine, task.text, &Looked::All, &mut |step| {
            progress(&format!("checking all layers, {step}"));
        })?;
        figures.dispatches_checked += watching.dispatches;
        if let Some(bad) = watching.bad {
            outcome.blame(bad);
        }
    }
    if let Some(off) = off {
        outcome.fail(Verdict::Wrong, off);
    }
    progress("speed");
    time(&mut engine, task.expected, &mut figures)?;
    outcome.figures = Some(figures.clone());

    if outcome.verdict == Verdict::Right {
        let lowered = lowered(&load, &engine);
        drop(engine);
        progress("loading with small bindings");
        match in_slabs(task, &lowered, progress) {
            Ok(watching) => {
                figures.dispatches_checked += watching.dispatches;
                kernels.extend(watching.variants.iter().map(|v| v.kernel.name));
                if let Some(bad) = watching.bad {
                    outcome.blame(bad);
                }
            }
            Err(
                error @ (Error::DoesNotFit { .. }
                | Error::OutOfMemory { .. }
                | Error::AdapterLimit { .. }),
            ) => {
                log::info!(
                    "{}: no second look with small bindings: {error}",
                    outcome.label()
                );
            }
            Err(error) => return Err(error),
        }
    }
    kernels.sort_unstable();
    kernels.dedup();
    figures.kernels_checked = kernels.len();
    outcome.figures = Some(figures);
    Ok(())
}

/// The steps once more, where bindings are so small that matrices lie in shards and the cache in slabs,
/// as those of large models and long contexts do.
fn in_slabs(
    task: &Task,
    load: &LoadOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<nelumbo::engine::compare::Watching, Error> {
    let model = Model::load(task.path, load, &mut |_, _| ())?;
    let mut engine = EngineCore::unchecked(model.decoder)?;
    watch_steps(&mut engine, task.text, &Looked::Outer, &mut |step| {
        progress(&format!("checking shards and slabs, {step}"));
    })
}

/// The options with such bindings, and a cache that does not fit one.
fn lowered(load: &LoadOptions, engine: &EngineCore) -> LoadOptions {
    let decoder = engine.decoder();
    let config = decoder.config();
    let weights = decoder.weights().size_bytes();
    // gate and up are the largest of a layer: a bit over half of it
    let largest = weights / config.num_layers.max(1) as u64;
    let binding = (largest / SHARDS)
        .next_power_of_two()
        .clamp(LEAST_BINDING, MOST_BINDING);
    let token_bytes = config.kv_width() as u64 * decoder.kv().format().dtype().bytes();
    let per_slab = binding / token_bytes.max(1);
    let mut lowered = load.clone();
    lowered.open.max_binding = Some(binding);
    lowered.pool_tokens = Some((per_slab * 5 / 2) as usize);
    lowered.autotune = false;
    lowered.activations = Some(decoder.tuning().activations);
    lowered
}

/// What is known once a model is loaded.
fn loaded(engine: &EngineCore, load_ms: f64) -> Figures {
    let decoder = engine.decoder();
    let gpu = decoder.gpu();
    Figures {
        activations: decoder.tuning().activations.name().to_owned(),
        numerics: decoder.numerics().name().to_owned(),
        layers: Vec::new(),
        top1_agreement: 0.0,
        kl_mean: f64::NAN,
        kl_max: f64::NAN,
        greedy_tokens: Vec::new(),
        differing_tokens: 0,
        first_difference: None,
        ttft_ms: 0.0,
        prefill_tok_s: 0.0,
        decode_tok_s: 0.0,
        load_ms,
        compile_ms: gpu.compile_time().as_secs_f64() * 1e3,
        weights_bytes: decoder.weights().size_bytes(),
        kv_bytes: decoder.kv().size_bytes(),
        scratch_bytes: decoder.scratch_bytes(),
        peak_bytes: gpu.counters().buffer_bytes,
        dispatches_checked: 0,
        kernels_checked: 0,
        pairs: Vec::new(),
    }
}

fn tell(figures: &mut Figures, found: Found) {
    figures.top1_agreement = found.top1_agreement();
    (figures.kl_mean, figures.kl_max) = found.kl();
    figures.layers = found
        .layers
        .iter()
        .map(|l| Layer {
            nmse: l.nmse,
            max_abs: l.max_abs,
        })
        .collect();
    figures.pairs = found.pairs;
}

/// The text and its continuation as a request would have them: how fast, and which tokens.
fn time(engine: &mut EngineCore, expected: &Expected, figures: &mut Figures) -> Result<(), Error> {
    let given = &expected.tokens[..expected.num_given];
    let mut trial = engine.trial(given.len() + expected.greedy.len())?;
    trial.feed(given)?;
    trial.rewind(0)?;
    let start = Instant::now();
    let mut tokens = vec![trial.feed(given)?];
    let prefill = start.elapsed().as_secs_f64();
    let start = Instant::now();
    while tokens.len() < expected.greedy.len() {
        let next = trial.feed(&tokens[tokens.len() - 1..])?;
        tokens.push(next);
    }
    let decode = start.elapsed().as_secs_f64();
    figures.ttft_ms = prefill * 1e3;
    figures.prefill_tok_s = given.len() as f64 / prefill;
    figures.decode_tok_s = (tokens.len() - 1) as f64 / decode;
    let differs = |i: &usize| tokens[*i] != expected.greedy[*i];
    figures.differing_tokens = (0..tokens.len()).filter(differs).count();
    figures.first_difference = (0..tokens.len()).find(differs);
    figures.greedy_tokens = tokens;
    Ok(())
}
