//! `nelumbo simulate`: what many users would see, by the engine's scheduler on a clock that is a number.

pub mod args;
mod picture;
mod promise;
mod recorded;
mod report;
mod sweep;

use nelumbo::engine::simulate::{
    Arrival, Memory, Reserve, RooflineCost, Setup, Slo, Workload, simulate as run_through,
};
use nelumbo::kv::PAGE_SIZE;
use nelumbo::model::plan::Plan;
use serde_json::json;

use crate::args::GlobalArgs;
use crate::exit::{Failure, say};
use crate::output::print_line;
use crate::plan::{Attention, Subject};
use args::{Output, SimulateArgs};
use report::Simulated;
use sweep::Run;

/// Contexts that there is memory for where nobody says how much there is.
const USUAL_CONTEXTS: usize = 16;

/// Ways to give memory out, that of the engine first.
const MEMORIES: [(Memory, &str); 3] = [
    (Memory::Paged { prefix_cache: true }, "pages"),
    (
        Memory::Contiguous(Reserve::Context),
        "contiguous, the whole context",
    ),
    (
        Memory::Contiguous(Reserve::Foreseen),
        "contiguous, lengths foreseen",
    ),
];

/// Everything from the arguments to the results on stdout.
pub fn simulate(args: &SimulateArgs, global: &GlobalArgs) -> Result<(), Failure> {
    // what is wrong with files and flags is told before anything is measured
    let recorded = args.trace.as_deref().map(recorded::read).transpose()?;
    sweep::runs(args, PAGE_SIZE)?;
    let on = &args.subject;
    if on.bandwidth.is_some() && on.tops.is_none() {
        let problem = "--bandwidth: a step takes arithmetic, too: give --tops as well";
        return Err(Failure::Usage(problem.to_owned()));
    }
    let subject = Subject::find(&args.reference, Attention::Gqa, on, global)?;
    let plan = subject.plan(on.ctx_size.map(|n| n as usize), 1, 1)?;
    let context = plan.ctx_size;
    let arrivals = match recorded {
        Some(arrivals) => arrivals,
        None => workload(args, context).arrivals()?,
    };
    let pool = pool(args, &plan)?;
    let runs = sweep::runs(args, pool)?;
    let Some(roofline) = subject.roofline.clone() else {
        return Err(Failure::Usage(
            "nobody knows how fast steps would be: there is no adapter here that was measured, so name one by \
             --bandwidth GB/s and --tops TOP/s"
                .to_owned(),
        ));
    };
    let cost = RooflineCost {
        roofline,
        shape: subject.shape.clone(),
    };
    let machine = Imagined {
        cost,
        context,
        watched: !subject.is_software(),
    };
    let slo = args.slo.map_or_else(Slo::default, |promise| promise.0);
    let mut done = Vec::new();
    for (i, run) in runs.iter().enumerate() {
        if !global.quiet {
            say(&format!("simulate: {} of {}", i + 1, runs.len()));
        }
        done.push(machine.run(run, MEMORIES[0], &arrivals, &slo)?);
    }
    let promise = args.slo.as_ref();
    // what pages are worth is told for the best run
    let worth = |run: &Simulated| match promise {
        Some(_) => run.figures.goodput,
        None => run.figures.output_throughput,
    };
    let best = (0..done.len()).max_by(|&a, &b| worth(&done[a]).total_cmp(&worth(&done[b])));
    let best = best.expect("one run at least");
    let mut memories = Vec::new();
    for memory in &MEMORIES[1..] {
        memories.push(machine.run(&runs[best], *memory, &arrivals, &slo)?);
    }
    if args.output == Output::Json {
        let all = done.iter().chain(&memories);
        let object = json!({
            "model": plan.model,
            "adapter": subject.adapter,
            "ctx_size": context,
            "requests": arrivals.len(),
            "rate": args.rate,
            "trace": args.trace.as_ref().map(|path| path.display().to_string()),
            "seed": args.seed,
            "slo": args.slo.map(|promise| promise.json()),
            "max_itl_ms": args.max_itl,
            "runs": all.map(|run| run.json(promise)).collect::<Vec<_>>(),
        });
        return print_line(&object.to_string());
    }
    let swept: Vec<&Simulated> = done.iter().collect();
    let three: Vec<&Simulated> = done[best..=best].iter().chain(&memories).collect();
    if args.output == Output::Svg {
        let picture = picture::of_sweep(&done, promise.is_some());
        return print_line(&picture.unwrap_or_else(|| picture::of_memories(&three)));
    }
    let about = about(args, &subject, &arrivals, context);
    print_line(&format!(
        "{about}\ntimes: half of all, 95 and 99 of 100 have no more\n\n{}\n\
         memory for {} tokens, given out in three ways (chunk {}):\n\n{}",
        report::speeds(&swept, promise),
        runs[best].pool,
        runs[best].chunk.name(),
        report::memories(&three).trim_end()
    ))
}

/// Tokens that there is memory for.
fn pool(args: &SimulateArgs, plan: &Plan) -> Result<usize, Failure> {
    let pool = match (args.pool, args.subject.gpu_memory) {
        (Some(tokens), _) => tokens as usize,
        (None, Some(_)) => {
            let taken = plan.total_bytes - plan.pages_bytes;
            let left = plan.memory_bytes.unwrap_or(0).saturating_sub(taken);
            (left / plan.page_bytes.max(1)) as usize * PAGE_SIZE
        }
        (None, None) => USUAL_CONTEXTS * plan.ctx_size,
    };
    if pool < PAGE_SIZE {
        return Err(Failure::from(nelumbo::Error::DoesNotFit {
            what: format!("{} with a page of keys and values", plan.model),
            needed_bytes: plan.total_bytes - plan.pages_bytes + plan.page_bytes,
            available_bytes: plan.memory_bytes.unwrap_or(0),
            advice: "weights and activations alone take more: raise --gpu-memory".to_owned(),
        }));
    }
    Ok(pool)
}

fn workload(args: &SimulateArgs, context: usize) -> Workload {
    Workload {
        requests: args.requests as usize,
        rate: args.rate,
        prompt: args.prompt_len,
        output: args.output_len,
        longest: context,
        seed: args.seed,
    }
}

/// A model on a machine, without either.
struct Imagined {
    cost: RooflineCost,
    context: usize,
    watched: bool,
}

impl Imagined {
    fn run(
        &self,
        run: &Run,
        (memory, name): (Memory, &'static str),
        arrivals: &[Arrival],
        slo: &Slo,
    ) -> Result<Simulated, Failure> {
        let setup = Setup {
            max_batched_tokens: run.batch,
            max_running: run.parallel,
            max_model_len: self.context,
            pool_tokens: run.pool,
            chunking: run.chunking,
            watched: self.watched,
            memory,
        };
        let outcome = run_through(&setup, &self.cost.shape.config, arrivals, &self.cost)?;
        Ok(Simulated {
            run: *run,
            memory: name,
            figures: outcome.figures(slo),
            outcome,
        })
    }
}

/// What was simulated, in a few lines.
fn about(args: &SimulateArgs, subject: &Subject, arrivals: &[Arrival], context: usize) -> String {
    let mean = |of: fn(&Arrival) -> usize| {
        arrivals.iter().map(of).sum::<usize>() as f64 / arrivals.len() as f64
    };
    let from = match (&args.trace, args.rate) {
        (Some(path), _) => format!("from {}", path.display()),
        (None, Some(rate)) => format!("{rate} a second, seed {}", args.seed),
        (None, None) => format!("all at once, seed {}", args.seed),
    };
    let on = match (args.subject.bandwidth, args.subject.tops, &subject.adapter) {
        (Some(bandwidth), Some(tops), _) => {
            format!("{bandwidth} GB/s and {tops} TOP/s, kernels that reach both")
        }
        (_, _, Some(adapter)) => format!("{adapter}, as measured"),
        _ => "an unknown adapter".to_owned(),
    };
    let mut text = format!(
        "{} on {on}; context {context}\n{} requests, {from}: prompts of {:.0} tokens and answers of {:.0} on average",
        subject.model,
        arrivals.len(),
        mean(|a| a.prompt_tokens),
        mean(|a| a.output_tokens)
    );
    if let Some(promise) = &args.slo {
        text += &format!("\ngoodput: requests a second with {}", promise.words());
    }
    text
}
