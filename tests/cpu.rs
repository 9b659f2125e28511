//! The processor as a device: no driver, the same engine. None of these tests needs an adapter but for
//! one comparison, and none is skipped.

mod common;

use common::{Answer, answer, argmax, decoder, engine, gpu, request, tokens};
use nelumbo::engine::{EngineCore, Event, FinishReason, Request, Sampling};
use nelumbo::gpu::{Backend, DType, Gpu, OpenOptions, ProfileClock, Readback, Recorder, Selection};
use nelumbo::kernels::{self, Activations};
use nelumbo::kv::KvFormat;
use nelumbo::model::reference::Reference;
use nelumbo::model::synthetic;
use nelumbo::model::tensors::TensorMap;
use nelumbo::quant::{FORMATS, Format};
use nelumbo::{Error, LoadOptions, Model};
use std::sync::Arc;

/// The largest error permitted, as a share of the range of a row of logits.
const BOUND: f64 = 1e-4;

fn asked() -> OpenOptions {
    OpenOptions {
        selection: Selection {
            backend: Some(Backend::Cpu),
            ..Selection::default()
        },
        ..OpenOptions::default()
    }
}

fn cpu() -> Arc<Gpu> {
    kernels::open(&asked()).unwrap()
}

#[test]
fn it_is_there_where_it_is_asked_for_and_compiles_nothing() {
    let gpu = cpu();
    let report = gpu.report();
    assert_eq!((report.backend, report.index), (Backend::Cpu, 0));
    assert!(!report.name.is_empty() && report.rejected.is_none());
    assert_eq!(report.driver_info, env!("CARGO_PKG_VERSION"));
    assert!(gpu.is_host() && gpu.is_software() && gpu.caps().names().is_empty());
    let error = Gpu::open(&asked())
        .err()
        .expect("there is nobody to compute");
    assert!(error.to_string().contains("without kernels"), "{error}");
    let mut other = asked();
    other.selection.device = Some(1);
    let error = kernels::open(&other).err().expect("there is one");
    assert!(matches!(error, Error::NoAdapter { .. }), "{error}");
    let listed = nelumbo::gpu::adapter::list();
    assert!(listed.iter().all(|r| r.backend != Backend::Cpu));

    let config = synthetic::tiny();
    let mut engine = engine(&gpu, &config, &LoadOptions::default());
    answer(&mut engine, request(&[1, 2, 3], 3, Sampling::default()));
    let counters = gpu.counters();
    let made = (counters.pipelines, counters.bind_groups, counters.submits);
    assert_eq!(made, (0, 0, 0));
    assert!(gpu.compile_time().is_zero());
}

#[test]
fn what_is_written_is_read_back_and_sizes_are_kept() {
    let gpu = cpu();
    let whole = gpu.tensor("t", DType::U32, &[128]).unwrap();
    let part = whole.window(256, DType::U32, &[64]);
    gpu.upload(&part, 4, bytemuck::cast_slice(&[7u32, 8]))
        .unwrap();
    let mut rec = Recorder::new(&gpu).unwrap();
    rec.write(&whole, bytemuck::cast_slice(&[1u32, 2, 3]));
    let readback = Readback::new(&gpu, 4 * 128).unwrap();
    rec.read_back(&whole, &readback);
    rec.copy(&part, &whole.window(0, DType::U32, &[64]));
    rec.submit().unwrap();
    let words = |bytes: &[u8]| bytemuck::pod_collect_to_vec::<u8, u32>(bytes);
    let before = readback.wait(&gpu, words).unwrap();
    assert_eq!(before[..4], [1, 2, 3, 0]);
    assert_eq!(before[64..68], [0, 7, 8, 0]);
    let after: Vec<u32> = gpu.download_as(&whole).unwrap();
    assert_eq!(after[..4], [0, 7, 8, 0]);
    assert_eq!(gpu.download_words(&part, &[1..2, 2..4]).unwrap(), [7, 8, 0]);
    gpu.zero([&part]).unwrap();
    let seen = |tensor, range| gpu.words_of(tensor, std::slice::from_ref(&range)).unwrap();
    assert_eq!(seen(&part, 0..64)[..], [0; 64]);
    assert_eq!(seen(&whole, 1..3)[..], [7, 8]);
    let error = gpu.tensor("t", DType::U32, &[1 << 40]).err().unwrap();
    assert!(matches!(error, Error::DoesNotFit { .. }), "{error}");
}

#[test]
fn logits_and_greedy_tokens_are_those_of_the_reference() {
    let (gpu, config) = (cpu(), synthetic::tiny());
    let checkpoint = synthetic::checkpoint(&config, 7).unwrap();
    let map = TensorMap::new(&config, &synthetic::NAMES, &checkpoint).unwrap();
    let prompt = tokens(3, 40, config.vocab_size);
    for &format in FORMATS {
        let options = LoadOptions {
            weights: format,
            kv_format: KvFormat::F32,
            ctx_size: Some(256),
            ..LoadOptions::default()
        };
        let mut engine = engine(&gpu, &config, &options);
        let found = answer(&mut engine, request(&prompt, 24, Sampling::default()));
        assert_eq!(found.reason, FinishReason::Length);
        let text = [&prompt[..], &found.tokens].concat();
        let exact = Reference::load(&config, &map, format)
            .unwrap()
            .logits(&text);
        let mut largest: f64 = 0.0;
        let each = |position: usize, row: &[f32]| {
            let exact = &exact[position];
            let range = exact.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            for (found, exact) in row.iter().zip(exact) {
                let error = (f64::from(*found) - exact).abs() / range;
                largest = if error.is_nan() {
                    f64::INFINITY
                } else {
                    largest.max(error)
                };
            }
            let narrow: Vec<f32> = exact.iter().map(|&v| v as f32).collect();
            if let Some(&token) = text
                .get(position + 1)
                .filter(|_| position + 1 >= prompt.len())
            {
                assert_eq!(token, argmax(&narrow), "{} at {position}", format.name);
            }
        };
        engine.evaluate(&text, 16, 0, each).unwrap();
        println!("{}: within {largest:e}", format.name);
        assert!(largest <= BOUND, "{}: {largest:e}", format.name);
    }
}

fn several() -> Vec<Request> {
    let document = tokens(40, 80, synthetic::tiny().vocab_size);
    let one = |i: u64| {
        let own = tokens(
            41 + i,
            1 + 17 * i as usize % 40,
            synthetic::tiny().vocab_size,
        );
        let shared = [0, 32, 33, 80][i as usize % 4];
        let sampling = Sampling {
            temperature: if i.is_multiple_of(2) { 0.0 } else { 1.0 },
            top_k: 40,
            frequency_penalty: if i.is_multiple_of(3) { 0.3 } else { 0.0 },
            seed: i,
            ..Sampling::default()
        };
        request(&[&document[..shared], &own].concat(), 8, sampling)
    };
    (0..6).map(one).collect()
}

/// Answers to all of `requests` at a time, and how many tokens of theirs were in the cache.
fn together(engine: &mut EngineCore, requests: &[Request]) -> (Vec<Vec<u32>>, usize) {
    let ids: Vec<_> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    let mut answers = vec![Vec::new(); ids.len()];
    let mut cached = vec![0; ids.len()];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            match event {
                Event::Token { id, token, .. } => {
                    let i = ids.iter().position(|other| *other == id).unwrap();
                    answers[i].push(token);
                }
                Event::Failed { id, failure } => panic!("{id:?}: {failure:?}"),
                Event::Finished { .. } => (),
            }
        }
        engine.check();
        for (cached, &id) in cached.iter_mut().zip(&ids) {
            *cached = engine.counts(id).map_or(*cached, |c| c.cached_tokens);
        }
    }
    (answers, cached.iter().sum())
}

#[test]
fn many_at_once_are_answered_as_if_alone_and_prefixes_are_found() {
    let (gpu, config) = (cpu(), synthetic::tiny());
    let options = |max_running, batch_size| LoadOptions {
        max_running,
        ctx_size: Some(256),
        batch_size: Some(batch_size),
        ..LoadOptions::default()
    };
    let requests = several();
    let mut single = engine(&gpu, &config, &options(1, 64));
    let alone: Vec<Vec<u32>> = requests
        .iter()
        .map(|request| answer(&mut single, request.clone()).tokens)
        .collect();
    for (max_running, batch_size) in [(2, 16), (6, 7), (6, 128)] {
        let mut engine = engine(&gpu, &config, &options(max_running, batch_size));
        for round in 0..2 {
            let (answers, cached) = together(&mut engine, &requests);
            assert_eq!(answers, alone, "{max_running} at a time, round {round}");
            assert!(round == 0 || cached >= 3 * 32, "{cached} tokens were found");
        }
    }
}

#[test]
fn a_request_can_be_cancelled_between_steps() {
    let (gpu, config) = (cpu(), synthetic::tiny());
    let mut engine = engine(&gpu, &config, &LoadOptions::default());
    // by default steps are short: nothing ends one before its time
    assert_eq!(engine.decoder().max_batched_tokens(), 16);
    let prompt = tokens(5, 100, config.vocab_size);
    let id = engine
        .submit(request(&prompt, 10, Sampling::default()))
        .unwrap();
    engine.step().unwrap();
    let ended = engine.cancel(id);
    assert!(
        matches!(
            ended,
            Some(Event::Finished {
                reason: FinishReason::Cancelled,
                ..
            })
        ),
        "{ended:?}"
    );
    assert!(engine.is_idle());
    engine.check();
    answer(&mut engine, request(&prompt, 2, Sampling::default()));
}

#[test]
fn a_loss_is_told_and_the_same_decoder_can_be_made_again() {
    let (gpu, config) = (cpu(), synthetic::tiny());
    let decoder = decoder(&gpu, &config, &LoadOptions::default());
    let recipe = decoder.recipe();
    let mut engine = EngineCore::new(decoder).unwrap();
    let asked = request(&[4, 5, 6], 6, Sampling::default());
    let Answer { tokens, .. } = answer(&mut engine, asked.clone());
    gpu.destroy();
    let error = gpu.wait().expect_err("it is gone");
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    let mut again = EngineCore::new(recipe.make().unwrap()).unwrap();
    assert_eq!(answer(&mut again, asked).tokens, tokens);
}

#[test]
fn a_profile_is_by_the_host_s_clock() {
    let (gpu, config) = (cpu(), synthetic::tiny());
    let mut engine = engine(&gpu, &config, &LoadOptions::default());
    let mut trial = engine.trial(16).unwrap();
    let profile = trial
        .profile(|trial| trial.feed(&[1, 2, 3]).map(drop))
        .unwrap();
    assert_eq!(profile.clock(), ProfileClock::Host);
    let of = |name: &str| {
        let rows = profile.rows();
        let rows = rows.iter().filter(|row| row.variant.kernel.name == name);
        rows.map(|row| row.count).sum::<u64>()
    };
    assert_eq!(of("matmul"), 4 * config.num_layers as u64 + 1);
    assert_eq!(of("attention"), config.num_layers as u64);
    assert!(!profile.total().is_zero());
}

#[test]
fn a_gpu_draws_the_same_tokens() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    for (weights, activations) in [
        ("q8", Activations::F32),
        ("q8", Activations::Q8),
        ("f16", Activations::F32),
    ] {
        let options = LoadOptions {
            weights: Format::from_name(weights).unwrap(),
            activations: Some(activations),
            ctx_size: Some(256),
            ..LoadOptions::default()
        };
        let answers = [&gpu, &cpu()].map(|gpu| {
            let mut engine = engine(gpu, &config, &options);
            let greedy = several().into_iter().filter(|r| r.sampling.is_greedy());
            let greedy: Vec<Request> = greedy.collect();
            together(&mut engine, &greedy).0
        });
        assert_eq!(answers[0], answers[1], "{weights}, {activations:?}");
    }
}

#[test]
fn the_real_model_says_the_golden_words() {
    #[derive(serde::Deserialize)]
    struct Golden {
        prompts: Vec<Prompt>,
    }
    #[derive(serde::Deserialize)]
    struct Prompt {
        token_ids: Vec<u32>,
        greedy_48: Vec<u32>,
    }
    const TOKENS: usize = 12;
    let Some(path) = common::model_path() else {
        return;
    };
    let json = include_str!("fixtures/golden/golden-smollm2.json");
    let golden: Golden = serde_json::from_str(json).unwrap();
    let options = LoadOptions {
        open: asked(),
        weights: Format::from_name("f16").unwrap(),
        activations: Some(Activations::F32),
        kv_format: KvFormat::F32,
        ctx_size: Some(256),
        max_running: 1,
        ..LoadOptions::default()
    };
    let model = Model::load(&path, &options, &mut |_, _| ()).unwrap();
    let mut engine = EngineCore::new(model.decoder).unwrap();
    for (i, prompt) in golden.prompts.iter().take(2).enumerate() {
        let asked = request(&prompt.token_ids, TOKENS, Sampling::default());
        let found = answer(&mut engine, asked);
        assert_eq!(found.tokens, prompt.greedy_48[..TOKENS], "prompt {i}");
    }
}
