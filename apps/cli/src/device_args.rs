//! What a model runs on, and how it is held there: flags that every command which loads one takes.

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use nelumbo::model::MemoryLimit;

use crate::types::{ActivationType, CacheType, NumericsMode, Switch, WeightType};
use crate::values;

/// Which graphics interface to use.
#[derive(Debug, Clone, Args)]
pub struct BackendArgs {
    /// Use this interface and never fall back to another; cpu computes without any driver
    #[arg(long, value_enum, env = "NELUMBO_BACKEND")]
    pub backend: Option<BackendName>,
}

/// What a model runs on, how it is held there, and where it comes from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device and memory")]
pub struct DeviceArgs {
    #[command(flatten)]
    pub backend: BackendArgs,
    /// Use the adapter with this index of `nelumbo devices`, and no other [also: -dev]
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        env = "NELUMBO_DEVICE"
    )]
    pub device: Option<u32>,
    /// List the adapters and end, as `nelumbo devices` does
    #[arg(long)]
    pub list_devices: bool,
    /// Take a software adapter although a hardware adapter was rejected
    #[arg(long, env = "NELUMBO_ALLOW_SOFTWARE", value_parser = FalseyValueParser::new())]
    pub allow_software: bool,
    /// Refuse weights that are NaN or infinite, instead of warning of them
    #[arg(long, env = "NELUMBO_STRICT_WEIGHTS", value_parser = FalseyValueParser::new())]
    pub strict_weights: bool,
    #[command(flatten)]
    pub held: HeldArgs,
    /// Compare the kernels that the model needs with the CPU's results, once for each adapter, driver and
    /// shape, and work around those that are wrong
    #[arg(long, value_enum, default_value_t = Switch::On, env = "NELUMBO_SELF_CHECK")]
    pub self_check: Switch,
    /// Known from other tools; here every layer is on the device [also: -ngl]
    #[arg(
        long,
        value_name = "N",
        visible_alias = "n-gpu-layers",
        allow_negative_numbers = true,
        hide_short_help = true
    )]
    pub gpu_layers: Option<String>,
    #[command(flatten)]
    pub hub: HubArgs,
}

/// How a model is held in memory and computed with.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device and memory")]
pub struct HeldArgs {
    /// How weights are held in memory
    #[arg(long, value_enum, default_value_t = WeightType::Q8, env = "NELUMBO_WEIGHTS")]
    pub weights: WeightType,
    /// How activations are passed from one kernel to the next: 8-bit integers need q8 weights, and are
    /// faster on some adapters; auto takes the faster
    #[arg(long, value_enum, default_value_t = ActivationType::Auto, env = "NELUMBO_ACTIVATIONS")]
    pub activations: ActivationType,
    /// fast multiplies long steps by cooperative matrices, rounding what is multiplied to f16: quicker
    /// where a GPU has them, other last digits, and an error where it has none
    #[arg(long, value_enum, default_value_t = NumericsMode::Canonical, env = "NELUMBO_NUMERICS")]
    pub numerics: NumericsMode,
    /// Measure what suits this adapter and model before loading, up to 3 s, once for each; off takes
    /// the defaults, and f32 activations for auto
    #[arg(long, value_enum, default_value_t = Switch::On, env = "NELUMBO_AUTOTUNE")]
    pub autotune: Switch,
    /// How keys are held in the cache [also: -ctk]
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = CacheType::F16,
          env = "NELUMBO_CACHE_TYPE_K")]
    pub cache_type_k: CacheType,
    /// How values are held in the cache [also: -ctv]
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = CacheType::F16,
          env = "NELUMBO_CACHE_TYPE_V")]
    pub cache_type_v: CacheType,
    /// Memory for weights, cache and activations together: a size such as 6GiB or 800MiB, or a share of
    /// what the device has, such as 80% [default: most of it]
    #[arg(long, value_name = "SIZE|N%", allow_negative_numbers = true,
          value_parser = values::gpu_memory, env = "NELUMBO_GPU_MEMORY")]
    pub gpu_memory: Option<MemoryLimit>,
}

/// The model by its place in the hub.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device and memory")]
pub struct HubArgs {
    /// The model, as a repository of the hub: USER/REPO[:QUANT][@REVISION] [also: -hf, -hfr]
    #[arg(long, value_name = "REPO", env = "NELUMBO_HF_REPO")]
    pub hf_repo: Option<String>,
    /// A file of that repository [also: -hff]
    #[arg(long, value_name = "FILE", env = "NELUMBO_HF_FILE")]
    pub hf_file: Option<String>,
}

/// Graphics interfaces by the names users know, and the way without any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// Linux, Windows, Android
    Vulkan,
    /// Apple systems
    Metal,
    /// Windows
    Dx12,
    /// Where there is nothing else
    Gl,
    /// No GPU and no driver: right, and slow
    Cpu,
}
