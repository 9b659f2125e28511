//! Qwen 2 and 2.5: queries, keys and values have biases. A window for the upper layers is in every
//! config.json and switched on in no release.

use super::layers::{self, MAX_WINDOW, WINDOW};
use super::settings::Settings;
use super::standard::{self, STANDARD, Standard};
use super::{Family, names};
use crate::error::Result;
use crate::formats::ModelFiles;
use crate::model::config::{Biases, Config};
use crate::model::tensors::Names;

/// The family's line in the registry.
pub(super) const QWEN2: Family = Family {
    hf_names: &["Qwen2ForCausalLM"],
    gguf_names: &["qwen2"],
    config,
    names,
    layouts: None,
};

const READS: Standard = Standard {
    defaults: r#"{"max_window_layers": 28, "sliding_window": 4096}"#,
    computes: &["use_sliding_window", "sliding_window", "layer_types"],
    ..STANDARD
};

fn config(files: &ModelFiles) -> Result<Config> {
    standard::read(files, &names(files), &READS, |settings, config| {
        config.biases = Biases {
            qkv: true,
            ..Biases::default()
        };
        upper_layers_slide(settings, config)
    })
}

/// `max_window_layers` layers see everything, those above a window, where that is switched on.
pub(super) fn upper_layers_slide(settings: &Settings, config: &mut Config) -> Result<()> {
    let Settings::Json(json) = settings else {
        return Ok(());
    };
    let is_on = json.opt_bool("use_sliding_window")?.unwrap_or(false);
    if !is_on {
        return layers::set(settings, config, None, |_| false, |_, _| 0);
    }
    let window = settings.opt_count(WINDOW, MAX_WINDOW)?;
    let full = match json.get("max_window_layers").and_then(|v| v.as_u64()) {
        Some(full) => full as usize,
        None => return Err(json.wrong("max_window_layers", "is no number of layers")),
    };
    layers::set(settings, config, window, |layer| layer >= full, |_, _| 0)
}

fn names(files: &ModelFiles) -> Names {
    names::in_files(files, names::DIRECTORY, names::GGUF)
}
