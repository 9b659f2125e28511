//! Every kernel against its CPU twin, on every adapter there is.
//!
//! All cases run once, with checks and with all the adapter can do, on the first adapter and on each
//! that is hardware. Elsewhere (another adapter, no capability, no checks) a variant costs more to
//! compile than to run: there each part of each kernel runs in some variant, and every case that
//! needs no other variant.
//!
//! `NELUMBO_KERNEL=name` runs one kernel. `REQUIRE_GPU=1` makes a missing adapter a failure.

mod harness;
mod known;

use known::{check_complete, settle_known};
use nelumbo::gpu::adapter;
use nelumbo::gpu::{
    AdapterReport, Caps, DeviceType, Gpu, OpenOptions, Recorder, Selection, Variant,
};
use nelumbo::kernels::case::Case;
use nelumbo::kernels::{self, Entry};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A way to open an adapter.
#[derive(Clone, Copy)]
struct Config {
    index: usize,
    all_caps: bool,
    checked: bool,
}

/// What a configuration did.
#[derive(Default)]
struct Outcome {
    ran: Vec<String>,
    missing: Vec<String>,
    wrong: Vec<String>,
    variants: HashMap<String, Vec<Variant>>,
}

impl Config {
    fn open(self) -> Arc<Gpu> {
        let options = OpenOptions {
            selection: Selection {
                device: Some(self.index),
                ..Selection::default()
            },
            caps: (!self.all_caps).then(|| "none".to_owned()),
            checked: self.checked,
            coop: self.all_caps,
            ..OpenOptions::default()
        };
        Gpu::open(&options).unwrap_or_else(|e| panic!("adapter {}: {e}", self.index))
    }

    fn describe(self, report: &AdapterReport) -> String {
        format!(
            "{} ({}, {} {}), caps {}, {}",
            report.name,
            report.backend,
            report.driver,
            report.driver_info,
            if self.all_caps {
                report.caps
            } else {
                Caps::NONE
            },
            if self.checked { "checked" } else { "unchecked" },
        )
    }
}

/// Kernels that were asked for: all, or the one of `NELUMBO_KERNEL`.
fn entries() -> Vec<&'static Entry> {
    let Ok(name) = std::env::var("NELUMBO_KERNEL") else {
        return kernels::ALL.iter().collect();
    };
    let found: Vec<&Entry> = kernels::ALL
        .iter()
        .filter(|e| e.kernel.name == name)
        .collect();
    assert!(!found.is_empty(), "NELUMBO_KERNEL={name} names no kernel");
    found
}

fn full_name(case: &Case) -> String {
    format!("{} {}", case.kernel.name, case.name)
}

/// Adapters that can be used; with none, why the test is skipped, which `REQUIRE_GPU=1` forbids.
fn adapters() -> Vec<AdapterReport> {
    let all = adapter::list();
    let (usable, rejected): (Vec<_>, Vec<_>) = all.into_iter().partition(|r| r.rejected.is_none());
    for report in rejected {
        println!(
            "not used: {} ({}): {}",
            report.name,
            report.backend,
            report.rejected.unwrap_or_default()
        );
    }
    if usable.is_empty() {
        let required = std::env::var("REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(
            !required,
            "REQUIRE_GPU=1 and no adapter through Vulkan, Metal, DX12 or GL"
        );
        println!("skipped: no adapter through Vulkan, Metal, DX12 or GL");
    }
    usable
}

/// `work` for each of `jobs`, on as many threads as there are cores; results in order of the jobs.
fn in_parallel<J: Sync, R: Send>(jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism()
        .map_or(2, |n| n.get())
        .min(jobs.len());
    let next = Mutex::new(0..jobs.len());
    let results = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(i) = next.lock().unwrap().next() else {
                        break;
                    };
                    let result = work(&jobs[i]);
                    results.lock().unwrap().insert(i, result);
                }
            });
        }
    });
    results.into_inner().unwrap().into_values().collect()
}

/// Runs `cases` on one device.
fn run_cases<'a>(gpu: &Arc<Gpu>, cases: impl Iterator<Item = &'a Case>) -> Outcome {
    let mut outcome = Outcome::default();
    for case in cases {
        let name = full_name(case);
        if let Some(why) = case.missing(gpu.caps()) {
            outcome.missing.push(format!("{name}: {why}"));
            continue;
        }
        let mut rec = Recorder::new(gpu).unwrap();
        match case.run_with(&mut rec) {
            Ok(wrong) => outcome.wrong.extend(wrong),
            Err(error) => outcome.wrong.push(format!("{name}: {error}")),
        }
        outcome.variants.insert(name.clone(), rec.variants());
        outcome.ran.push(name);
    }
    outcome
}

fn join(outcomes: Vec<Outcome>) -> Outcome {
    outcomes
        .into_iter()
        .fold(Outcome::default(), |mut all, one| {
            all.ran.extend(one.ran);
            all.missing.extend(one.missing);
            all.wrong.extend(one.wrong);
            all.variants.extend(one.variants);
            all
        })
}

/// Kernel and part, for each part a variant was composed from.
fn parts(variants: &[Variant]) -> BTreeSet<(&'static str, &'static str)> {
    let parts = variants
        .iter()
        .flat_map(|v| v.all_parts().map(move |p| (v.kernel.name, p.name)));
    parts.collect()
}

/// The cases of a reduced run with `caps`: enough that each part of each kernel runs, then all that
/// need no further variant. `used` tells the variants of each case that ran somewhere; a case that
/// it does not know is taken.
fn reduced<'a>(
    cases: &'a [Case],
    used: &HashMap<String, Vec<Variant>>,
    caps: Caps,
) -> Vec<&'a Case> {
    let can_run: Vec<(&Case, Option<&Vec<Variant>>)> = cases
        .iter()
        .filter(|case| case.missing(caps).is_none())
        .map(|case| (case, used.get(&full_name(case))))
        .collect();
    let mut covered = BTreeSet::new();
    let mut compiled = HashSet::new();
    loop {
        let gain = |v: &Vec<Variant>| parts(v).difference(&covered).count();
        let known = can_run.iter().filter_map(|(_, variants)| *variants);
        // the first of those that add most
        let Some(best) = known.rev().max_by_key(|v| gain(v)).filter(|v| gain(v) > 0) else {
            break;
        };
        covered.extend(parts(best));
        compiled.extend(best.iter().copied());
    }
    can_run
        .into_iter()
        .filter(|(_, variants)| variants.is_none_or(|v| v.iter().all(|v| compiled.contains(v))))
        .map(|(case, _)| case)
        .collect()
}

fn summary(title: &str, outcome: &Outcome, start: Instant) {
    let pipelines: HashSet<Variant> = outcome.variants.values().flatten().copied().collect();
    println!(
        "{title}: {} cases, {} variants, {} wrong, {:.1} s",
        outcome.ran.len(),
        pipelines.len(),
        outcome.wrong.len(),
        start.elapsed().as_secs_f64()
    );
    if let Some(first) = outcome.missing.first() {
        println!(
            "  {} cases cannot run there, such as {first}",
            outcome.missing.len()
        );
    }
}

#[test]
fn every_kernel_on_every_adapter() {
    let adapters = adapters();
    let mut cases: Vec<Vec<Case>> = entries().iter().map(|entry| (entry.cases)()).collect();
    cases.sort_by_key(|cases| std::cmp::Reverse(cases.len())); // the longest jobs start first
    let mut problems = Vec::new();
    let mut used = HashMap::new();
    let takes_all = |report: &AdapterReport| {
        report.index == adapters[0].index || report.device_type != DeviceType::Software
    };

    for report in adapters.iter().filter(|r| takes_all(r)) {
        let start = Instant::now();
        let config = Config {
            index: report.index,
            all_caps: true,
            checked: true,
        };
        // a thread for some of the kernels, each with a device of its own
        let outcome = join(in_parallel(&cases, |cases| {
            run_cases(&config.open(), cases.iter())
        }));
        let title = config.describe(report);
        summary(&title, &outcome, start);
        let mut wrong = outcome.wrong.clone();
        check_complete(report, &outcome, &mut wrong);
        let left = settle_known(report, &outcome, wrong);
        problems.extend(left.iter().map(|problem| format!("{title}: {problem}")));
        used.extend(outcome.variants);
    }

    let all: Vec<Case> = cases.into_iter().flatten().collect();
    let mut configs = Vec::new();
    for report in &adapters {
        for (all_caps, checked) in [(true, true), (true, false), (false, true), (false, false)] {
            // without capabilities of its own, an adapter runs the same text both times
            let same = !all_caps && report.caps.subgroup.is_none();
            if !(same || all_caps && checked && takes_all(report)) {
                configs.push((
                    report,
                    Config {
                        index: report.index,
                        all_caps,
                        checked,
                    },
                ));
            }
        }
    }
    let found = in_parallel(&configs, |&(report, config)| {
        let start = Instant::now();
        let gpu = config.open();
        let chosen = reduced(&all, &used, gpu.caps());
        let mut outcome = run_cases(&gpu, chosen.into_iter());
        let missing = all
            .iter()
            .filter_map(|c| Some(format!("{}: {}", full_name(c), c.missing(gpu.caps())?)));
        outcome.missing = missing.collect();
        let title = config.describe(report);
        summary(&title, &outcome, start);
        let mut wrong = outcome.wrong.clone();
        if config.all_caps {
            check_complete(report, &outcome, &mut wrong);
        }
        let left = settle_known(report, &outcome, wrong);
        left.into_iter()
            .map(|problem| format!("{title}: {problem}"))
            .collect::<Vec<_>>()
    });
    problems.extend(found.into_iter().flatten());
    assert!(
        problems.is_empty(),
        "{} problems\n{}",
        problems.len(),
        problems.join("\n")
    );
}
