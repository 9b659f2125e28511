//! What `nelumbo compare` takes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use nelumbo::model::MemoryLimit;

use crate::args::{
    ActivationType, BackendArgs, CacheType, DeviceArgs, NumericsMode, Switch, WeightType,
};
use crate::values;

/// What `nelumbo compare` takes.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "nelumbo compare [OPTIONS] MODEL\n       nelumbo compare --kernels [OPTIONS]",
    after_help = "Examples:\n  \
                  nelumbo compare smollm2-135m                       every adapter of this machine\n  \
                  nelumbo compare smollm2-135m --device 0,2 --html report.html\n  \
                  nelumbo compare --kernels -o json                  kernels alone, without a model\n\n\
                  Ends with 7 where an adapter is wrong. An adapter that cannot be used, or has no room for \
                  the model, is unavailable; the others are compared all the same."
)]
pub struct CompareArgs {
    /// A GGUF file, a model directory, or what `nelumbo pull` takes
    #[arg(value_name = "MODEL")]
    pub reference: Option<OsString>,
    /// The same as an option
    #[arg(short, long, value_name = "MODEL", env = "NELUMBO_MODEL")]
    pub model: Option<OsString>,

    /// Tokens of the text that are compared, at most
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=65_536), env = "NELUMBO_TOKENS")]
    pub tokens: u32,
    /// Tokens that are generated after it, always the likeliest
    #[arg(short = 'g', long, value_name = "N", default_value_t = 16, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=4096), env = "NELUMBO_GREEDY")]
    pub greedy: u32,
    /// The text, in place of one of ours
    #[arg(
        short,
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        env = "NELUMBO_PROMPT"
    )]
    pub prompt: Option<OsString>,
    /// Read the text from a file, `-` for stdin
    #[arg(short, long, value_name = "FILE", env = "NELUMBO_FILE")]
    pub file: Option<PathBuf>,
    /// Instead of a model: every kernel's cases, on every adapter
    #[arg(long, env = "NELUMBO_KERNELS", value_parser = FalseyValueParser::new())]
    pub kernels: bool,
    /// How results are printed on stdout
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Md,
          env = "NELUMBO_OUTPUT")]
    pub output: Output,
    /// Write a page with plots to this file, too
    #[arg(long, value_name = "FILE", env = "NELUMBO_HTML")]
    pub html: Option<PathBuf>,

    #[command(flatten)]
    pub backend: BackendArgs,
    /// Only the adapters with these indices of `nelumbo devices`; a list [also: -dev]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        allow_negative_numbers = true,
        env = "NELUMBO_DEVICE",
        help_heading = "Device and memory"
    )]
    pub device: Vec<u32>,
    /// How weights are held in memory
    #[arg(long, value_enum, default_value_t = WeightType::Q8, env = "NELUMBO_WEIGHTS",
          help_heading = "Device and memory")]
    pub weights: WeightType,
    /// How activations are passed from one kernel to the next; auto takes what `nelumbo run` would
    #[arg(long, value_enum, default_value_t = ActivationType::Auto, env = "NELUMBO_ACTIVATIONS",
          help_heading = "Device and memory")]
    pub activations: ActivationType,
    /// fast multiplies long steps by cooperative matrices
    #[arg(long, value_enum, default_value_t = NumericsMode::Canonical, env = "NELUMBO_NUMERICS",
          help_heading = "Device and memory")]
    pub numerics: NumericsMode,
    /// Measure what suits each adapter and model before loading, as `nelumbo run` does
    #[arg(long, value_enum, default_value_t = Switch::On, env = "NELUMBO_AUTOTUNE",
          help_heading = "Device and memory")]
    pub autotune: Switch,
    /// How keys are held in the cache [also: -ctk]
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = CacheType::F16,
          env = "NELUMBO_CACHE_TYPE_K", help_heading = "Device and memory")]
    pub cache_type_k: CacheType,
    /// How values are held in the cache [also: -ctv]
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = CacheType::F16,
          env = "NELUMBO_CACHE_TYPE_V", help_heading = "Device and memory")]
    pub cache_type_v: CacheType,
    /// Memory for weights, cache and activations together, on each adapter
    #[arg(long, value_name = "SIZE|N%", allow_negative_numbers = true,
          value_parser = values::gpu_memory, env = "NELUMBO_GPU_MEMORY",
          help_heading = "Device and memory")]
    pub gpu_memory: Option<MemoryLimit>,
    /// The model, as a repository of the hub: USER/REPO[:QUANT][@REVISION] [also: -hf, -hfr]
    #[arg(
        long,
        value_name = "REPO",
        env = "NELUMBO_HF_REPO",
        help_heading = "Device and memory"
    )]
    pub hf_repo: Option<String>,
    /// A file of that repository [also: -hff]
    #[arg(
        long,
        value_name = "FILE",
        env = "NELUMBO_HF_FILE",
        help_heading = "Device and memory"
    )]
    pub hf_file: Option<String>,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table, readable as it is
    Md,
    /// One JSON object
    Json,
}

impl CompareArgs {
    /// The same as the other commands take it, with no adapter chosen.
    pub fn as_device_args(&self) -> DeviceArgs {
        DeviceArgs {
            backend: self.backend.clone(),
            device: None,
            list_devices: false,
            allow_software: true,
            weights: self.weights,
            strict_weights: false,
            activations: self.activations,
            numerics: self.numerics,
            self_check: Switch::Off, // what is wrong is to be seen
            autotune: self.autotune,
            cache_type_k: self.cache_type_k,
            cache_type_v: self.cache_type_v,
            gpu_memory: self.gpu_memory,
            gpu_layers: None,
            hf_repo: self.hf_repo.clone(),
            hf_file: self.hf_file.clone(),
        }
    }
}
