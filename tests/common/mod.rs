//! What the tests on whole models share: a device or a reason to skip, the real model, small ones.
#![allow(dead_code, reason = "each test program uses a part")]

use nelumbo::engine::{
    EngineCore, EngineOptions, Event, FinishReason, Request, Sampling, Speculate, SpeculateOptions,
    TokenLogprob,
};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::case::Data;
use nelumbo::kv::PageId;
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::{Config, Decoder, synthetic};
use nelumbo::{Error, LoadOptions};
use std::path::PathBuf;
use std::sync::{Arc, Once};

/// Says why a test does not run; `REQUIRE_GPU=1` makes that a failure.
fn skip(why: &str) {
    let required = std::env::var("REQUIRE_GPU").is_ok_and(|v| v == "1");
    assert!(!required, "REQUIRE_GPU=1 and a test cannot run: {why}");
    println!("skipped: {why}");
}

/// A device of one's own, or `None` with the reason printed where there is no adapter. The first one
/// is described, so that every result carries its adapter and driver.
pub fn gpu(options: &OpenOptions) -> Option<Arc<Gpu>> {
    static DESCRIBED: Once = Once::new();
    match Gpu::open(options) {
        Ok(gpu) => {
            DESCRIBED.call_once(|| {
                let r = gpu.report();
                println!(
                    "adapter: {} ({}, {} {})",
                    r.name, r.backend, r.driver, r.driver_info
                );
            });
            Some(gpu)
        }
        Err(error @ Error::NoAdapter { .. }) => {
            skip(&error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The GGUF file of SmolLM2-135M-Instruct that `scripts/test.sh` names, or `None` with the reason
/// printed.
pub fn model_path() -> Option<PathBuf> {
    let named = std::env::var_os("NELUMBO_TEST_MODEL").map(PathBuf::from);
    if named.is_none() {
        skip("NELUMBO_TEST_MODEL does not name the test model; scripts/test.sh fetches it");
    }
    named
}

/// A decoder with seeded weights.
pub fn decoder(gpu: &Arc<Gpu>, config: &Config, options: &LoadOptions) -> Decoder {
    let checkpoint = synthetic::checkpoint(config, 7).unwrap();
    decoder_from_parts(gpu, config, &synthetic::NAMES, &checkpoint, options).unwrap()
}

/// [`decoder`] behind an engine that speculates nothing, so that each step draws a token.
pub fn engine(gpu: &Arc<Gpu>, config: &Config, options: &LoadOptions) -> EngineCore {
    EngineCore::with_options(decoder(gpu, config, options), &plain()).unwrap()
}

/// Nothing is proposed.
pub fn plain() -> EngineOptions {
    EngineOptions {
        speculate: SpeculateOptions {
            mode: Speculate::Off,
            ..SpeculateOptions::default()
        },
        ..EngineOptions::default()
    }
}

/// Random token ids, the same for a seed.
pub fn tokens(seed: u64, count: usize, vocab_size: usize) -> Vec<u32> {
    let mut data = Data::new(seed);
    (0..count).map(|_| data.below(vocab_size) as u32).collect()
}

/// A request that nothing but `max_tokens` ends.
pub fn request(tokens: &[u32], max_tokens: usize, sampling: Sampling) -> Request {
    Request {
        tokens: tokens.to_vec(),
        sampling,
        max_tokens,
        ..Request::default()
    }
}

/// What became of a request.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub tokens: Vec<u32>,
    pub top_logprobs: Vec<Vec<TokenLogprob>>,
    pub reason: FinishReason,
}

/// Runs one request to its end on an idle engine, with the invariants checked after every step.
pub fn answer(engine: &mut EngineCore, request: Request) -> Answer {
    let id = engine.submit(request).unwrap();
    let (mut tokens, mut top_logprobs) = (Vec::new(), Vec::new());
    loop {
        let events = engine.step().unwrap();
        engine.check();
        for event in events {
            match event {
                Event::Token {
                    id: of,
                    token,
                    top_logprobs: top,
                } => {
                    assert_eq!(of, id);
                    tokens.push(token);
                    top_logprobs.push(top);
                }
                Event::Failed { id, failure } => panic!("{id:?}: {failure:?}"),
                Event::Finished { id: of, reason } => {
                    assert_eq!(of, id);
                    assert!(engine.is_idle());
                    return Answer {
                        tokens,
                        top_logprobs,
                        reason,
                    };
                }
            }
        }
    }
}

/// The best token of a row of logits, the first of equals.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, value) in logits.iter().enumerate() {
        if *value > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// A row's exact representation, NaN and signs of zeros included.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Two f16 NaNs, one f32 NaN.
pub const NAN: u32 = 0x7fff_7fff;

/// Writes `word` all over the KV cache, or over the pages that `pages` does not hold.
pub fn fill_pages(decoder: &Decoder, word: u32, but: &[PageId]) {
    let (gpu, kv) = (decoder.gpu(), decoder.kv());
    for slab in (0..decoder.config().num_layers).flat_map(|layer| kv.layer(layer)) {
        for tensor in [&slab.k, &slab.v] {
            let page_bytes = tensor.size_bytes() / slab.num_pages as u64;
            let words = vec![word; page_bytes as usize / 4];
            for page in 0..slab.num_pages {
                if !but.contains(&(slab.first_page + page as PageId)) {
                    let at = page as u64 * page_bytes;
                    let bytes = bytemuck::cast_slice(&words);
                    gpu.upload(tensor, at, bytes).unwrap();
                }
            }
        }
    }
    gpu.flush_uploads().unwrap();
}
