//! Requests that cannot be served.

use super::common::{answer, decoder, engine, gpu, request, tokens};
use super::refused;
use nelumbo::engine::{EngineCore, FinishReason, Sampling};
use nelumbo::gpu::OpenOptions;
use nelumbo::model::{Config, synthetic};
use nelumbo::{Error, LoadOptions};

#[test]
fn requests_that_cannot_be_served_are_refused_and_leave_nothing_behind() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let options = LoadOptions {
        ctx_size: Some(50),
        ..LoadOptions::default()
    };
    let mut engine = engine(&gpu, &config, &options);
    let greedy = Sampling::default;
    let text = tokens(1, 60, config.vocab_size);

    let long = engine.submit(request(&text[..50], 1, greedy()));
    let error = refused(long, &["50", "--ctx-size"]);
    assert!(
        matches!(
            error,
            Error::RequestTooLong {
                tokens: 50,
                limit: 50
            }
        ),
        "{error:?}"
    );
    refused(
        engine.submit(request(&[], 1, greedy())),
        &["prompt", "empty"],
    );
    refused(
        engine.submit(request(&text[..3], 0, greedy())),
        &["max_tokens", "at least 1"],
    );
    let outside = [1, config.vocab_size as u32];
    refused(
        engine.submit(request(&outside, 1, greedy())),
        &["prompt", "512"],
    );
    refused(
        engine.submit(request(&[u32::MAX], 1, greedy())),
        &["prompt", "4294967295"],
    );
    let hot = Sampling {
        temperature: f32::NAN,
        ..greedy()
    };
    refused(
        engine.submit(request(&[1], 1, hot)),
        &["temperature", "NaN"],
    );
    let biased = Sampling {
        logit_bias: vec![(512, 1.0)],
        ..greedy()
    };
    refused(
        engine.submit(request(&[1], 1, biased)),
        &["logit_bias", "512"],
    );
    let evaluated = engine.evaluate(&text, 16, 0, |_, _| ());
    assert!(
        matches!(
            evaluated,
            Err(Error::RequestTooLong {
                tokens: 60,
                limit: 50
            })
        ),
        "{evaluated:?}"
    );
    assert!(engine.is_idle() && engine.step().unwrap().is_empty());
    engine.check();

    // the longest that fits: its answer ends where the context does
    let full = answer(&mut engine, request(&text[..49], 10, greedy()));
    assert_eq!((full.tokens.len(), full.reason), (1, FinishReason::Length));
    let end = answer(&mut engine, request(&text[..45], 100, greedy()));
    assert_eq!((end.tokens.len(), end.reason), (5, FinishReason::Length));
}

#[test]
fn evaluation_waits_for_requests_in_flight() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let mut engine = engine(&gpu, &synthetic::tiny(), &LoadOptions::default());
    let id = engine
        .submit(request(&[1, 2], 4, Sampling::default()))
        .unwrap();
    engine.step().unwrap();
    refused(
        engine.evaluate(&[1], 1, 0, |_, _| ()),
        &["evaluate", "in flight"],
    );
    assert!(engine.cancel(id).is_some());
    engine.evaluate(&[1], 1, 0, |_, _| ()).unwrap();
    engine.check();
}

#[test]
fn m19_a_model_that_computes_no_numbers_is_refused_and_does_not_answer() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = Config {
        norm_eps: f32::NAN, // makes every logit NaN, whatever the weights
        ..synthetic::tiny()
    };
    let broken = EngineCore::new(decoder(&gpu, &config, &LoadOptions::default()));
    refused(broken.map(drop), &["logits", "not numbers"]);
}
