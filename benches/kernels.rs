//! How fast each kernel is: time, GB/s and GFLOP/s on the default adapter.
//!
//! `cargo bench --bench kernels -- FILTER` times the cases whose name holds FILTER: a chain of
//! dispatches in one submit, minimum and median of several. Times are wall clock; on a software
//! adapter they are the process's CPU time over the number of cores, where the system tells it: what
//! idle cores would take, whatever else the machine does.

use nelumbo::gpu::{Gpu, OpenOptions, Recorder};
use nelumbo::kernels::ALL;
use std::time::Instant;

/// Submits timed for each case.
const REPEATS: usize = 5;

fn main() -> Result<(), nelumbo::Error> {
    let filter = std::env::args()
        .skip(1)
        .find(|a| !a.starts_with('-'))
        .unwrap_or_default();
    let checked = std::env::var_os("NELUMBO_UNCHECKED").is_none();
    let gpu = Gpu::open(&OpenOptions {
        checked,
        ..OpenOptions::from_env()?
    })?;
    let report = gpu.report();
    println!(
        "{} ({}, {} {})",
        report.name, report.backend, report.driver, report.driver_info
    );
    let clock = Clock::for_software(gpu.is_software());
    println!("time: {}", clock.name());
    println!(
        "{:<58} {:>10} {:>10} {:>8} {:>9}",
        "case", "min us", "median us", "GB/s", "GFLOP/s"
    );
    for case in ALL.iter().flat_map(|entry| (entry.timings)()) {
        let name = format!("{} {}", case.kernel.name, case.name);
        if !name.contains(&filter) || case.missing(gpu.caps()).is_some() {
            continue;
        }
        let tensors = case.upload(&gpu)?;
        let mut rec = Recorder::new(&gpu)?;
        let mut time = |dispatches: usize| -> Result<f64, nelumbo::Error> {
            let start = clock.now();
            (0..dispatches).for_each(|_| case.dispatch(&mut rec, &tensors));
            rec.submit()?;
            gpu.wait()?;
            Ok(clock.now() - start)
        };
        time(1)?; // compiles
        let dispatches = ((clock.span() / time(4)?.max(1e-3)) as usize * 4).clamp(1, 2000);
        let mut times = (0..REPEATS)
            .map(|_| Ok(time(dispatches)? / dispatches as f64))
            .collect::<Result<Vec<_>, nelumbo::Error>>()?;
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

/// What time is measured by.
enum Clock {
    Wall(Instant),
    /// CPU time of the process over this many cores.
    Cpu(f64),
}

impl Clock {
    fn for_software(software: bool) -> Clock {
        match std::thread::available_parallelism() {
            Ok(cores) if software && cpu_seconds().is_some() => Clock::Cpu(cores.get() as f64),
            _ => Clock::Wall(Instant::now()),
        }
    }

    fn name(&self) -> String {
        match self {
            Clock::Wall(_) => "wall clock".to_owned(),
            Clock::Cpu(cores) => format!("CPU time / {cores} cores"),
        }
    }

    /// Seconds.
    fn now(&self) -> f64 {
        match self {
            Clock::Wall(start) => start.elapsed().as_secs_f64(),
            Clock::Cpu(cores) => cpu_seconds().unwrap_or_default() / cores,
        }
    }

    /// Seconds a measurement should take: CPU time is told in hundredths of a second.
    fn span(&self) -> f64 {
        match self {
            Clock::Wall(_) => 0.05,
            Clock::Cpu(_) => 0.25,
        }
    }
}

/// User and system time of this process, on systems that have it in `/proc`.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}
