//! Mistral: Llama with a window, which later releases leave out. In GGUF files it is stored as Llama.

use super::layers::{self, MAX_WINDOW, WINDOW};
use super::standard::{self, STANDARD, Standard};
use super::{Family, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::Config;
use crate::model::tensors::Names;

/// The family's line in the registry.
pub(super) const MISTRAL: Family = Family {
    hf_names: &["MistralForCausalLM"],
    gguf_names: &[],
    config,
    names,
    layouts: None,
};

const READS: Standard = Standard {
    computes: &["sliding_window"],
    ..STANDARD
};

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &READS, |settings, config| {
        layers::set_all(config, settings.opt_count(WINDOW, MAX_WINDOW)?);
        Ok(())
    })
}

fn names(files: &ModelFiles) -> Names {
    names::in_files(files, names::DIRECTORY, names::GGUF_PAIRS)
}
