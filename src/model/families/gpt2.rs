//! GPT-2: layer norms with biases, biases everywhere, an MLP without a gate, and a table of positions in
//! place of rotations. Directories store its matrices transposed.

use super::settings::NONE;
use super::standard::{self, STANDARD, Standard};
use super::{Family, layers, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::{Biases, Config, MlpKind, NormKind};
use crate::model::rope::Rope;
use crate::model::tensors::{LayerNames, Names};

/// The family's line in the registry.
pub(super) const GPT2: Family = Family {
    hf_names: &["GPT2LMHeadModel"],
    gguf_names: &["gpt2"],
    config,
    names,
    layouts: None,
};

const READS: Standard = Standard {
    num_layers: ("n_layer", "block_count"),
    hidden_size: ("n_embd", "embedding_length"),
    num_heads: ("n_head", "attention.head_count"),
    num_kv_heads: NONE,
    head_dim: NONE,
    intermediate_size: ("n_inner", "feed_forward_length"),
    norm_eps: ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
    context: ("n_positions", "context_length"),
    activation: ("activation_function", MlpKind::Gelu),
    defaults: r#"{"tie_word_embeddings": true, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5}"#,
    ..STANDARD
};

const DIRECTORY: Names = Names {
    prefix: "transformer.",
    embedding: "wte.weight",
    positions: "wpe.weight",
    final_norm: "ln_f.weight",
    layer: LayerNames {
        prefix: "h.",
        attn_norm: "ln_1.weight",
        qkv: &["attn.c_attn.weight"],
        o: "attn.c_proj.weight",
        mlp_norm: "ln_2.weight",
        gate_up: &["mlp.c_fc.weight"],
        down: "mlp.c_proj.weight",
        ..names::DIRECTORY.layer
    },
    // the mask of what is before
    ignored: &[".attn.bias", ".attn.masked_bias"],
    transposed: true,
    ..names::DIRECTORY
};

const GGUF: Names = Names {
    layer: LayerNames {
        qkv: &["attn_qkv.weight"],
        ..names::GGUF.layer
    },
    ..names::GGUF
};

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &READS, |_, config| {
        config.norm = NormKind::Layer;
        config.biases = Biases {
            qkv: true,
            o: true,
            mlp: true,
        };
        config.learned_positions = true;
        config.ropes = vec![Rope {
            dims: Some(0),
            ..Rope::default()
        }];
        layers::set_all(config, None);
        Ok(())
    })
}

fn names(files: &ModelFiles) -> Names {
    names::with_prefix(files, &["transformer.", ""], DIRECTORY, GGUF)
}
