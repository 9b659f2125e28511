//! `nelumbo compare`: whether every adapter of this machine computes the right thing, and how fast.

pub mod args;
mod examine;
mod format;
mod kernels;
mod outcome;
mod page;

use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};

use nelumbo::LoadOptions;
use nelumbo::engine::compare::Expected;
use nelumbo::gpu::{AdapterReport, Selection, adapter};
use nelumbo::model::OnHost;

use crate::args::GlobalArgs;
use crate::exit::{Failure, say};
use crate::models::{self, cache};
use crate::options::{self, DeviceOptions};
use crate::output::print_line;
use crate::prompt::{self, Given};
use crate::{reading, session};
use args::{CompareArgs, Output};
use examine::{Task, examine};
use outcome::{Outcome, Verdict};

/// The text that is compared where none is given.
const TEXT: &str = include_str!("text.txt");
/// Tokens that watched steps want, so that attention has more than one split.
const WATCHED_TOKENS: usize = 320;
/// The context where nothing longer is needed.
const USUAL_CONTEXT: usize = 512;
/// Sequences that a step can hold.
const SEQUENCES: usize = 4;

/// Steps are told on stderr where they take longer.
const GLANCE: Duration = Duration::from_secs(4);

/// What all adapters were given, for reports.
pub struct About {
    pub model: String,
    pub weights: String,
    pub kv: String,
    /// Tokens of the text, and those after it.
    pub tokens: usize,
    pub greedy: Vec<u32>,
    /// The continuation as text.
    pub continuation: String,
    /// What the reference took.
    pub reference_s: f64,
}

/// Everything from the arguments to the last line on stderr.
pub fn compare(args: CompareArgs, global: &GlobalArgs, given: Given) -> Result<(), Failure> {
    let device = args.as_device_args();
    options::refuse_device(&device)?;
    if args.kernels {
        return kernels::compare(&args, global.quiet);
    }
    let given = given.with_model(args.reference.as_ref())?;
    let model = args.reference.clone().or(args.model.clone());
    let model = models::from_flags(&device, model, given)?;
    let reference: OsString = prompt::split_model(model, Vec::new())?.0;
    let text = text(&args, given)?;
    let reports = adapters(&args)?;
    let model = models::resolve(&reference, global)?;

    let load = session::load_options(
        &DeviceOptions::new(&device),
        None,
        None,
        cache::pipelines(global),
    )?;
    let host = OnHost::open(&model.path)?;
    let tokens = host.texts.tokenizer.encode_raw(&text)?;
    let (expected, about) = expect(&host, &load, &tokens, &args, &model.path, global.quiet)?;
    let watched = host.texts.tokenizer.encode_raw(TEXT)?;
    let task = Task {
        path: &model.path,
        load: LoadOptions {
            ctx_size: Some(context(&host, &expected)),
            max_running: SEQUENCES,
            ..load
        },
        expected: &expected,
        text: &watched[..watched.len().min(WATCHED_TOKENS)],
    };
    let mut outcomes = Vec::new();
    for report in &reports {
        let outcome = one(&task, report, global.quiet);
        note(
            global.quiet,
            &format!("{}: {}", outcome.label(), outcome.verdict.name()),
        );
        outcomes.push(outcome);
    }
    match args.output {
        Output::Md => print_line(&format::markdown(&about, &outcomes))?,
        Output::Json => print_line(&format::json(&about, &outcomes))?,
    }
    if let Some(path) = &args.html {
        page::page(&about, &outcomes).write(path)?;
        note(global.quiet, &format!("the page is {}", path.display()));
    }
    verdict(outcomes.iter().map(|o| (o.verdict, o.label())))
}

/// Exit 7 where an adapter is wrong, 4 where none is available.
fn verdict(all: impl Iterator<Item = (Verdict, String)> + Clone) -> Result<(), Failure> {
    let of = |verdict: Verdict| {
        let those = all.clone().filter(move |(v, _)| *v == verdict);
        those.map(|(_, label)| label).collect::<Vec<_>>()
    };
    let wrong = of(Verdict::Wrong);
    if !wrong.is_empty() {
        return Err(Failure::Wrong(format!(
            "wrong results: {}",
            wrong.join("; ")
        )));
    }
    if of(Verdict::Right).is_empty() {
        let error = nelumbo::Error::NoAdapter {
            tried: format!("unavailable: {}", of(Verdict::Unavailable).join("; ")),
            advice: "the table says why".to_owned(),
        };
        return Err(error.into());
    }
    Ok(())
}

/// Work for one adapter: a panic of a driver's library is no end for the others.
///
/// # Errors
/// What it panicked with.
pub fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        let why = crate::exit::last_panic().unwrap_or_default();
        format!("panicked: {why}")
    })
}

/// One adapter, whatever happens to it.
fn one(task: &Task, report: &AdapterReport, quiet: bool) -> Outcome {
    let mut outcome = Outcome::of(report);
    if let Some(why) = &report.rejected {
        outcome.fail(Verdict::Unavailable, why.clone());
        return outcome;
    }
    let label = outcome.label();
    let mut told: Option<Instant> = None;
    let mut progress = |what: &str| {
        // steps follow quickly on most adapters
        if told.is_none_or(|told| told.elapsed() >= GLANCE) {
            told = Some(Instant::now());
            note(quiet, &format!("{label}: {what}"));
        }
    };
    if let Err(why) = guarded(|| examine(task, &mut outcome, &mut progress)) {
        outcome.fail(Verdict::Wrong, why);
    }
    outcome
}

/// The adapters that are asked for, in order.
pub fn adapters(args: &CompareArgs) -> Result<Vec<AdapterReport>, Failure> {
    let backend = options::backend(&args.backend);
    let all = adapter::list_for(&Selection {
        backend,
        ..Selection::default()
    });
    for &index in &args.device {
        let (tried, advice) = match all.get(index as usize) {
            None => (
                format!("there is no adapter {index} among {}", all.len()),
                "`nelumbo devices` lists them",
            ),
            Some(report) if backend.is_some_and(|backend| backend != report.backend) => (
                format!("--device {index} is a {} adapter", report.backend),
                "drop --backend or choose another --device",
            ),
            Some(_) => continue,
        };
        let advice = advice.to_owned();
        return Err(nelumbo::Error::NoAdapter { tried, advice }.into());
    }
    let wanted = |report: &AdapterReport| {
        backend.is_none_or(|backend| report.backend == backend)
            && (args.device.is_empty() || args.device.contains(&(report.index as u32)))
    };
    let found: Vec<AdapterReport> = all.into_iter().filter(wanted).collect();
    if found.is_empty() {
        return Err(crate::devices::none(backend).into());
    }
    Ok(found)
}

/// The text: that of -p or -f, else ours.
fn text(args: &CompareArgs, given: Given) -> Result<String, Failure> {
    if prompt::is_on_line(given.prompt) && prompt::is_on_line(given.file) {
        return Err(Failure::Usage("two texts: -p and -f".to_owned()));
    }
    match (&args.prompt, &args.file) {
        (Some(text), file) if file.is_none() || given.prompt >= given.file => {
            prompt::utf8(text, "--prompt").map(str::to_owned)
        }
        (_, Some(path)) if path.as_os_str() == "-" => prompt::from_stdin("no text: stdin is empty"),
        (_, Some(path)) => {
            let file = std::fs::File::open(path).map_err(Failure::io(path))?;
            reading::read_text(file, path, reading::MAX_TEXT_BYTES)
        }
        (_, None) => Ok(TEXT.to_owned()),
    }
}

/// What the CPU says of the first tokens of the text.
fn expect(
    host: &OnHost,
    load: &LoadOptions,
    tokens: &[u32],
    args: &CompareArgs,
    path: &Path,
    quiet: bool,
) -> Result<(Expected, About), Failure> {
    let greedy = args.greedy as usize;
    let room = host.config.max_position_embeddings.saturating_sub(greedy);
    let count = tokens.len().min(args.tokens as usize);
    if count == 0 {
        return Err(Failure::Usage("the text has no token".to_owned()));
    }
    if count > room {
        let problem = format!(
            "--tokens {count} and --greedy {greedy}: the model was made for {} tokens",
            host.config.max_position_embeddings
        );
        return Err(Failure::Usage(problem));
    }
    note(
        quiet,
        &format!("the reference computes {count} tokens, then {greedy}"),
    );
    let start = Instant::now();
    let reference = host.reference(load.weights)?;
    let vocab_size = host.texts.tokenizer.vocab_size();
    let mut told = Instant::now();
    let mut progress = |done: usize| {
        if told.elapsed() >= GLANCE {
            told = Instant::now();
            note(
                quiet,
                &format!("reference: {done} of {} tokens", count + greedy),
            );
        }
    };
    let expected = Expected::compute(
        &reference,
        vocab_size,
        &tokens[..count],
        greedy,
        &mut progress,
    );
    let tokenizer = &host.texts.tokenizer;
    let bytes: Vec<u8> = expected
        .greedy
        .iter()
        .flat_map(|&id| tokenizer.token_bytes(id))
        .copied()
        .collect();
    let about = About {
        model: path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned(),
        weights: load.weights.name.to_owned(),
        kv: load.kv_format.name().to_owned(),
        tokens: count,
        greedy: expected.greedy.clone(),
        continuation: String::from_utf8_lossy(&bytes).into_owned(),
        reference_s: start.elapsed().as_secs_f64(),
    };
    Ok((expected, about))
}

/// Tokens of the context: what is compared, and what watched steps want, as far as the model goes.
fn context(host: &OnHost, expected: &Expected) -> usize {
    let needed = expected.num_given + expected.greedy.len() + 1;
    needed
        .max(USUAL_CONTEXT.min(host.config.max_position_embeddings))
        .max(2)
}

/// A line on stderr.
pub fn note(quiet: bool, what: &str) {
    if !quiet {
        say(&format!("compare: {what}"));
    }
}
