//! Devices that are lost while requests run: answers go on as if nothing had been.

use super::common::{answer, engine, gpu, model_path, request, tokens};
use nelumbo::engine::{
    EngineCore, Event, Failure, FinishReason, PageUse, Request, RequestId, Sampling,
};
use nelumbo::gpu::{OpenOptions, PipelineFolder};
use nelumbo::kernels::case::Data;
use nelumbo::model::synthetic;
use nelumbo::model::warm::shader_hash;
use nelumbo::{Error, LoadOptions, Model};
use std::collections::BTreeMap;
use std::time::Instant;

/// Everything that is asked for, with the device destroyed before the steps in `lost_before`. Returns
/// the tokens of each.
fn run(engine: &mut EngineCore, requests: &[Request], lost_before: &[usize]) -> Vec<Vec<u32>> {
    let ids: Vec<RequestId> = requests
        .iter()
        .map(|request| engine.submit(request.clone()).unwrap())
        .collect();
    let mut answers: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
    let mut steps = 0;
    while !engine.is_idle() {
        if lost_before.contains(&steps) {
            let lost = engine.decoder().gpu().clone();
            let before = lost.allocated_bytes();
            lost.destroy();
            let start = Instant::now();
            hear(engine.step().unwrap(), &mut answers);
            let seconds = start.elapsed().as_secs_f64();
            println!("back after {seconds:.2} s");
            assert!(seconds < 30.0, "back after {seconds} s");
            assert!(!std::sync::Arc::ptr_eq(&lost, engine.decoder().gpu()));
            if let (Some(before), Some(after)) = (before, lost.allocated_bytes()) {
                assert!(
                    after < before / 4,
                    "{after} of {before} bytes are held still"
                );
            }
        } else {
            hear(engine.step().unwrap(), &mut answers);
        }
        engine.check();
        steps += 1;
    }
    let owned = |page: &PageUse| matches!(page, PageUse::Owned(_));
    assert!(!engine.page_map().iter().any(owned), "pages are left");
    let all = ids.iter().map(|id| answers.remove(id).expect("an answer"));
    all.collect()
}

fn hear(events: Vec<Event>, answers: &mut BTreeMap<RequestId, Vec<u32>>) {
    for event in events {
        match event {
            Event::Token { id, token, .. } => answers.entry(id).or_default().push(token),
            Event::Finished { id, reason } => assert_eq!(reason, FinishReason::Length, "{id:?}"),
            Event::Failed { id, failure } => panic!("{id:?}: {failure:?}"),
        }
    }
}

#[test]
fn e4_twenty_lost_devices_change_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let open = OpenOptions {
        pipelines: Some(PipelineFolder {
            folder: folder.path().to_owned(),
            shaders: shader_hash(),
        }),
        ..OpenOptions::default()
    };
    let Some(gpu) = gpu(&open) else { return };
    let config = synthetic::tiny();
    let options = LoadOptions {
        batch_size: Some(64),
        ..LoadOptions::default()
    };
    let requests: Vec<Request> = (0..6)
        .map(|i| {
            let prompt = tokens(60 + i, 5 + 37 * i as usize, config.vocab_size);
            let sampling = Sampling {
                temperature: if i % 2 == 0 { 0.0 } else { 1.0 },
                seed: i,
                ..Sampling::default()
            };
            request(&prompt, 4 + 3 * i as usize, sampling)
        })
        .collect();
    let mut engine = engine(&gpu, &config, &options);
    let healthy = run(&mut engine, &requests, &[]);
    let mut random = Data::new(3);
    for round in 0..20 {
        let mut lost_before = vec![random.below(18)];
        if round % 10 == 3 {
            lost_before.push(lost_before[0] + 1 + random.below(3)); // and again, soon after
        }
        let answers = run(&mut engine, &requests, &lost_before);
        assert_eq!(answers, healthy, "lost before {lost_before:?}");
    }
}

#[test]
fn who_loses_the_device_three_times_fails_and_nobody_else() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut engine = engine(&gpu, &config, &LoadOptions::default());
    let ask = |seed| request(&tokens(seed, 9, config.vocab_size), 6, Sampling::default());
    let (bad, good) = (ask(1), ask(2));
    let expected = answer(&mut engine, good.clone()).tokens;
    let (bad, good) = (engine.submit(bad).unwrap(), engine.submit(good).unwrap());
    let (mut failed, mut answers) = (Vec::new(), BTreeMap::new());
    while !engine.is_idle() {
        // as if the first request did it, whenever it is computed; the second is in the first two
        // steps, and is left out of the third
        if failed.is_empty() {
            engine.decoder().gpu().destroy();
        }
        let events = engine.step().unwrap();
        let is_end = |event: &Event| matches!(event, Event::Failed { .. });
        let (ends, others) = events.into_iter().partition::<Vec<_>, _>(is_end);
        failed.extend(ends);
        hear(others, &mut answers);
        engine.check();
    }
    let failure = Failure::DeviceLost;
    assert_eq!(failed, [Event::Failed { id: bad, failure }]);
    assert_eq!(answers, BTreeMap::from([(good, expected)]));
}

#[test]
fn a_fault_ends_what_is_in_flight_and_nothing_after_it() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut engine = engine(&gpu, &config, &LoadOptions::default());
    let ask = request(&tokens(3, 9, config.vocab_size), 6, Sampling::default());
    let healthy = run(&mut engine, std::slice::from_ref(&ask), &[]);
    engine.submit(ask.clone()).unwrap();
    engine.step().unwrap();
    // a write where none can be: the device tells it, and goes on telling it
    let (faulty, norm) = (
        engine.decoder().gpu(),
        &engine.decoder().weights().final_norm,
    );
    let _ = faulty.upload(norm, 2, &[0; 4]);
    let error = engine.step().unwrap_err();
    assert!(matches!(error, Error::Device { .. }), "{error:?}");
    assert!(engine.is_idle(), "what was in flight is over");
    assert_eq!(run(&mut engine, &[ask], &[]), healthy);
}

#[test]
fn a_real_model_is_read_again_from_its_file() {
    let Some(path) = model_path() else { return };
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    let options = LoadOptions {
        ctx_size: Some(256),
        ..LoadOptions::default()
    };
    let model = Model::load(&path, &options, &mut |_, _| ()).unwrap();
    let prompt = model
        .texts
        .tokenizer
        .encode_raw("The capital of France is")
        .unwrap();
    let mut engine = EngineCore::new(model.decoder).unwrap();
    let asked = [request(&prompt, 12, Sampling::default())];
    let healthy = run(&mut engine, &asked, &[]);
    assert_eq!(run(&mut engine, &asked, &[5]), healthy);
}
