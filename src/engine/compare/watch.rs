//! The first operation that is wrong, among all that a request can lead to.

use super::check_cases;
use super::steps::{self, Company};
use crate::engine::EngineCore;
use crate::error::Result;
use crate::gpu::{Call, Interpreter, Variant};
use crate::kernels;
use crate::kernels::twin::{Watch, Watched};
use crate::model::Numerics;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An operation that wrote what it must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOp {
    /// Where in a step it stands: `embedding`, `qkv`, `attention`, `o`, `gate_up`, `down`, `head`, `draw`;
    /// for a kernel that no step led to, its name.
    pub op: String,
    /// The layer, from 0, of those that are in one.
    pub layer: Option<usize>,
    /// The kernel.
    pub kernel: &'static str,
    /// The kernel with its parts and overrides.
    pub variant: String,
    /// Name and shape of each tensor.
    pub shape: Vec<(String, Vec<usize>)>,
    /// What the step computed, in words.
    pub step: String,
    /// What is wrong with what it wrote.
    pub problem: String,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Watching {
    /// The first that is wrong, if one is.
    pub bad: Option<BadOp>,
    /// Dispatches that were judged.
    pub dispatches: usize,
    /// What they were variants of, each once.
    pub variants: HashSet<Variant>,
    /// Cases that stood in for kernels which no step led to.
    pub cases: usize,
}

/// Which layers are looked at: those who compute the same with other numbers need not all be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// All of them.
    All,
    /// The first and the last.
    Outer,
}

/// Watches `engine` through steps of every kind, of tokens of `text`, and the drawing of tokens. What no
/// step leads to, since the model or the adapter does not need it, is held against its cases. The
/// first wrong operation ends it. With [`Looked::Outer`] all layers are looked at in the first step
/// alone. `progress` is told what comes next.
///
/// # Errors
/// What the device reports.
///
/// # Panics
/// When `text` is empty.
pub fn watch(
    engine: &mut EngineCore,
    text: &[u32],
    layers: &Looked,
    progress: &mut dyn FnMut(&str),
) -> Result<Watching> {
    let mut watching = watch_steps(engine, text, layers, progress)?;
    if watching.bad.is_none() {
        watch_others(engine, &mut watching, progress)?;
    }
    Ok(watching)
}

/// [`watch`], without the kernels that no step leads to.
///
/// # Errors
/// What the device reports.
///
/// # Panics
/// When `text` is empty.
pub fn watch_steps(
    engine: &mut EngineCore,
    text: &[u32],
    layers: &Looked,
    progress: &mut dyn FnMut(&str),
) -> Result<Watching> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let last_layer = engine.decoder().config().num_layers.saturating_sub(1);
    let mut company = Company::new(engine, text);
    let mut done = Ok(());
    for (index, step) in steps::plan(engine, text.len()).iter().enumerate() {
        progress(&step.name);
        {
            let mut seen = lock(&seen);
            seen.step.clone_from(&step.name);
            seen.layers = match layers {
                Looked::Outer if index > 0 => Some([0, last_layer]),
                _ => None,
            };
        }
        let judge = Judge::new(&seen);
        engine.recorder().interpret(Some(Box::new(judge)));
        done = company.run(engine, step);
        if done.is_err() || lock(&seen).watching.bad.is_some() {
            break;
        }
    }
    engine.recorder().interpret(None);
    company.leave(engine);
    let watching = std::mem::take(&mut lock(&seen).watching);
    // what is wrong may be why the device is lost
    if watching.bad.is_none() {
        done?;
    }
    Ok(watching)
}

/// Kernels that only the fast mode leads to.
const FAST: [&str; 3] = ["attention_coop", "halve", "matmul_coop"];

/// Kernels that no dispatch was of, but for those that only measure, and those of another mode.
fn watch_others(
    engine: &mut EngineCore,
    watching: &mut Watching,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    let gpu = Arc::clone(engine.decoder().gpu());
    let canonical = engine.decoder().numerics() == Numerics::Canonical;
    let seen: HashSet<&str> = watching.variants.iter().map(|v| v.kernel.name).collect();
    for entry in kernels::ALL {
        let name = entry.kernel.name;
        let is_of_another_mode = canonical && FAST.contains(&name);
        if seen.contains(name) || name.starts_with("probe_") || is_of_another_mode {
            continue;
        }
        progress(&format!("cases of {name}"));
        let report = check_cases(&gpu, &(entry.cases)())?;
        watching.cases += report.ran;
        if let Some(problem) = report.problems.into_iter().next() {
            watching.bad = Some(BadOp {
                op: name.to_owned(),
                layer: None,
                kernel: name,
                variant: name.to_owned(),
                shape: Vec::new(),
                step: "its cases, since no step of this model led to it here".to_owned(),
                problem,
            });
            return Ok(());
        }
    }
    Ok(())
}

#[derive(Default)]
struct Seen {
    watching: Watching,
    step: String,
    /// The layers that are looked at; all where there are none.
    layers: Option<[usize; 2]>,
}

impl Seen {
    fn wants(&self, layer: Option<usize>) -> bool {
        let all = |layer: &usize| self.layers.is_none_or(|layers| layers.contains(layer));
        self.watching.bad.is_none() && layer.iter().all(all)
    }

    fn note(&mut self, seen: Watched) {
        self.watching.dispatches += 1;
        self.watching.variants.insert(seen.variant);
        if let Some(problem) = seen.wrong
            && self.watching.bad.is_none()
        {
            self.watching.bad = Some(BadOp {
                op: seen.place.op.to_owned(),
                layer: seen.place.layer,
                kernel: seen.variant.kernel.name,
                variant: seen.variant.to_string(),
                shape: seen.shapes,
                step: self.step.clone(),
                problem,
            });
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches what is asked for and lets everything else pass.
struct Judge {
    seen: Arc<Mutex<Seen>>,
    watch: Watch<Box<dyn FnMut(Watched) + Send>>,
}

impl Judge {
    fn new(seen: &Arc<Mutex<Seen>>) -> Judge {
        let to = Arc::clone(seen);
        Judge {
            seen: Arc::clone(seen),
            watch: Watch {
                each: Box::new(move |watched| lock(&to).note(watched)),
            },
        }
    }
}

impl Interpreter for Judge {
    fn dispatch(&mut self, call: &mut Call<'_>) -> Result<()> {
        if lock(&self.seen).wants(call.place.layer) {
            return self.watch.dispatch(call);
        }
        call.on_device();
        Ok(())
    }
}
