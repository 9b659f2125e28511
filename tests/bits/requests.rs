//! Requests one after another, and what a step of decoding may do.

use super::common::{answer, bits, decoder, engine, gpu, request, tokens};
use super::options;
use nelumbo::LoadOptions;
use nelumbo::engine::{EngineCore, Event, Sampling};
use nelumbo::gpu::OpenOptions;
use nelumbo::kv::{KvFormat, PAGE_SIZE};
use nelumbo::model::step::{HeadRows, Span};
use nelumbo::model::{Config, synthetic};
use std::time::Duration;

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
fn a_limit_on_waiting_changes_steps_and_no_bit() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let options = LoadOptions {
        max_running: 2,
        ..options("q8", KvFormat::F16)
    };
    let mut engine = engine(&gpu, &config, &options);
    let mut together = |limit, salt: &[u8]| {
        engine.set_max_itl(limit);
        let ask = |engine: &mut EngineCore, seed, len, max_tokens| {
            let tokens = tokens(seed, len, config.vocab_size);
            let mut request = request(&tokens, max_tokens, Sampling::default());
            (request.cache_salt, request.logprobs) = (salt.to_vec(), 3);
            engine.submit(request).unwrap()
        };
        let (mut drawn, mut steps) = ([Vec::new(), Vec::new()], 0);
        let mut ids = vec![ask(&mut engine, 21, 9, 60)];
        while ids.len() == 1 || engine.counts(ids[1]).is_some() {
            for event in engine.step().unwrap() {
                if let Event::Token {
                    id,
                    token,
                    top_logprobs,
                } = event
                {
                    let of = usize::from(id != ids[0]);
                    drawn[of].push((token, top_logprobs));
                }
            }
            engine.check();
            steps += 1;
            if steps == 2 {
                // beside somebody who decodes
                ids.push(ask(&mut engine, 22, 400, 5));
            }
        }
        engine.cancel(ids[0]);
        assert!(engine.is_idle());
        (drawn, steps)
    };
    // no step takes so little time: the prompt goes on by what is left to it in any case
    let (paced, many) = together(Some(Duration::from_nanos(1)), b"a");
    let (free, few) = together(None, b"b");
    assert!(many >= few + 3, "{many} steps, {few} without a limit");
    assert_eq!(paced[1], free[1]);
    let common = paced[0].len().min(free[0].len());
    assert!(common >= few - 1);
    assert_eq!(paced[0][..common], free[0][..common]);
}

#[test]
fn parts_of_a_step_are_submitted_one_by_one_to_the_same_bits() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = Config {
        num_layers: 6,
        ..synthetic::tiny()
    };
    let mut decoder = decoder(&gpu, &config, &options("q8", KvFormat::F16));
    let text = tokens(23, 70, config.vocab_size);
    let mut run = |tokens: &[u32], expected_seconds| {
        let span = Span {
            tokens,
            first_position: 0,
            pages: &[vec![0, 1, 2, 3, 4]],
            head_rows: HeadRows::Last(1),
        };
        let mut step = decoder.step(&[span]);
        step.expected_seconds = expected_seconds;
        let before = gpu.counters().submits;
        decoder.record(&step).unwrap();
        decoder.recorder().submit().unwrap();
        let submits = gpu.counters().submits - before;
        let logits = gpu.download_as::<f32>(decoder.logits()).unwrap();
        (submits, bits(&logits[..config.vocab_size]))
    };
    let (submits, whole) = run(&text, Some(0.01));
    assert_eq!(submits, 1);
    for (expected, parts) in [(None, 2), (Some(0.4), 2), (Some(0.6), 3), (Some(9.0), 6)] {
        let (submits, logits) = run(&text, expected);
        assert_eq!(submits, parts, "{expected:?}");
        assert!(logits == whole, "{expected:?}: other bits");
    }
    assert_eq!(run(&text[..1], Some(9.0)).0, 1, "decoding");
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
        assert_eq!(engine.decoder().kv().geometry(0).num_slabs(), num_slabs);
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
