//! How well the roofline foretells: steps of one token over depth, and prompts, against their times.
//!
//! `cargo bench --bench roofline` takes the GGUF file that `NELUMBO_TEST_MODEL` names and a model with
//! seeded weights of another shape. What the adapter does is measured in every round, before the tests and by
//! the same clock, so that a machine that becomes slower does so for both; medians of the rounds are printed.
//! The clock is wall clock with `wall` among the arguments; else, on a software adapter, the CPU time of the process
//! over the number of cores, which other programs hardly change. `q8` and `f32` pin how activations are
//! passed on; otherwise loading chooses. `-o json` prints an array of rows instead of a table.

#[path = "../apps/cli/src/bench/clock.rs"]
mod clock;
#[path = "../apps/cli/commit.rs"]
mod commit;
#[path = "support/quantile.rs"]
mod quantile;

use clock::Clock;
use nelumbo::engine::EngineCore;
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::Activations;
use nelumbo::kernels::case::Data;
use nelumbo::kernels::peaks::Peaks;
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::roofline::{ModelShape, Roofline, Subject};
use nelumbo::model::{Config, Decoder, synthetic};
use nelumbo::{Error, LoadOptions, Model};
use quantile::quantile;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Tokens before those that are timed.
const DEPTHS: [usize; 4] = [0, 512, 1024, 2048];
/// Steps of one token at each.
const STEPS: usize = 8;
/// Prompts, from the beginning.
const PROMPTS: [usize; 2] = [128, 512];
/// Rounds after one to warm up; medians count.
const ROUNDS: usize = 7;
/// Seconds of a single measurement of the adapter.
const SPAN: f64 = 0.02;

/// What was asked for.
struct Arguments {
    wall: bool,
    activations: Option<Activations>,
    as_json: bool,
}

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|w| w == word);
    let arguments = Arguments {
        wall: has("wall"),
        activations: Activations::ALL.into_iter().find(|a| has(a.name())),
        as_json: has("json"),
    };
    let options = LoadOptions {
        open: OpenOptions::from_env()?,
        ctx_size: Some(2560),
        max_running: 1,
        activations: arguments.activations,
        autotune: true,
        ..LoadOptions::default()
    };
    let mut rows = Vec::new();
    if let Some(path) = std::env::var_os("NELUMBO_TEST_MODEL").map(PathBuf::from) {
        let model = Model::load(&path, &options, &mut |_, _| ())?;
        rows.extend(time(&arguments, "model", model.decoder)?);
    }
    let config = Config {
        num_layers: 8,
        hidden_size: 1024,
        num_heads: 16,
        num_kv_heads: 4,
        head_dim: 64,
        intermediate_size: 2816,
        vocab_size: 32_000,
        max_position_embeddings: 4096,
        ..synthetic::tiny()
    };
    let gpu = Gpu::open(&options.open)?;
    let checkpoint = synthetic::checkpoint(&config, 1)?;
    let decoder = decoder_from_parts(&gpu, &config, &synthetic::NAMES, &checkpoint, &options)?;
    rows.extend(time(&arguments, "seeded", decoder)?);
    if arguments.as_json {
        println!("{:#}", Value::from(rows));
    }
    Ok(())
}

/// A test in every round.
struct Test {
    name: String,
    /// Seconds.
    foretold: Vec<f64>,
    measured: Vec<f64>,
}

impl Test {
    fn new(name: String) -> Test {
        Test {
            name,
            foretold: Vec::new(),
            measured: Vec::new(),
        }
    }

    /// By how many percent each round was foretold too long.
    fn off(&self) -> Vec<f64> {
        let rounds = self.foretold.iter().zip(&self.measured);
        rounds.map(|(f, m)| 100.0 * (f / m - 1.0)).collect()
    }
}

/// Seconds of each test, once: a step of one token at each depth, and each prompt.
fn run(engine: &mut EngineCore, ids: &[u32], clock: &Clock) -> Result<Vec<f64>, Error> {
    let mut seconds = Vec::new();
    let mut trial = engine.trial(ids.len())?;
    for depth in DEPTHS {
        if trial.len() < depth {
            trial.feed(&ids[trial.len()..depth])?;
        }
        let start = clock.now();
        for id in &ids[depth..depth + STEPS] {
            trial.feed(&[*id])?;
        }
        seconds.push((clock.now() - start) / STEPS as f64);
        trial.rewind(depth)?;
    }
    for tokens in PROMPTS {
        trial.rewind(0)?;
        let start = clock.now();
        trial.feed(&ids[..tokens])?;
        seconds.push(clock.now() - start);
    }
    Ok(seconds)
}

/// A row for each test of `decoder`.
fn time(arguments: &Arguments, name: &str, decoder: Decoder) -> Result<Vec<Value>, Error> {
    let (shape, subject) = (
        ModelShape::of(&decoder),
        Subject {
            tuning: *decoder.tuning(),
            weights: decoder.weights().embedding.format,
            kv: decoder.kv().format(),
        },
    );
    let clock = match arguments.wall {
        true => Clock::Wall(Instant::now()),
        false => Clock::for_adapter(decoder.gpu().is_software()),
    };
    let own = Gpu::open(decoder.gpu().options())?;
    let mut engine = EngineCore::new(decoder)?;
    let step_tokens = engine.decoder().max_batched_tokens();
    let mut data = Data::new(3);
    let room = DEPTHS[DEPTHS.len() - 1] + STEPS + 1;
    let ids: Vec<u32> = (0..room)
        .map(|_| data.below(shape.config.vocab_size) as u32)
        .collect();
    let mut tests: Vec<Test> = DEPTHS
        .map(|depth| Test::new(format!("a token after {depth}")))
        .into_iter()
        .chain(PROMPTS.map(|tokens| Test::new(format!("a prompt of {tokens}"))))
        .collect();
    for round in 0..=ROUNDS {
        let mut now = || clock.now();
        let peaks = Peaks::measure(&own, &mut now, SPAN)?;
        let roofline = Roofline::measure(&own, subject, peaks, &mut now, SPAN)?;
        let foretold = DEPTHS
            .map(|depth| roofline.decode_seconds(&shape, depth, STEPS) / STEPS as f64)
            .into_iter()
            .chain(PROMPTS.map(|n| roofline.prompt_seconds(&shape, 0, n, step_tokens)));
        let measured = run(&mut engine, &ids, &clock)?;
        for ((test, foretold), measured) in tests.iter_mut().zip(foretold).zip(measured) {
            if round > 0 {
                test.foretold.push(foretold);
                test.measured.push(measured);
            }
        }
    }
    let report = engine.decoder().gpu().report();
    if !arguments.as_json {
        println!(
            "{name}: {} ({}, {}), {}; {}\n| Test | Foretold, ms | Measured, ms | Off |\n|---|---|---|---|",
            report.name,
            report.backend,
            report.driver_info,
            clock.name(),
            subject.tuning.describe()
        );
    }
    let rows = tests.into_iter().map(|test| {
        let off = quantile(&test.off(), 0.5);
        let (foretold, measured) = (quantile(&test.foretold, 0.5), quantile(&test.measured, 0.5));
        let name_of_test = &test.name;
        if !arguments.as_json {
            let (foretold, measured) = (foretold * 1e3, measured * 1e3);
            println!("| {name_of_test} | {foretold:.1} | {measured:.1} | {off:+.1} % |");
        }
        json!({
            "model": name,
            "test": test.name,
            "foretold_ms": foretold * 1e3,
            "measured_ms": measured * 1e3,
            "samples_ms": test.measured.iter().map(|s| s * 1e3).collect::<Vec<_>>(),
            "foretold_samples_ms": test.foretold.iter().map(|s| s * 1e3).collect::<Vec<_>>(),
            "off_pct": off,
            "clock": clock.name(),
            "tuning": subject.tuning.describe(),
            "adapter": report.name,
            "backend": report.backend.name(),
            "driver": report.driver_info,
            "commit": commit::head(Path::new(env!("CARGO_MANIFEST_DIR"))).commit,
        })
    });
    Ok(rows.collect())
}
