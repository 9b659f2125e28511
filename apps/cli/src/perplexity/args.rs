//! What `nelumbo perplexity` takes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use crate::args::DeviceArgs;
use crate::values;

/// What `nelumbo perplexity` takes.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "nelumbo perplexity [OPTIONS] -f TEXT MODEL",
    after_help = "The text is tokenised as a whole, without special tokens, and cut into windows of -c tokens \
                  that follow one another; what does not fill the last is left out. Each window is evaluated by \
                  itself, and by default every token but its first is scored. The perplexity is exp of the mean \
                  negative log-likelihood.\n\n\
                  Examples:\n  \
                  nelumbo perplexity m.gguf -f text.txt --chunks 40\n  \
                  nelumbo perplexity m.gguf -f text.txt --weights f16 --kl-divergence-base f16.kld\n  \
                  nelumbo perplexity m.gguf -f text.txt --weights q8 --kl-divergence-base f16.kld --kl-divergence"
)]
pub struct PerplexityArgs {
    /// A GGUF file, a model directory, or what `nelumbo pull` takes
    #[arg(value_name = "MODEL")]
    pub reference: Option<OsString>,
    /// The same as an option
    #[arg(short, long, value_name = "MODEL", env = "NELUMBO_MODEL")]
    pub model: Option<OsString>,

    /// The text, UTF-8; `-` for stdin
    #[arg(short, long, value_name = "TEXT", env = "NELUMBO_FILE")]
    pub file: Option<PathBuf>,
    /// Tokens of a window
    #[arg(short, long, value_name = "WINDOW", visible_aliases = ["max-model-len", "num-ctx"],
          default_value_t = 512, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(2..=values::MAX_CONTEXT),
          env = "NELUMBO_CTX_SIZE")]
    pub ctx_size: u32,
    /// Windows to evaluate, from the beginning of the text; by default all
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(u32::MAX)),
          env = "NELUMBO_CHUNKS")]
    pub chunks: Option<u32>,
    /// Which predictions of a window count
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Scoring::All,
          env = "NELUMBO_SCORE")]
    pub score: Scoring,
    /// Keep all predictions in this file, as the base of later comparisons; with --kl-divergence, compare
    /// with those in it
    #[arg(long, value_name = "FILE", env = "NELUMBO_KL_DIVERGENCE_BASE")]
    pub kl_divergence_base: Option<PathBuf>,
    /// Compare with the predictions that --kl-divergence-base FILE holds
    #[arg(long, env = "NELUMBO_KL_DIVERGENCE", value_parser = FalseyValueParser::new())]
    pub kl_divergence: bool,
    /// How results are printed on stdout
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Md,
          env = "NELUMBO_OUTPUT")]
    pub output: Output,

    /// Tokens in one step at most
    #[arg(short, long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=65_536), env = "NELUMBO_BATCH_SIZE")]
    pub batch_size: Option<u32>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Which predictions of a window count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scoring {
    /// All, WINDOW - 1 of each window
    All,
    /// Those of the second half, as llama.cpp does; the first token of a window is BOS where the tokenizer
    /// adds one
    SecondHalf,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table
    Md,
    /// One JSON object
    Json,
}
