//! Many requests at a time on a device: each is answered as if it were alone, to the last bit.

use super::common::{Answer, answer, engine, gpu, request, tokens};
use nelumbo::LoadOptions;
use nelumbo::engine::{EngineCore, Event, Request, RequestId, Sampling};
use nelumbo::gpu::OpenOptions;
use nelumbo::model::{Config, synthetic};
use std::collections::BTreeMap;

fn options(max_running: usize, ctx_size: usize, batch_size: usize) -> LoadOptions {
    LoadOptions {
        max_running,
        ctx_size: Some(ctx_size),
        pool_tokens: Some(ctx_size), // one context for all of them
        batch_size: Some(batch_size),
        ..LoadOptions::default()
    }
}

/// Prompts of many lengths, some with a common beginning, drawn greedily and not.
fn requests(config: &Config, count: u64) -> Vec<Request> {
    let document = tokens(40, 80, config.vocab_size);
    (0..count)
        .map(|i| {
            let own = tokens(41 + i, 1 + 11 * i as usize % 60, config.vocab_size);
            let shared = [0, 31, 32, 33, 80][i as usize % 5];
            let sampling = Sampling {
                temperature: if i % 2 == 0 { 0.0 } else { 1.0 },
                top_k: 40,
                frequency_penalty: if i % 3 == 0 { 0.3 } else { 0.0 },
                seed: i,
                ..Sampling::default()
            };
            Request {
                logprobs: 3,
                ..request(
                    &[&document[..shared], &own].concat(),
                    12 + i as usize,
                    sampling,
                )
            }
        })
        .collect()
}

/// Runs everything that was submitted; how often somebody was preempted is told as well.
fn together(engine: &mut EngineCore, ids: &[RequestId]) -> (Vec<Answer>, usize) {
    let mut answers: BTreeMap<RequestId, Answer> = BTreeMap::new();
    let mut preemptions: BTreeMap<RequestId, usize> = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            match event {
                Event::Token {
                    id,
                    token,
                    top_logprobs,
                } => {
                    let answer = answers.entry(id).or_insert_with(|| Answer {
                        tokens: Vec::new(),
                        top_logprobs: Vec::new(),
                        reason: nelumbo::engine::FinishReason::Cancelled,
                    });
                    answer.tokens.push(token);
                    answer.top_logprobs.push(top_logprobs);
                }
                Event::Failed { id, failure } => panic!("{id:?}: {failure:?}"),
                Event::Finished { id, reason } => {
                    answers.get_mut(&id).expect("it drew").reason = reason;
                }
            }
        }
        engine.check();
        for &id in ids {
            if let Some(counts) = engine.counts(id) {
                preemptions.insert(id, counts.preemptions);
            }
        }
    }
    let answers = ids.iter().map(|id| answers.remove(id).expect("an answer"));
    (answers.collect(), preemptions.values().sum())
}

#[test]
fn each_is_answered_as_if_it_were_alone() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let requests = requests(&config, 9);
    let mut single = engine(&gpu, &config, &options(1, 256, 64));
    let alone: Vec<Answer> = requests
        .iter()
        .map(|request| answer(&mut single, request.clone()))
        .collect();
    let mut preempted = 0;
    for (max_running, batch_size) in [(2, 16), (3, 64), (8, 8), (8, 128)] {
        let mut engine = engine(&gpu, &config, &options(max_running, 256, batch_size));
        // the second time prefixes are found
        for round in 0..2 {
            let ids: Vec<RequestId> = requests
                .iter()
                .map(|request| engine.submit(request.clone()).unwrap())
                .collect();
            let (answers, preemptions) = together(&mut engine, &ids);
            preempted += preemptions;
            for (i, (found, expected)) in answers.iter().zip(&alone).enumerate() {
                assert_eq!(
                    found, expected,
                    "{i} of {max_running} at a time, round {round}"
                );
            }
        }
    }
    assert!(preempted > 0, "the pool of 16 pages holds them all");
}

#[test]
fn several_answers_to_a_prompt_are_those_of_as_many_requests() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut engine = engine(&gpu, &config, &options(4, 512, 64));
    // up to the end of a page, and into one that the answers share until they write
    for prompt_len in [32, 41, 1] {
        let sampling = Sampling {
            temperature: 1.0,
            seed: u64::MAX,
            ..Sampling::default()
        };
        let prompt = tokens(60, prompt_len, config.vocab_size);
        let asked = request(&prompt, 20, sampling);
        let ids = engine.submit_several(asked.clone(), 4).unwrap();
        let (answers, _) = together(&mut engine, &ids);
        for (i, found) in (0u64..).zip(&answers) {
            let mut one = asked.clone();
            one.sampling.seed = one.sampling.seed.wrapping_add(i);
            assert_eq!(
                *found,
                answer(&mut engine, one),
                "answer {i} to {prompt_len}"
            );
        }
        assert_ne!(answers[0].tokens, answers[1].tokens);
    }
    let error = engine.submit_several(request(&[1], 1, Sampling::default()), 5);
    assert!(error.unwrap_err().to_string().starts_with("n: is 5"));
}

#[test]
fn a_prompt_that_was_computed_is_not_computed_again() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut engine = engine(&gpu, &config, &options(2, 512, 64));
    let prompt = tokens(70, 200, config.vocab_size);
    let asked = request(&prompt, 5, Sampling::default());
    let cold = answer(&mut engine, asked.clone());
    let cached = |engine: &mut EngineCore, request: Request| {
        let id = engine.submit(request).unwrap();
        let mut steps = 1;
        while engine.step().unwrap().is_empty() {
            steps += 1;
        }
        let counts = engine.counts(id).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        (counts.cached_tokens, steps)
    };
    assert_eq!(cached(&mut engine, asked.clone()), (192, 1));
    assert_eq!(answer(&mut engine, asked.clone()), cold);
    // of another tenant nothing is found, and the second time its own
    let salted = Request {
        cache_salt: b"another".to_vec(),
        ..asked
    };
    assert_eq!(cached(&mut engine, salted.clone()), (0, 4));
    assert_eq!(cached(&mut engine, salted.clone()), (192, 1));
    assert_eq!(answer(&mut engine, salted), cold);
}
