//! Whether the result predicts a text as its source does.

use std::fs::File;
use std::path::Path;

use nelumbo::engine::perplexity::{Scored, Windows};
use nelumbo::formats::ModelFiles;
use nelumbo::model::Texts;

use super::args::QuantizeArgs;
use super::report::Check;
use crate::args::{ActivationType, CacheType, GlobalArgs, NumericsMode, WeightType};
use crate::exit::{Failure, say};
use crate::models::cache;
use crate::options::{self, DeviceOptions};
use crate::perplexity::base_file::Reader;
use crate::perplexity::measure::{Base, measure};
use crate::perplexity::{self, report};
use crate::reading::{self, MAX_TEXT_BYTES};
use crate::session;
use crate::temporary::Temporary;

/// Tokens of a window.
const WINDOW: usize = 512;

/// The text of a file, of which the model of `files` has something to predict; told before anything is
/// converted.
pub fn text(path: &Path, files: &ModelFiles) -> Result<String, Failure> {
    let file = File::open(path).map_err(Failure::io(path))?;
    let text = reading::read_text(file, path, MAX_TEXT_BYTES)?;
    if Texts::load(files)?.tokenizer.encode_plain(&text)?.len() < 2 {
        let path = path.display();
        let problem = format!("--check {path}: a text of less than two tokens has none to predict");
        return Err(Failure::Usage(problem));
    }
    Ok(text)
}

/// Evaluates both on the beginning of the text, one after the other.
pub fn check(
    input: &Path,
    out: &Path,
    text: &str,
    args: &QuantizeArgs,
    global: &GlobalArgs,
) -> Result<Option<Check>, Failure> {
    let mut name = out.as_os_str().to_owned();
    name.push(format!(".{}.kld", std::process::id()));
    let kept = Temporary::new(name.into())?;
    let base = Base::Write(kept.path().to_owned());
    score(input, text, args, global, base)?;
    let reader = Reader::open(kept.path())?;
    let scored = score(out, text, args, global, Base::Compare(Box::new(reader)))?;
    Ok(Check::new(&scored))
}

fn score(
    path: &Path,
    text: &str,
    args: &QuantizeArgs,
    global: &GlobalArgs,
    base: Base,
) -> Result<report::Report, Failure> {
    let device = DeviceOptions {
        selection: nelumbo::gpu::Selection {
            backend: options::backend(&args.backend),
            ..Default::default()
        },
        weights: WeightType::F16,
        strict_weights: false,
        activations: ActivationType::F32,
        numerics: NumericsMode::Canonical,
        self_check: true,
        autotune: false,
        cache_type: CacheType::F16,
        gpu_memory: None,
    };
    let load = session::load_options(&device, Some(WINDOW), None, cache::pipelines(global))?;
    let name = perplexity::file_name(path);
    if !global.quiet {
        say(&format!("quantize: checking {name}"));
    }
    let (mut engine, texts) = perplexity::open(path, &load, global.quiet)?;
    let tokens = texts.tokenizer.encode_plain(text)?;
    let size = tokens.len().min(WINDOW);
    let mut windows = Windows::new(tokens, size, Scored::All, None)?;
    windows.take(windows.count().min(args.check_chunks as usize))?;
    if let Base::Compare(reader) = &base {
        reader.check(&windows, engine.decoder().config().vocab_size)?;
    }
    measure(&mut engine, &windows, base, &name, true)
}
