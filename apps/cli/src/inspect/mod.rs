//! What happens inside a model: the shape of every step, and residual streams as a file.

mod dump;
mod shapes;

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::FalseyValueParser;
use nelumbo::engine::EngineCore;
use nelumbo::{LoadOptions, Model};

use crate::args::Format;
use crate::exit::{Failure, say};
use crate::models::Progress;
use crate::options::RunOptions;
use crate::output::print_line;
use crate::session;

/// What is looked at in place of an answer.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Looking inside, in place of an answer")]
pub struct InspectArgs {
    /// Print the forward pass of the prompt and of one token after it, with the shape of every step
    #[arg(long, env = "NELUMBO_TRACE_SHAPES", value_parser = FalseyValueParser::new())]
    pub trace_shapes: bool,
    /// Write the residual stream after each layer, and the logits, for every token of the prompt: a
    /// safetensors file, or layers.safetensors in that folder
    #[arg(long, value_name = "DIR|FILE", env = "NELUMBO_DUMP_LAYERS")]
    pub dump_layers: Option<PathBuf>,
}

impl InspectArgs {
    /// Whether anything is asked for.
    pub fn is_asked(&self) -> bool {
        self.trace_shapes || self.dump_layers.is_some()
    }
}

/// Looks at what is asked for. The shapes go to stdout, where the file is to stderr.
pub fn inspect(
    path: &Path,
    prompt: &str,
    options: &RunOptions,
    args: &InspectArgs,
    pipelines: Option<PathBuf>,
    quiet: bool,
) -> Result<(), Failure> {
    if options.format == Format::Json {
        let problem =
            "--format json belongs to an answer: --trace-shapes is text, --dump-layers a file";
        return Err(Failure::Usage(problem.to_owned()));
    }
    let load = LoadOptions {
        max_running: options.parallel,
        ..session::load_options(
            &options.device,
            options.ctx_size,
            options.batch_size,
            pipelines,
        )?
    };
    let mut bar = None;
    let model = Model::load(path, &load, &mut |done, all| {
        bar.get_or_insert_with(|| Progress::on_terminal("loading", all, quiet))
            .at(done);
    })?;
    let tokens = session::encode(&model.texts, prompt, options)?;
    if tokens.is_empty() {
        return Err(Failure::Usage("the prompt has no token".to_owned()));
    }
    let mut engine = EngineCore::new(model.decoder)?;
    if args.trace_shapes {
        print_line(&shapes::text(&mut engine, &tokens)?)?;
    }
    if let Some(to) = &args.dump_layers {
        let written = dump::write(&mut engine, &tokens, to)?;
        if !quiet {
            say(&format!("{} tokens, {written}", tokens.len()));
        }
    }
    Ok(())
}
