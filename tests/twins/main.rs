//! Every kernel's twin against its cases: what it would write in the device's place must be right
//! where the device's own result would be, and what the device writes must be right by the twin.

#[path = "../common/mod.rs"]
mod common;

mod models;

use nelumbo::gpu::{Gpu, OpenOptions, Recorder};
use nelumbo::kernels::twin::{Host, Watch, Watched};
use nelumbo::kernels::{ALL, Entry};
use std::sync::{Arc, Mutex};

/// A device with all it can do.
fn gpu() -> Option<Arc<Gpu>> {
    common::gpu(&OpenOptions {
        coop: true,
        ..OpenOptions::default()
    })
}

/// Kernels to look at: those whose name is in `NELUMBO_KERNEL`, or all.
fn entries() -> impl Iterator<Item = &'static Entry> {
    let filter = std::env::var("NELUMBO_KERNEL").unwrap_or_default();
    ALL.iter()
        .filter(move |entry| filter.is_empty() || entry.kernel.name == filter)
}

#[test]
fn what_a_twin_writes_is_right_by_every_case() {
    let Some(gpu) = gpu() else {
        return;
    };
    let mut wrong = Vec::new();
    for entry in entries() {
        let mut rec = Recorder::new(&gpu).unwrap();
        rec.interpret(Some(Box::new(Host)));
        for case in (entry.cases)() {
            // whatever the adapter lacks: nothing of it is used
            wrong.extend(case.run_with(&mut rec).unwrap());
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(20)]
    );
}

#[test]
fn what_a_device_writes_is_right_by_every_twin() {
    let Some(gpu) = gpu() else {
        return;
    };
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let mut watched = 0;
    for entry in entries() {
        let mut rec = Recorder::new(&gpu).unwrap();
        for case in (entry.cases)() {
            if case.missing(gpu.caps()).is_some() {
                continue;
            }
            let (list, name) = (wrong.clone(), case.name.clone());
            rec.interpret(Some(Box::new(Watch {
                each: move |seen: Watched| {
                    if let Some(problem) = seen.wrong {
                        let variant = seen.variant;
                        list.lock()
                            .unwrap()
                            .push(format!("{variant}: {name}: {problem}"));
                    }
                },
            })));
            let tensors = case.upload(&gpu).unwrap();
            case.dispatch(&mut rec, &tensors);
            rec.submit().unwrap();
            watched += 1;
        }
    }
    let wrong = wrong.lock().unwrap();
    assert!(
        wrong.is_empty(),
        "{} wrong: {:#?}",
        wrong.len(),
        &wrong[..wrong.len().min(20)]
    );
    println!("{watched} cases watched");
    let few = entries().all(|entry| entry.kernel.name.ends_with("_coop"));
    assert!(watched > 0 || few, "nothing was watched");
}
