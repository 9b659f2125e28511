//! Gemma 2: norms before and after attention and MLP, a gate of GELU, caps on scores and logits, and a window
//! in every second layer.

use super::layers::{self, MAX_WINDOW, WINDOW};
use super::settings::Settings;
use super::standard::{self, STANDARD, Standard};
use super::{Family, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::{Config, MlpKind, NormPlaces};
use crate::model::tensors::{LayerNames, Names};

/// The family's line in the registry.
pub(super) const GEMMA2: Family = Family {
    hf_names: &["Gemma2ForCausalLM"],
    gguf_names: &["gemma2"],
    config,
    names,
    layouts: None,
};

const READS: Standard = Standard {
    activation: ("hidden_activation", MlpKind::GeGlu),
    defaults: r#"{"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true,
        "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}"#,
    computes: &[
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
        "sliding_window",
        "layer_types",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
    ],
    ..STANDARD
};

/// Names in a directory: there a norm's weight is what is added to 1.
pub(super) const DIRECTORY: Names = Names {
    layer: LayerNames {
        attn_norm_after: "post_attention_layernorm.weight",
        mlp_norm: "pre_feedforward_layernorm.weight",
        mlp_norm_after: "post_feedforward_layernorm.weight",
        ..names::DIRECTORY.layer
    },
    norm_plus: 1.0,
    ..names::DIRECTORY
};

/// The layers of the largest model of either generation, whose scores are scaled by another width; a GGUF
/// file does not tell.
const LAYERS_OF_27B: usize = 46;

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &READS, |settings, config| {
        of_gemma(settings, config, LAYERS_OF_27B)?;
        let caps = [
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ];
        let [of_scores, of_logits] = caps.map(|name| settings.opt_positive(name));
        (config.score_cap, config.logit_cap) =
            (of_scores?.map(|v| v as f32), of_logits?.map(|v| v as f32));
        let mut window = settings.opt_count(WINDOW, MAX_WINDOW)?;
        if let Settings::Gguf(..) = settings {
            window = window.or(Some(4096));
            config.score_cap = config.score_cap.or(Some(50.0));
            config.logit_cap = config.logit_cap.or(Some(30.0));
        }
        layers::set(settings, config, window, |layer| layer % 2 == 0, |_, _| 0)
    })
}

/// What both generations share. Scores are divided by the root of a width: that of a head, or of the
/// hidden state over heads in a model of `largest` layers, where nothing is told.
pub(super) fn of_gemma(settings: &Settings, config: &mut Config, largest: usize) -> Result<()> {
    config.norm_places = NormPlaces {
        before: true,
        after: true,
    };
    config.embedding_scale = (config.hidden_size as f32).sqrt();
    let width = match settings {
        Settings::Json(json) => json.opt_positive("query_pre_attn_scalar")?,
        Settings::Gguf(..) if config.num_layers == largest => {
            Some((config.hidden_size / config.num_heads) as f64)
        }
        Settings::Gguf(..) => None,
    };
    let width = width.unwrap_or(config.head_dim as f64);
    config.attention_scale = Some((1.0 / width.sqrt()) as f32);
    Ok(())
}

fn names(files: &ModelFiles) -> Names {
    names::in_files(files, DIRECTORY, names::GGUF)
}
