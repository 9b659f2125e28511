//! Tokens that a request draws are as frequent as the model has them, whoever proposes; and where a seed is
//! said to give one text, it does.

use super::common::{decoder, gpu};
use nelumbo::LoadOptions;
use nelumbo::engine::speculate::{DraftDraws, DraftModel};
use nelumbo::engine::{
    EngineCore, EngineOptions, Event, Request, RequestId, Sampling, Speculate, SpeculateOptions,
};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::{Config, synthetic};
use std::collections::BTreeMap;
use std::sync::Arc;

const VOCAB: usize = 12;
const REQUESTS: u64 = 10_000;
/// Tokens of an answer: the second and the third are verified, the last is drawn after them.
const ANSWER: usize = 4;
const TEMPERATURE: f32 = 0.7;

fn config() -> Config {
    Config {
        vocab_size: VOCAB,
        ..synthetic::tiny()
    }
}

fn load() -> LoadOptions {
    LoadOptions {
        max_running: 16,
        ctx_size: Some(64),
        batch_size: Some(128),
        ..LoadOptions::default()
    }
}

fn engine(gpu: &Arc<Gpu>, mode: Speculate, draws: DraftDraws) -> EngineCore {
    let options = EngineOptions {
        speculate: SpeculateOptions {
            mode,
            draws,
            fixed: Some(2),
            ..SpeculateOptions::default()
        },
        ..EngineOptions::default()
    };
    let config = config();
    let mut engine = EngineCore::with_options(decoder(gpu, &config, &load()), &options).unwrap();
    if mode == Speculate::Draft {
        // another model, but with the same habits to some degree: the embedding is that of both
        let checkpoint = synthetic::checkpoint(&config, 8).unwrap();
        let draft = decoder_from_parts(gpu, &config, &synthetic::NAMES, &checkpoint, &load());
        let draft = DraftModel::new(draft.unwrap(), VOCAB, draws).unwrap();
        engine.set_draft(Box::new(draft)).unwrap();
    }
    engine
}

/// An answer, and what the model had for each of its tokens: the logarithms of all probabilities.
#[derive(Default)]
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<Vec<f64>>,
}

fn answers(engine: &mut EngineCore, count: u64) -> Vec<Answer> {
    let mut answers: BTreeMap<RequestId, Answer> = BTreeMap::new();
    let mut ids = Vec::new();
    let mut seed = 0;
    let mut open = 0;
    while seed < count || !engine.is_idle() {
        while seed < count && open < 16 {
            let request = Request {
                tokens: vec![1, 2, 3, 1, 2, 3, 1, 2],
                sampling: Sampling {
                    temperature: TEMPERATURE,
                    seed,
                    ..Sampling::default()
                },
                max_tokens: ANSWER,
                logprobs: VOCAB,
                ..Request::default()
            };
            ids.push(engine.submit(request).unwrap());
            seed += 1;
            open += 1;
        }
        for event in engine.step().unwrap() {
            match event {
                Event::Token {
                    id,
                    token,
                    top_logprobs,
                } => {
                    let mut logprobs = vec![f64::NEG_INFINITY; VOCAB];
                    for top in top_logprobs {
                        logprobs[top.token as usize] = f64::from(top.logprob);
                    }
                    let answer = answers.entry(id).or_default();
                    answer.tokens.push(token);
                    answer.logprobs.push(logprobs);
                }
                Event::Finished { .. } => open -= 1,
                Event::Failed { id, failure } => panic!("{id:?}: {failure:?}"),
            }
        }
    }
    ids.iter().map(|id| answers.remove(id).unwrap()).collect()
}

/// What is to be expected at the temperature that was asked for.
fn probabilities(logprobs: &[f64]) -> Vec<f64> {
    let weights: Vec<f64> = logprobs
        .iter()
        .map(|l| (l / f64::from(TEMPERATURE)).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// Pearson's statistic over tokens 2 to 4, by what stood before them, and what it exceeds once in a hundred
/// times (Wilson and Hilferty, 1931). Cells of less than 5 expected tokens are taken together.
fn misfit(answers: &[Answer]) -> (f64, f64) {
    let mut contexts: BTreeMap<&[u32], (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for answer in answers {
        for at in 1..ANSWER {
            let entry = contexts.entry(&answer.tokens[..at]);
            let (_, counts) =
                entry.or_insert_with(|| (probabilities(&answer.logprobs[at]), vec![0.0; VOCAB]));
            counts[answer.tokens[at] as usize] += 1.0;
        }
    }
    let (mut statistic, mut freedom) = (0.0, 0.0);
    for (shares, counts) in contexts.values() {
        let all: f64 = counts.iter().sum();
        let mut cells = Vec::new();
        let mut rest = (0.0, 0.0);
        for (share, count) in shares.iter().zip(counts) {
            match share * all {
                expected if expected >= 5.0 => cells.push((expected, *count)),
                expected => rest = (rest.0 + expected, rest.1 + count),
            }
        }
        if rest.0 >= 5.0 {
            cells.push(rest);
        } else if let Some(last) = cells.last_mut() {
            *last = (last.0 + rest.0, last.1 + rest.1);
        }
        if cells.len() < 2 {
            continue; // too few to tell anything
        }
        let term = |(expected, count): &(f64, f64)| (count - expected).powi(2) / expected;
        statistic += cells.iter().map(term).sum::<f64>();
        freedom += cells.len() as f64 - 1.0;
    }
    let spread = 2.0 / (9.0 * freedom);
    (
        statistic,
        freedom * (1.0 - spread + 2.326 * spread.sqrt()).powi(3),
    )
}

#[test]
fn what_is_drawn_is_as_frequent_as_the_model_has_it() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let plain = answers(&mut engine(&gpu, Speculate::Off, DraftDraws::Alike), 1000);
    for (mode, draws) in [
        (Speculate::NGram, DraftDraws::Alike),
        (Speculate::Draft, DraftDraws::Alike),
        (Speculate::Draft, DraftDraws::Apart),
    ] {
        let mut engine = engine(&gpu, mode, draws);
        let answers = answers(&mut engine, REQUESTS);
        let totals = engine.speculation();
        let (statistic, most) = misfit(&answers);
        println!("{mode:?}, {draws:?}: {statistic:.1}, at most {most:.1}; {totals:?}");
        assert!(
            statistic < most,
            "{mode:?}, {draws:?}: {statistic:.1} of {most:.1}"
        );
        assert!(totals.accepted > 500 && totals.proposed - totals.accepted > 500);
        let same = answers
            .iter()
            .zip(&plain)
            .filter(|(a, b)| a.tokens == b.tokens);
        match draws {
            DraftDraws::Alike => assert_eq!(same.count(), plain.len(), "{mode:?}"),
            DraftDraws::Apart => assert!(same.count() < plain.len()),
        }
    }
}
