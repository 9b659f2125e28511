//! OLMo 2: norms stand after attention and MLP in place of before, and queries and keys are normalised over
//! all heads.

use super::standard::{self, STANDARD};
use super::{Family, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::{Config, NormPlaces, QkNorm};
use crate::model::tensors::{LayerNames, Names};

/// The family's line in the registry.
pub(super) const OLMO2: Family = Family {
    hf_names: &["Olmo2ForCausalLM"],
    gguf_names: &["olmo2"],
    config,
    names,
    layouts: None,
};

const DIRECTORY: Names = Names {
    layer: LayerNames {
        attn_norm_after: "post_attention_layernorm.weight",
        mlp_norm_after: "post_feedforward_layernorm.weight",
        ..names::DIRECTORY.layer
    },
    ..names::DIRECTORY
};

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &STANDARD, |_, config| {
        config.norm_places = NormPlaces {
            before: false,
            after: true,
        };
        config.qk_norm = Some(QkNorm::Whole);
        Ok(())
    })
}

fn names(files: &ModelFiles) -> Names {
    names::in_files(files, DIRECTORY, names::GGUF)
}
