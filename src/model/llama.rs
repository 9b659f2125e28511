//! The Llama family: SmolLM2, Llama 2, 3, 3.1, 3.2, TinyLlama and what is stored under its name.

use super::Family;
use super::config::{Config, Spelling};
use super::fields::{self, Fields};
use super::rope::{Rope, RopeScaling};
use super::tensors::{LayerNames, Names, embedding_is_head};
use crate::error::{Error, Result};
use crate::formats::metadata::Metadata;
use crate::formats::{Gguf, HfDir, ModelFiles, compressed};

/// The family's line in the registry.
pub const LLAMA: Family = Family {
    hf_names: &["LlamaForCausalLM"],
    gguf_names: &["llama"],
    config,
    names,
    layouts: (HF_NAMES, GGUF_NAMES),
};

/// No dimension of a model is larger; a bound for sizes computed from a file.
const MAX: usize = 1 << 20;

fn config(files: &ModelFiles) -> Result<Config> {
    match files {
        ModelFiles::Gguf(gguf) => from_gguf(gguf),
        ModelFiles::HuggingFace(dir) => from_json(dir),
    }
}

fn from_json(dir: &HfDir) -> Result<Config> {
    let json = Fields::new(&dir.config_path, &dir.config);
    compressed::scheme(&dir.config_path, &dir.config)?;
    refuse_what_is_not_computed(&json)?;
    let hidden_size = json.count("hidden_size", MAX)?;
    let num_heads = json.count("num_attention_heads", MAX)?;
    let head_dim = match json.opt_count("head_dim", MAX)? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let problem =
                format!("is {num_heads}, which does not divide hidden_size = {hidden_size}");
            return Err(json.wrong("num_attention_heads", problem));
        }
    };
    let config = Config {
        architecture: "LlamaForCausalLM".to_owned(),
        num_layers: json.count("num_hidden_layers", 4096)?,
        hidden_size,
        num_heads,
        num_kv_heads: json
            .opt_count("num_key_value_heads", MAX)?
            .unwrap_or(num_heads),
        head_dim,
        intermediate_size: json.count("intermediate_size", MAX)?,
        vocab_size: json.count("vocab_size", MAX)?,
        norm_eps: json.number("rms_norm_eps")? as f32,
        ropes: vec![rope_from_json(&json)?],
        max_position_embeddings: json.count("max_position_embeddings", 1 << 30)?,
        // absent means the library's default: not tied
        tied_head: embedding_is_head(
            &dir.checkpoint,
            &HF_NAMES,
            json.opt_bool("tie_word_embeddings")?.unwrap_or(false),
        )?,
        ..Config::default()
    };
    let spelling = Spelling {
        num_heads: "num_attention_heads",
        num_kv_heads: "num_key_value_heads",
        head_dim: "head_dim",
        hidden_size: "hidden_size",
        intermediate_size: "intermediate_size",
        norm_eps: "rms_norm_eps",
    };
    config.check(json.path(), &spelling)?;
    Ok(config)
}

/// Fields that change the computation and are not computed here, unless they have the value that
/// changes nothing.
const NOT_COMPUTED: &[(&str, Neutral)] = &[
    ("attention_bias", Neutral::False),
    ("mlp_bias", Neutral::False),
    ("use_sliding_window", Neutral::False),
    ("sliding_window", Neutral::Absent),
    ("num_local_experts", Neutral::Absent),
    ("attn_logit_softcapping", Neutral::Absent),
    ("final_logit_softcapping", Neutral::Absent),
    ("partial_rotary_factor", Neutral::One),
    ("logit_scale", Neutral::One),
    ("logits_scaling", Neutral::One),
    ("embedding_multiplier", Neutral::One),
    ("residual_multiplier", Neutral::One),
    ("attention_multiplier", Neutral::Absent),
];

/// The same for GGUF keys, which have no neutral value in use.
const NOT_COMPUTED_GGUF: &[&str] = &[
    "llama.attention.sliding_window",
    "llama.attn_logit_softcapping",
    "llama.final_logit_softcapping",
    "llama.logit_scale",
    "llama.embedding_scale",
    "llama.residual_scale",
    "llama.attention.scale",
];

/// The value with which a field changes nothing.
#[derive(Clone, Copy)]
enum Neutral {
    Absent,
    False,
    One,
}

/// Refused, never ignored: such a model answers, only wrongly.
fn refuse_what_is_not_computed(json: &Fields) -> Result<()> {
    for &(field, neutral) in NOT_COMPUTED {
        let Some(value) = json.get(field) else {
            continue;
        };
        let (is_neutral, supported) = match neutral {
            Neutral::Absent => (false, "a model without it"),
            Neutral::False => (value.as_bool() == Some(false), "false"),
            Neutral::One => (value.as_f64() == Some(1.0), "1"),
        };
        if !is_neutral {
            return Err(unsupported(json, field, &fields::brief(value), supported));
        }
    }
    match json.opt_string("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => Err(unsupported(json, "hidden_act", other, "silu")),
    }
}

/// The older `rope_theta` and `rope_scaling`, or the newer `rope_parameters` that holds both.
fn rope_from_json(json: &Fields) -> Result<Rope> {
    let parameters = json.opt_object("rope_parameters")?;
    let theta = match parameters
        .map(|p| p.opt_number("rope_theta"))
        .transpose()?
        .flatten()
    {
        Some(theta) => theta,
        None => json.opt_number("rope_theta")?.unwrap_or(10_000.0),
    };
    let Some(scaling) = json.opt_object("rope_scaling")?.or(parameters) else {
        return Ok(Rope {
            theta,
            ..Rope::default()
        });
    };
    // older files say `type`
    let field = match scaling.get("rope_type") {
        Some(_) => "rope_type",
        None => "type",
    };
    let scaling = match scaling.opt_string(field)?.unwrap_or("default") {
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
        other => {
            let supported = "default, linear, llama3";
            return Err(unsupported(&scaling, field, other, supported));
        }
    };
    Ok(Rope {
        theta,
        scaling,
        ..Rope::default()
    })
}

fn unsupported(json: &Fields, field: &str, found: &str, supported: &str) -> Error {
    Error::Unsupported {
        path: json.path().to_owned(),
        what: json.name_of(field),
        found: found.to_owned(),
        supported: supported.to_owned(),
    }
}

fn from_gguf(gguf: &Gguf) -> Result<Config> {
    let (metadata, checkpoint) = (&gguf.metadata, &gguf.checkpoint);
    let experts = metadata.opt_u32("llama.expert_count")?.unwrap_or(0);
    let refused = NOT_COMPUTED_GGUF.iter().find(|key| metadata.contains(key));
    if let Some(key) = refused.or((experts > 0).then_some(&"llama.expert_count")) {
        return Err(Error::Unsupported {
            path: metadata.path().to_owned(),
            what: (*key).to_owned(),
            found: "set".to_owned(),
            supported: "a model without it".to_owned(),
        });
    }
    let hidden_size = count(metadata, "llama.embedding_length", MAX)?;
    let num_heads = count(metadata, "llama.attention.head_count", MAX)?;
    let head_dim = match metadata.opt_u32("llama.attention.key_length")? {
        Some(_) => count(metadata, "llama.attention.key_length", MAX)?,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let problem = format!(
                "is {num_heads}, which does not divide llama.embedding_length = {hidden_size}"
            );
            return Err(Error::field(
                metadata.path(),
                "llama.attention.head_count",
                problem,
            ));
        }
    };
    let num_kv_heads = match metadata.opt_u32("llama.attention.head_count_kv")? {
        Some(_) => count(metadata, "llama.attention.head_count_kv", MAX)?,
        None => num_heads,
    };
    let embedding = checkpoint.require("token_embd.weight")?;
    let config = Config {
        architecture: "llama".to_owned(),
        num_layers: count(metadata, "llama.block_count", 4096)?,
        hidden_size,
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size: count(metadata, "llama.feed_forward_length", MAX)?,
        vocab_size: embedding.rows(),
        norm_eps: metadata.f32("llama.attention.layer_norm_rms_epsilon")?,
        ropes: vec![rope_from_gguf(gguf, head_dim)?],
        max_position_embeddings: count(metadata, "llama.context_length", 1 << 30)?,
        tied_head: checkpoint.get("output.weight").is_none(),
        ..Config::default()
    };
    let rotated = metadata
        .opt_u32("llama.rope.dimension_count")?
        .map_or(head_dim, |n| n as usize);
    if rotated != head_dim {
        let problem =
            format!("is {rotated}, expected {head_dim}: partial rotation is not supported");
        return Err(Error::field(
            metadata.path(),
            "llama.rope.dimension_count",
            problem,
        ));
    }
    let spelling = Spelling {
        num_heads: "llama.attention.head_count",
        num_kv_heads: "llama.attention.head_count_kv",
        head_dim: "llama.attention.key_length",
        hidden_size: "llama.embedding_length",
        intermediate_size: "llama.feed_forward_length",
        norm_eps: "llama.attention.layer_norm_rms_epsilon",
    };
    config.check(metadata.path(), &spelling)?;
    Ok(config)
}

fn count(metadata: &Metadata, key: &str, max: usize) -> Result<usize> {
    let count = metadata.u32(key)? as usize;
    if (1..=max).contains(&count) {
        return Ok(count);
    }
    Err(Error::field(
        metadata.path(),
        key,
        format!("is {count}, expected an integer from 1 to {max}"),
    ))
}

/// Llama 3.1's scaling is stored as a tensor of factors, the linear one as metadata.
fn rope_from_gguf(gguf: &Gguf, head_dim: usize) -> Result<Rope> {
    let metadata = &gguf.metadata;
    let theta = f64::from(
        metadata
            .opt_f32("llama.rope.freq_base")?
            .unwrap_or(10_000.0),
    );
    let scaling = match metadata.opt_string("llama.rope.scaling.type")? {
        None | Some("none") => match metadata.opt_f32("llama.rope.scale_linear")? {
            Some(factor) if factor != 1.0 => RopeScaling::Linear {
                factor: f64::from(factor),
            },
            _ => RopeScaling::None,
        },
        Some("linear") => RopeScaling::Linear {
            factor: f64::from(metadata.f32("llama.rope.scaling.factor")?),
        },
        Some(other) => {
            return Err(Error::Unsupported {
                path: metadata.path().to_owned(),
                what: "llama.rope.scaling.type".to_owned(),
                found: other.to_owned(),
                supported: "none, linear, or a tensor rope_freqs.weight".to_owned(),
            });
        }
    };
    let Some(info) = gguf.checkpoint.get("rope_freqs.weight") else {
        return Ok(Rope {
            theta,
            scaling,
            ..Rope::default()
        });
    };
    if scaling != RopeScaling::None {
        return Err(Error::field(
            metadata.path(),
            "llama.rope.scaling.type",
            "is set beside a tensor rope_freqs.weight",
        ));
    }
    gguf.checkpoint.expect_shape(
        "rope_freqs.weight",
        &[head_dim / 2],
        "llama.attention.key_length / 2",
    )?;
    let mut factors = Vec::new();
    gguf.checkpoint
        .read_rows(info, 0..info.rows(), &mut factors)?;
    Ok(Rope {
        theta,
        scaling: RopeScaling::Factors(factors),
        ..Rope::default()
    })
}

fn names(files: &ModelFiles) -> Names {
    match files {
        ModelFiles::HuggingFace(_) => HF_NAMES,
        ModelFiles::Gguf(_) => GGUF_NAMES,
    }
}

const HF_NAMES: Names = Names {
    embedding: "model.embed_tokens.weight",
    final_norm: "model.norm.weight",
    head: "lm_head.weight",
    layer: LayerNames {
        prefix: "model.layers.",
        attn_norm: "input_layernorm.weight",
        q: "self_attn.q_proj.weight",
        k: "self_attn.k_proj.weight",
        v: "self_attn.v_proj.weight",
        o: "self_attn.o_proj.weight",
        mlp_norm: "post_attention_layernorm.weight",
        gate: "mlp.gate_proj.weight",
        up: "mlp.up_proj.weight",
        down: "mlp.down_proj.weight",
    },
    ignored: &["rotary_emb.inv_freq"],
    pairs_adjacent: false,
};

const GGUF_NAMES: Names = Names {
    embedding: "token_embd.weight",
    final_norm: "output_norm.weight",
    head: "output.weight",
    layer: LayerNames {
        prefix: "blk.",
        attn_norm: "attn_norm.weight",
        q: "attn_q.weight",
        k: "attn_k.weight",
        v: "attn_v.weight",
        o: "attn_output.weight",
        mlp_norm: "ffn_norm.weight",
        gate: "ffn_gate.weight",
        up: "ffn_up.weight",
        down: "ffn_down.weight",
    },
    ignored: &["rope_freqs.weight"],
    // this family's rows are stored with the two halves of each rotated pair side by side
    pairs_adjacent: true,
};

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn c9_what_is_not_computed_is_refused_by_name_and_neutral_values_pass() {
        let check = |value: &serde_json::Value| {
            let fields = Fields::new(Path::new("config.json"), value);
            refuse_what_is_not_computed(&fields).map_err(|e| e.to_string())
        };
        let neutral = json!({
            "attention_bias": false, "mlp_bias": false, "sliding_window": null, "hidden_act": "silu",
            "partial_rotary_factor": 1.0, "logit_scale": 1, "use_sliding_window": false,
        });
        assert_eq!(check(&neutral), Ok(()));
        for &(field, _) in NOT_COMPUTED {
            let error = check(&json!({ field: 3 })).unwrap_err();
            assert!(
                error.contains(field) && error.contains("not supported"),
                "{error}"
            );
        }
        assert!(
            check(&json!({"hidden_act": "gelu"}))
                .unwrap_err()
                .contains("hidden_act")
        );
    }
}
