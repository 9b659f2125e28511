//! Requests one after another, and what a step of decoding may do.

use super::common::{answer, engine, gpu, request, tokens};
use super::options;
use nelumbo::engine::Sampling;
use nelumbo::gpu::OpenOptions;
use nelumbo::kv::{KvFormat, PAGE_SIZE};
use nelumbo::model::{Config, synthetic};

#[test]
fn a_request_is_answered_the_same_alone_and_after_others() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut engine = engine(&gpu, &config, &options("q8", KvFormat::F16));
    let sampling = |seed| Sampling {
        temperature: 1.0,
        top_k: 50,
        presence_penalty: 0.5,
        seed,
        ..Sampling::default()
    };
    let mut ours = request(&tokens(11, 40, config.vocab_size), 30, sampling(1));
    ours.logprobs = 5;
    let alone = answer(&mut engine, ours.clone());
    for (seed, len) in [(12, 600), (13, 3), (14, 270)] {
        answer(
            &mut engine,
            request(&tokens(seed, len, config.vocab_size), 20, sampling(seed)),
        );
    }
    assert_eq!(answer(&mut engine, ours), alone);
}

#[test]
fn decode_creates_nothing_and_submits_once_a_step() {
    // wide heads: 1 MiB holds 32 of their pages, so that 40 are two slabs
    let wide = Config {
        num_heads: 8,
        num_kv_heads: 8,
        head_dim: 64,
        ..synthetic::tiny()
    };
    let small = OpenOptions {
        max_binding: Some(1 << 20),
        ..OpenOptions::default()
    };
    let cases = [
        (synthetic::tiny(), OpenOptions::default(), 1),
        (wide, small, 2),
    ];
    for (config, open, num_slabs) in cases {
        let Some(gpu) = gpu(&open) else { return };
        let kv_format = KvFormat::F32;
        let mut engine = engine(&gpu, &config, &options("q8", kv_format));
        assert_eq!(engine.decoder().kv().geometry().num_slabs(), num_slabs);
        let drawn = Sampling {
            temperature: 1.0,
            top_k: 40,
            frequency_penalty: 0.2,
            seed: 2,
            ..Sampling::default()
        };
        for sampling in [Sampling::default(), drawn] {
            // over the end of a page; the other prompt's answer begins a split, in the next slab
            for prompt_len in [PAGE_SIZE - 4, 240] {
                let prompt = tokens(15, prompt_len, config.vocab_size);
                let request = request(&prompt, 40, sampling.clone());
                engine.submit(request).unwrap();
                // the prompt, and one step to make what decode needs
                while engine.step().unwrap().is_empty() {}
                engine.step().unwrap();
                let mut before = gpu.counters();
                for step in 2..40 {
                    engine.step().unwrap();
                    engine.check();
                    before.submits += 1;
                    before.writes += 1; // page tables and all, at once
                    assert_eq!(
                        gpu.counters(),
                        before,
                        "step {step} after {prompt_len} tokens"
                    );
                }
                assert!(engine.is_idle());
            }
        }
    }
}
