//! Phi 3, 3.5 and the small Phi 4: projections are stored fused, long contexts have frequencies of their own,
//! a part of each head may stay unrotated, and some releases have a window.

use super::layers::{self, MAX_WINDOW, WINDOW};
use super::settings::Settings;
use super::standard::{self, STANDARD, Standard};
use super::{Family, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::Config;
use crate::model::tensors::{LayerNames, Names};

/// The family's line in the registry.
pub(super) const PHI3: Family = Family {
    hf_names: &["Phi3ForCausalLM"],
    gguf_names: &["phi3"],
    config,
    names,
    layouts: None,
};

const READS: Standard = Standard {
    defaults: r#"{"original_max_position_embeddings": 4096}"#,
    computes: &[
        "sliding_window",
        "partial_rotary_factor",
        "attention.sliding_window",
    ],
    ..STANDARD
};

const DIRECTORY: Names = Names {
    layer: LayerNames {
        qkv: &["self_attn.qkv_proj.weight"],
        gate_up: &["mlp.gate_up_proj.weight"],
        ..names::DIRECTORY.layer
    },
    ..names::DIRECTORY
};

const GGUF: Names = Names {
    layer: LayerNames {
        qkv: &["attn_qkv.weight"],
        gate_up: &["ffn_up.weight"],
        ..names::GGUF.layer
    },
    ..names::GGUF
};

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &READS, |settings, config| {
        let is_none = match settings {
            // some files say 0 for none
            Settings::Gguf(keys, _) => keys.metadata().opt_u32(&keys.name_of(WINDOW.1))? == Some(0),
            Settings::Json(_) => false,
        };
        let window = match is_none {
            true => None,
            false => settings.opt_count(WINDOW, MAX_WINDOW)?,
        };
        layers::set_all(config, window);
        Ok(())
    })
}

fn names(files: &ModelFiles) -> Names {
    names::in_files(files, DIRECTORY, GGUF)
}
