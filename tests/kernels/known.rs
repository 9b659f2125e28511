//! What is known of adapters: what must have run there, and what their drivers get wrong.

use crate::{Outcome, entries, parts};
use nelumbo::gpu::adapter::Backend;
use nelumbo::gpu::{AdapterReport, Caps, Coop, Variant};
use std::collections::HashSet;

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

/// Holds a run of all cases against what must have run, and against what each kernel says of itself.
pub fn check_complete(report: &AdapterReport, outcome: &Outcome, wrong: &mut Vec<String>) {
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
pub fn settle_known(report: &AdapterReport, outcome: &Outcome, wrong: Vec<String>) -> Vec<String> {
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
