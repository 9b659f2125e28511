//! How long those who decode wait while a prompt is computed.

use crate::quantile::quantile;
use crate::report::Report;
use crate::requests::{end, request, streams, tokens_of};
use nelumbo::Error;
use nelumbo::engine::EngineCore;
use serde_json::json;
use std::time::{Duration, Instant};

/// Who decodes while a prompt is computed.
const STREAMS: usize = 4;
/// What became of a prompt in company, times in seconds.
struct Stall {
    gaps: Vec<f64>,
    first_token: f64,
    steps: usize,
    idle_gap: f64,
}

pub fn stall(engine: &mut EngineCore, max_itl: u64, report: &mut Report) -> Result<(), Error> {
    const PROMPT: usize = 2000;
    report.line(&format!(
        "\nstall: {STREAMS} decode while a prompt of {PROMPT} tokens is computed"
    ));
    report.line("limit ms  p50 ms  p99 ms  max ms  alone ms  steps  first token s  times without");
    let mut without = 0.0;
    // without a limit first; then as an engine that knows what steps cost, twice
    for (limit, seed) in [(None, 1), (Some(max_itl), 2), (Some(max_itl), 3)] {
        engine.set_max_itl(limit.map(Duration::from_millis));
        let stall = stall_once(engine, PROMPT, 1000 * seed)?;
        if limit.is_none() {
            without = stall.first_token;
        }
        let (p50, p99) = (quantile(&stall.gaps, 0.5), quantile(&stall.gaps, 0.99));
        let most = quantile(&stall.gaps, 1.0);
        report.line(&format!(
            "{:>8} {:>7.0} {:>7.0} {:>7.0} {:>9.0} {:>6} {:>14.2} {:>14.2}",
            limit.map_or("none".to_owned(), |ms| ms.to_string()),
            p50 * 1e3,
            p99 * 1e3,
            most * 1e3,
            stall.idle_gap * 1e3,
            stall.steps,
            stall.first_token,
            stall.first_token / without
        ));
        report.row(json!({
            "test": "stall",
            "max_itl_ms": limit,
            "streams": STREAMS,
            "prompt_tokens": PROMPT,
            "steps": stall.steps,
            "gap_p50_ms": p50 * 1e3,
            "gap_p99_ms": p99 * 1e3,
            "gap_max_ms": most * 1e3,
            "gap_alone_ms": stall.idle_gap * 1e3,
            "first_token_s": stall.first_token,
            "times_without_limit": stall.first_token / without,
        }));
    }
    engine.set_max_itl(None);
    report.line("targets: p99 within 1.5 times the limit, first token within 2 times that without");
    Ok(())
}

fn stall_once(engine: &mut EngineCore, prompt: usize, seed: u64) -> Result<Stall, Error> {
    let mut ids = streams(engine, STREAMS, seed)?;
    let (mut last, mut alone) = (Instant::now(), Vec::new());
    for _ in 0..12 {
        engine.step()?;
        alone.push(last.elapsed().as_secs_f64());
        last = Instant::now();
    }
    let vocab = engine.decoder().config().vocab_size;
    let start = Instant::now();
    let long = engine.submit(request(seed + 500, prompt, 8, vocab))?;
    let mut last = [start; STREAMS];
    let (mut gaps, mut steps, mut done) = (Vec::new(), 0, false);
    while !done {
        let events = engine.step()?;
        let now = Instant::now();
        steps += 1;
        for id in tokens_of(&events) {
            match ids.iter().position(|&stream| stream == id) {
                Some(i) => gaps.push((now - std::mem::replace(&mut last[i], now)).as_secs_f64()),
                None => done = true,
            }
        }
    }
    let first_token = start.elapsed().as_secs_f64();
    ids.push(long);
    end(engine, ids);
    Ok(Stall {
        gaps,
        first_token,
        steps,
        idle_gap: quantile(&alone, 0.5),
    })
}
