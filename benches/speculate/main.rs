//! What speculation saves on a whole model, and that it never costs.
//!
//! `cargo bench --bench speculate -- NAMES` runs those of the following whose names are given, or all:
//!
//! - `tasks`: answers that repeat their prompts (`tests/fixtures/speculate`): passes of the model and seconds,
//!   without speculation, with what pays, and with 8 and 16 proposed tokens whatever they bring;
//! - `prose`: answers that repeat nothing: seconds with what pays against without, in turns;
//! - `draft`: the model drafts for itself in another weight format, and its first layers draft for it: how many
//!   tokens are accepted, and the speed-up that follows from acceptance and measured costs, against what it is.
//!
//! The model is the GGUF file that `NELUMBO_TEST_MODEL` names. Answers are greedy, and the same in all ways:
//! that is checked. Seconds are wall clock, medians of turns that alternate between the ways.

#[path = "../../apps/cli/commit.rs"]
mod commit;
mod drafts;
#[path = "../support/quantile.rs"]
mod quantile;
#[path = "../decode/report.rs"]
mod report;
mod runs;

use drafts::drafts;
use nelumbo::engine::{Speculate, SpeculateOptions};
use nelumbo::gpu::OpenOptions;
use nelumbo::{Error, LoadOptions};
use quantile::quantile;
use report::Report;
use runs::{Lane, Run, prompts};
use serde_json::json;
use std::path::PathBuf;

/// Turns of `prose`, each with every way.
const TURNS: usize = 5;
/// Tokens of an answer.
const ANSWER: usize = 160;

fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1).peekable();
    let as_json = std::env::args().any(|word| word == "json");
    let names: Vec<String> = std::iter::from_fn(|| words.next())
        .filter(|word| !word.starts_with('-') && word != "json")
        .collect();
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let Some(path) = std::env::var_os("NELUMBO_TEST_MODEL").map(PathBuf::from) else {
        println!("NELUMBO_TEST_MODEL names no model: left out");
        return Ok(());
    };
    let load = LoadOptions {
        open: OpenOptions::from_env()?,
        ctx_size: Some(1024),
        autotune: true,
        ..LoadOptions::default()
    };
    let mut report = Report::new(as_json);
    if wanted("tasks") {
        tasks(&path, &load, &mut report)?;
    }
    if wanted("prose") {
        prose(&path, &load, &mut report)?;
    }
    if wanted("draft") {
        drafts(&path, &load, &mut report)?;
    }
    report.end();
    Ok(())
}

/// What pays, or so many whatever they bring.
pub fn speculate(mode: Speculate, fixed: Option<usize>) -> SpeculateOptions {
    SpeculateOptions {
        mode,
        fixed,
        ..SpeculateOptions::default()
    }
}

fn tasks(path: &std::path::Path, load: &LoadOptions, report: &mut Report) -> Result<(), Error> {
    let ways = [
        ("off", speculate(Speculate::Off, None)),
        ("auto", speculate(Speculate::Auto, None)),
        ("8 tokens", speculate(Speculate::NGram, Some(8))),
        ("16 tokens", speculate(Speculate::NGram, Some(16))),
    ];
    let mut lanes = Vec::new();
    for (name, options) in ways {
        lanes.push((name, Lane::open(path, load, options, None)?));
    }
    report.begin("tasks", &lanes[0].1.engine);
    report.line("task           way        tokens  passes  fewer  accepted   tok/s  gain");
    for (task, text) in prompts(&["code_edit", "quote_back", "json_reformat", "list_sort"]) {
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); lanes.len()];
        for turn in 0..3 {
            for i in 0..lanes.len() {
                let which = (i + turn) % lanes.len();
                let run = lanes[which].1.answer(&text, ANSWER)?;
                runs[which].push(run);
            }
        }
        let plain = runs[0][0].clone();
        let plain_seconds = quantile(&runs[0].iter().map(|r| r.seconds).collect::<Vec<_>>(), 0.5);
        for ((way, _), runs) in lanes.iter().zip(&runs) {
            let seconds = quantile(&runs.iter().map(|r| r.seconds).collect::<Vec<_>>(), 0.5);
            let last = runs.last().expect("a turn");
            assert!(
                runs.iter().all(|r| r.tokens == plain.tokens),
                "{task}: {way} differs"
            );
            let count = plain.tokens.len();
            let fewer = plain.passes as f64 / last.passes as f64;
            let gain = plain_seconds / seconds;
            report.line(&format!(
                "{task:14} {way:10} {count:6} {:7} {fewer:5.2}x {:4}/{:<4} {:7.1} {gain:5.2}x",
                last.passes,
                last.accepted,
                last.proposed,
                count as f64 / seconds
            ));
            report.row(json!({
                "task": task, "way": way, "tokens": count, "passes": last.passes,
                "proposed": last.proposed, "accepted": last.accepted, "seconds": seconds,
                "passes_saved": fewer, "gain": gain,
            }));
        }
    }
    Ok(())
}

fn prose(path: &std::path::Path, load: &LoadOptions, report: &mut Report) -> Result<(), Error> {
    let mut off = Lane::open(path, load, speculate(Speculate::Off, None), None)?;
    let mut auto = Lane::open(path, load, speculate(Speculate::Auto, None), None)?;
    report.begin("prose", &off.engine);
    let (_, texts) = prompts(&["prose"]).remove(0);
    let mut ratios = Vec::new();
    for turn in 0..TURNS {
        let (mut plain, mut speculated) = (0.0, 0.0);
        for (i, text) in texts.split("\n---\n").enumerate() {
            // whoever comes second finds a warmer machine: they take turns
            let (first, second) = if (turn + i) % 2 == 0 {
                let first = off.answer(text, ANSWER)?;
                (first, auto.answer(text, ANSWER)?)
            } else {
                let second = auto.answer(text, ANSWER)?;
                (off.answer(text, ANSWER)?, second)
            };
            assert_eq!(first.tokens, second.tokens, "{text}");
            plain += first.seconds;
            speculated += second.seconds;
        }
        ratios.push(plain / speculated);
    }
    let median = quantile(&ratios, 0.5);
    let (low, high) = (quantile(&ratios, 0.0), quantile(&ratios, 1.0));
    report.line(&format!(
        "auto is {median:.3} times as fast as off ({low:.3} to {high:.3} in {TURNS} turns); {:?}",
        auto.engine.speculation()
    ));
    report.row(json!({ "prose": median, "least": low, "most": high, "turns": TURNS }));
    Ok(())
}
