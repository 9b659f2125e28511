//! What `nelumbo quantize` takes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nelumbo::model::convert::Target;
use nelumbo::quant::GROUP;

use crate::args::BackendArgs;

/// What `nelumbo quantize` takes.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "A name that ends in .gguf is written as one GGUF file, any other as a directory of safetensors. \
                  8-bit integers in a directory are stored as compressed-tensors does (int-quantized, symmetric, \
                  weights of the layers only; embedding, head and norms stay floats), so that other engines load \
                  it: vLLM computes int8-channel as W8A8; int8-group is what this program holds in memory.\n\n\
                  Examples:\n  \
                  nelumbo quantize ./llama-3.2-1b ./llama-3.2-1b-int8\n  \
                  nelumbo quantize smollm2-135m ./smollm2-int8 int8-group --check text.txt\n  \
                  nelumbo quantize ./smollm2-int8 ./smollm2.gguf q8_0"
)]
pub struct QuantizeArgs {
    /// A GGUF file, a model directory, or the name of a local model (`nelumbo ls`)
    #[arg(value_name = "IN")]
    pub input: OsString,
    /// A directory to be made, or a file that ends in .gguf
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// What weights become; by default int8-channel, and q8_0 in a GGUF file
    #[arg(value_enum, value_name = "TYPE", ignore_case = true)]
    pub kind: Option<Kind>,
    /// Replace OUT, once the new one is complete
    #[arg(long)]
    pub force: bool,
    /// Megabytes (10^6 bytes) of tensors in one safetensors file at most
    #[arg(long, value_name = "MB", default_value_t = 5000, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..), env = "NELUMBO_MAX_SHARD_SIZE")]
    pub max_shard_size: u32,
    /// Afterwards compare the perplexity of both on this text, and their predictions; with weights held
    /// as f16, so that only what the files differ in counts
    #[arg(long = "check", value_name = "TEXT", env = "NELUMBO_CHECK_TEXT")]
    pub check_text: Option<PathBuf>,
    /// Windows of 512 tokens that --check evaluates at most
    #[arg(long, value_name = "N", default_value_t = 4, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..), env = "NELUMBO_CHECK_CHUNKS")]
    pub check_chunks: u32,
    #[command(flatten)]
    pub backend: BackendArgs,
    /// How results are printed on stdout
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Md,
          env = "NELUMBO_OUTPUT")]
    pub output: Output,
    /// One JSON object, as -o json
    #[arg(long)]
    pub json: bool,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table
    Md,
    /// One JSON object
    Json,
}

/// What weights become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// 8-bit integers with a scale for each row
    Int8Channel,
    /// 8-bit integers with a scale for 32 weights
    #[value(alias = "int8-group-32")]
    Int8Group,
    /// 8-bit integers with a scale for 128 weights
    #[value(name = "int8-group-128")]
    Int8Group128,
    /// 16-bit floats
    F16,
    /// 8-bit integers with a scale for 32 weights, as GGUF files store them
    #[value(name = "q8_0")]
    Q8_0,
}

impl Kind {
    pub fn target(self) -> Target {
        match self {
            Kind::Int8Channel => Target::Int8 { group: None },
            Kind::Int8Group => Target::Int8 { group: Some(GROUP) },
            Kind::Int8Group128 => Target::Int8 { group: Some(128) },
            Kind::F16 => Target::F16,
            Kind::Q8_0 => Target::Q8_0,
        }
    }
}
