//! `nelumbo perplexity`: how well a model predicts a text, and how far its predictions are from those
//! of a base.

pub mod args;
pub mod base_file;
pub mod measure;
pub mod report;

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

use nelumbo::engine::EngineCore;
use nelumbo::engine::perplexity::{Scored, Windows};
use nelumbo::model::Texts;
use nelumbo::{LoadOptions, Model};

use crate::args::GlobalArgs;
use crate::exit::Failure;
use crate::models::{self, Progress, cache};
use crate::options::DeviceOptions;
use crate::output::print_line;
use crate::prompt::Given;
use crate::reading::{self, MAX_TEXT_BYTES};
use crate::{devices, options, prompt, session};
use args::{Output, PerplexityArgs, Scoring};
use base_file::Reader;
use measure::Base;

/// Everything from the arguments to the last line.
pub fn perplexity(args: PerplexityArgs, global: &GlobalArgs, given: Given) -> Result<(), Failure> {
    if args.device.list_devices {
        return devices::devices(false, options::backend(&args.device.backend));
    }
    options::explain(&args.device);
    options::refuse_device(&args.device)?;
    if args.score == Scoring::SecondHalf && args.ctx_size < 4 {
        let problem = "--score second-half: a window of less than 4 tokens has none to score there";
        return Err(Failure::Usage(problem.to_owned()));
    }
    let text = text(&args)?;
    let base = base(&args)?;
    let load = session::load_options(
        &DeviceOptions::new(&args.device),
        Some(args.ctx_size as usize),
        args.batch_size.map(|n| n as usize),
        cache::pipelines(global),
    )?;
    let model = models::resolve(&model_reference(&args, given)?, global)?;
    let (mut engine, texts) = open(&model.path, &load, global.quiet)?;
    let mut windows = windows(&args, &texts, &text)?;
    if let Base::Compare(reader) = &base {
        // of the whole text: fewer windows than the base has may be asked for
        reader.check(&windows, engine.decoder().config().vocab_size)?;
        windows.take(reader.header.windows as usize)?;
    }
    if let Some(count) = args.chunks {
        windows.take(count as usize)?;
    }
    let name = file_name(&model.path);
    let report = measure::measure(&mut engine, &windows, base, &name, global.quiet)?;
    print_line(&match args.output {
        Output::Md => report.markdown(),
        Output::Json => serde_json::to_string(&report).expect("a report is plain data"),
    })
}

/// What can be wrong with a file is told before a model is loaded.
fn base(args: &PerplexityArgs) -> Result<Base, Failure> {
    match (&args.kl_divergence_base, args.kl_divergence) {
        (None, false) => Ok(Base::None),
        (None, true) => Err(Failure::Usage(
            "--kl-divergence: the base is missing: --kl-divergence-base FILE".to_owned(),
        )),
        (Some(path), false) => {
            base_file::check_absent(path)?;
            Ok(Base::Write(path.clone()))
        }
        (Some(path), true) => Ok(Base::Compare(Box::new(Reader::open(path)?))),
    }
}

fn text(args: &PerplexityArgs) -> Result<String, Failure> {
    let Some(path) = args.file.as_deref().filter(|p| !p.as_os_str().is_empty()) else {
        let problem = "no text: -f TEXT names a file, or - for stdin";
        return Err(Failure::Usage(problem.to_owned()));
    };
    if path == Path::new("-") {
        return prompt::from_stdin("no text: stdin is empty");
    }
    let file = File::open(path).map_err(Failure::io(path))?;
    reading::read_text(file, path, MAX_TEXT_BYTES)
}

fn model_reference(args: &PerplexityArgs, given: Given) -> Result<OsString, Failure> {
    let given = given.with_model(args.reference.as_ref())?;
    let model = args.reference.clone().or(args.model.clone());
    let model = models::from_flags(&args.device, model, given)?;
    Ok(prompt::split_model(model, Vec::new())?.0)
}

/// The model behind an engine, and its text side.
pub fn open(path: &Path, load: &LoadOptions, quiet: bool) -> Result<(EngineCore, Texts), Failure> {
    let mut bar = None;
    let model = Model::load(path, load, &mut |done, all| {
        bar.get_or_insert_with(|| Progress::on_terminal("loading", all, quiet))
            .at(done);
    })?;
    Ok((EngineCore::new(model.decoder)?, model.texts))
}

fn windows(args: &PerplexityArgs, texts: &Texts, text: &str) -> Result<Windows, Failure> {
    let scored = match args.score {
        Scoring::All => Scored::All,
        Scoring::SecondHalf => Scored::SecondHalf,
    };
    let tokenizer = &texts.tokenizer;
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let tokens = tokenizer.encode_plain(text)?;
    Ok(Windows::new(tokens, args.ctx_size as usize, scored, bos)?)
}

/// The last part of a path: where the file lies says nothing about a result.
pub fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}
