//! Which layers see only a window of what is before.

use super::settings::{Name, Settings};
use crate::error::Result;
use crate::model::config::{Config, LayerKind};
use serde_json::Value;

/// The kinds of layers by `layer_types`.
const TYPES: Name = ("layer_types", "attention.sliding_window_pattern");
/// How long a window is.
pub(super) const WINDOW: Name = ("sliding_window", "attention.sliding_window");
/// No window is longer.
pub(super) const MAX_WINDOW: usize = 1 << 30;

/// Gives each layer its kind: a window of `window` tokens where the file says that the layer slides, or
/// `usually` does of a layer of which it says nothing; and the rope that `rope` tells by whether it slides.
///
/// # Errors
/// [`Error::Field`](crate::Error::Field) and [`Error::Unsupported`](crate::Error::Unsupported) for a list
/// that has more or fewer entries than there are layers, or names other kinds.
pub(super) fn set(
    settings: &Settings,
    config: &mut Config,
    window: Option<usize>,
    usually: impl Fn(usize) -> bool,
    rope: impl Fn(usize, bool) -> usize,
) -> Result<()> {
    let told = told(settings, config.num_layers)?;
    let kind = |layer: usize| {
        let slides = match &told {
            Some(told) => told[layer],
            None => usually(layer),
        };
        LayerKind {
            window: window.filter(|_| slides),
            rope: rope(layer, slides),
        }
    };
    config.layer_kinds = (0..config.num_layers).map(kind).collect();
    Ok(())
}

/// Gives all layers the same window, with the first rope.
pub(super) fn set_all(config: &mut Config, window: Option<usize>) {
    config.layer_kinds = vec![LayerKind { window, rope: 0 }];
}

/// Whether layers slide, for each layer, where the file says it.
fn told(settings: &Settings, num_layers: usize) -> Result<Option<Vec<bool>>> {
    let slides = match settings {
        Settings::Json(json) => {
            if json.get(TYPES.0).is_none() {
                return Ok(None);
            }
            let kinds = json.strings(TYPES.0)?;
            let slides = |kind: &String| match kind.as_str() {
                "full_attention" => Ok(false),
                "sliding_attention" => Ok(true),
                other => {
                    let supported = "full_attention, sliding_attention";
                    Err(settings.unsupported(TYPES, other, supported))
                }
            };
            kinds.iter().map(slides).collect::<Result<Vec<bool>>>()?
        }
        Settings::Gguf(keys, _) => {
            let name = keys.name_of(TYPES.1);
            if !keys.contains(TYPES.1) {
                return Ok(None);
            }
            // one number is the distance of layers that do not slide
            match keys.metadata().opt_u32(&name) {
                Ok(Some(every)) => {
                    let every = every as usize;
                    let slides = |layer| every == 0 || layer % every < every - 1;
                    (0..num_layers).map(slides).collect()
                }
                _ => keys.metadata().bools(&name)?.to_vec(),
            }
        }
    };
    if slides.len() != num_layers {
        let found = slides.len();
        let problem = format!("has {found} entries, expected one for each of {num_layers} layers");
        return Err(settings.wrong(TYPES, problem));
    }
    Ok(Some(slides))
}

/// Flags as 0 and 1 for each layer, in a config.json alone.
///
/// # Errors
/// [`Error::Field`](crate::Error::Field) for a list of another length, or with something else in it.
pub(super) fn flags(
    settings: &Settings,
    field: &'static str,
    num_layers: usize,
) -> Result<Option<Vec<bool>>> {
    let Settings::Json(json) = settings else {
        return Ok(None);
    };
    let Some(value) = json.get(field) else {
        return Ok(None);
    };
    let flag = |value: &Value| match (value.as_u64(), value.as_bool()) {
        (Some(0), _) | (_, Some(false)) => Some(false),
        (Some(1), _) | (_, Some(true)) => Some(true),
        _ => None,
    };
    let flags: Option<Vec<bool>> = value
        .as_array()
        .and_then(|values| values.iter().map(flag).collect());
    match flags {
        Some(flags) if flags.len() == num_layers => Ok(Some(flags)),
        _ => {
            let problem = format!("is no array of 0 and 1 for each of {num_layers} layers");
            Err(json.wrong(field, problem))
        }
    }
}
