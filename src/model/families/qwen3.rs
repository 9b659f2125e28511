//! Qwen 3: queries and keys of each head are normalised before they are rotated.

use super::standard::{self, STANDARD, Standard};
use super::{Family, names, qwen2};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::{Config, QkNorm};
use crate::model::tensors::Names;

/// The family's line in the registry.
pub(super) const QWEN3: Family = Family {
    hf_names: &["Qwen3ForCausalLM"],
    gguf_names: &["qwen3"],
    config,
    names,
    layouts: None,
};

const READS: Standard = Standard {
    defaults: r#"{"head_dim": 128, "max_window_layers": 28, "sliding_window": 4096}"#,
    computes: &["use_sliding_window", "sliding_window", "layer_types"],
    ..STANDARD
};

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &READS, |settings, config| {
        config.qk_norm = Some(QkNorm::Head);
        qwen2::upper_layers_slide(settings, config)
    })
}

fn names(files: &ModelFiles) -> Names {
    names::in_files(files, names::DIRECTORY, names::GGUF)
}
