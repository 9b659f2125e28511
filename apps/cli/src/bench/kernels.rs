//! `nelumbo bench --kernels`: single kernels on shapes of real models, and what they could be.

use nelumbo::gpu::OpenOptions;
use nelumbo::kernels;
use nelumbo::kernels::peaks::Peaks;
use nelumbo::kernels::timing::{self, Timed};
use serde::Serialize;

use super::against::{self, Against};
use super::args::{BenchArgs, Output};
use super::clock::Clock;
use super::machine::Machine;
use super::{baseline, check, format, note, plan, print_tables};
use crate::args::GlobalArgs;
use crate::exit::{Failure, say};
use crate::options::DeviceOptions;
use crate::output::print_line;

/// One object of `-o json`, one line of `-o csv`.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    #[serde(flatten)]
    machine: Machine,
    #[serde(flatten)]
    timed: Timed,
    reps: u32,
    peak_stream_bytes_s: f64,
    peak_fma_flops: f64,
    peak_dot4_ops: f64,
    /// Seconds of a dispatch that does next to nothing.
    dispatch_s: f64,
    /// What times were taken by.
    clock: String,
    /// Whether shaders check their bounds.
    checked: bool,
    adapter: String,
    commit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<Against>,
}

/// Times the kernels whose name, with that of the case, holds `filter`.
pub fn bench(filter: &str, args: &BenchArgs, global: &GlobalArgs) -> Result<(), Failure> {
    refuse(args)?;
    let baseline = baseline(args, &against::KERNELS)?;
    let gpu = kernels::open(&OpenOptions {
        selection: DeviceOptions::new(&args.device).selection,
        coop: true,
        ..OpenOptions::from_env()?
    })?;
    let cases = timing::cases(&gpu, filter);
    if cases.is_empty() {
        return Err(Failure::Usage(format!(
            "--kernels \"{filter}\": no kernel's case that this adapter can run has that in its name; \
             without a word it times all"
        )));
    }
    let clock = Clock::for_adapter(gpu.is_software());
    let mut now = || clock.now();
    note(global.quiet, "measuring what the adapter does at best");
    let peaks = Peaks::measure(&gpu, &mut now, timing::SPAN / 2.0)?;
    let machine = Machine::of(gpu.report());
    let mut rows = Vec::new();
    for case in &cases {
        let timed = timing::time(&gpu, &mut now, &peaks, case, args.repetitions as usize)?;
        note(
            global.quiet,
            &format!("{}: {:.1} us", timed.case, timed.min_ns / 1e3),
        );
        let mut row = Row {
            machine: machine.clone(),
            timed,
            reps: args.repetitions,
            peak_stream_bytes_s: peaks.stream_bytes_s,
            peak_fma_flops: peaks.fma_flops,
            peak_dot4_ops: peaks.dot4_ops,
            dispatch_s: peaks.dispatch_s,
            clock: clock.name(),
            checked: gpu.checked(),
            adapter: machine.adapter_name.clone(),
            commit: machine.build_commit.clone(),
            against: None,
        };
        row.against = baseline.as_ref().map(|baseline| baseline.compare(&row));
        if args.output == Output::Jsonl {
            print_line(&format::json_line(&row))?;
        }
        rows.push(row);
    }
    let compared: Vec<(String, &Against)> = rows
        .iter()
        .filter_map(|row| Some((row.timed.case.clone(), row.against.as_ref()?)))
        .collect();
    match args.output {
        Output::Md => print_tables(markdown(&rows), baseline.as_ref(), &compared)?,
        Output::Json => print_line(&format::json(&rows))?,
        Output::Csv => print_line(&format::csv(&rows))?,
        Output::Jsonl | Output::Trace => {}
    }
    if !global.quiet {
        say(&footer(&machine, &peaks, &clock, args.repetitions));
    }
    check(args, baseline.as_ref(), &compared)
}

/// What kernels by themselves have no use for.
fn refuse(args: &BenchArgs) -> Result<(), Failure> {
    plan::refuse_trace(args)?;
    let problem = if args.profile {
        "--kernels and --profile: a profile is of a model's own dispatches"
    } else if args.reference.is_some() {
        "--kernels times kernels by themselves: leave the model out"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(problem.to_owned()))
}

fn markdown(rows: &[Row]) -> String {
    let columns = [
        "kernel and case",
        "bound",
        "min us",
        "median us",
        "roofline us",
        "GB/s",
        "GFLOP/s",
        "% peak",
    ];
    let cells = rows.iter().map(|Row { timed, .. }| {
        vec![
            timed.case.clone(),
            timed.bound.to_owned(),
            format!("{:.1}", timed.min_ns / 1e3),
            format!("{:.1}", timed.median_ns / 1e3),
            format!("{:.1}", timed.roofline_ns / 1e3),
            format!("{:.2}", timed.gb_s),
            format!("{:.2}", timed.gflop_s),
            format!("{:.1}", timed.roofline_pct),
        ]
    });
    format::table(
        &columns.map(str::to_owned),
        &[0, 1],
        &cells.collect::<Vec<_>>(),
    )
}

/// The lines below a table.
fn footer(machine: &Machine, peaks: &Peaks, clock: &Clock, repetitions: u32) -> String {
    format!(
        "{}\n{}\ntime: {}; each case: {repetitions} chains of dispatches of {} ms; roofline: bytes or \
         operations at the peaks, whichever takes longer, and a dispatch",
        machine.about(),
        Machine::peaks(peaks),
        clock.name(),
        timing::SPAN * 1e3
    )
}
