//! How fast each kernel is: time, GB/s and GFLOP/s on the default adapter.
//!
//! `cargo bench --bench kernels -- FILTER` times the cases whose name holds FILTER. Times are wall
//! clock over a chain of dispatches in one submit, minimum and median of several.

use nelumbo::gpu::{Gpu, OpenOptions, Recorder};
use nelumbo::kernels::ALL;
use std::time::Instant;

/// Submits timed for each case.
const REPEATS: usize = 7;

fn main() -> Result<(), nelumbo::Error> {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let checked = std::env::var_os("NELUMBO_UNCHECKED").is_none();
    let gpu = Gpu::open(&OpenOptions { checked, ..OpenOptions::from_env()? })?;
    let report = gpu.report();
    println!("{} ({}, {} {})", report.name, report.backend, report.driver, report.driver_info);
    println!("{:<58} {:>10} {:>10} {:>8} {:>9}", "case", "min us", "median us", "GB/s", "GFLOP/s");
    for case in ALL.iter().flat_map(|entry| (entry.cases)()) {
        let name = format!("{} {}", case.kernel.name, case.name);
        if !case.timing || !name.contains(&filter) || case.missing(gpu.caps()).is_some() {
            continue;
        }
        let tensors = case.upload(&gpu)?;
        let mut rec = Recorder::new(&gpu)?;
        let mut time = |dispatches: usize| -> Result<f64, nelumbo::Error> {
            let start = Instant::now();
            (0..dispatches).for_each(|_| case.dispatch(&mut rec, &tensors));
            rec.submit()?;
            gpu.wait()?;
            Ok(start.elapsed().as_secs_f64())
        };
        time(1)?; // compiles
        let dispatches = ((0.05 / time(1)?) as usize).clamp(1, 200);
        let mut times = (0..REPEATS).map(|_| Ok(time(dispatches)? / dispatches as f64)).collect::<Result<Vec<_>, nelumbo::Error>>()?;
        times.sort_unstable_by(f64::total_cmp);
        let (min, median) = (times[0], times[REPEATS / 2]);
        println!(
            "{name:<58} {:>10.1} {:>10.1} {:>8.2} {:>9.2}",
            min * 1e6,
            median * 1e6,
            case.bytes / min / 1e9,
            case.flops / min / 1e9
        );
    }
    Ok(())
}
