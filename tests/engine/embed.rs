//! Texts as vectors: against the forward pass on the CPU, in any number of steps, beside requests.

use super::common::{answer, bits, engine, gpu, request, tokens};
use super::thread::{collect, start};
use nelumbo::engine::{EngineOptions, FinishReason, PageUse, Pooling, Sampling};
use nelumbo::gpu::OpenOptions;
use nelumbo::kv::KvFormat;
use nelumbo::model::reference::Reference;
use nelumbo::model::synthetic;
use nelumbo::model::tensors::TensorMap;
use nelumbo::{Error, LoadOptions};

/// Of a component, where the vector's length is 1: some ten times what is found with f32 sums.
const BOUND: f64 = 2e-6;

/// The same in f64, of all tokens' vectors.
fn pooled(hidden: &[Vec<f64>], pooling: Pooling) -> Vec<f64> {
    let sum: Vec<f64> = match pooling {
        Pooling::Last => hidden[hidden.len() - 1].clone(),
        Pooling::Mean => (0..hidden[0].len())
            .map(|i| hidden.iter().map(|h| h[i]).sum::<f64>())
            .collect(),
    };
    let length = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    sum.iter().map(|x| x / length).collect()
}

#[test]
fn vectors_are_those_of_the_reference_in_any_number_of_steps() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let text = tokens(80, 75, config.vocab_size);
    let checkpoint = synthetic::checkpoint(&config, 7).unwrap();
    let map = TensorMap::new(&config, &synthetic::NAMES, &checkpoint).unwrap();
    let load = |batch_size| LoadOptions {
        kv_format: KvFormat::F32,
        batch_size: Some(batch_size),
        ..LoadOptions::default()
    };
    let reference = Reference::load(&config, &map, load(1).weights).unwrap();
    let hidden = reference.hidden(&text);
    let mut in_one = engine(&gpu, &config, &load(128));
    let mut in_many = engine(&gpu, &config, &load(16));
    for pooling in [Pooling::Mean, Pooling::Last] {
        let found = in_one.embed(&text, pooling).unwrap();
        let expected = pooled(&hidden, pooling);
        let error = |(e, &f): (&f64, &f32)| (e - f64::from(f)).abs();
        let worst = expected.iter().zip(&found).map(error).fold(0.0, f64::max);
        println!("{pooling:?}: components within {worst:.2e}");
        assert_eq!(found.len(), config.hidden_size);
        assert!(
            worst <= BOUND && found[0].is_finite(),
            "{pooling:?}: {worst:e}"
        );
        let again = in_many.embed(&text, pooling).unwrap();
        assert_eq!(bits(&found), bits(&again), "{pooling:?}");
    }
    in_one.check();
    let page = PageUse::Free;
    assert!(in_many.page_map().iter().all(|found| *found == page));
}

#[test]
fn a_text_is_embedded_beside_requests_or_refused() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let text = tokens(81, 400, config.vocab_size);
    let mut alone = engine(&gpu, &config, &LoadOptions::default());
    let expected = alone.embed(&text, Pooling::Mean).unwrap();
    let prompt = tokens(82, 9, config.vocab_size);
    let ask = || request(&prompt, 200, Sampling::default());
    let told = answer(&mut alone, ask()).tokens;

    let load = LoadOptions {
        pool_tokens: Some(2048),
        ..LoadOptions::default()
    };
    let engine = start(&gpu, load, EngineOptions::default());
    let handle = engine.submit(ask()).unwrap();
    let found = engine.embed(&text, Pooling::Mean).unwrap();
    assert_eq!(bits(&found), bits(&expected));
    let generated = engine.stats().generated_tokens;
    assert!(
        (2..200).contains(&generated),
        "{generated} tokens were drawn between the steps of the text"
    );
    assert_eq!(collect(&handle), (told, FinishReason::Length));

    // a request that has nearly all pages leaves too few for 25
    let long = tokens(83, 1700, config.vocab_size);
    let running = engine.submit(request(&long, 300, Sampling::default()));
    let running = running.unwrap();
    let refused = engine.embed(&text, Pooling::Last).err();
    let refused = refused.map(|e| e.to_string()).unwrap_or_default();
    assert!(
        refused.starts_with("input: needs 25 pages of the cache, "),
        "{refused}"
    );
    drop(running);
    assert!(engine.embed(&text, Pooling::Last).is_ok());
    let refuse = |tokens: &[u32]| engine.embed(tokens, Pooling::Mean).unwrap_err();
    assert!(matches!(refuse(&[]), Error::Request { .. }));
    assert!(matches!(refuse(&[1, 512]), Error::Request { .. }));
    let endless = vec![1; 3000];
    assert!(matches!(
        refuse(&endless),
        Error::RequestTooLong { tokens: 3000, .. }
    ));
    let pages = engine.pages().unwrap();
    assert!(!pages.iter().any(|page| matches!(page, PageUse::Owned(_))));
    engine.shutdown().unwrap();
}
