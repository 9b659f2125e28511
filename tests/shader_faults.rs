//! Faults planted in shaders: each can be planted, each is noticed by the cases of the kernels that it
//! strikes, and programs for users have none.

mod common;

use common::gpu;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use nelumbo::gpu::faults::{Edit, FAULTS, ShaderFault, named, source};
use nelumbo::gpu::{Gpu, OpenOptions, Part, Recorder, Target, Variant};
use nelumbo::kernels::case::Case;
use nelumbo::kernels::{ALL, Entry};
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

fn entry(kernel: &str) -> &'static Entry {
    let found = ALL.iter().find(|entry| entry.kernel.name == kernel);
    found.unwrap_or_else(|| panic!("no kernel {kernel}"))
}

/// Whether a variant has a part that the fault changes.
fn strikes(fault: &ShaderFault, variant: &Variant) -> bool {
    let mut parts = variant.all_parts();
    parts.any(|part| fault.edits.iter().any(|edit| edit.part == part.name))
}

#[test]
fn every_fault_can_be_planted_and_is_still_a_shader() {
    let mut names = BTreeSet::new();
    let mut parts = BTreeSet::new();
    for fault in FAULTS {
        assert!(names.insert(fault.name), "{} twice", fault.name);
        assert!(!fault.kernels.is_empty() && !fault.shows.is_empty());
        let mut changed: BTreeSet<&str> = BTreeSet::new();
        for kernel in fault.kernels {
            let variants = (entry(kernel).variants)();
            let struck: Vec<_> = variants.iter().filter(|v| strikes(fault, v)).collect();
            assert!(!struck.is_empty(), "{} spares {kernel}", fault.name);
            // the first with each set of changed parts: the rest of a variant changes nothing
            let mut seen = BTreeSet::new();
            for variant in struck {
                let own = |p: &&Part| fault.edits.iter().any(|e| e.part == p.name);
                let of: Vec<&str> = variant.all_parts().filter(own).map(|p| p.name).collect();
                if !seen.insert(of.clone()) {
                    continue;
                }
                changed.extend(of);
                let plain = variant.compose(Target::Native);
                let text = variant.compose_of(Target::Native, |part| source(&[fault], part));
                assert_ne!(text, plain, "{}", fault.name);
                let lines = |text: &str| text.lines().count();
                assert_eq!(lines(&text), lines(&plain), "{}: lines", fault.name);
                let module = naga::front::wgsl::parse_str(&text)
                    .unwrap_or_else(|e| panic!("{}: {}", fault.name, e.emit_to_string(&text)));
                Validator::new(ValidationFlags::all(), Capabilities::all())
                    .validate(&module)
                    .unwrap_or_else(|e| panic!("{}: {}", fault.name, e.emit_to_string(&text)));
            }
        }
        for edit in fault.edits {
            assert!(
                changed.contains(edit.part),
                "{}: no kernel that it names has {}",
                fault.name,
                edit.part
            );
        }
        parts.extend(changed);
    }
    assert!(FAULTS.len() >= 14 && parts.len() >= 10, "{parts:?}");
}

#[test]
fn a_name_that_is_no_fault_is_told_with_those_that_are() {
    let found = named(["residual-lost", " kv-slot", ""]).unwrap();
    let names: Vec<&str> = found.iter().map(|f| f.name).collect();
    assert_eq!(names, ["residual-lost", "kv-slot"]);
    let error = named(["residual-found"]).unwrap_err().to_string();
    for part in ["NELUMBO_FAULT", "\"residual-found\"", "residual-lost"] {
        assert!(error.contains(part), "{error}");
    }
}

/// The features that a build for users has, as the build tool tells them.
#[test]
fn programs_for_users_have_no_faults() {
    let features = |edges: &str| {
        let told = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--locked", "--package", "nelumbo-cli"])
            .args([
                "--edges",
                edges,
                "--prefix",
                "none",
                "--format",
                "{p} [{f}]",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        let error = String::from_utf8_lossy(&told.stderr).into_owned();
        assert!(told.status.success(), "{error}");
        let text = String::from_utf8(told.stdout).unwrap();
        let own = text.lines().filter(|line| line.starts_with("nelumbo v"));
        let own: Vec<String> = own.map(str::to_owned).collect();
        assert!(!own.is_empty(), "{text}");
        own
    };
    for line in features("normal,build") {
        assert!(!line.contains("faults"), "{line}");
    }
    let with_tests = features("normal,build,dev");
    let faulty = with_tests.iter().any(|line| line.contains("faults"));
    assert!(faulty, "tests have them: {with_tests:?}");
}

/// What reads the variable, and what is planted, is left out where the feature is.
#[test]
fn nothing_of_a_fault_is_outside_of_the_feature() {
    let read = |path: &str| {
        let path = format!("{}/src/gpu/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    let gate = "#[cfg(feature = \"faults\")]";
    assert!(read("mod.rs").contains(&format!("{gate}\npub mod faults;")));
    let options = read("options.rs");
    let lines: Vec<&str> = options.lines().map(str::trim).collect();
    let mut uses = 0;
    for (i, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let named = code.contains("faults::") || code.contains("ShaderFault");
        if named {
            uses += 1;
            let before = lines[i.saturating_sub(3)..i].contains(&gate);
            assert!(before, "options.rs:{}: {line}", i + 1);
        }
    }
    assert!(uses >= 4, "{uses} uses");
}

fn open(faults: Vec<&'static ShaderFault>) -> Option<Arc<Gpu>> {
    gpu(&OpenOptions {
        faults,
        ..OpenOptions::default()
    })
}

/// Whether `case` dispatches what the fault changes.
fn is_struck(fault: &ShaderFault, case: &Case, gpu: &Arc<Gpu>) -> bool {
    let mut rec = Recorder::new(gpu).unwrap();
    let tensors = case.upload(gpu).unwrap();
    rec.begin_notes();
    case.dispatch(&mut rec, &tensors);
    rec.take_notes().iter().any(|v| strikes(fault, v))
}

#[test]
fn the_cases_of_a_kernel_notice_every_fault_in_it() {
    let Some(healthy) = open(Vec::new()) else {
        return;
    };
    let mut spared = Vec::new();
    for entry in ALL {
        let faults = FAULTS
            .iter()
            .filter(|f| f.kernels.contains(&entry.kernel.name));
        let faults: Vec<_> = faults.collect();
        if faults.is_empty() {
            continue;
        }
        let cases = (entry.cases)();
        for fault in faults {
            let faulty = open(vec![fault]).expect("as the one before");
            let caps = faulty.caps();
            let mut tried = 0;
            let noticed = cases.iter().find(|case| {
                let struck = case.missing(caps).is_none() && is_struck(fault, case, &faulty);
                tried += usize::from(struck);
                struck && !case.run(&faulty).unwrap().is_empty()
            });
            match noticed {
                Some(case) => {
                    println!("{}: {} {}", fault.name, entry.kernel.name, case.name);
                    let wrong = case.run(&healthy).unwrap();
                    assert!(wrong.is_empty(), "without {}: {wrong:?}", fault.name);
                }
                // what this adapter cannot do is not there to be noticed
                None if tried == 0 => spared.push((fault.name, entry.kernel.name)),
                None => panic!(
                    "{}: {tried} cases of {} pass",
                    fault.name, entry.kernel.name
                ),
            }
        }
    }
    println!("not on this adapter: {spared:?}");
    let needs = |name: &str| {
        let edits = named([name]).unwrap()[0].edits;
        let parts = ALL
            .iter()
            .flat_map(|e| (e.variants)())
            .flat_map(|v| v.all_parts().collect::<Vec<_>>());
        let own: Vec<_> = parts
            .filter(|p| edits.iter().any(|e| e.part == p.name))
            .collect();
        own.iter().all(|p| p.subgroups || p.int64)
    };
    for (fault, kernel) in spared {
        assert!(needs(fault), "{fault}: no case of {kernel} ran");
    }
}

/// Records behind a shard are written. No model shows it: the shard that they belong to comes next.
static OVERRUN: ShaderFault = ShaderFault {
    name: "overrun",
    kernels: &["matmul"],
    edits: &[
        Edit {
            part: "matmul/out_act.wgsl",
            find: "let is_own = unit / 8u * 32u < params.num_rows / BLOCKS;",
            put: "let is_own = row / 32u < records;",
        },
        Edit {
            part: "matmul/out_residual.wgsl",
            find: "let is_own = unit / 8u * 32u < params.num_rows;",
            put: "let is_own = row / 32u < records;",
        },
    ],
    shows: "in cases whose shards come in reverse",
};

#[test]
fn what_is_written_behind_a_shard_is_noticed() {
    let Some(gpu) = open(vec![&OVERRUN]) else {
        return;
    };
    let cases = (entry("matmul").cases)();
    let in_shards = cases.iter().filter(|case| case.name.ends_with("in shards"));
    let mut endings = BTreeSet::new();
    for case in in_shards.filter(|case| is_struck(&OVERRUN, case, &gpu)) {
        let wrong = case.run(&gpu).unwrap();
        let found = wrong.iter().any(|problem| problem.contains("act_out"));
        assert!(found, "{}: {wrong:?}", case.name);
        let own = ["Gated", "Residual"].into_iter();
        endings.extend(own.filter(|ending| case.name.contains(ending)));
    }
    assert_eq!(endings.len(), 2, "both endings");
}
