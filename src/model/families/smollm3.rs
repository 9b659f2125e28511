//! SmolLM3: every fourth layer rotates nothing. A window for those layers is in no release.

use super::layers::{self, MAX_WINDOW, WINDOW};
use super::settings::Settings;
use super::standard::{self, STANDARD, Standard};
use super::{Family, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::Config;
use crate::model::rope::Rope;
use crate::model::tensors::Names;

/// The family's line in the registry.
pub(super) const SMOLLM3: Family = Family {
    hf_names: &["SmolLM3ForCausalLM"],
    gguf_names: &["smollm3"],
    config,
    names,
    layouts: None,
};

const READS: Standard = Standard {
    defaults: r#"{"tie_word_embeddings": true, "rope_theta": 2000000.0}"#,
    computes: &[
        "no_rope_layers",
        "use_sliding_window",
        "sliding_window",
        "layer_types",
    ],
    ..STANDARD
};

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &READS, |settings, config| {
        config.ropes.push(Rope {
            dims: Some(0),
            ..Rope::default()
        });
        let (mut every, mut window) = (4, None);
        if let Settings::Json(json) = settings {
            every = json.opt_count("no_rope_layer_interval", 4096)?.unwrap_or(4);
            if json.opt_bool("use_sliding_window")?.unwrap_or(false) {
                window = settings.opt_count(WINDOW, MAX_WINDOW)?;
            }
        }
        // the list has 1 for layers that rotate
        let told = layers::flags(settings, "no_rope_layers", config.num_layers)?;
        let rotates = |layer: usize| match &told {
            Some(told) => told[layer],
            None => !(layer + 1).is_multiple_of(every),
        };
        let rope = |layer, _| usize::from(!rotates(layer));
        layers::set(settings, config, window, |layer| !rotates(layer), rope)
    })
}

fn names(files: &ModelFiles) -> Names {
    names::in_files(files, names::DIRECTORY, names::GGUF_PAIRS)
}
