//! What `nelumbo bench` takes: the flags of llama-bench, where they mean something here.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use super::counts::{self, Counts};
use crate::args::DeviceArgs;
use crate::values;

/// What `nelumbo bench` takes.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "nelumbo bench [OPTIONS] MODEL\n       nelumbo bench [OPTIONS] -m MODEL\n       \
                      nelumbo bench [OPTIONS] --kernels [FILTER]",
    after_help = "A test is run once to warm up, then -r times. Its time is that of the forward pass and \
                  the likeliest token, drawn on the device; tokenising and sampling are not in it.\n\
                  Lists are joined by commas; FIRST-LAST+STEP is a range."
)]
pub struct BenchArgs {
    /// A GGUF file, a model directory, or what `nelumbo pull` takes
    #[arg(value_name = "MODEL")]
    pub reference: Option<OsString>,
    /// The same as an option
    #[arg(short, long, value_name = "MODEL", env = "NELUMBO_MODEL")]
    pub model: Option<OsString>,

    /// Tests of prompts with so many tokens, to the first token of the answer; a list, 0 for none
    #[arg(short = 'p', long, value_name = "LIST", default_value = "512", allow_hyphen_values = true,
          value_parser = counts::counts, env = "NELUMBO_N_PROMPT")]
    pub n_prompt: Counts,
    /// Tests of so many generated tokens, one step each; a list, 0 for none
    #[arg(short = 'n', long, value_name = "LIST", default_value = "64", allow_hyphen_values = true,
          value_parser = counts::counts, env = "NELUMBO_N_GEN")]
    pub n_gen: Counts,
    /// Tokens that are in the context before; a list, each test is run at each
    #[arg(short = 'd', long, value_name = "LIST", default_value = "0", allow_hyphen_values = true,
          value_parser = counts::counts, env = "NELUMBO_N_DEPTH")]
    pub n_depth: Counts,
    /// Timed runs of each test
    #[arg(short = 'r', long, value_name = "N", default_value_t = 3, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=1000), env = "NELUMBO_REPETITIONS")]
    pub repetitions: u32,
    /// Repetitions go round over all depths, so that a machine that becomes slower or faster does so for
    /// all alike; a context is computed again for each second round
    #[arg(long, env = "NELUMBO_INTERLEAVE", value_parser = FalseyValueParser::new())]
    pub interleave: bool,
    /// Sequences at once; so far 1 [also: -np]
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=1024), env = "NELUMBO_PARALLEL")]
    pub parallel: u32,
    /// How results are printed on stdout
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Md,
          env = "NELUMBO_OUTPUT")]
    pub output: Output,
    /// Instead of tests: where the time of a prompt (the first of -p) and of one step after it goes,
    /// kernel by kernel; with -o trace every dispatch, for chrome://tracing and Perfetto
    #[arg(long, env = "NELUMBO_PROFILE", value_parser = FalseyValueParser::new())]
    pub profile: bool,
    /// Instead of a model: the kernels on shapes of real models, those whose name holds FILTER, beside
    /// what the adapter could do at best
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "",
          env = "NELUMBO_KERNELS")]
    pub kernels: Option<String>,
    /// Compares with an earlier run: a file that -o json or jsonl printed
    #[arg(long, value_name = "FILE", env = "NELUMBO_AGAINST")]
    pub against: Option<PathBuf>,
    /// With --against: ends with 7 where something is slower beyond the noise
    #[arg(long, env = "NELUMBO_CHECK", value_parser = FalseyValueParser::new())]
    pub check: bool,

    /// Context in tokens; by default what the model was made for, up to 8192
    #[arg(short, long, value_name = "N", visible_aliases = ["max-model-len", "num-ctx"],
          allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(2..=values::MAX_CONTEXT),
          env = "NELUMBO_CTX_SIZE")]
    pub ctx_size: Option<u32>,
    /// Prompt tokens in one step at most
    #[arg(short, long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=65_536), env = "NELUMBO_BATCH_SIZE")]
    pub batch_size: Option<u32>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table, readable as it is
    Md,
    /// One JSON array
    Json,
    /// One JSON object a line, those of a depth as soon as they are there
    Jsonl,
    /// A line of names, then a line a test
    Csv,
    /// With --profile: one JSON object in the Chrome trace format
    Trace,
}
