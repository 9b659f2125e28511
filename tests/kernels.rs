//! Every kernel against its CPU twin, on every adapter there is.
//!
//! All cases run once, with checks and with all the adapter can do, on the first adapter and on each
//! that is hardware. Elsewhere (another adapter, no capability, no checks) a variant costs more to
//! compile than to run: there each part of each kernel runs in some variant, and every case that
//! needs no other variant.
//!
//! `NELUMBO_KERNEL=name` runs one kernel. `REQUIRE_GPU=1` makes a missing adapter a failure.

use nelumbo::gpu::adapter::{self, Backend};
use nelumbo::gpu::{
    AdapterReport, Caps, Coop, DeviceType, Gpu, OpenOptions, Recorder, Selection, Variant,
};
use nelumbo::kernels::case::{Case, CaseTensor};
use nelumbo::kernels::{self, Entry};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What must have run on adapters we know: every case that needs at most these subgroups. Less is a
/// silent skip, more is a driver that learned something.
const KNOWN: &[Known] = &[
    Known {
        backend: Backend::Vulkan,
        adapter: "llvmpipe",
        subgroup: Some(8),
        coop: &[None, Some(8)], // recent ones
        without: &[],
    },
    Known {
        backend: Backend::Vulkan,
        adapter: "SwiftShader",
        subgroup: Some(4),
        coop: &[None],
        // want subgroups of 8
        without: &[
            "lib/team_subgroup.wgsl",
            "matmul/norm_rms_share.wgsl",
            "matmul/x_float_share.wgsl",
            "matmul/x_int_share.wgsl",
            "quant/q8_wide.wgsl",
        ],
    },
    Known {
        backend: Backend::Gl,
        adapter: "llvmpipe",
        subgroup: None,
        coop: &[None],
        without: &[],
    },
];

struct Known {
    backend: Backend,
    adapter: &'static str,
    subgroup: Option<u32>,
    /// Sizes of cooperative matrices that its versions have.
    coop: &'static [Option<u32>],
    /// Parts that cannot run there.
    without: &'static [&'static str],
}

/// Cases that a driver gets wrong: `(backend, part of the adapter's name, part of the driver's, part
/// of "kernel case", why)`. A row whose cases all pass is an error: it has to go.
const FAILING: &[(Backend, &str, &str, &str, &str)] = &[];

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

/// Holds a run of all cases against what must have run, and against what each kernel says of itself.
fn check_complete(report: &AdapterReport, outcome: &Outcome, wrong: &mut Vec<String>) {
    let known = KNOWN
        .iter()
        .find(|k| k.backend == report.backend && report.name.contains(k.adapter));
    if let Some(known) = known
        && known.subgroup != report.caps.subgroup
    {
        wrong.push(format!(
            "{} ({}) has subgroups of {:?}, the table says {:?}",
            report.name, report.backend, report.caps.subgroup, known.subgroup
        ));
    }
    let coop = report.caps.coop.map(|coop| coop.size);
    if let Some(known) = known
        && !known.coop.contains(&coop)
    {
        wrong.push(format!(
            "{} ({}) has cooperative matrices of {coop:?}, the table says {:?}",
            report.name, report.backend, known.coop
        ));
    }
    let dispatched: Vec<Variant> = outcome.variants.values().flatten().copied().collect();
    let dispatched_parts = parts(&dispatched);
    for entry in entries() {
        let declared = (entry.variants)();
        let chosen = |v: &Variant| v.chosen().map(|p| p.name).collect::<Vec<_>>();
        let combinations: HashSet<Vec<&str>> = declared.iter().map(chosen).collect();
        for variant in dispatched
            .iter()
            .filter(|v| v.kernel.name == entry.kernel.name)
        {
            if !combinations.contains(&chosen(variant)) {
                wrong.push(format!(
                    "{variant} is dispatched, but not among the kernel's variants"
                ));
            }
        }
        for (kernel, part) in parts(&declared).difference(&dispatched_parts) {
            let needs_subgroups = declared
                .iter()
                .flat_map(|v| v.all_parts())
                .any(|p| p.name == *part && p.subgroups);
            let needs_int64 = declared
                .iter()
                .flat_map(|v| v.all_parts())
                .any(|p| p.name == *part && p.int64);
            let excused = needs_other_matrices(&declared, kernel, part, report.caps)
                || known.is_some_and(|k| k.without.contains(part))
                || needs_int64 && !report.caps.int64;
            if !excused && (report.caps.subgroup.is_some() || !needs_subgroups) {
                wrong.push(format!(
                    "{}: no case of {kernel} ran with {part}",
                    report.name
                ));
            }
        }
    }
}

/// Whether `part` of `kernel` is for cooperative matrices of a size that `caps` do not have.
fn needs_other_matrices(declared: &[Variant], kernel: &str, part: &str, caps: Caps) -> bool {
    let mut with_part = declared
        .iter()
        .filter(|v| v.kernel.name == kernel && v.all_parts().any(|p| p.name == part));
    let size = part
        .split_once("/coop_")
        .and_then(|(_, rest)| rest.strip_suffix(".wgsl")?.parse::<u32>().ok());
    let fits = |coop: Coop| size.is_none_or(|size| size == coop.size);
    with_part.all(Variant::uses_coop) && !caps.coop.is_some_and(fits)
}

/// Takes the failures out of `wrong` that the table knows; what it knows and did not happen is new.
fn settle_known(report: &AdapterReport, outcome: &Outcome, wrong: Vec<String>) -> Vec<String> {
    let rows = FAILING.iter().filter(|(backend, adapter, driver, _, _)| {
        *backend == report.backend
            && report.name.contains(adapter)
            && report.driver.contains(driver)
    });
    let rows: Vec<_> = rows.collect();
    let mut left: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    for problem in wrong {
        match rows
            .iter()
            .position(|(_, _, _, case, _)| problem.contains(case))
        {
            Some(row) => _ = seen.insert(row),
            None => left.push(problem),
        }
    }
    for (i, (_, _, _, case, why)) in rows.iter().enumerate() {
        if !seen.contains(&i) && outcome.ran.iter().any(|name| name.contains(case)) {
            left.push(format!("{case} passes, though the table says: {why}"));
        }
    }
    left
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

/// A harness that cannot fail proves nothing: an output that is not written, a write beside the
/// output, a changed input, a wrong value.
#[test]
fn the_harness_sees_planted_faults() {
    let Some(report) = adapters().into_iter().next() else {
        return;
    };
    let gpu = Config {
        index: report.index,
        all_caps: true,
        checked: true,
    }
    .open();
    let values = [1.0f32, 2.0, 3.0, 4.0];
    let case = |expected: &[f32]| {
        Case::new(&kernels::gather_rows::GATHER_ROWS, "planted".to_owned())
            .tensor(CaseTensor::f32("x", &[1, 4], &values))
            .tensor(CaseTensor::u32("step", &[1], &[0]))
            .tensor(CaseTensor::output_exact("y", &[1, 4], expected))
    };
    let gather = kernels::gather_rows::record;
    let right = case(&values)
        .record(move |rec, t| gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y")));
    assert_eq!(right.run(&gpu).unwrap(), Vec::<String>::new());

    let planted = [
        (
            case(&[1.0, 2.0, 3.0, 5.0])
                .record(move |rec, t| gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y"))),
            "y: word 3",
        ),
        (case(&values).record(|_, _| {}), "y: word 0"),
        (
            case(&values).record(move |rec, t| {
                let before = t
                    .get("y")
                    .whole_buffer()
                    .window(768, t.get("y").dtype(), &[1, 4]);
                gather(rec, t.get("x"), t.get("step"), 0, 1, &before);
                gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y"));
            }),
            "y: wrote 64 words before its start",
        ),
        (
            case(&values).record(move |rec, t| {
                gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y"));
                let after = t
                    .get("y")
                    .whole_buffer()
                    .window(1280, t.get("y").dtype(), &[1, 4]);
                gather(rec, t.get("x"), t.get("step"), 0, 1, &after);
            }),
            "y: wrote 61 words past its end",
        ),
        (
            case(&values).record(move |rec, t| {
                gather(rec, t.get("x"), t.get("step"), 0, 1, t.get("y"));
                rec.copy(
                    t.get("step"),
                    &t.get("x").window(0, t.get("step").dtype(), &[1]),
                );
            }),
            "x: word 0",
        ),
    ];
    for (case, expected) in planted {
        let wrong = case.run(&gpu).unwrap();
        assert!(
            wrong.len() == 1 && wrong[0].contains(expected),
            "{wrong:?}, expected {expected}"
        );
    }
}
