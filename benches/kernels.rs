//! How fast each kernel is, and how fast it could be on this adapter: `nelumbo bench --kernels` for
//! those who work on kernels, without building the command.
//!
//! `cargo bench --bench kernels -- FILTER` first measures what the adapter does at best (bytes read,
//! operations in f32 and on packed integers, an empty dispatch), then times the cases whose name
//! holds FILTER, as [`nelumbo::kernels::timing`] does. `-o json` prints an array of rows instead.
//!
//! Times are wall clock; on a software adapter they are the process's CPU time over the number of
//! cores, where the system tells it. `NELUMBO_UNCHECKED=1` leaves bounds checks out.

#[path = "../apps/cli/src/bench/clock.rs"]
mod clock;
#[path = "../apps/cli/commit.rs"]
mod commit;

use clock::Clock;
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::peaks::Peaks;
use nelumbo::kernels::timing::{self, Timed};
use serde_json::{Value, json};
use std::path::Path;

/// Chains timed for each case.
const REPEATS: usize = 5;

fn main() -> Result<(), nelumbo::Error> {
    let (filter, as_json) = arguments();
    let checked = std::env::var_os("NELUMBO_UNCHECKED").is_none();
    let gpu = Gpu::open(&OpenOptions {
        checked,
        coop: true,
        ..OpenOptions::from_env()?
    })?;
    let clock = Clock::for_adapter(gpu.is_software());
    let mut now = || clock.now();
    let peaks = Peaks::measure(&gpu, &mut now, timing::SPAN / 2.0)?;
    if !as_json {
        print_header(&gpu, &clock, &peaks);
    }
    let mut rows = Vec::new();
    for case in timing::cases(&gpu, &filter) {
        let timed = timing::time(&gpu, &mut now, &peaks, &case, REPEATS)?;
        if as_json {
            rows.push(row(&gpu, &clock, &peaks, &timed));
        } else {
            print_row(&timed);
        }
    }
    if as_json {
        println!("{:#}", Value::from(rows));
    }
    Ok(())
}

/// The filter, and whether JSON is asked for; cargo's own arguments are passed over.
fn arguments() -> (String, bool) {
    let mut filter = String::new();
    let mut as_json = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-o" => as_json = words.next().is_some_and(|format| format == "json"),
            word if !word.starts_with('-') => filter = word.to_owned(),
            _ => {}
        }
    }
    (filter, as_json)
}

fn print_header(gpu: &Gpu, clock: &Clock, peaks: &Peaks) {
    let report = gpu.report();
    println!(
        "{} ({}, {} {})",
        report.name, report.backend, report.driver, report.driver_info
    );
    println!("time: {}", clock.name());
    println!(
        "peaks: {:.2} GB/s read, {:.1} GFLOP/s f32, {:.1} GOP/s dot4, {:.1} us a dispatch",
        peaks.stream_bytes_s / 1e9,
        peaks.fma_flops / 1e9,
        peaks.dot4_ops / 1e9,
        peaks.dispatch_s * 1e6
    );
    println!(
        "{:<58} {:>10} {:>10} {:>12} {:>8} {:>9} {:>7} bound",
        "case", "min us", "median us", "roofline us", "GB/s", "GFLOP/s", "% peak"
    );
}

fn print_row(timed: &Timed) {
    println!(
        "{:<58} {:>10.1} {:>10.1} {:>12.1} {:>8.2} {:>9.2} {:>7.1} {}",
        timed.case,
        timed.min_ns / 1e3,
        timed.median_ns / 1e3,
        timed.roofline_ns / 1e3,
        timed.gb_s,
        timed.gflop_s,
        timed.roofline_pct,
        timed.bound
    );
}

/// The library's figures, with what they were measured on.
fn row(gpu: &Gpu, clock: &Clock, peaks: &Peaks, timed: &Timed) -> Value {
    let report = gpu.report();
    let mut row = json!(timed);
    let about = json!({
        "peak_stream_bytes_s": peaks.stream_bytes_s,
        "peak_fma_flops": peaks.fma_flops,
        "peak_dot4_ops": peaks.dot4_ops,
        "dispatch_s": peaks.dispatch_s,
        "clock": clock.name(),
        "checked": gpu.checked(),
        "adapter": report.name,
        "backend": report.backend.name(),
        "driver": report.driver,
        "driver_info": report.driver_info,
        "commit": commit::head(Path::new(env!("CARGO_MANIFEST_DIR"))).commit,
    });
    if let (Value::Object(row), Value::Object(about)) = (&mut row, about) {
        row.extend(about);
    }
    row
}
