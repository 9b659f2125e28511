//! `nelumbo bench`: how fast a model runs, in the tests and columns of llama-bench.

mod against;
pub mod args;
mod clock;
mod counts;
pub mod format;
mod kernels;
mod machine;
mod measure;
mod plan;
mod profile;
mod row;
mod stats;
mod trace;

use std::path::{Path, PathBuf};

use nelumbo::engine::EngineCore;
use nelumbo::kernels::peaks::Peaks;
use nelumbo::{LoadOptions, Model};
use serde_json::json;

use crate::args::GlobalArgs;
use crate::exit::{Failure, say};
use crate::models::{self, Progress, cache};
use crate::options::DeviceOptions;
use crate::output::print_line;
use crate::prompt::Given;
use crate::{devices, options, prompt, session};
use against::{Against, Baseline, Kind};
use args::{BenchArgs, Output};
use machine::Machine;
use plan::Test;
use row::Row;

/// Everything from the arguments to the last line on stderr.
pub fn bench(args: BenchArgs, global: &GlobalArgs, given: Given) -> Result<(), Failure> {
    if args.device.list_devices {
        return devices::devices(false, options::backend(&args.device.backend));
    }
    options::explain(&args.device);
    options::refuse_device(&args.device)?;
    if args.check && args.against.is_none() {
        let problem = "--check needs --against FILE: there is nothing to hold this run against";
        return Err(Failure::Usage(problem.to_owned()));
    }
    if let Some(filter) = &args.kernels {
        return kernels::bench(filter, &args, global);
    }
    let tests = if args.profile {
        plan::profiled(&args)?
    } else {
        plan::tests(&args)?
    };
    let load = load_options(&args, cache::pipelines(global))?;
    if let Some(limit) = load.ctx_size {
        plan::check_context(&tests, limit)?;
    }
    let baseline = baseline(&args, &against::MODELS)?;
    let model = models::resolve(&model_reference(&args, given)?, global)?;

    let (mut engine, peaks) = open(&model.path, &load, &args, &tests, global.quiet)?;
    if args.profile {
        return print_profile(&mut engine, tests[0].tokens(), &args, global.quiet);
    }
    let peaks = peaks.expect("measured where tests are run");
    let roofline = measure::roofline(&load.open, &engine, peaks);
    let machine = Machine::of(engine.decoder().gpu().report());
    let about = row::Model::of(&engine, file_name(&model.path), load.weights.name);
    let mut rows = Vec::new();
    for tests in tests.chunk_by(|a, b| args.interleave || a.depth == b.depth) {
        let mut progress = progress(args.repetitions, global.quiet);
        let samples = measure::in_rounds(&mut engine, tests, args.repetitions, &mut progress)?;
        for (test, samples) in tests.iter().zip(samples) {
            let bytes = engine.decoder().gpu().counters().buffer_bytes;
            let least = row::least(&engine, test);
            let foretold = roofline.as_ref();
            let foretold = foretold.map(|roofline| row::predicted(&engine, roofline, test));
            let mut row = Row::new((&machine, &about), test, samples, least, &peaks, bytes)
                .with_prediction(foretold);
            row.against = baseline.as_ref().map(|baseline| baseline.compare(&row));
            if args.output == Output::Jsonl {
                print_line(&format::json_line(&row))?;
            }
            rows.push(row);
        }
    }
    let compared: Vec<(String, &Against)> = rows
        .iter()
        .filter_map(|row| Some((row.test.clone(), row.against.as_ref()?)))
        .collect();
    match args.output {
        Output::Md => print_tables(format::markdown(&rows), baseline.as_ref(), &compared)?,
        Output::Json => print_line(&format::json(&rows))?,
        Output::Csv => print_line(&format::csv(&rows))?,
        Output::Jsonl | Output::Trace => {}
    }
    if !global.quiet {
        let tuned = engine.decoder().tuned();
        say(&machine.footer(&peaks, tuned, args.repetitions));
    }
    check(&args, baseline.as_ref(), &compared)
}

/// The earlier run that `--against` names.
fn baseline(args: &BenchArgs, kind: &'static Kind) -> Result<Option<Baseline>, Failure> {
    let path = args.against.as_deref();
    path.map(|path| Baseline::read(path, kind)).transpose()
}

/// Results, and below them what became of them since.
fn print_tables(
    results: String,
    baseline: Option<&Baseline>,
    compared: &[(String, &Against)],
) -> Result<(), Failure> {
    match baseline {
        Some(baseline) => print_line(&format!("{results}\n{}", baseline.table(compared))),
        None => print_line(&results),
    }
}

fn check(
    args: &BenchArgs,
    baseline: Option<&Baseline>,
    compared: &[(String, &Against)],
) -> Result<(), Failure> {
    match baseline.filter(|_| args.check) {
        Some(baseline) => baseline.check(compared.iter().map(|(_, row)| *row)),
        None => Ok(()),
    }
}

fn model_reference(args: &BenchArgs, given: Given) -> Result<std::ffi::OsString, Failure> {
    let given = given.with_model(args.reference.as_ref())?;
    let model = args.reference.clone().or(args.model.clone());
    let model = models::from_flags(&args.device, model, given)?;
    Ok(prompt::split_model(model, Vec::new())?.0)
}

fn load_options(args: &BenchArgs, pipelines: Option<PathBuf>) -> Result<LoadOptions, Failure> {
    session::load_options(
        &DeviceOptions::new(&args.device),
        args.ctx_size.map(|n| n as usize),
        args.batch_size.map(|n| n as usize),
        pipelines,
    )
}

/// The model behind an engine; before it, unless a profile is asked for, what the adapter does at
/// best.
fn open(
    path: &Path,
    load: &LoadOptions,
    args: &BenchArgs,
    tests: &[Test],
    quiet: bool,
) -> Result<(EngineCore, Option<Peaks>), Failure> {
    let peaks = if args.profile {
        None
    } else {
        note(quiet, "measuring what the adapter does at best");
        Some(measure::peaks(&load.open)?)
    };
    note(quiet, &format!("loading {}", file_name(path)));
    let mut bar = None;
    let model = Model::load(path, load, &mut |done, all| {
        bar.get_or_insert_with(|| Progress::on_terminal("loading", all, quiet))
            .at(done);
    })?;
    plan::check_context(tests, model.decoder.max_model_len())?;
    Ok((EngineCore::new(model.decoder)?, peaks))
}

/// The last part of a path: where the file lies says nothing about a result.
fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}

fn note(quiet: bool, what: &str) {
    if !quiet {
        say(&format!("bench: {what}"));
    }
}

/// Tells every run on stderr.
fn progress(repetitions: u32, quiet: bool) -> impl FnMut(&Test, u32, Option<f64>) {
    move |test, run, speed| {
        let name = test.name();
        match speed {
            None => note(quiet, &format!("{name}: warming up")),
            Some(speed) => note(
                quiet,
                &format!("{name}: {run}/{repetitions}: {speed:.2} t/s"),
            ),
        }
    }
}

fn print_profile(
    engine: &mut EngineCore,
    tokens: usize,
    args: &BenchArgs,
    quiet: bool,
) -> Result<(), Failure> {
    note(
        quiet,
        &format!("profiling a prompt of {tokens} tokens and a step"),
    );
    let machine = Machine::of(engine.decoder().gpu().report());
    let runs = profile::profile(engine, tokens)?;
    match args.output {
        Output::Json => {
            let runs: Vec<_> = runs.iter().map(profile::Profiled::json).collect();
            return print_line(&json!({ "machine": machine, "runs": runs }).to_string());
        }
        Output::Trace => return print_line(&trace::document(&runs, &machine).to_string()),
        Output::Md | Output::Jsonl | Output::Csv => {}
    }
    print_line(&runs.map(|run| run.table()).join("\n"))
}
