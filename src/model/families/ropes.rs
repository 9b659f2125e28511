//! Rotary embeddings as files tell of them.

use super::settings::Settings;
use crate::error::{Error, Result};
use crate::formats::Gguf;
use crate::model::fields::Fields;
use crate::model::keys::Keys;
use crate::model::rope::{Rope, RopeScaling};

/// The base where nothing is told.
pub(super) const THETA: f64 = 10_000.0;
/// No context is longer.
const MAX_CONTEXT: usize = 1 << 30;

/// What a rotary embedding depends on besides.
#[derive(Clone, Copy)]
pub(super) struct Of {
    /// Width of a head.
    pub head_dim: usize,
    /// The longest context.
    pub context: usize,
    /// A part of a head may be rotated.
    pub is_partial: bool,
}

/// The rotary embedding of all layers, or of those that see everything.
///
/// # Errors
/// [`Error::Field`] and [`Error::Unsupported`].
pub(super) fn of(settings: &Settings, of: Of) -> Result<Rope> {
    match settings {
        Settings::Json(json) => {
            let parameters = json.opt_object("rope_parameters")?;
            // those of several kinds of layers are objects of their own
            let full = match &parameters {
                Some(all) => all.opt_object("full_attention")?,
                None => None,
            };
            of_json(json, full.or(parameters), of)
        }
        Settings::Gguf(keys, gguf) => of_gguf(keys, gguf, of),
    }
}

/// The older `rope_theta` and `rope_scaling`, or the newer `rope_parameters` that holds both.
fn of_json(json: &Fields, parameters: Option<Fields>, of: Of) -> Result<Rope> {
    // the newer place of a field goes first
    let holder = |field| match &parameters {
        Some(parameters) if parameters.get(field).is_some() => parameters,
        _ => json,
    };
    let theta = holder("rope_theta").opt_positive("rope_theta")?;
    let mut rope = Rope {
        theta: theta.unwrap_or(THETA),
        ..Rope::default()
    };
    let part = holder("partial_rotary_factor").opt_number("partial_rotary_factor")?;
    if let Some(part) = part.filter(|&part| part != 1.0) {
        if !(part > 0.0 && part < 1.0 && of.is_partial) {
            let supported = if of.is_partial {
                "above 0, up to 1"
            } else {
                "1"
            };
            let (field, found) = ("partial_rotary_factor", part.to_string());
            return Err(unsupported(json, field, &found, supported));
        }
        rope.dims = Some((of.head_dim as f64 * part) as usize);
    }
    if let Some(scaling) = json.opt_object("rope_scaling")?.or(parameters) {
        scale(&mut rope, json, &scaling, of)?;
    }
    Ok(rope)
}

fn scale(rope: &mut Rope, json: &Fields, scaling: &Fields, of: Of) -> Result<()> {
    // older files say `type`
    let field = match scaling.get("rope_type") {
        Some(_) => "rope_type",
        None => "type",
    };
    let kind = scaling.opt_string(field)?;
    if kind.is_none() && scaling.get("factor").is_some() {
        return Err(scaling.wrong("rope_type", "is missing, but there is a factor"));
    }
    rope.scaling = match kind.unwrap_or("default") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: scaling.number("factor")?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: scaling.number("factor")?,
            low_freq_factor: scaling.number("low_freq_factor")?,
            high_freq_factor: scaling.number("high_freq_factor")?,
            original: scaling.number("original_max_position_embeddings")?,
        },
        "longrope" | "su" => {
            let field = "original_max_position_embeddings";
            let original = match scaling.opt_count(field, MAX_CONTEXT)? {
                Some(original) => original,
                None => json.count(field, MAX_CONTEXT)?,
            };
            for field in ["short_mscale", "long_mscale"] {
                if let Some(found) = scaling.get(field) {
                    let found = found.to_string();
                    return Err(unsupported(scaling, field, &found, "a model without it"));
                }
            }
            rope.magnitude = match scaling.opt_positive("attention_factor")? {
                Some(magnitude) => magnitude,
                None => {
                    let grown = scaling.opt_positive("factor")?;
                    magnitude(
                        grown.unwrap_or(of.context as f64 / original as f64),
                        original,
                    )
                }
            };
            RopeScaling::Long {
                short: scaling.numbers("short_factor")?,
                long: scaling.numbers("long_factor")?,
                original,
            }
        }
        other => {
            let supported = "default, linear, llama3, longrope";
            return Err(unsupported(scaling, field, other, supported));
        }
    };
    Ok(())
}

/// Of a context that was stretched `grown` times from `original` tokens: what keeps the sharpness of
/// attention as it was ("LongRoPE", section 3).
fn magnitude(grown: f64, original: usize) -> f64 {
    if grown <= 1.0 || original <= 1 {
        return 1.0;
    }
    (1.0 + grown.ln() / (original as f64).ln()).sqrt()
}

fn unsupported(json: &Fields, field: &str, found: &str, supported: &str) -> Error {
    Error::Unsupported {
        path: json.path().to_owned(),
        what: json.name_of(field),
        found: found.to_owned(),
        supported: supported.to_owned(),
    }
}

/// Scalings with a factor for each frequency are stored as tensors, the linear one as keys.
fn of_gguf(keys: &Keys, gguf: &Gguf, of: Of) -> Result<Rope> {
    let dims = keys.opt_count("rope.dimension_count", 1 << 20)?;
    let dims = dims.filter(|&dims| dims != of.head_dim);
    if let Some(dims) = dims.filter(|&dims| !of.is_partial || dims > of.head_dim) {
        let expected = match of.is_partial {
            true => format!("up to {}", of.head_dim),
            false => format!("{}: partial rotation is not supported", of.head_dim),
        };
        let problem = format!("is {dims}, expected {expected}");
        return Err(keys.wrong("rope.dimension_count", problem));
    }
    let mut rope = Rope {
        theta: keys.opt_positive("rope.freq_base")?.unwrap_or(THETA),
        dims,
        magnitude: keys
            .opt_positive("rope.scaling.attn_factor")?
            .unwrap_or(1.0),
        ..Rope::default()
    };
    let tensor = |name: &str| {
        gguf.checkpoint
            .get(name)
            .map(|_| factors(gguf, name, &rope, of))
    };
    let lists = (
        tensor("rope_freqs.weight").transpose()?,
        tensor("rope_factors_short.weight").transpose()?,
        tensor("rope_factors_long.weight").transpose()?,
    );
    let kind = keys.name_of("rope.scaling.type");
    let told = keys.metadata().opt_string(&kind)?;
    let factor = match keys.opt_positive("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.opt_positive("rope.scale_linear")?,
    };
    let scaling = match told {
        Some("none" | "longrope") => RopeScaling::None,
        Some("linear") if factor.is_none() => {
            return Err(keys.wrong("rope.scaling.factor", "is missing"));
        }
        None | Some("linear") => match factor.filter(|&factor| factor != 1.0) {
            Some(factor) => RopeScaling::Linear { factor },
            None => RopeScaling::None,
        },
        Some(other) => {
            return Err(Error::Unsupported {
                path: keys.metadata().path().to_owned(),
                what: kind,
                found: other.to_owned(),
                supported: "none, linear, longrope, or a tensor rope_freqs.weight".to_owned(),
            });
        }
    };
    rope.scaling = match lists {
        (None, None, None) if told == Some("longrope") => {
            let name = "rope_factors_long.weight";
            let problem = format!("is missing, but {kind} is longrope");
            return Err(Error::tensor(gguf.checkpoint.path(), name, problem));
        }
        (None, None, None) => scaling,
        _ if scaling != RopeScaling::None => {
            let problem = "is set beside tensors of factors such as rope_freqs.weight";
            return Err(keys.wrong("rope.scaling.type", problem));
        }
        (Some(factors), None, None) => RopeScaling::Factors(factors),
        (None, Some(short), Some(long)) => {
            let original = keys.opt_count("rope.scaling.original_context_length", MAX_CONTEXT)?;
            RopeScaling::Long {
                short,
                long,
                original: original.unwrap_or(of.context),
            }
        }
        (freqs, short, _) => {
            let (name, problem) = match (freqs, short) {
                (Some(_), _) => ("rope_freqs.weight", "is there beside rope_factors_*.weight"),
                (None, Some(_)) => (
                    "rope_factors_long.weight",
                    "is missing beside the short ones",
                ),
                (None, None) => (
                    "rope_factors_short.weight",
                    "is missing beside the long ones",
                ),
            };
            return Err(Error::tensor(gguf.checkpoint.path(), name, problem));
        }
    };
    Ok(rope)
}

/// A tensor with a factor for each pair that is rotated.
fn factors(gguf: &Gguf, name: &str, rope: &Rope, of: Of) -> Result<Vec<f32>> {
    let pairs = rope.rotated(of.head_dim) / 2;
    let because = "a factor for each pair of rotated dims";
    let info = gguf.checkpoint.expect_shape(name, &[pairs], because)?;
    let mut factors = Vec::new();
    gguf.checkpoint
        .read_rows(info, 0..info.rows(), &mut factors)?;
    Ok(factors)
}
