//! The Llama family: SmolLM2, Llama 2, 3, 3.1, 3.2, TinyLlama and what is stored under its name, as Mistral
//! is in GGUF files. It is what all others are told against.

use super::standard::{self, STANDARD};
use super::{Family, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::Config;
use crate::model::tensors::Names;

/// The family's line in the registry.
pub(super) const LLAMA: Family = Family {
    hf_names: &["LlamaForCausalLM"],
    gguf_names: &["llama"],
    config,
    names,
    layouts: Some((names::DIRECTORY, names::GGUF_PAIRS)),
};

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &STANDARD, |_, _| Ok(()))
}

fn names(files: &ModelFiles) -> Names {
    names::in_files(files, names::DIRECTORY, names::GGUF_PAIRS)
}
