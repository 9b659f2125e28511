//! Granite 3: Llama with factors of its own for embeddings, scores, what layers add, and logits.

use super::settings::Settings;
use super::standard::{self, STANDARD, Standard};
use super::{Family, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::Config;
use crate::model::tensors::Names;

/// The family's line in the registry.
pub(super) const GRANITE: Family = Family {
    hf_names: &["GraniteForCausalLM"],
    gguf_names: &["granite"],
    config,
    names,
    layouts: None,
};

const READS: Standard = Standard {
    defaults: r#"{"attention_multiplier": 1.0}"#,
    computes: &[
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
        "embedding_scale",
        "attention.scale",
        "residual_scale",
        "logit_scale",
    ],
    ..STANDARD
};

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &READS, |settings, config| {
        if let Settings::Gguf(keys, _) = settings {
            // here the key is about whether anything is rotated at all
            let name = keys.name_of("rope.scaling.finetuned");
            if keys.metadata().opt_bool(&name)? == Some(false) {
                let name = ("", "rope.scaling.finetuned");
                return Err(settings.unsupported(name, "false", "true"));
            }
        }
        let factor = |json, key| settings.factor((json, key)).map(|factor| factor as f32);
        config.embedding_scale = factor("embedding_multiplier", "embedding_scale")?;
        config.residual_scale = factor("residual_multiplier", "residual_scale")?;
        let scores = settings.opt_positive(("attention_multiplier", "attention.scale"))?;
        config.attention_scale = scores.map(|factor| factor as f32);
        let divisor = settings.factor(("logits_scaling", "logit_scale"))?;
        config.logit_scale = (1.0 / divisor) as f32;
        Ok(())
    })
}

fn names(files: &ModelFiles) -> Names {
    names::in_files(files, names::DIRECTORY, names::GGUF_PAIRS)
}
