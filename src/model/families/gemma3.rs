//! Gemma 3, and the text part of those that see pictures: as Gemma 2 without its caps, with a norm of each
//! head's queries and keys, and five layers with a window and a rotation of their own for each that sees
//! everything.

use super::layers::{self, MAX_WINDOW, WINDOW};
use super::ropes::THETA;
use super::settings::{Name, Settings};
use super::standard::{self, STANDARD, Standard};
use super::{Family, gemma2, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::{Config, MlpKind, QkNorm};
use crate::model::rope::Rope;
use crate::model::tensors::Names;

/// The family's line in the registry.
pub(super) const GEMMA3: Family = Family {
    hf_names: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    gguf_names: &["gemma3"],
    config,
    names,
    layouts: None,
};

const READS: Standard = Standard {
    activation: ("hidden_activation", MlpKind::GeGlu),
    inside: "text_config",
    // the text part of a larger model tells only what differs from these
    defaults: r#"{"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "rope_theta": 1000000.0,
        "query_pre_attn_scalar": 256, "sliding_window": 4096}"#,
    computes: &[
        "final_logit_softcapping",
        "query_pre_attn_scalar",
        "sliding_window",
        "sliding_window_pattern",
        "layer_types",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.freq_base_swa",
    ],
    ..STANDARD
};

const DIRECTORY: Names = Names {
    ignored: &[
        "rotary_emb.inv_freq",
        "vision_tower.",
        "multi_modal_projector.",
    ],
    ..gemma2::DIRECTORY
};

/// Where the text part may stand in a directory.
const PREFIXES: &[&str] = &["model.", "language_model.model.", "model.language_model."];

const LAYERS_OF_27B: usize = 62;
const LOGIT_CAP: Name = ("final_logit_softcapping", "final_logit_softcapping");

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &READS, |settings, config| {
        gemma2::of_gemma(settings, config, LAYERS_OF_27B)?;
        config.qk_norm = Some(QkNorm::Head);
        config.logit_cap = settings.opt_positive(LOGIT_CAP)?.map(|v| v as f32);
        config.ropes.push(local_rope(settings)?);
        let every = match settings {
            Settings::Json(json) => match json.opt_count("sliding_window_pattern", 4096)? {
                Some(every) => Some(every),
                None => json.opt_count("_sliding_window_pattern", 4096)?,
            },
            Settings::Gguf(..) => None,
        };
        let every = every.unwrap_or(6);
        let slides = |layer: usize| !(layer + 1).is_multiple_of(every);
        // a GGUF file without a window has none
        let window = settings.opt_count(WINDOW, MAX_WINDOW)?;
        let is_local = window.is_some() || matches!(settings, Settings::Json(_));
        let rope = |_, slides| usize::from(slides && is_local);
        layers::set(settings, config, window, slides, rope)
    })
}

/// The rotation of layers with a window, which is not scaled.
fn local_rope(settings: &Settings) -> Result<Rope> {
    let theta = match settings {
        Settings::Gguf(keys, _) => keys.opt_positive("rope.freq_base_swa")?,
        Settings::Json(json) => {
            let parameters = match json.opt_object("rope_parameters")? {
                Some(all) => all.opt_object("sliding_attention")?,
                None => None,
            };
            match parameters {
                Some(local) => local.opt_positive("rope_theta")?,
                None => json.opt_positive("rope_local_base_freq")?,
            }
        }
    };
    Ok(Rope {
        theta: theta.unwrap_or(THETA),
        ..Rope::default()
    })
}

fn names(files: &ModelFiles) -> Names {
    names::with_prefix(files, PREFIXES, DIRECTORY, names::GGUF)
}
