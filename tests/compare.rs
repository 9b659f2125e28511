//! A device against the reference: residual streams and logits within bounds, and a planted fault named
//! by its operation, whichever it is.

mod common;

use common::{gpu, tokens};
use nelumbo::LoadOptions;
use nelumbo::engine::EngineCore;
use nelumbo::engine::compare::{
    Expected, Found, Looked, Watching, check_cases, residual_streams, trace, watch, watch_steps,
};
use nelumbo::gpu::faults::{FAULTS, ShaderFault};
use nelumbo::gpu::{Gpu, OpenOptions, Variant};
use nelumbo::kernels::{ALL, Activations, Tuning};
use nelumbo::kv::KvFormat;
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::reference::Reference;
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Config, synthetic};
use nelumbo::quant::FORMATS;
use std::sync::Arc;

const TEXT: u64 = 41;

fn options(activations: Activations, lanes: u32) -> LoadOptions {
    LoadOptions {
        activations: Some(activations),
        lanes: Some(lanes),
        ctx_size: Some(512),
        max_running: 4,
        ..LoadOptions::default()
    }
}

/// An engine that is not refused for what it computes.
fn unchecked(gpu: &Arc<Gpu>, config: &Config, options: &LoadOptions) -> EngineCore {
    EngineCore::unchecked(common::decoder(gpu, config, options)).unwrap()
}

fn watched(gpu: &Arc<Gpu>, options: &LoadOptions) -> Watching {
    let mut engine = unchecked(gpu, &synthetic::tiny(), options);
    let text = tokens(TEXT, 320, 512);
    let watching = watch(&mut engine, &text, &Looked::Outer, &mut |_| ()).unwrap();
    engine.check();
    assert!(engine.is_idle());
    watching
}

/// Weights like those of [`common::decoder`].
fn reference(config: &Config) -> Reference {
    let checkpoint = synthetic::checkpoint(config, 7).unwrap();
    let map = TensorMap::new(config, &synthetic::NAMES, &checkpoint).unwrap();
    Reference::load(config, &map, FORMATS[0]).unwrap()
}

#[test]
fn a_healthy_device_is_within_bounds_layer_by_layer() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = Config {
        num_layers: 5,
        ..synthetic::tiny()
    };
    let text = tokens(TEXT, 70, config.vocab_size);
    let expected = Expected::compute(
        &reference(&config),
        config.vocab_size,
        &text,
        6,
        &mut |_| (),
    );
    assert_eq!((expected.greedy.len(), expected.tokens.len()), (6, 75));
    assert_eq!(expected.tokens[70..], expected.greedy[..5]);
    for (kv_format, activations, most) in [
        (KvFormat::F32, Activations::F32, 1e-10),
        (KvFormat::F16, Activations::F32, 1e-6),
        (KvFormat::F16, Activations::Q8, 1e-2),
    ] {
        let options = LoadOptions {
            kv_format,
            ..options(activations, 4)
        };
        let mut engine = unchecked(&gpu, &config, &options);
        let found = Found::of(&mut engine, &expected).unwrap();
        let worst = found.layers.iter().map(|l| l.nmse).fold(0.0, f64::max);
        println!(
            "{kv_format:?}, {activations:?}: NMSE {:?}, KL {:?}",
            found.layers,
            found.kl()
        );
        assert_eq!((found.layers.len(), found.divergences.len()), (5, 75));
        assert!(
            worst > 0.0 && worst <= most,
            "{kv_format:?}, {activations:?}: {worst:e}"
        );
        let (mean, max) = found.kl();
        assert!(mean <= max && max <= 10.0 * most.sqrt(), "{mean:e} {max:e}");
        assert!(!found.pairs.is_empty() && found.pairs.len() <= 75 * 24);
        if activations == Activations::F32 {
            assert_eq!(found.top1_agreement(), 1.0);
        }
    }
}

#[test]
fn residual_streams_are_those_of_any_cutting_and_of_shards() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = Config {
        hidden_size: 640,
        intermediate_size: 1920,
        ..synthetic::tiny()
    };
    let text = tokens(TEXT, 40, config.vocab_size);
    let streams = |gpu: &Arc<Gpu>, batch: usize| {
        let options = LoadOptions {
            batch_size: Some(batch),
            ..options(Activations::F32, 4)
        };
        let mut engine = unchecked(gpu, &config, &options);
        let mut rows = 0;
        let streams = residual_streams(&mut engine, &text, &mut |_, _| rows += 1).unwrap();
        assert_eq!(rows, 40);
        streams
    };
    let whole = streams(&gpu, 64);
    assert!(whole.iter().all(|stream| stream.len() == 40 * 640));
    assert_eq!(whole, streams(&gpu, 7));
    let small = OpenOptions {
        max_binding: Some(1 << 20),
        ..OpenOptions::default()
    };
    let small = common::gpu(&small).expect("as the one before");
    assert_eq!(whole, streams(&small, 64));
}

#[test]
fn a_healthy_device_passes_and_every_kernel_is_looked_at() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for activations in [Activations::F32, Activations::Q8] {
        let seen = watched(&gpu, &options(activations, 4));
        assert_eq!(seen.bad, None);
        let names: Vec<&str> = seen.variants.iter().map(|v| v.kernel.name).collect();
        for kernel in [
            "embedding",
            "matmul",
            "attention",
            "gather_rows",
            "penalties",
            "sample",
            "argmax",
        ] {
            assert!(names.contains(&kernel), "{kernel}: {names:?}");
        }
        assert!(
            seen.dispatches > 100 && seen.cases > 0,
            "{} {}",
            seen.dispatches,
            seen.cases
        );
    }
}

#[test]
fn shards_and_slabs_pass_as_well() {
    let small = OpenOptions {
        max_binding: Some(1 << 20),
        ..OpenOptions::default()
    };
    let Some(gpu) = gpu(&small) else {
        return;
    };
    let options = LoadOptions {
        pool_tokens: Some(20_000),
        ..options(Activations::F32, 4)
    };
    let mut engine = unchecked(&gpu, &synthetic::tiny(), &options);
    assert!(engine.decoder().kv().geometry(0).num_slabs() > 1);
    let text = tokens(TEXT, 320, 512);
    let seen = watch_steps(&mut engine, &text, &Looked::All, &mut |_| ()).unwrap();
    assert_eq!(seen.bad, None);
    let names: Vec<&str> = seen.variants.iter().map(|v| v.kernel.name).collect();
    assert!(
        names.contains(&"rope") && names.contains(&"attention_merge"),
        "{names:?}"
    );
}

/// Whether a variant has a part that the fault changes.
fn strikes(fault: &ShaderFault, variant: &Variant) -> bool {
    let mut parts = variant.all_parts();
    parts.any(|part| fault.edits.iter().any(|edit| edit.part == part.name))
}

#[test]
fn every_planted_fault_is_named() {
    let Some(healthy) = gpu(&OpenOptions::default()) else {
        return;
    };
    // rows of one lane are what shares loads and reads weights widely, where the adapter can
    let ways = [
        options(Activations::F32, 4),
        options(Activations::Q8, 8),
        options(Activations::F32, 1),
        options(Activations::Q8, 1),
    ];
    let seen: Vec<Watching> = ways.iter().map(|way| watched(&healthy, way)).collect();
    let (mut named, mut spared) = (0, Vec::new());
    for fault in FAULTS {
        let open = OpenOptions {
            faults: vec![fault],
            ..OpenOptions::default()
        };
        let faulty = gpu(&open).expect("as the one before");
        let mut struck = false;
        let in_steps = |way: &Watching| way.variants.iter().any(|v| strikes(fault, v));
        let in_any_step = seen.iter().any(in_steps);
        for (way, healthy) in ways.iter().zip(&seen) {
            // what no step of any way leads to is held against its cases
            let by_step = in_steps(healthy);
            let by_case = fault
                .kernels
                .iter()
                .any(|kernel| healthy.variants.iter().all(|v| v.kernel.name != *kernel));
            if !by_step && (in_any_step || !by_case) {
                continue;
            }
            struck = true;
            let found = watched(&faulty, way);
            let Some(bad) = found.bad else {
                panic!("{} ({}) is not found", fault.name, fault.shows);
            };
            assert!(
                fault.kernels.contains(&bad.kernel),
                "{}: {bad:?}",
                fault.name
            );
            println!(
                "{}: {} {:?} {} at {}",
                fault.name, bad.op, bad.layer, bad.kernel, bad.step
            );
            named += 1;
            break;
        }
        if !struck {
            spared.push(fault);
        }
    }
    let names: Vec<&str> = spared.iter().map(|f| f.name).collect();
    println!("{named} named, not on this adapter: {names:?}");
    // what needs subgroups or 64-bit integers need not be there
    let alone = Tuning::with_lanes(&healthy, 1);
    for fault in spared {
        let lacks = ALL
            .iter()
            .flat_map(|entry| (entry.variants)())
            .flat_map(|v| v.all_parts().collect::<Vec<_>>())
            .filter(|part| fault.edits.iter().any(|edit| edit.part == part.name))
            .all(|part| part.subgroups && !alone.subgroups || part.int64 && !alone.wide);
        assert!(lacks, "{} was never looked for", fault.name);
    }
    assert!(named >= 28, "{named}");
}

#[test]
fn cases_are_counted() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let entry = ALL
        .iter()
        .find(|entry| entry.kernel.name == "gather_rows")
        .unwrap();
    let cases = (entry.cases)();
    let report = check_cases(&gpu, &cases).unwrap();
    assert_eq!(
        (report.ran + report.skipped, report.failed),
        (cases.len(), 0)
    );
    let fault = nelumbo::gpu::faults::named(["gather-row"]).unwrap();
    let faulty = common::gpu(&OpenOptions {
        faults: fault,
        ..OpenOptions::default()
    })
    .unwrap();
    let report = check_cases(&faulty, &cases).unwrap();
    assert!(
        report.failed > 0 && report.problems[0].contains("gather_rows"),
        "{report:?}"
    );
}

#[test]
fn a_trace_has_every_dispatch_in_order() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let mut engine = unchecked(&gpu, &synthetic::tiny(), &options(Activations::F32, 4));
    let text = tokens(TEXT, 20, 512);
    let (token, traced) = trace(&mut engine, |engine| engine.trial(32)?.feed(&text)).unwrap();
    assert!(token < 512);
    let ops: Vec<&str> = traced.iter().map(|t| t.place.op).collect();
    let layer = ["qkv", "attention", "o", "gate_up", "down"];
    let whole = [
        &["embedding"][..],
        &layer,
        &layer,
        &["head", "head", "draw", "draw"],
    ]
    .concat();
    assert_eq!(ops, whole);
    assert_eq!(traced[1].param("num_tokens"), Some(20));
    assert!(
        traced
            .iter()
            .all(|t| !t.tensors.is_empty() && !t.params.is_empty())
    );
    let layers: Vec<Option<usize>> = traced.iter().map(|t| t.place.layer).collect();
    assert_eq!(
        (layers[0], layers[1], layers[6], layers[11]),
        (None, Some(0), Some(1), None)
    );
    let reference = decoder_from_parts(
        &gpu,
        &synthetic::tiny(),
        &synthetic::NAMES,
        &synthetic::checkpoint(&synthetic::tiny(), 7).unwrap(),
        &options(Activations::F32, 4),
    );
    let mut plain = EngineCore::new(reference.unwrap()).unwrap();
    assert_eq!(
        plain.trial(32).unwrap().feed(&text).unwrap(),
        token,
        "a trace changes nothing"
    );
}
