//! What `nelumbo simulate` takes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nelumbo::engine::simulate::Lengths;
use nelumbo::model::MemoryLimit;

use super::promise::{self, Promise};
use super::sweep::{self, Axes};
use crate::args::{BackendArgs, Switch};
use crate::plan::args::{Attention, Cache, Output as PlanOutput, PlanArgs, Weights, positive};
use crate::values;

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
    /// Tokens of the longest sequence, prompt and answer; by default what the model was made for, up to 8192
    #[arg(short, long, value_name = "N", visible_aliases = ["max-model-len", "num-ctx"],
          allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(2..=values::MAX_CONTEXT),
          env = "NELUMBO_CTX_SIZE")]
    pub ctx_size: Option<u32>,
    /// Tokens whose keys and values there is memory for [default: what --gpu-memory leaves, else 16 contexts]
    #[arg(long, value_name = "TOKENS", allow_negative_numbers = true, conflicts_with = "gpu_memory",
          value_parser = clap::value_parser!(u64).range(16..=1 << 40), env = "NELUMBO_POOL")]
    pub pool: Option<u64>,
    /// Memory for weights, cache and activations together: a size such as 24GiB, or a share of what is
    /// there, such as 80%
    #[arg(long, value_name = "SIZE|N%", visible_alias = "memory", allow_negative_numbers = true,
          value_parser = values::gpu_memory, env = "NELUMBO_GPU_MEMORY")]
    pub gpu_memory: Option<MemoryLimit>,
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

    /// How weights are kept; f32 and int8 (a scale a row) are planned with only
    #[arg(long, value_enum, default_value_t = Weights::Q8, env = "NELUMBO_WEIGHTS")]
    pub weights: Weights,
    /// How keys are kept; int8 is planned with only [also: -ctk]
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = Cache::F16,
          env = "NELUMBO_CACHE_TYPE_K")]
    pub cache_type_k: Cache,
    /// How values are kept [also: -ctv]
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = Cache::F16,
          env = "NELUMBO_CACHE_TYPE_V")]
    pub cache_type_v: Cache,
    /// A machine that reads so many GB a second from memory, instead of this one
    #[arg(long, value_name = "GB/s", allow_negative_numbers = true, requires = "tops",
          value_parser = positive(), env = "NELUMBO_BANDWIDTH")]
    pub bandwidth: Option<f64>,
    /// With --bandwidth: and does so many million million operations a second
    #[arg(long, value_name = "TOP/s", allow_negative_numbers = true, requires = "bandwidth",
          value_parser = positive(), env = "NELUMBO_TOPS")]
    pub tops: Option<f64>,
    /// Measure what the adapter does where no earlier run has kept it, in a few seconds
    #[arg(long, value_enum, default_value_t = Switch::On, env = "NELUMBO_MEASURE")]
    pub measure: Switch,
    /// Choose by measurement how kernels divide their work, as loading would; off takes the defaults
    #[arg(long, value_enum, default_value_t = Switch::On, env = "NELUMBO_AUTOTUNE")]
    pub autotune: Switch,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Simulate the adapter with this index of `nelumbo devices`, and no other [also: -dev]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "NELUMBO_DEVICE"
    )]
    pub device: Option<u32>,
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

impl SimulateArgs {
    /// Model and machine as a plan takes them.
    pub fn as_plan(&self) -> PlanArgs {
        PlanArgs {
            reference: self.reference.clone(),
            ctx_size: self.ctx_size,
            users: 1,
            weights: self.weights,
            cache_type_k: self.cache_type_k,
            cache_type_v: self.cache_type_v,
            attention: Attention::Gqa,
            gpu_memory: self.gpu_memory,
            check: false,
            output: PlanOutput::Md,
            prompt_tokens: 1,
            bandwidth: self.bandwidth,
            tops: self.tops,
            measure: self.measure,
            autotune: self.autotune,
            backend: self.backend.clone(),
            device: self.device,
        }
    }
}
