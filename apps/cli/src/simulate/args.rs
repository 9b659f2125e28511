//! What `nelumbo simulate` takes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nelumbo::engine::simulate::Lengths;

use super::promise::{self, Promise};
use super::sweep::{self, Axes};
use crate::plan::args::{SubjectArgs, positive};

/// What `nelumbo simulate` takes.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
                  nelumbo simulate llama-3.1-8b --bandwidth 1008 --tops 80 --requests 2000 --rate 4 --slo ttft:1000,tpot:50\n  \
                  nelumbo simulate ./model.gguf --trace yesterday.jsonl --max-itl 100\n  \
                  nelumbo simulate llama-3.1-8b --bandwidth 3350 --tops 900 --rate 20 --sweep chunk=64,256,1024,whole\n\
                  A trace has a JSON object a line: arrival_s, prompt_tokens, output_tokens, and where prompts begin \
                  alike prefix_group and prefix_tokens; or it is what the engine recorded of itself.\n\
                  Nothing is loaded or computed: the engine's scheduler plans steps, and the roofline of the adapter, \
                  or of the one that --bandwidth and --tops describe, tells what they take.")]
pub struct SimulateArgs {
    /// A GGUF file, a model directory, a config.json, the name of a local model, or a built-in shape, as
    /// `nelumbo plan` takes them
    #[arg(value_name = "MODEL")]
    pub reference: OsString,

    /// Requests that are made up
    #[arg(long, value_name = "N", default_value_t = 1000, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000), env = "NELUMBO_REQUESTS")]
    pub requests: u32,
    /// How many of them come in a second, independently of each other [default: all at once]
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = positive(),
          env = "NELUMBO_RATE")]
    pub rate: Option<f64>,
    /// Tokens of their prompts: N, FIRST-LAST, or lognormal:MEDIAN:SIGMA
    #[arg(long, value_name = "LENGTHS", default_value = "lognormal:256:1", allow_hyphen_values = true,
          value_parser = lengths, env = "NELUMBO_PROMPT_LEN")]
    pub prompt_len: Lengths,
    /// Tokens of their answers, likewise
    #[arg(long, value_name = "LENGTHS", default_value = "lognormal:128:0.8", allow_hyphen_values = true,
          value_parser = lengths, env = "NELUMBO_OUTPUT_LEN")]
    pub output_len: Lengths,
    /// The same seed, the same requests
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true,
        env = "NELUMBO_SEED"
    )]
    pub seed: u64,
    /// Requests that were recorded instead, a JSON object a line, or a trace of the engine
    #[arg(long, value_name = "FILE", env = "NELUMBO_TRACE",
          conflicts_with_all = ["requests", "rate", "prompt_len", "output_len"])]
    pub trace: Option<PathBuf>,

    /// Milliseconds that nobody who reads should wait longer for the next token: prompts get smaller parts
    /// of steps
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = positive(),
          env = "NELUMBO_MAX_ITL")]
    pub max_itl: Option<f64>,
    /// What users are promised, in milliseconds: ttft:MS to the first token, tpot:MS for each further one on
    /// average, itl:MS between any two; joined by commas
    #[arg(long, value_name = "NAME:MS", value_parser = promise::promise, env = "NELUMBO_SLO")]
    pub slo: Option<Promise>,
    /// Tokens whose keys and values there is memory for [default: what --gpu-memory leaves, else 16 contexts]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, conflicts_with = "gpu_memory",
          value_parser = clap::value_parser!(u64).range(16..=1 << 40), env = "NELUMBO_POOL")]
    pub pool: Option<u64>,
    /// Tokens of a step at most; a list, each is simulated
    #[arg(short, long, value_name = "LIST", default_value = "2048", value_delimiter = ',',
          allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=65_536),
          env = "NELUMBO_BATCH_SIZE")]
    pub batch_size: Vec<u32>,
    /// Requests that run at a time at most; a list, each is simulated [also: -np]
    #[arg(long, value_name = "LIST", default_value = "256", value_delimiter = ',',
          allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=65_536),
          env = "NELUMBO_PARALLEL")]
    pub parallel: Vec<u32>,
    /// Simulates each of several values: chunk=LIST (tokens of prompts beside those who decode: N, whole, or
    /// auto, which is --max-itl), pool=LIST, parallel=LIST, batch=LIST; all joined by commas
    #[arg(long, value_name = "AXIS=LIST", value_parser = sweep::axes, env = "NELUMBO_SWEEP")]
    pub sweep: Option<Axes>,
    /// How results are printed on stdout
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Md,
          env = "NELUMBO_OUTPUT")]
    pub output: Output,

    #[command(flatten)]
    pub subject: SubjectArgs,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables, readable as they are
    Md,
    /// One JSON object
    Json,
    /// A picture of the sweep, or of the memory
    Svg,
}

fn lengths(text: &str) -> Result<Lengths, String> {
    text.parse()
}
