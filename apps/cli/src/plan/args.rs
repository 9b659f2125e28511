//! What `nelumbo plan` takes.

use std::ffi::OsString;

use clap::builder::{FalseyValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use nelumbo::model::MemoryLimit;

use crate::args::{BackendArgs, Switch};
use crate::values;

/// What `nelumbo plan` takes.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
                  nelumbo plan llama-3.1-8b --ctx-size 32768 --users 4 --gpu-memory 24GiB\n  \
                  nelumbo plan llama-3.1-405b --attention mha --ctx-size 131072\n  \
                  nelumbo plan ./model.gguf --check && nelumbo run ./model.gguf\n  \
                  nelumbo plan qwen2.5-7b --bandwidth 1008 -o json | jq .decode_tok_s_bound\n\
                  Nothing is loaded: of files only headers are read. Without an adapter the host's memory \
                  counts.")]
pub struct PlanArgs {
    /// A GGUF file, a model directory, a config.json, the name of a local model, or a built-in shape:
    /// llama-3.1-8b, -70b, -405b, llama-3.2-1b, qwen2.5-7b, mistral-7b, gemma-2-9b and others
    #[arg(value_name = "MODEL")]
    pub reference: OsString,

    /// Users at a time, each with a context of his own [also: -np]
    #[arg(short, long, value_name = "K", visible_alias = "parallel", default_value_t = 1,
          allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=65_536),
          env = "NELUMBO_USERS")]
    pub users: u32,
    /// Key heads in the cache: as the model has them, or as many as query heads, as if nobody had thought
    /// of sharing them
    #[arg(long, value_enum, default_value_t = Attention::Gqa, env = "NELUMBO_ATTENTION")]
    pub attention: Attention,
    /// End with code 5 where it does not fit
    #[arg(long, env = "NELUMBO_CHECK", value_parser = FalseyValueParser::new())]
    pub check: bool,
    /// How the plan is printed on stdout
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Md,
          env = "NELUMBO_OUTPUT")]
    pub output: Output,

    /// Tokens of the prompt whose first token is waited for
    #[arg(long, value_name = "N", default_value_t = 512, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=values::MAX_CONTEXT),
          env = "NELUMBO_PROMPT_TOKENS")]
    pub prompt_tokens: u32,

    #[command(flatten)]
    pub subject: SubjectArgs,
}

/// A model as it would be held, and the machine that it would be on.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and machine")]
pub struct SubjectArgs {
    /// Tokens of the longest sequence, prompt and answer, of each user; by default what the model was made for, up to 8192
    #[arg(short, long, value_name = "N", visible_aliases = ["max-model-len", "num-ctx"],
          allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(2..=values::MAX_CONTEXT),
          env = "NELUMBO_CTX_SIZE")]
    pub ctx_size: Option<u32>,
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
    /// Memory for weights, cache and activations together: a size such as 24GiB, or a share of what is there, such as 80% [default:
    /// most of the adapter's, or of the host's]
    #[arg(long, value_name = "SIZE|N%", visible_alias = "memory", allow_negative_numbers = true,
          value_parser = values::gpu_memory, env = "NELUMBO_GPU_MEMORY")]
    pub gpu_memory: Option<MemoryLimit>,
    /// Speeds of a machine that reads so many GB a second from memory, instead of this one
    #[arg(long, value_name = "GB/s", allow_negative_numbers = true,
          value_parser = positive(), env = "NELUMBO_BANDWIDTH")]
    pub bandwidth: Option<f64>,
    /// With --bandwidth: and does so many million million operations a second
    #[arg(long, value_name = "TOP/s", allow_negative_numbers = true, requires = "bandwidth",
          value_parser = positive(), env = "NELUMBO_TOPS")]
    pub tops: Option<f64>,
    /// Measure what the adapter does where no earlier run has kept it, in a few seconds; off leaves
    /// speeds out then
    #[arg(long, value_enum, default_value_t = Switch::On, env = "NELUMBO_MEASURE")]
    pub measure: Switch,
    /// Choose by measurement how kernels divide their work, as loading would; off takes the defaults
    #[arg(long, value_enum, default_value_t = Switch::On, env = "NELUMBO_AUTOTUNE")]
    pub autotune: Switch,

    #[command(flatten)]
    pub backend: BackendArgs,
    /// The adapter with this index of `nelumbo devices`, and no other [also: -dev]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "NELUMBO_DEVICE"
    )]
    pub device: Option<u32>,
}

/// A number above 0, as large as any rate will be.
pub fn positive() -> impl TypedValueParser<Value = f64> {
    clap::builder::StringValueParser::new().try_map(|text| {
        let value: f64 = text.trim().parse().map_err(|_| "not a number".to_owned())?;
        match (1e-6..=1e9).contains(&value) {
            true => Ok(value),
            false => Err(format!("{value} is not in 0.000001..=1000000000")),
        }
    })
}

/// Forms of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Weights {
    /// 8-bit integers, a scale for 32
    Q8,
    /// Half floats
    F16,
    /// As trained
    F32,
    /// 8-bit integers, a scale a row
    Int8,
}

/// Forms of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    F16,
    F32,
    /// 8-bit integers, a scale for each head of a token
    #[value(alias = "q8")]
    Int8,
}

/// How many key heads there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Attention {
    /// As the model has them
    Gqa,
    /// One for each query head
    Mha,
}

/// How a plan is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[value(alias = "text")]
    Md,
    /// One JSON object
    Json,
}
