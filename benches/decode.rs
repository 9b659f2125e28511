//! Many requests at once on a whole model: what company costs, and what it saves.
//!
//! `cargo bench --bench decode -- NAMES` runs those of the following whose names are given, or all:
//!
//! - `throughput`: tokens a second of 1, 2, 4, 8 and 16 requests together, and how many times that of one;
//! - `stall`: how long four who decode wait for a token while a prompt of 2,000 tokens is computed, and when
//!   that has its first token, without a limit and with one of 150 ms;
//! - `prefix`: the first token of a second question on a document of 2,000 tokens, computed before and found
//!   again;
//! - `stall-small`, `prefix-small`: the same on a small model with seeded weights, with a tenth of the limit and
//!   8,000 tokens.
//!
//! `--max-itl MS` is another limit: on a busy machine 150 ms may be less than decoding alone takes.
//!
//! The other model is the GGUF file that `NELUMBO_TEST_MODEL` names. Times are wall clock; on a software adapter
//! rows of `throughput` have the process's CPU time over the number of cores besides, since other programs
//! take the device away. `-o json` prints an array of rows instead of tables. `NELUMBO_CHECKED=1` puts
//! bounds checks in.

#[path = "../apps/cli/src/bench/clock.rs"]
mod clock;
#[path = "../apps/cli/commit.rs"]
mod commit;
#[path = "support/quantile.rs"]
mod quantile;

use clock::Clock;
use nelumbo::engine::{EngineCore, Event, Request, RequestId, TokenLogprob};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::case::Data;
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::{Config, synthetic};
use nelumbo::{Error, LoadOptions, Model};
use quantile::quantile;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest that somebody who decodes should wait, in milliseconds.
const MAX_ITL: u64 = 150;
/// Who decodes while a prompt is computed.
const STREAMS: usize = 4;
/// Steps timed for a number of requests.
const STEPS: usize = 24;

/// Where rows go.
struct Report {
    as_json: bool,
    rows: Vec<Value>,
    /// Model, adapter and program, for each row.
    about: Value,
}

fn main() -> Result<(), Error> {
    let (names, as_json, max_itl) = arguments();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let options = LoadOptions {
        open: OpenOptions::from_env()?,
        ctx_size: Some(4608),
        max_running: 16,
        ..LoadOptions::default()
    };
    let mut report = Report {
        as_json,
        rows: Vec::new(),
        about: Value::Null,
    };
    if ["throughput", "stall", "prefix"].into_iter().any(wanted) {
        match std::env::var_os("NELUMBO_TEST_MODEL").map(PathBuf::from) {
            None => report.line("NELUMBO_TEST_MODEL names no model: left out"),
            Some(path) => {
                let options = LoadOptions {
                    autotune: true,
                    ..options.clone()
                };
                let model = Model::load(&path, &options, &mut |_, _| ())?;
                let mut engine = EngineCore::new(model.decoder)?;
                report.begin("model", &engine);
                if wanted("throughput") {
                    throughput(&mut engine, &mut report)?;
                }
                if wanted("stall") {
                    stall(&mut engine, max_itl, &mut report)?;
                }
                if wanted("prefix") {
                    prefix(&mut engine, 2000, &mut report)?;
                }
            }
        }
    }
    if wanted("stall-small") || wanted("prefix-small") {
        let mut engine = small_engine(&options, 8000)?;
        report.begin("small", &engine);
        if wanted("stall-small") {
            stall(&mut engine, max_itl / 10, &mut report)?;
        }
        if wanted("prefix-small") {
            prefix(&mut engine, 8000, &mut report)?;
        }
    }
    report.end();
    Ok(())
}

/// The names, whether JSON is asked for, and the limit; cargo's own arguments are passed over.
fn arguments() -> (Vec<String>, bool, u64) {
    let (mut names, mut as_json, mut max_itl) = (Vec::new(), false, MAX_ITL);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "-o" => as_json = words.next().is_some_and(|format| format == "json"),
            "--max-itl" => {
                let ms = words.next().and_then(|ms| ms.parse().ok());
                max_itl = ms.expect("--max-itl takes milliseconds");
            }
            word if !word.starts_with('-') => names.push(word.to_owned()),
            _ => {}
        }
    }
    (names, as_json, max_itl)
}

impl Report {
    /// What follows is about this model.
    fn begin(&mut self, model: &str, engine: &EngineCore) {
        let (decoder, gpu) = (engine.decoder(), engine.decoder().gpu());
        let adapter = gpu.report();
        let commit = commit::head(Path::new(env!("CARGO_MANIFEST_DIR"))).commit;
        let (tuning, most) = (decoder.tuning().describe(), decoder.max_batched_tokens());
        let checked = if gpu.checked() {
            "checked"
        } else {
            "unchecked"
        };
        self.line(&format!(
            "{} ({}, {} {}), commit {commit}",
            adapter.name, adapter.backend, adapter.driver, adapter.driver_info
        ));
        self.line(&format!(
            "{model}: {tuning}, {checked}, up to {most} tokens a step"
        ));
        self.about = json!({
            "model": model,
            "tuning": tuning,
            "max_batched_tokens": most,
            "checked": gpu.checked(),
            "adapter": adapter.name,
            "backend": adapter.backend.name(),
            "driver": adapter.driver_text(),
            "commit": commit,
        });
    }

    fn line(&self, text: &str) {
        if !self.as_json {
            println!("{text}");
        }
    }

    fn row(&mut self, mut row: Value) {
        if let (Value::Object(row), Value::Object(about)) = (&mut row, &self.about) {
            row.extend(about.clone());
        }
        self.rows.push(row);
    }

    fn end(self) {
        if self.as_json {
            println!("{:#}", Value::from(self.rows));
        }
    }
}

/// A request that nothing but `max_tokens` ends; other tokens for another seed.
fn request(seed: u64, len: usize, max_tokens: usize, vocab: usize) -> Request {
    let mut data = Data::new(seed);
    Request {
        tokens: (0..len).map(|_| data.below(vocab) as u32).collect(),
        max_tokens,
        ..Request::default()
    }
}

/// `count` requests that decode.
fn streams(engine: &mut EngineCore, count: usize, seed: u64) -> Result<Vec<RequestId>, Error> {
    let vocab = engine.decoder().config().vocab_size;
    let mut ids = Vec::new();
    for i in 0..count as u64 {
        ids.push(engine.submit(request(seed + i, 32, 512, vocab))?);
    }
    while tokens_of(&engine.step()?).count() < count {}
    Ok(ids)
}

fn end(engine: &mut EngineCore, ids: Vec<RequestId>) {
    for id in ids {
        engine.cancel(id);
    }
    assert!(engine.is_idle(), "everybody has left");
}

fn tokens_of(events: &[Event]) -> impl Iterator<Item = RequestId> {
    events.iter().filter_map(|event| match event {
        Event::Token { id, .. } => Some(*id),
        Event::Finished { .. } | Event::Failed { .. } => None,
    })
}

fn throughput(engine: &mut EngineCore, report: &mut Report) -> Result<(), Error> {
    let clock = Clock::for_adapter(engine.decoder().gpu().is_software());
    report.line(&format!("\nthroughput: {STEPS} steps; {}", clock.name()));
    report.line("requests  step ms  tokens/s  times one |  step ms  tokens/s  times one  (wall, then the clock above)");
    let (mut one, mut one_by_clock) = (0.0, 0.0);
    for count in [1, 2, 4, 8, 16] {
        if count > engine.decoder().max_running() {
            continue;
        }
        let ids = streams(engine, count, 100 * count as u64)?;
        engine.step()?;
        let (mut wall, mut by_clock) = (Vec::new(), Vec::new());
        for _ in 0..STEPS {
            let (start, then) = (Instant::now(), clock.now());
            let events = engine.step()?;
            by_clock.push(clock.now() - then);
            wall.push(start.elapsed().as_secs_f64());
            assert_eq!(tokens_of(&events).count(), count);
        }
        end(engine, ids);
        let (wall, by_clock) = (quantile(&wall, 0.5), quantile(&by_clock, 0.5));
        let (rate, rate_by_clock) = (count as f64 / wall, count as f64 / by_clock);
        if count == 1 {
            (one, one_by_clock) = (rate, rate_by_clock);
        }
        report.line(&format!(
            "{count:>8} {:>8.1} {rate:>9.1} {:>10.2} | {:>8.1} {rate_by_clock:>9.1} {:>10.2}",
            wall * 1e3,
            rate / one,
            by_clock * 1e3,
            rate_by_clock / one_by_clock
        ));
        report.row(json!({
            "test": "throughput",
            "requests": count,
            "steps": STEPS,
            "step_wall_ms": wall * 1e3,
            "step_clock_ms": by_clock * 1e3,
            "clock": clock.name(),
            "tokens_s_wall": rate,
            "times_one_wall": rate / one,
            "times_one_clock": rate_by_clock / one_by_clock,
        }));
    }
    Ok(())
}

/// What became of a prompt in company, times in seconds.
struct Stall {
    gaps: Vec<f64>,
    first_token: f64,
    steps: usize,
    idle_gap: f64,
}

fn stall(engine: &mut EngineCore, max_itl: u64, report: &mut Report) -> Result<(), Error> {
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

/// A model on which 8,000 tokens are affordable on a CPU.
fn small_engine(options: &LoadOptions, tokens: usize) -> Result<EngineCore, Error> {
    let config = Config {
        hidden_size: 256,
        num_heads: 8,
        intermediate_size: 512,
        vocab_size: 2048,
        max_position_embeddings: tokens + 512,
        ..synthetic::tiny()
    };
    let gpu = Gpu::open(&options.open)?;
    let checkpoint = synthetic::checkpoint(&config, 7)?;
    let options = LoadOptions {
        ctx_size: Some(tokens + 256),
        ..options.clone()
    };
    let names = &synthetic::NAMES;
    EngineCore::new(decoder_from_parts(
        &gpu,
        &config,
        names,
        &checkpoint,
        &options,
    )?)
}

/// An answer, and when it began.
struct Answer {
    tokens: Vec<u32>,
    top_logprobs: Vec<Vec<TokenLogprob>>,
    cached: usize,
    first_token: f64,
}

fn prefix(engine: &mut EngineCore, document: usize, report: &mut Report) -> Result<(), Error> {
    const QUESTION: usize = 20;
    let vocab = engine.decoder().config().vocab_size;
    let document = request(1, document, 8, vocab);
    let ask = |seed: u64, tenant: &str| {
        let mut request = document.clone();
        let question = self::request(seed, QUESTION, 8, vocab).tokens;
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
