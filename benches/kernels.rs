//! How fast each kernel is, and how fast it could be on this adapter.
//!
//! `cargo bench --bench kernels -- FILTER` first measures what the adapter does at best (bytes read,
//! operations in f32 and on packed integers, an empty dispatch), then times the cases whose name
//! holds FILTER: a chain of dispatches in one submit, the fastest and the median of several.
//! `% peak` is the time that the case's bytes or operations take at best, whichever is more, over
//! the fastest time. More than 100 means that the case's data stays in a cache. `-o json` prints an
//! array of rows instead.
//!
//! Times are wall clock; on a software adapter they are the process's CPU time over the number of
//! cores, where the system tells it. `NELUMBO_UNCHECKED=1` leaves bounds checks out.

#[path = "support/clock.rs"]
mod clock;
#[path = "../apps/cli/commit.rs"]
mod commit;

use clock::Clock;
use nelumbo::gpu::{Gpu, OpenOptions, Recorder};
use nelumbo::kernels::ALL;
use nelumbo::kernels::case::Case;
use nelumbo::kernels::peaks::Peaks;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Submits timed for each case.
const REPEATS: usize = 5;
/// Seconds that a submit should take.
const SPAN: f64 = 0.05;

/// A case's times, and what they are a share of.
struct Timed {
    name: String,
    dispatches: usize,
    /// Seconds.
    min: f64,
    median: f64,
    bytes: f64,
    flops: f64,
    /// Share of the peak.
    roofline: f64,
    /// `memory`, `f32` or `dot4`: whose peak.
    bound: &'static str,
}

fn main() -> Result<(), nelumbo::Error> {
    let (filter, as_json) = arguments();
    let checked = std::env::var_os("NELUMBO_UNCHECKED").is_none();
    let gpu = Gpu::open(&OpenOptions {
        checked,
        coop: true,
        ..OpenOptions::from_env()?
    })?;
    let clock = Clock::for_adapter(gpu.is_software());
    let peaks = Peaks::measure(&gpu, &mut || clock.now(), SPAN / 2.0)?;
    if !as_json {
        print_header(&gpu, &clock, &peaks);
    }
    let mut rows = Vec::new();
    for case in ALL.iter().flat_map(|entry| (entry.timings)()) {
        let name = format!("{} {}", case.kernel.name, case.name);
        if !name.contains(&filter) || case.missing(gpu.caps()).is_some() {
            continue;
        }
        let timed = time(&gpu, &clock, &peaks, &case, name)?;
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

fn time(
    gpu: &Arc<Gpu>,
    clock: &Clock,
    peaks: &Peaks,
    case: &Case,
    name: String,
) -> Result<Timed, nelumbo::Error> {
    let tensors = case.upload(gpu)?;
    let mut rec = Recorder::new(gpu)?;
    let mut chain = |dispatches: usize| -> Result<f64, nelumbo::Error> {
        let start = clock.now();
        (0..dispatches).for_each(|_| case.dispatch(&mut rec, &tensors));
        rec.submit()?;
        gpu.wait()?;
        Ok((clock.now() - start) / dispatches as f64)
    };
    chain(1)?; // compiles
    let dispatches = ((SPAN / chain(4)?.max(1e-6)) as usize).clamp(1, 2000);
    let mut times = (0..REPEATS)
        .map(|_| chain(dispatches))
        .collect::<Result<Vec<_>, nelumbo::Error>>()?;
    times.sort_unstable_by(f64::total_cmp);
    let integers = rec
        .variants()
        .iter()
        .any(|v| v.all_parts().any(|p| p.source.contains("dot4I8Packed")));
    let (flops_s, arithmetic) = if integers {
        (peaks.dot4_ops, "dot4")
    } else {
        (peaks.fma_flops, "f32")
    };
    let least = peaks.least_seconds(case.bytes, case.flops, flops_s);
    let by_memory = case.bytes / peaks.stream_bytes_s >= case.flops / flops_s;
    Ok(Timed {
        name,
        dispatches,
        min: times[0],
        median: times[REPEATS / 2],
        bytes: case.bytes,
        flops: case.flops,
        roofline: least / times[0],
        bound: if by_memory { "memory" } else { arithmetic },
    })
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
        "{:<58} {:>10} {:>10} {:>8} {:>9} {:>7} bound",
        "case", "min us", "median us", "GB/s", "GFLOP/s", "% peak"
    );
}

fn print_row(timed: &Timed) {
    println!(
        "{:<58} {:>10.1} {:>10.1} {:>8.2} {:>9.2} {:>7.1} {}",
        timed.name,
        timed.min * 1e6,
        timed.median * 1e6,
        timed.bytes / timed.min / 1e9,
        timed.flops / timed.min / 1e9,
        timed.roofline * 100.0,
        timed.bound
    );
}

fn row(gpu: &Gpu, clock: &Clock, peaks: &Peaks, timed: &Timed) -> Value {
    let report = gpu.report();
    json!({
        "case": timed.name,
        "dispatches": timed.dispatches,
        "min_ns": timed.min * 1e9,
        "median_ns": timed.median * 1e9,
        "bytes": timed.bytes,
        "flops": timed.flops,
        "gb_s": timed.bytes / timed.min / 1e9,
        "gflop_s": timed.flops / timed.min / 1e9,
        "roofline_pct": timed.roofline * 100.0,
        "bound": timed.bound,
        "peak_stream_bytes_s": peaks.stream_bytes_s,
        "peak_fma_flops": peaks.fma_flops,
        "peak_dot4_ops": peaks.dot4_ops,
        "dispatch_s": peaks.dispatch_s,
        "clock": clock.name(),
        "checked": gpu.checked(),
        "adapter": report.name,
        "backend": report.backend.name(),
        "driver": format!("{} {}", report.driver, report.driver_info).trim(),
        "commit": commit::head(Path::new(env!("CARGO_MANIFEST_DIR"))).commit,
    })
}
