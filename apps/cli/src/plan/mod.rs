//! `nelumbo plan`: whether a model fits, and how fast it would be, before anything is loaded.

mod adapter;
pub mod args;
mod subject;
mod text;

use std::ffi::OsStr;

use nelumbo::Error;
use nelumbo::kernels::Activations;
use nelumbo::kernels::peaks::Peaks;
use nelumbo::model::Bounds;
use nelumbo::model::plan::{MemorySource, Plan, Wanted};
use nelumbo::model::roofline::{KvForm, ModelShape, Roofline, WeightForm};

use crate::args::GlobalArgs;
use crate::exit::Failure;
use crate::output::print_line;
use adapter::Machine;
use args::{Cache, Output, PlanArgs, SubjectArgs, Weights};

pub use args::Attention;

/// What is planned, or simulated: a model, and the machine that it would be on.
pub struct Subject {
    /// What the model is called.
    pub model: String,
    pub shape: ModelShape,
    /// The adapter's name, where there is one.
    pub adapter: Option<String>,
    /// How fast it is, where that is known.
    pub roofline: Option<Roofline>,
    bounds: Bounds,
    memory: Option<(u64, MemorySource)>,
}

impl Subject {
    /// What `args` mean on this machine, or on the one that they describe.
    ///
    /// `model` is a file, a name or a built-in shape.
    pub fn find(
        model: &OsStr,
        attention: Attention,
        args: &SubjectArgs,
        global: &GlobalArgs,
    ) -> Result<Subject, Failure> {
        if args.cache_type_k != args.cache_type_v {
            return Err(Failure::Usage(
                "--cache-type-k and --cache-type-v: keys and values have the same type so far"
                    .to_owned(),
            ));
        }
        let (model, config) = subject::of(model, global)?;
        let machine = Machine::find(args, global)?;
        let kv = match args.cache_type_k {
            Cache::F16 => KvForm::F16,
            Cache::F32 => KvForm::F32,
            Cache::Int8 => KvForm::Int8,
        };
        let max_binding = machine.bounds.max_binding;
        let shape = ModelShape::new(config, form(args.weights), kv, max_binding);
        let roofline = match args.bandwidth {
            Some(gigabytes) => Some(imagined(gigabytes, args.tops)),
            None => machine.roofline(args, &shape),
        };
        Ok(Subject {
            model,
            shape: match attention {
                Attention::Gqa => shape,
                Attention::Mha => shape.as_mha(),
            },
            adapter: machine.name,
            roofline,
            bounds: machine.bounds,
            memory: machine.memory,
        })
    }

    /// Whether it is a software adapter, which nobody's screen waits for.
    pub fn is_software(&self) -> bool {
        self.bounds.is_software
    }

    /// The plan of `users` contexts of `ctx_size` tokens and a prompt of `prompt`.
    pub fn plan(
        &self,
        ctx_size: Option<usize>,
        users: usize,
        prompt: usize,
    ) -> nelumbo::Result<Plan> {
        let wanted = Wanted {
            model: self.model.clone(),
            shape: self.shape.clone(),
            ctx_size,
            users,
            activations: Activations::F32,
            bounds: self.bounds,
            memory: self.memory,
            prompt,
            roofline: self.roofline.clone(),
        };
        wanted.plan()
    }
}

/// Prints the plan; ends with 5 where it does not fit and that was asked.
pub fn plan(args: &PlanArgs, global: &GlobalArgs) -> Result<(), Failure> {
    let subject = Subject::find(&args.reference, args.attention, &args.subject, global)?;
    let plan = subject.plan(
        args.subject.ctx_size.map(|n| n as usize),
        args.users as usize,
        args.prompt_tokens as usize,
    )?;
    print_line(&match args.output {
        Output::Md => text::table(&plan, subject.adapter.as_deref()),
        Output::Json => serde_json::to_string(&plan).expect("a plan is plain data"),
    })?;
    match args.check {
        true => refuse(&plan),
        false => Ok(()),
    }
}

fn form(weights: Weights) -> WeightForm {
    match weights {
        Weights::Q8 => WeightForm::Q8,
        Weights::F16 => WeightForm::F16,
        Weights::F32 => WeightForm::F32,
        Weights::Int8 => WeightForm::Int8,
    }
}

/// A machine of which only rates are known: kernels that reach them, and dispatches for nothing.
fn imagined(gigabytes: f64, tops: Option<f64>) -> Roofline {
    let ops = tops.map_or(f64::INFINITY, |tops| 1e12 * tops);
    Roofline::at_best(Peaks {
        stream_bytes_s: 1e9 * gigabytes,
        fma_flops: ops,
        dot4_ops: ops,
        dispatch_s: 0.0,
    })
}

/// The error of what does not fit.
fn refuse(plan: &Plan) -> Result<(), Failure> {
    match (plan.fits, plan.memory_bytes) {
        (Some(false), Some(available_bytes)) => Err(Error::DoesNotFit {
            what: format!(
                "{} with {} tokens for {}",
                plan.model, plan.ctx_size, plan.users
            ),
            needed_bytes: plan.total_bytes,
            available_bytes,
            advice: plan.reason.clone(),
        }
        .into()),
        _ => Ok(()),
    }
}
