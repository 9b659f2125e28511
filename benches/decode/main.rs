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

#[path = "../../apps/cli/src/bench/clock.rs"]
mod clock;
#[path = "../../apps/cli/commit.rs"]
mod commit;
mod prefix;
#[path = "../support/quantile.rs"]
mod quantile;
mod report;
mod requests;
mod stall;
mod throughput;

use nelumbo::engine::{EngineCore, EngineOptions, Speculate, SpeculateOptions};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::{Config, synthetic};
use nelumbo::{Error, LoadOptions, Model};
use prefix::prefix;
use report::Report;
use stall::stall;
use std::path::PathBuf;
use throughput::throughput;

/// The longest that somebody who decodes should wait, in milliseconds.
const MAX_ITL: u64 = 150;

fn main() -> Result<(), Error> {
    let (names, as_json, max_itl) = arguments();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let options = LoadOptions {
        open: OpenOptions::from_env()?,
        ctx_size: Some(4608),
        max_running: 16,
        ..LoadOptions::default()
    };
    let mut report = Report::new(as_json);
    if ["throughput", "stall", "prefix"].into_iter().any(wanted) {
        match std::env::var_os("NELUMBO_TEST_MODEL").map(PathBuf::from) {
            None => report.line("NELUMBO_TEST_MODEL names no model: left out"),
            Some(path) => {
                let options = LoadOptions {
                    autotune: true,
                    ..options.clone()
                };
                let model = Model::load(&path, &options, &mut |_, _| ())?;
                let mut engine = EngineCore::with_options(model.decoder, &plain())?;
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

/// Without speculation: texts of seeded models repeat themselves, and how well is not what is measured.
fn plain() -> EngineOptions {
    EngineOptions {
        speculate: SpeculateOptions {
            mode: Speculate::Off,
            ..SpeculateOptions::default()
        },
        ..EngineOptions::default()
    }
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
    let decoder = decoder_from_parts(&gpu, &config, names, &checkpoint, &options)?;
    EngineCore::with_options(decoder, &plain())
}
