//! What all families read alike, and the settings that none ignores.
//!
//! A family reads the standard, and changes what it computes otherwise. A setting that changes the result
//! is in a table here, and refused by name where a family does not say that it computes it: such a model
//! would answer, only wrongly.

use super::ropes::{self, Of};
use super::settings::{NONE, Name, Settings};
use crate::error::{Error, Result};
use crate::formats::{Gguf, ModelFiles, compressed};
use crate::model::config::{Biases, Config, MlpKind, Spelling};
use crate::model::fields::{Fields, brief};
use crate::model::keys::Keys;
use crate::model::tensors::{Names, bias_of, embedding_is_head};
use serde_json::Value;

/// No dimension of a model is larger; a bound for sizes computed from a file.
const MAX: usize = 1 << 20;

/// How a family's files spell what all have.
pub(super) struct Standard {
    pub num_layers: Name,
    pub hidden_size: Name,
    pub num_heads: Name,
    pub num_kv_heads: Name,
    pub head_dim: Name,
    /// Where there is no gate, four times the hidden size unless it is told.
    pub intermediate_size: Name,
    pub norm_eps: Name,
    pub context: Name,
    /// The field of a config.json with the activation, and what it has to be.
    pub activation: (&'static str, MlpKind),
    /// The object of a config.json that holds the settings where the model is a part of another one; none
    /// has an empty name.
    pub inside: &'static str,
    /// A JSON object: what a config.json means that lacks a field.
    pub defaults: &'static str,
    /// Of [`FIELDS`] and [`KEYS`], what the family reads itself.
    pub computes: &'static [&'static str],
}

/// The usual names.
pub(super) const STANDARD: Standard = Standard {
    num_layers: ("num_hidden_layers", "block_count"),
    hidden_size: ("hidden_size", "embedding_length"),
    num_heads: ("num_attention_heads", "attention.head_count"),
    num_kv_heads: ("num_key_value_heads", "attention.head_count_kv"),
    head_dim: ("head_dim", "attention.key_length"),
    intermediate_size: ("intermediate_size", "feed_forward_length"),
    norm_eps: ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    context: ("max_position_embeddings", "context_length"),
    activation: ("hidden_act", MlpKind::SwiGlu),
    inside: "",
    defaults: "{}",
    computes: &[],
};

/// Fields of a config.json that change the computation, with the value that does not.
const FIELDS: &[(&str, Neutral)] = &[
    ("use_sliding_window", Neutral::False),
    ("sliding_window", Neutral::Absent),
    ("sliding_window_pattern", Neutral::Absent),
    ("layer_types", Neutral::All("full_attention")),
    ("no_rope_layers", Neutral::Absent),
    ("num_local_experts", Neutral::Absent),
    ("num_experts", Neutral::Absent),
    ("n_routed_experts", Neutral::Absent),
    ("attn_logit_softcapping", Neutral::Absent),
    ("final_logit_softcapping", Neutral::Absent),
    ("query_pre_attn_scalar", Neutral::Absent),
    ("use_bidirectional_attention", Neutral::False),
    ("partial_rotary_factor", Neutral::One),
    ("logit_scale", Neutral::One),
    ("logits_scaling", Neutral::One),
    ("embedding_multiplier", Neutral::One),
    ("residual_multiplier", Neutral::One),
    ("attention_multiplier", Neutral::Absent),
    ("clip_qkv", Neutral::Absent),
    ("scale_attn_by_inverse_layer_idx", Neutral::False),
    ("scale_attn_weights", Neutral::True),
    ("add_cross_attention", Neutral::False),
];

/// The same for keys of a GGUF file, which have no neutral value in use.
const KEYS: &[&str] = &[
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "rope.freq_base_swa",
];

/// The value with which a field changes nothing.
#[derive(Clone, Copy)]
enum Neutral {
    Absent,
    True,
    False,
    One,
    /// A list of nothing else.
    All(&'static str),
}

/// Reads a configuration: the standard, and what `change` makes of it.
///
/// # Errors
/// [`Error::Field`] for what is missing or wrong, [`Error::Unsupported`] for what is not computed, each by
/// the name in the file.
pub(super) fn read(
    files: &ModelFiles,
    names: &Names,
    standard: &Standard,
    change: impl FnOnce(&Settings, &mut Config) -> Result<()>,
) -> Result<Config> {
    let filled;
    let settings = match files {
        ModelFiles::Gguf(gguf) => Settings::Gguf(Keys::new(&gguf.metadata)?, gguf),
        ModelFiles::HuggingFace(dir) => {
            let path = &dir.config_path;
            compressed::scheme(path, &dir.config)?;
            match dir.config.get(standard.inside).filter(|v| v.is_object()) {
                Some(inner) => {
                    filled = with_defaults(inner, standard.defaults);
                    Settings::Json(Fields::nested(path, standard.inside, &filled))
                }
                None => {
                    filled = with_defaults(&dir.config, standard.defaults);
                    Settings::Json(Fields::new(path, &filled))
                }
            }
        }
    };
    refuse_what_is_not_computed(&settings, standard)?;
    let mut config = sizes(&settings, standard)?;
    config.mlp = standard.activation.1;
    config.ropes = vec![ropes::of(
        &settings,
        Of {
            head_dim: config.head_dim,
            context: config.max_position_embeddings,
            is_partial: standard.computes.contains(&"partial_rotary_factor"),
        },
    )?];
    match (&settings, files) {
        (Settings::Gguf(keys, gguf), _) => {
            config.architecture = keys.metadata().architecture()?.to_owned();
            config.vocab_size = gguf.checkpoint.require(&names.embedding())?.rows();
            config.tied_head = gguf.checkpoint.get(names.head).is_none();
            config.biases = biases_of_gguf(gguf, names);
        }
        (Settings::Json(json), ModelFiles::HuggingFace(dir)) => {
            let whole = Fields::new(json.path(), &dir.config);
            config.architecture = whole.strings("architectures")?.concat();
            config.vocab_size = json.count("vocab_size", MAX)?;
            // absent means the library's default: not tied
            let is_told = json.opt_bool("tie_word_embeddings")?.unwrap_or(false);
            config.tied_head = embedding_is_head(&dir.checkpoint, names, is_told)?;
            let attention = json.opt_bool("attention_bias")?.unwrap_or(false);
            config.biases = Biases {
                qkv: attention,
                o: attention,
                mlp: json.opt_bool("mlp_bias")?.unwrap_or(false),
            };
        }
        (Settings::Json(_), ModelFiles::Gguf(_)) => unreachable!("settings are those of the files"),
    }
    change(&settings, &mut config)?;
    config.check(settings.path(), &spelling(&settings, standard))?;
    Ok(config)
}

fn sizes(settings: &Settings, standard: &Standard) -> Result<Config> {
    let count = |name, max| settings.count(name, max);
    let hidden_size = count(standard.hidden_size, MAX)?;
    let num_heads = count(standard.num_heads, MAX)?;
    let head_dim = match settings.opt_count(standard.head_dim, MAX)? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let of = settings.name_of(standard.hidden_size);
            let problem = format!("is {num_heads}, which does not divide {of} = {hidden_size}");
            return Err(settings.wrong(standard.num_heads, problem));
        }
    };
    let num_kv_heads = settings.opt_count(standard.num_kv_heads, MAX)?;
    let context = count(standard.context, 1 << 30)?;
    if context < 2 {
        let problem = "is 1, expected at least 2: a token and the one that follows";
        return Err(settings.wrong(standard.context, problem));
    }
    let intermediate_size = match settings.opt_count(standard.intermediate_size, MAX)? {
        None if !standard.activation.1.is_gated() => 4 * hidden_size,
        _ => count(standard.intermediate_size, MAX)?,
    };
    Ok(Config {
        num_layers: count(standard.num_layers, 4096)?,
        hidden_size,
        num_heads,
        num_kv_heads: num_kv_heads.unwrap_or(num_heads),
        head_dim,
        intermediate_size,
        norm_eps: match settings {
            Settings::Json(json) => json.number(standard.norm_eps.0)? as f32,
            Settings::Gguf(keys, _) => {
                let key = keys.name_of(standard.norm_eps.1);
                keys.metadata().f32(&key)?
            }
        },
        max_position_embeddings: context,
        ..Config::default()
    })
}

fn spelling(settings: &Settings, standard: &Standard) -> Spelling {
    let of = |name| settings.name_of(name);
    let (num_heads, hidden_size) = (of(standard.num_heads), of(standard.hidden_size));
    Spelling {
        num_kv_heads: match standard.num_kv_heads {
            NONE => num_heads.clone(),
            name => of(name),
        },
        head_dim: match standard.head_dim {
            NONE => format!("{hidden_size} / {num_heads}"),
            name => of(name),
        },
        num_heads,
        hidden_size,
        intermediate_size: of(standard.intermediate_size),
        norm_eps: of(standard.norm_eps),
    }
}

/// An object, and what `defaults` has for fields that are missing. A field that is null is there.
fn with_defaults(object: &Value, defaults: &str) -> Value {
    let mut all: Value = serde_json::from_str(defaults).expect("a family's defaults are an object");
    if let (Some(all), Some(object)) = (all.as_object_mut(), object.as_object()) {
        for (field, value) in object {
            all.insert(field.clone(), value.clone());
        }
    }
    all
}

/// A GGUF file tells of biases by having them.
fn biases_of_gguf(gguf: &Gguf, names: &Names) -> Biases {
    let has = |name: &str| {
        let name = bias_of(&names.in_layer(0, name));
        gguf.checkpoint.get(&name).is_some()
    };
    let layer = &names.layer;
    Biases {
        qkv: has(layer.qkv[0]),
        o: has(layer.o),
        mlp: has(layer.down),
    }
}

fn refuse_what_is_not_computed(settings: &Settings, standard: &Standard) -> Result<()> {
    let is_read = |name: &str| standard.computes.contains(&name);
    let json = match settings {
        Settings::Json(json) => json,
        Settings::Gguf(keys, _) => {
            let experts = keys.metadata().opt_u32(&keys.name_of("expert_count"))?;
            let has = |key: &&&str| keys.contains(key) && !is_read(key);
            let refused = KEYS.iter().find(has).copied();
            let experts = experts.filter(|&n| n > 0).map(|_| "expert_count");
            return match refused.or(experts) {
                None => Ok(()),
                Some(key) => Err(Error::Unsupported {
                    path: settings.path().to_owned(),
                    what: keys.name_of(key),
                    found: "set".to_owned(),
                    supported: "a model without it".to_owned(),
                }),
            };
        }
    };
    for &(field, neutral) in FIELDS.iter().filter(|(field, _)| !is_read(field)) {
        let Some(value) = json.get(field) else {
            continue;
        };
        let (is_neutral, supported) = match neutral {
            Neutral::Absent => (false, "a model without it"),
            Neutral::True => (value.as_bool() == Some(true), "true"),
            Neutral::False => (value.as_bool() == Some(false), "false"),
            Neutral::One => (value.as_f64() == Some(1.0), "1"),
            Neutral::All(word) => {
                let only = |values: &Vec<Value>| values.iter().all(|v| v.as_str() == Some(word));
                (value.as_array().is_some_and(only), word)
            }
        };
        if !is_neutral {
            return Err(settings.unsupported((field, ""), &brief(value), supported));
        }
    }
    let (field, mlp) = standard.activation;
    let (known, supported): (&[&str], _) = match mlp {
        MlpKind::SwiGlu => (&["silu", "swish"], "silu"),
        MlpKind::GeGlu | MlpKind::Gelu => {
            let known = &["gelu_pytorch_tanh", "gelu_new", "gelu_fast"];
            (known, "gelu_pytorch_tanh, gelu_new")
        }
    };
    match json.opt_string(field)? {
        Some(found) if !known.contains(&found) => {
            Err(settings.unsupported((field, ""), found, supported))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn c9_what_is_not_computed_is_refused_by_name_and_neutral_values_pass() {
        let check = |value: &Value, standard: &Standard| {
            let settings = Settings::Json(Fields::new(Path::new("config.json"), value));
            refuse_what_is_not_computed(&settings, standard).map_err(|e| e.to_string())
        };
        let neutral = json!({
            "sliding_window": null, "hidden_act": "silu", "partial_rotary_factor": 1.0, "logit_scale": 1,
            "use_sliding_window": false, "layer_types": ["full_attention", "full_attention"],
            "scale_attn_weights": true,
        });
        assert_eq!(check(&neutral, &STANDARD), Ok(()));
        for &(field, _) in FIELDS {
            let error = check(&json!({ field: 3 }), &STANDARD).unwrap_err();
            assert!(
                error.contains(field) && error.contains("not supported"),
                "{error}"
            );
            let all: Vec<&str> = FIELDS.iter().map(|(field, _)| *field).collect();
            let reads = Standard {
                computes: all.leak(),
                ..STANDARD
            };
            assert_eq!(check(&json!({ field: 3 }), &reads), Ok(()));
        }
        let gelu = check(&json!({"hidden_act": "gelu"}), &STANDARD).unwrap_err();
        assert!(gelu.contains("hidden_act"), "{gelu}");
    }
}
