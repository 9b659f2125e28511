//! Every kernel's twin against its cases: what it would write in the device's place must be right
//! where the device's own result would be, and what the device writes must be right by the twin.

mod common;

use common::{answer, decoder, engine, request, tokens};
use nelumbo::engine::{EngineCore, Sampling};
use nelumbo::gpu::{Call, Gpu, Interpreter, OpenOptions, Place, Recorder};
use nelumbo::kernels::case::Expect;
use nelumbo::kernels::twin::{self, Effort, Host, Watch, Watched};
use nelumbo::kernels::{ALL, Activations, Entry};
use nelumbo::kv::KvFormat;
use nelumbo::model::{Config, synthetic};
use nelumbo::quant::Format;
use nelumbo::{Error, LoadOptions};
use std::collections::BTreeSet;
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

/// What was watched, in words, and what was wrong.
#[derive(Default)]
struct Seen {
    ops: BTreeSet<String>,
    kernels: BTreeSet<&'static str>,
    wrong: Vec<String>,
}

fn watching(seen: &Arc<Mutex<Seen>>) -> Watch<impl FnMut(Watched) + Send + use<>> {
    let seen = Arc::clone(seen);
    Watch {
        each: move |watched: Watched| {
            let Place { layer, op } = watched.place;
            let mut seen = seen.lock().unwrap();
            seen.ops.insert(op.to_owned());
            seen.kernels.insert(watched.variant.kernel.name);
            if let Some(problem) = watched.wrong {
                let variant = watched.variant;
                seen.wrong
                    .push(format!("{op} of {layer:?}, {variant}: {problem}"));
            }
        },
    }
}

/// Prompts of 1, 8, 17 and 300 tokens, each in one step, and a few tokens drawn after each.
fn watch_model(gpu: &Arc<Gpu>, config: &Config, options: &LoadOptions) -> Seen {
    let seen = Arc::default();
    let mut decoder = decoder(gpu, config, options);
    decoder
        .recorder()
        .interpret(Some(Box::new(watching(&seen))));
    let mut engine = EngineCore::new(decoder).unwrap();
    let sampling = Sampling {
        temperature: 0.9,
        top_k: 50,
        top_p: 0.95,
        repeat_penalty: 1.1,
        presence_penalty: 0.1,
        logit_bias: vec![(5, -3.0)],
        seed: 11,
        ..Sampling::default()
    };
    for (seed, count) in [1, 8, 17, 300].into_iter().enumerate() {
        let prompt = tokens(seed as u64, count, config.vocab_size);
        answer(&mut engine, request(&prompt, 3, sampling.clone()));
    }
    drop(engine);
    Arc::into_inner(seen).unwrap().into_inner().unwrap()
}

/// 300 tokens fit a step.
fn options() -> LoadOptions {
    LoadOptions {
        ctx_size: Some(320),
        batch_size: Some(512),
        max_running: 1,
        ..LoadOptions::default()
    }
}

#[test]
fn nothing_of_a_whole_model_is_wrong() {
    let Some(gpu) = gpu() else {
        return;
    };
    // heads that leave no whole records, and rows that end within a block
    let ragged = Config {
        hidden_size: 100,
        vocab_size: 301,
        num_heads: 3,
        num_kv_heads: 1,
        head_dim: 40,
        tied_head: false,
        ..synthetic::tiny()
    };
    let mut kernels = BTreeSet::new();
    for (config, weights) in [(synthetic::tiny(), "q8"), (ragged, "f16")] {
        for (kv_format, activations) in [
            (KvFormat::F16, Activations::F32),
            (KvFormat::F32, Activations::Q8),
        ] {
            if weights == "f16" && activations == Activations::Q8 {
                continue; // cannot be
            }
            let options = LoadOptions {
                weights: Format::from_name(weights).unwrap(),
                kv_format,
                activations: Some(activations),
                ..options()
            };
            let seen = watch_model(&gpu, &config, &options);
            assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
            let ops = [
                "attention",
                "down",
                "draw",
                "embedding",
                "gate_up",
                "head",
                "o",
                "qkv",
            ];
            assert!(seen.ops.iter().eq(ops), "{:?}", seen.ops);
            kernels.extend(seen.kernels);
        }
    }
    for kernel in [
        "attention_merge",
        "pack",
        "penalties",
        "sample",
        "gather_rows",
    ] {
        assert!(
            kernels.contains(kernel),
            "{kernel} is not among {kernels:?}"
        );
    }
}

#[test]
fn a_model_on_the_host_says_what_it_says_on_the_device() {
    let Some(gpu) = gpu() else {
        return;
    };
    let config = synthetic::tiny();
    let prompt = tokens(4, 40, config.vocab_size);
    let request = request(&prompt, 12, Sampling::default());
    for activations in Activations::ALL {
        let options = LoadOptions {
            activations: Some(activations),
            ..options()
        };
        let on_device = answer(&mut engine(&gpu, &config, &options), request.clone());
        let mut decoder = decoder(&gpu, &config, &options);
        decoder.recorder().interpret(Some(Box::new(Host)));
        let on_host = answer(&mut EngineCore::new(decoder).unwrap(), request.clone());
        assert_eq!(on_host, on_device, "{activations:?}");
    }
}

/// Watches a device that gets the residual stream wrong, by twice what is open, in one place.
struct Planted {
    place: Place,
    seen: Arc<Mutex<Vec<Watched>>>,
}

impl Interpreter for Planted {
    fn dispatch(&mut self, call: &mut Call<'_>) -> Result<(), Error> {
        let pieces = twin::of(call.variant.kernel)(call, Effort::Bounds)?;
        let here = call.place == self.place;
        let watched = twin::watch(call, |call| {
            call.on_device();
            if !here {
                return Ok(());
            }
            let mut hidden = pieces.iter().filter(|piece| piece.tensor == "hidden");
            let piece = hidden.next().expect("it writes the residual stream");
            let Expect::F32 { values, bound } = &piece.expect else {
                panic!("values with bounds");
            };
            let at = values.len() / 2;
            let wrong = (values[at] + 2.0 * bound[at]) as f32;
            call.write("hidden", piece.at + at, &[wrong.to_bits()])
        })?;
        self.seen.lock().unwrap().push(watched);
        Ok(())
    }
}

#[test]
fn one_wrong_element_is_found_where_it_is() {
    let Some(gpu) = gpu() else {
        return;
    };
    let config = synthetic::tiny();
    let place = Place {
        layer: Some(1),
        op: "o",
    };
    let seen: Arc<Mutex<Vec<Watched>>> = Arc::default();
    let mut decoder = decoder(&gpu, &config, &options());
    decoder.recorder().interpret(Some(Box::new(Planted {
        place,
        seen: Arc::clone(&seen),
    })));
    let mut engine = EngineCore::new(decoder).unwrap();
    let prompt = tokens(4, 5, config.vocab_size);
    answer(&mut engine, request(&prompt, 1, Sampling::default()));
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 20, "{} dispatches", seen.len());
    for watched in seen.iter() {
        match &watched.wrong {
            None => assert_ne!(watched.place, place),
            Some(problem) => {
                assert_eq!(watched.place, place);
                assert_eq!(watched.variant.kernel.name, "matmul");
                assert!(
                    problem.starts_with("hidden from word 0: element "),
                    "{problem}"
                );
                assert!(problem.contains("(1 of "), "{problem}");
                let shapes = watched.shapes.iter();
                assert!(shapes.clone().any(|(name, _)| name == "hidden"));
            }
        }
    }
    assert!(seen.iter().any(|watched| watched.wrong.is_some()));
}
