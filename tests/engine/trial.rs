//! Sequences fed by hand: the tokens of a request, however often they are gone back in; and profiles,
//! which change nothing and miss nothing.

use super::common::{answer, engine, gpu, request, tokens};
use nelumbo::engine::Sampling;
use nelumbo::gpu::{DType, OpenOptions, ProfileClock, Recorder};
use nelumbo::kernels::gather_rows;
use nelumbo::model::synthetic;
use nelumbo::{Error, LoadOptions};

#[test]
fn a_trial_draws_what_a_request_gets() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let options = LoadOptions {
        batch_size: Some(16),
        ctx_size: Some(64),
        ..LoadOptions::default()
    };
    let mut engine = engine(&gpu, &config, &options);
    let prompt = tokens(5, 37, config.vocab_size);
    let expected = answer(&mut engine, request(&prompt, 6, Sampling::default())).tokens;

    let mut trial = engine.trial(43).unwrap();
    assert!(trial.is_empty());
    trial.feed(&tokens(6, 43, config.vocab_size)).unwrap();
    trial.rewind(0).unwrap();
    for _ in 0..2 {
        let mut drawn = vec![trial.feed(&prompt).unwrap()];
        for _ in 1..expected.len() {
            drawn.push(trial.feed(&drawn[drawn.len() - 1..]).unwrap());
        }
        assert_eq!(drawn, expected);
        assert_eq!(trial.len(), prompt.len() + expected.len() - 1);
        trial.rewind(20).unwrap();
        trial.feed(&prompt[20..]).unwrap();
        trial.rewind(0).unwrap();
    }

    // a prompt of 37 in steps of 16 is three; the profile has the dispatches of all of them
    let mut first = None;
    let profile = trial
        .profile(|trial| {
            first = Some(trial.feed(&prompt)?);
            Ok(())
        })
        .unwrap();
    assert_eq!(first, Some(expected[0]));
    let count = |kernel: &str| -> u64 {
        let rows = profile.rows();
        let of = rows.iter().filter(|row| row.variant.kernel.name == kernel);
        of.map(|row| row.count).sum()
    };
    assert_eq!(count("attention"), 3 * config.num_layers as u64);
    assert_eq!(count("embedding"), 3);
    assert_eq!(count("gather_rows"), 1);
    assert!(!profile.total().is_zero());
    // and each of them by itself, in its step, with what it was given
    let events = profile.events();
    let all: u64 = profile.rows().iter().map(|row| row.count).sum();
    assert_eq!(events.len() as u64, all);
    assert_eq!(
        events.iter().map(|e| e.time).sum::<std::time::Duration>(),
        profile.total()
    );
    let steps: Vec<usize> = events
        .chunk_by(|a, b| a.step == b.step)
        .map(|step| step[0].step)
        .collect();
    assert_eq!(steps, [0, 1, 2]);
    assert!(events.is_sorted_by_key(|event| event.begin));
    for event in events {
        let bytes: u64 = event
            .tensors
            .iter()
            .map(|(_, dtype, shape)| dtype.bytes() * shape.iter().product::<usize>() as u64)
            .sum();
        // windows are whole words
        let spare = 4 * event.tensors.len() as u64;
        assert!(
            bytes > 0 && (bytes..=bytes + spare).contains(&event.bytes),
            "{event:?}"
        );
        assert!(event.workgroups.iter().all(|&n| n > 0), "{event:?}");
    }

    // a decode step: five dispatches a layer, embedding, head, and a choice of ids in two
    let profile = trial
        .profile(|trial| trial.feed(&expected[..1]).map(|_| ()))
        .unwrap();
    let by_kernel = |kernel: &str| -> u64 {
        let rows = profile.rows();
        let of = rows.iter().filter(|row| row.variant.kernel.name == kernel);
        of.map(|row| row.count).sum()
    };
    let layers = config.num_layers as u64;
    assert_eq!(by_kernel("matmul"), 4 * layers + 1);
    assert_eq!(by_kernel("attention"), layers);
    let all: u64 = profile.rows().iter().map(|row| row.count).sum();
    assert_eq!(all, 5 * layers + 1 + 1 + 2);
    drop(trial);

    engine.check();
    let again = answer(&mut engine, request(&prompt, 6, Sampling::default())).tokens;
    assert_eq!(again, expected);
    assert!(matches!(
        engine.trial(65).err(),
        Some(Error::RequestTooLong { tokens: 65, .. })
    ));
    engine
        .submit(request(&prompt, 6, Sampling::default()))
        .unwrap();
    assert!(engine.trial(1).is_err(), "while a request is in flight");
}

#[test]
fn a_profile_counts_more_dispatches_than_a_set_of_timestamps_holds() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let tensor = |dtype, dims: &[usize]| gpu.tensor("t", dtype, dims).unwrap();
    let (x, y) = (tensor(DType::F32, &[1, 4]), tensor(DType::F32, &[1, 4]));
    let rows = tensor(DType::U32, &[1]);
    gpu.upload(&x, 0, bytemuck::cast_slice(&[1.0f32, 2.0, 3.0, 4.0]))
        .unwrap();
    let mut rec = Recorder::new(&gpu).unwrap();
    assert!(rec.take_profile().unwrap().is_none());
    gather_rows::record(&mut rec, &x, &rows, 0, 1, &y);
    rec.start_profile().unwrap();
    for _ in 0..5000 {
        gather_rows::record(&mut rec, &x, &rows, 0, 1, &y);
    }
    let profile = rec.take_profile().unwrap().unwrap();
    assert_eq!(profile.rows().len(), 1);
    assert_eq!(profile.rows()[0].count, 5000);
    assert!(!profile.total().is_zero(), "{:?}", profile.clock());
    if gpu.report().name.contains("llvmpipe") {
        assert_eq!(profile.clock(), ProfileClock::Timestamps);
    }
    // and without one: nothing is counted any more
    gather_rows::record(&mut rec, &x, &rows, 0, 1, &y);
    rec.submit().unwrap();
    assert!(rec.take_profile().unwrap().is_none());
    let found: Vec<f32> = gpu.download_as(&y).unwrap();
    assert_eq!(found, [1.0, 2.0, 3.0, 4.0]);
}
