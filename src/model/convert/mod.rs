//! A model's files as other files: weights as 8-bit integers or f16, in either layout.
//!
//! ```text
//! ModelFiles -> Conversion::plan      what is written where, to the byte: nothing is read yet
//!                  |                  plan (tensors), settings (config.json), keys (of a GGUF)
//!               Conversion::write     tensor by tensor, in pieces of a few MiB: pieces, packing
//!                  |
//!               Vec<TensorReport>     what each tensor lost
//! ```
//!
//! Rows of Q and K change their order on the way between the layouts. Whatever a file holds becomes f32
//! and from there what is asked for; no tensor is in memory as a whole.

mod keys;
mod packing;
mod pieces;
mod plan;
mod settings;
mod write;

pub use pieces::TensorReport;
pub use plan::{Conversion, SHARD_BYTES};

use crate::quant::GROUP;

/// What the matrices of a model become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// 8-bit integers with a scale for each row, or for so many columns of a row, in a directory.
    /// Embedding and head stay floats.
    Int8 {
        /// Columns that share a scale; `None` for all of a row.
        group: Option<usize>,
    },
    /// f16, in a directory or a GGUF file.
    F16,
    /// Blocks of 32 8-bit integers with an f16 scale, in a GGUF file.
    Q8_0,
}

impl Target {
    /// The word for it.
    pub fn name(self) -> String {
        match self {
            Target::Int8 { group: None } => "int8-channel".to_owned(),
            Target::Int8 { group: Some(GROUP) } => "int8-group".to_owned(),
            Target::Int8 { group: Some(size) } => format!("int8-group-{size}"),
            Target::F16 => "f16".to_owned(),
            Target::Q8_0 => "q8_0".to_owned(),
        }
    }
}

/// How files are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `config.json`, tokenizer files and safetensors.
    Directory,
    /// One GGUF file.
    Gguf,
}
