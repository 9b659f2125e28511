//! What a document costs that was computed before.

use crate::report::Report;
use crate::requests;
use nelumbo::Error;
use nelumbo::engine::{EngineCore, Event, Request, TokenLogprob};
use serde_json::json;
use std::time::Instant;

/// An answer, and when it began.
struct Answer {
    tokens: Vec<u32>,
    top_logprobs: Vec<Vec<TokenLogprob>>,
    cached: usize,
    first_token: f64,
}

pub fn prefix(engine: &mut EngineCore, document: usize, report: &mut Report) -> Result<(), Error> {
    const QUESTION: usize = 20;
    let vocab = engine.decoder().config().vocab_size;
    let document = requests::request(1, document, 8, vocab);
    let ask = |seed: u64, tenant: &str| {
        let mut request = document.clone();
        let question = requests::request(seed, QUESTION, 8, vocab).tokens;
        request.tokens.extend(question);
        request.cache_salt = tenant.as_bytes().to_vec();
        request.logprobs = 5;
        request
    };
    // the same question where nothing is known of the document, and after another one on it
    let cold = answer(engine, ask(3, "a"))?;
    answer(engine, ask(2, "b"))?;
    let warm = answer(engine, ask(3, "b"))?;
    let tokens = document.tokens.len() + QUESTION;
    let share = warm.cached as f64 / tokens as f64;
    let same = cold.tokens == warm.tokens && cold.top_logprobs == warm.top_logprobs;
    let times = cold.first_token / warm.first_token;
    report.line(&format!(
        "\nprefix: {} of {tokens} tokens found ({:.1} %), first token {:.1} ms, cold {:.1} ms, {times:.1} \
         times; {} bits",
        warm.cached,
        share * 100.0,
        warm.first_token * 1e3,
        cold.first_token * 1e3,
        if same { "the same" } else { "OTHER" },
    ));
    report.row(json!({
        "test": "prefix",
        "prompt_tokens": tokens,
        "cached_tokens": warm.cached,
        "cold_cached_tokens": cold.cached,
        "cold_first_token_ms": cold.first_token * 1e3,
        "first_token_ms": warm.first_token * 1e3,
        "times": times,
        "same_bits": same,
    }));
    Ok(())
}

fn answer(engine: &mut EngineCore, request: Request) -> Result<Answer, Error> {
    let start = Instant::now();
    let id = engine.submit(request)?;
    let mut answer = Answer {
        tokens: Vec::new(),
        top_logprobs: Vec::new(),
        cached: 0,
        first_token: 0.0,
    };
    while !engine.is_idle() {
        for event in engine.step()? {
            if let Event::Token {
                token,
                top_logprobs,
                ..
            } = event
            {
                if answer.tokens.is_empty() {
                    answer.first_token = start.elapsed().as_secs_f64();
                }
                answer.tokens.push(token);
                answer.top_logprobs.push(top_logprobs);
            }
        }
        if let Some(counts) = engine.counts(id) {
            answer.cached = counts.cached_tokens;
        }
    }
    Ok(answer)
}
