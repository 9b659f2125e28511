//! Whole models by twins: watched dispatch by dispatch, and on the host instead of the device.

use crate::common::{self, answer, decoder, engine, request, tokens};
use crate::gpu;
use nelumbo::engine::{EngineCore, Sampling};
use nelumbo::gpu::{Call, Interpreter, OpenOptions, Place};
use nelumbo::kernels::Activations;
use nelumbo::kernels::case::Expect;
use nelumbo::kernels::twin::{self, Effort, Host, Watch, Watched};
use nelumbo::kv::KvFormat;
use nelumbo::model::{Config, Numerics, synthetic};
use nelumbo::quant::Format;
use nelumbo::{Error, LoadOptions, Model};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What was watched, in words, and what was wrong.
#[derive(Default)]
struct Seen {
    ops: BTreeSet<&'static str>,
    kernels: BTreeSet<&'static str>,
    wrong: Vec<String>,
}

fn watching(seen: &Arc<Mutex<Seen>>) -> Watch<impl FnMut(Watched) + Send + use<>> {
    let seen = Arc::clone(seen);
    Watch {
        each: move |watched: Watched| {
            let Place { layer, op } = watched.place;
            let mut seen = seen.lock().unwrap();
            seen.ops.insert(op);
            seen.kernels.insert(watched.variant.kernel.name);
            if let Some(problem) = watched.wrong {
                let variant = watched.variant;
                seen.wrong
                    .push(format!("{op} of {layer:?}, {variant}: {problem}"));
            }
        },
    }
}

/// A model that is watched.
struct Whole {
    name: &'static str,
    config: Config,
    options: LoadOptions,
    max_binding: Option<u64>,
    /// Tokens of its prompts.
    prompts: &'static [usize],
}

impl Whole {
    /// Everything in one binding, and prompts that one step computes.
    fn new(name: &'static str, config: Config, options: LoadOptions) -> Whole {
        Whole {
            name,
            config,
            options,
            max_binding: None,
            prompts: &[1, 8, 17, 300],
        }
    }

    /// A few tokens drawn after each prompt; `None` where there is no device.
    fn watch(&self) -> Option<Seen> {
        let gpu = common::gpu(&OpenOptions {
            coop: true,
            max_binding: self.max_binding,
            ..OpenOptions::default()
        })?;
        let seen = Arc::default();
        let mut decoder = decoder(&gpu, &self.config, &self.options);
        let cut = decoder
            .weights()
            .layers
            .iter()
            .any(|l| l.qkv.shards.len() > 1)
            || decoder.kv().geometry(0).num_slabs() > 1;
        assert_eq!(cut, self.max_binding.is_some(), "{}", self.name);
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
        for (seed, &count) in self.prompts.iter().enumerate() {
            let prompt = tokens(seed as u64, count, self.config.vocab_size);
            answer(&mut engine, request(&prompt, 3, sampling.clone()));
        }
        drop(engine);
        Some(Arc::into_inner(seen).unwrap().into_inner().unwrap())
    }
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

/// Every cache and way to pass activations; heads that leave no whole records; matrices in shards, the
/// last of which end anywhere; a cache in two slabs.
fn wholes() -> Vec<Whole> {
    let tiny = synthetic::tiny;
    let ragged = Config {
        hidden_size: 100,
        vocab_size: 301,
        num_heads: 3,
        num_kv_heads: 1,
        head_dim: 40,
        tied_head: false,
        ..tiny()
    };
    let large = Config {
        num_layers: 1,
        hidden_size: 1024,
        num_heads: 16,
        num_kv_heads: 8,
        head_dim: 64,
        intermediate_size: 1100,
        vocab_size: 1301,
        ..tiny()
    };
    let wide = Config {
        num_layers: 1,
        num_heads: 16,
        num_kv_heads: 8,
        head_dim: 128,
        ..tiny()
    };
    let with = |kv_format, activations| LoadOptions {
        kv_format,
        activations: Some(activations),
        ..options()
    };
    let (f32, q8) = (Activations::F32, Activations::Q8);
    let f16_weights = LoadOptions {
        weights: Format::from_name("f16").unwrap(),
        ..with(KvFormat::F16, f32)
    };
    vec![
        Whole::new("f16 cache", tiny(), with(KvFormat::F16, f32)),
        Whole::new("f32 cache, q8", tiny(), with(KvFormat::F32, q8)),
        Whole::new("ragged", ragged, f16_weights),
        Whole {
            max_binding: Some(1 << 20),
            prompts: &[1, 40],
            ..Whole::new("shards", large, with(KvFormat::F16, q8))
        },
        Whole {
            max_binding: Some(1 << 20),
            prompts: &[300],
            ..Whole::new("slabs", wide, with(KvFormat::F32, f32))
        },
    ]
}

#[test]
fn nothing_of_a_whole_model_is_wrong() {
    let Some(gpu) = gpu() else {
        return;
    };
    let mut all = wholes();
    let mut expected = vec![
        "attention_merge",
        "gather_rows",
        "pack",
        "penalties",
        "rope",
        "sample",
    ];
    if gpu.caps().coop.is_some() {
        let fast = LoadOptions {
            numerics: Numerics::Fast,
            ..options()
        };
        all.push(Whole::new("fast", synthetic::tiny(), fast));
        expected.extend(["attention_coop", "halve", "matmul_coop"]);
    }
    let mut kernels = BTreeSet::new();
    for whole in all {
        let seen = whole.watch().expect("there is a device");
        assert!(seen.wrong.is_empty(), "{}: {:#?}", whole.name, seen.wrong);
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
        assert!(seen.ops.iter().copied().eq(ops), "{:?}", seen.ops);
        kernels.extend(seen.kernels);
    }
    for kernel in expected {
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

/// Who computes.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    Device,
    Host,
    Watched,
}

/// Lets whoever is named compute, and adds up seconds and dispatches of each operation.
struct Turns {
    who: Arc<Mutex<Who>>,
    seen: Arc<Mutex<Seen>>,
    seconds: Arc<Mutex<BTreeMap<&'static str, (f64, usize)>>>,
}

impl Interpreter for Turns {
    fn dispatch(&mut self, call: &mut Call<'_>) -> Result<(), Error> {
        let start = Instant::now();
        match *self.who.lock().unwrap() {
            Who::Device => call.on_device(),
            Who::Host => Host.dispatch(call)?,
            Who::Watched => watching(&self.seen).dispatch(call)?,
        }
        let mut seconds = self.seconds.lock().unwrap();
        let (sum, count) = seconds.entry(call.place.op).or_default();
        (*sum, *count) = (*sum + start.elapsed().as_secs_f64(), *count + 1);
        Ok(())
    }
}

#[test]
fn the_real_model_is_right_on_the_device_and_the_same_on_the_host() {
    let (Some(gpu), Some(path)) = (gpu(), common::model_path()) else {
        return;
    };
    drop(gpu); // loading opens its own
    let mut model = Model::load(&path, &options(), &mut |_, _| ()).unwrap();
    let (who, seen) = (Arc::new(Mutex::new(Who::Device)), Arc::default());
    let seconds = Arc::default();
    let turns = Turns {
        who: Arc::clone(&who),
        seen: Arc::clone(&seen),
        seconds: Arc::clone(&seconds),
    };
    model.decoder.recorder().interpret(Some(Box::new(turns)));
    let prompt = model
        .texts
        .tokenizer
        .encode_raw("The capital of France is the")
        .unwrap();
    let mut engine = EngineCore::new(model.decoder).unwrap();
    let mut say = |by: Who, max_tokens: usize| {
        *who.lock().unwrap() = by;
        seconds.lock().unwrap().clear();
        let start = Instant::now();
        let said = answer(
            &mut engine,
            request(&prompt, max_tokens, Sampling::default()),
        );
        (said.tokens, start.elapsed().as_secs_f64())
    };
    let (on_device, _) = say(Who::Device, 12);
    let (first, before) = say(Who::Host, 1);
    let (on_host, all) = say(Who::Host, 12);
    for (op, (sum, count)) in seconds.lock().unwrap().iter() {
        println!(
            "{op}: {:.2} ms a dispatch, {count} of them",
            1e3 * sum / *count as f64
        );
    }
    println!(
        "prompt of {} tokens {before:.2} s, then {:.2} tokens/s",
        prompt.len(),
        11.0 / (all - before)
    );
    assert_eq!(first, on_device[..1]);
    assert_eq!(on_host, on_device);
    let (watched, taken) = say(Who::Watched, 2);
    println!("two steps watched in {taken:.1} s");
    assert_eq!(watched, on_device[..2]);
    let seen = seen.lock().unwrap();
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    assert_eq!(seen.ops.len(), 8, "{:?}", seen.ops);
}
