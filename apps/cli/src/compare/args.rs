//! What `nelumbo compare` takes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};

use crate::args::{BackendArgs, DeviceArgs, Switch};
use crate::device_args::{HeldArgs, HubArgs};

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
    #[command(flatten)]
    pub held: HeldArgs,
    #[command(flatten)]
    pub hub: HubArgs,
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
            strict_weights: false,
            held: self.held.clone(),
            self_check: Switch::Off, // what is wrong is to be seen
            gpu_layers: None,
            hub: self.hub.clone(),
        }
    }
}
