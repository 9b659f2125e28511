//! Speculation changes nothing of an answer, to the last bit, whoever proposes how much and whoever runs
//! beside it; what it does is that there are fewer passes.

mod real;

use super::common::{Answer, decoder, gpu, request, tokens};
use nelumbo::engine::speculate::{DraftDraws, DraftModel, Proposal, Proposer, Text};
use nelumbo::engine::{
    EngineCore, EngineOptions, Event, FinishReason, Request, RequestId, Sampling, Speculate,
    SpeculateOptions,
};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::Activations;
use nelumbo::kernels::case::Data;
use nelumbo::model::{Config, synthetic};
use nelumbo::quant::Format;
use nelumbo::{LoadOptions, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Knows the answers, and is wrong now and then.
struct Oracle {
    texts: Vec<Vec<u32>>,
    data: Data,
    /// Once in so many tokens.
    wrong: usize,
}

impl Proposer for Oracle {
    fn propose(&mut self, texts: &[Text<'_>]) -> Result<Vec<Proposal>> {
        let proposal = |text: &Text<'_>| {
            let known = self.texts.iter().find(|t| t.starts_with(text.tokens));
            let next = known.map_or(&[][..], |known| &known[text.tokens.len()..]);
            let mut tokens: Vec<u32> = next.iter().copied().take(text.most).collect();
            for token in &mut tokens {
                if self.data.below(self.wrong) == 0 {
                    *token = self.data.below(512) as u32;
                }
            }
            Proposal {
                tokens,
                ..Proposal::default()
            }
        };
        Ok(texts.iter().map(proposal).collect())
    }

    fn end(&mut self, _: RequestId, _: &[u32], _: &[u8]) {}

    fn is_free(&self) -> bool {
        true
    }
}

fn core(
    gpu: &Arc<Gpu>,
    config: &Config,
    running: usize,
    speculate: SpeculateOptions,
) -> EngineCore {
    let load = LoadOptions {
        max_running: running,
        ctx_size: Some(256),
        pool_tokens: Some(640),
        batch_size: Some(48),
        ..LoadOptions::default()
    };
    let options = EngineOptions {
        speculate,
        ..EngineOptions::default()
    };
    EngineCore::with_options(decoder(gpu, config, &load), &options).unwrap()
}

fn fixed(mode: Speculate, count: usize) -> SpeculateOptions {
    SpeculateOptions {
        mode,
        fixed: Some(count),
        ..SpeculateOptions::default()
    }
}

fn off() -> SpeculateOptions {
    SpeculateOptions {
        mode: Speculate::Off,
        ..SpeculateOptions::default()
    }
}

/// Texts that repeat themselves, some with a common beginning, drawn in all ways.
fn requests(config: &Config, count: u64) -> Vec<Request> {
    let document = tokens(50, 70, config.vocab_size);
    let each = |i: u64| {
        let pattern = tokens(60 + i, 1 + 5 * i as usize % 17, config.vocab_size);
        let shared = [0, 33, 0, 64, 0][i as usize % 5];
        let times = 1 + i as usize % 4;
        let sampling = Sampling {
            temperature: [0.0, 0.0, 0.7, 0.2][i as usize % 4],
            top_k: [0, 40, 3][i as usize % 3],
            frequency_penalty: if i % 6 == 0 { 0.3 } else { 0.0 },
            repeat_penalty: if i % 7 == 0 { 1.1 } else { 1.0 },
            logit_bias: if i % 8 == 0 {
                vec![(5, 2.0)]
            } else {
                Vec::new()
            },
            seed: i,
            ..Sampling::default()
        };
        Request {
            logprobs: usize::from(i % 2 == 0) * 3,
            end_tokens: if i % 5 == 0 {
                vec![7, 8, 9]
            } else {
                Vec::new()
            },
            ..request(
                &[&document[..shared], &pattern.repeat(times)].concat(),
                10 + i as usize % 14,
                sampling,
            )
        }
    };
    (0..count).map(each).collect()
}

/// Runs them all, as many at a time as there are seats.
fn answers(engine: &mut EngineCore, requests: &[Request]) -> Vec<Answer> {
    let mut answers: BTreeMap<RequestId, Answer> = BTreeMap::new();
    let mut ids = Vec::new();
    let mut left = requests.iter();
    loop {
        while engine.decoder().max_running() > answers.values().filter(|a| is_open(a)).count()
            && let Some(request) = left.next()
        {
            let id = engine.submit(request.clone()).unwrap();
            ids.push(id);
            let answer = Answer {
                tokens: Vec::new(),
                top_logprobs: Vec::new(),
                reason: FinishReason::Cancelled,
            };
            answers.insert(id, answer);
        }
        if engine.is_idle() {
            return ids.iter().map(|id| answers.remove(id).unwrap()).collect();
        }
        for event in engine.step().unwrap() {
            match event {
                Event::Token {
                    id,
                    token,
                    top_logprobs,
                } => {
                    let answer = answers.get_mut(&id).unwrap();
                    answer.tokens.push(token);
                    answer.top_logprobs.push(top_logprobs);
                }
                Event::Failed { id, failure } => panic!("{id:?}: {failure:?}"),
                Event::Finished { id, reason } => answers.get_mut(&id).unwrap().reason = reason,
            }
        }
        engine.check();
    }
}

fn is_open(answer: &Answer) -> bool {
    answer.reason == FinishReason::Cancelled
}

/// The same model with weights in INT8 and the cache in half precision: it agrees for the most part.
fn rounded_draft(gpu: &Arc<Gpu>, config: &Config) -> DraftModel {
    let load = LoadOptions {
        ctx_size: Some(256),
        pool_tokens: Some(1024),
        batch_size: Some(48),
        max_running: 4,
        weights: Format::from_name("q8").expect("a format"),
        activations: Some(Activations::Q8),
        ..LoadOptions::default()
    };
    let draft = decoder(gpu, config, &load);
    DraftModel::new(draft, config.vocab_size, DraftDraws::Alike).unwrap()
}

/// Prompts for each number of tokens that are verified.
const PROMPTS: u64 = 250;

#[test]
fn answers_of_2000_prompts_are_the_same_bits() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let requests = requests(&config, 8 * PROMPTS);
    let plain = answers(&mut core(&gpu, &config, 8, off()), &requests);
    let texts = |range: std::ops::Range<usize>| -> Vec<Vec<u32>> {
        let pairs = requests[range.clone()].iter().zip(&plain[range]);
        pairs
            .map(|(r, a)| [&r.tokens[..], &a.tokens].concat())
            .collect()
    };
    for count in 1..=8 {
        let range = (count - 1) * PROMPTS as usize..count * PROMPTS as usize;
        for (running, who) in [1, 8]
            .into_iter()
            .flat_map(|running| ["n-gram", "oracle", "draft"].map(|who| (running, who)))
        {
            let mode = match who {
                "n-gram" => Speculate::NGram,
                _ => Speculate::Draft,
            };
            let mut engine = core(&gpu, &config, running, fixed(mode, count));
            let oracle = || Oracle {
                texts: texts(range.clone()),
                data: Data::new(count as u64),
                wrong: 3,
            };
            engine
                .set_draft(match who {
                    "draft" => Box::new(rounded_draft(&gpu, &config)),
                    _ => Box::new(oracle()),
                })
                .unwrap();
            let got = answers(&mut engine, &requests[range.clone()]);
            for (i, (got, plain)) in got.iter().zip(&plain[range.clone()]).enumerate() {
                assert_eq!(
                    got, plain,
                    "{who}, {count} tokens, {running} at a time, prompt {i}"
                );
            }
            let totals = engine.speculation();
            println!("{who}, {count} tokens, {running} at a time: {totals:?}");
            let drawn: usize = got.iter().map(|answer| answer.tokens.len()).sum();
            assert_eq!(totals.target_passes + totals.accepted, drawn as u64);
            assert!(totals.accepted > 0 && totals.proposed > totals.accepted);
        }
    }
}

#[test]
fn several_answers_to_a_prompt_and_those_who_are_preempted_or_leave_are_as_ever() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let all = requests(&config, 12);
    let run = |speculate: SpeculateOptions| {
        let load = LoadOptions {
            max_running: 6,
            ctx_size: Some(160),
            pool_tokens: Some(160), // one context for all of them
            batch_size: Some(24),
            ..LoadOptions::default()
        };
        let options = EngineOptions {
            speculate,
            ..EngineOptions::default()
        };
        let mut engine = EngineCore::with_options(decoder(&gpu, &config, &load), &options).unwrap();
        let mut ids = Vec::new();
        for request in &all {
            ids.extend(engine.submit_several(request.clone(), 3).unwrap());
        }
        let mut answers: BTreeMap<RequestId, Vec<u32>> = BTreeMap::new();
        let mut cancelled = 0;
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let Event::Token { id, token, .. } = event {
                    let answer = answers.entry(id).or_default();
                    answer.push(token);
                    // whoever has five tokens leaves, if its number says so; more may have come with them
                    if answer.len() == 5 && id.0 % 7 == 0 {
                        cancelled += usize::from(engine.cancel(id).is_some());
                    }
                }
            }
            engine.check();
        }
        answers.iter_mut().for_each(|(id, answer)| {
            if id.0 % 7 == 0 {
                answer.truncate(5);
            }
        });
        assert!(cancelled > 0);
        (answers, engine.speculation())
    };
    let (plain, none) = run(off());
    assert_eq!((none.proposed, none.accepted), (0, 0));
    for count in [1, 4, 16] {
        let (got, totals) = run(fixed(Speculate::NGram, count));
        assert_eq!(got, plain, "{count} tokens");
        assert!(totals.accepted > 0, "{totals:?}");
    }
}

#[test]
fn a_step_that_verifies_compiles_nothing() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    for count in [1, 2, 3, 5, 9, 16] {
        let mut engine = core(&gpu, &config, 1, fixed(Speculate::NGram, count));
        let before = gpu.counters();
        let repeated = tokens(3, 5, config.vocab_size).repeat(6);
        answers(&mut engine, &[request(&repeated, 40, Sampling::default())]);
        assert!(engine.speculation().proposed > 0);
        let after = gpu.counters();
        assert_eq!(after.pipelines, before.pipelines, "{count} tokens");
    }
}

#[test]
fn a_step_that_rejects_compiles_nothing() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut engine = core(&gpu, &config, 1, fixed(Speculate::Draft, 4));
    let load = LoadOptions {
        ctx_size: Some(256),
        ..LoadOptions::default()
    };
    let draft = decoder(&gpu, &config, &load);
    let draft = DraftModel::new(draft, config.vocab_size, DraftDraws::Apart).unwrap();
    engine.set_draft(Box::new(draft)).unwrap();
    let before = gpu.counters().pipelines;
    let drawn = Sampling {
        temperature: 0.9,
        ..Sampling::default()
    };
    let prompt = tokens(3, 30, config.vocab_size);
    answers(&mut engine, &[request(&prompt, 40, drawn)]);
    let totals = engine.speculation();
    assert!(totals.accepted > 0, "{totals:?}");
    assert_eq!(gpu.counters().pipelines, before);
}
