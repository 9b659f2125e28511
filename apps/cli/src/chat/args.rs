//! What `nelumbo chat` takes.

use std::ffi::OsString;

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::args::{DeviceArgs, Format, LengthArgs, OutputArgs, PromptArgs, RunArgs, SamplingArgs};
use crate::inspect::InspectArgs;
use crate::speculation::SpeculateArgs;

/// What `nelumbo chat` takes.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "nelumbo chat [OPTIONS] [MODEL]\n       nelumbo chat [OPTIONS] -m MODEL",
    after_help = "Examples:\n  \
                  nelumbo chat smollm2-135m              talk to a named model, downloaded if need be\n  \
                  nelumbo chat                           the model that was used last\n  \
                  nelumbo chat --temp 0 ./model.gguf     a file, always the likeliest token\n  \
                  nelumbo chat -m smollm2-135m < q.txt   each line is a message; answers on stdout\n\n\
                  In the conversation /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves."
)]
pub struct ChatArgs {
    /// A GGUF file, a model directory, or a name; by default the model used last
    #[arg(value_name = "MODEL")]
    pub reference: Option<OsString>,
    /// The same as an option
    #[arg(short, long, value_name = "MODEL", env = "NELUMBO_MODEL")]
    pub model: Option<OsString>,

    #[command(flatten)]
    pub talk: TalkArgs,
    #[command(flatten)]
    pub length: LengthArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub speculate: SpeculateArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// What concerns a conversation, also one of a single prompt.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Conversation")]
pub struct TalkArgs {
    /// System message of the chat [also: -sys]
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        env = "NELUMBO_SYSTEM"
    )]
    pub system: Option<OsString>,
    /// Stop an answer where this text would appear; repeatable
    #[arg(
        short,
        long,
        value_name = "TEXT",
        visible_alias = "stop",
        allow_hyphen_values = true,
        env = "NELUMBO_REVERSE_PROMPT"
    )]
    pub reverse_prompt: Vec<OsString>,
    /// Keep no file of the lines that are typed in a conversation
    #[arg(long, env = "NELUMBO_NOHISTORY", value_parser = FalseyValueParser::new())]
    pub nohistory: bool,
}

impl ChatArgs {
    /// The same for `nelumbo run`, whose options are checked there.
    pub fn into_run(self) -> RunArgs {
        RunArgs {
            words: Vec::new(),
            model: self.reference.or(self.model),
            prompt: PromptArgs {
                prompt: None,
                file: None,
                raw: false,
            },
            talk: self.talk,
            length: self.length,
            sampling: self.sampling,
            speculate: self.speculate,
            output: OutputArgs {
                format: Format::Text,
                logprobs: None,
            },
            inspect: InspectArgs::default(),
            device: self.device,
        }
    }
}
