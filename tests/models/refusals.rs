//! What a family does not compute or cannot read is refused by the name it has in the file.

use super::{directory, folder, json};
use nelumbo::formats;
use nelumbo::model::config::LayerKind;
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Config, family};
use serde_json::{Value, json};
use std::path::Path;

/// The configuration at `path`, its tensors checked.
fn checked(path: &Path) -> nelumbo::Result<Config> {
    let files = formats::open(path)?;
    let family = family(&files)?;
    let config = (family.config)(&files)?;
    let names = (family.names)(&files);
    TensorMap::new(&config, &names, files.checkpoint())?;
    Ok(config)
}

/// Why the model at `path` is refused.
pub fn map_error(path: &Path) -> String {
    checked(path).map(drop).unwrap_err().to_string()
}

/// The configuration of a fixture whose config.json has a field changed, or lacks it where it is null.
fn with(fixture: &str, field: &str, value: Value) -> nelumbo::Result<Config> {
    let mut config = json(&folder(fixture).join("config.json"));
    match value {
        Value::Null => {
            config.as_object_mut().unwrap().shift_remove(field);
        }
        value => match field.split_once('.') {
            Some((outer, inner)) => config[outer][inner] = value,
            None => config[field] = value,
        },
    }
    checked(directory(fixture, &config).path())
}

/// A fixture, a field of its config.json (within another one behind a dot), a value that is refused, and what
/// the error says.
#[rustfmt::skip]
const REFUSED: &[(&str, &str, &str, &[&str])] = &[
    ("qwen2", "hidden_act", r#""gelu""#, &["hidden_act", "\"gelu\"", "silu"]),
    ("qwen2", "rope_scaling", r#"{"rope_type": "yarn", "factor": 4.0}"#, &["rope_scaling.rope_type", "yarn"]),
    ("qwen2", "num_experts", "8", &["num_experts", "without it"]),
    ("qwen3", "layer_types", r#"["full_attention", "linear_attention"]"#, &["layer_types", "linear_attention"]),
    ("qwen3", "layer_types", r#"["full_attention"]"#, &["layer_types", "1 entries", "2 layers"]),
    ("mistral", "sliding_window", "0", &["sliding_window: is 0"]),
    ("mistral", "final_logit_softcapping", "30.0", &["final_logit_softcapping", "without it"]),
    ("gemma2", "attn_logit_softcapping", "-1", &["attn_logit_softcapping: is -1", "above 0"]),
    ("gemma2", "hidden_activation", r#""gelu""#, &["hidden_activation", "gelu_pytorch_tanh"]),
    ("gemma2", "use_bidirectional_attention", "true", &["use_bidirectional_attention", "false"]),
    ("gemma3", "attn_logit_softcapping", "50", &["attn_logit_softcapping", "without it"]),
    ("gemma3", "query_pre_attn_scalar", "0", &["query_pre_attn_scalar: is 0", "above 0"]),
    ("gemma3", "rope_local_base_freq", r#""low""#, &["rope_local_base_freq: is \"low\""]),
    ("phi3", "partial_rotary_factor", "1.5", &["partial_rotary_factor", "above 0, up to 1"]),
    ("phi3", "rope_scaling.short_factor", "[1.0]", &["short_factor", "1 factors, expected 16"]),
    ("phi3", "rope_scaling.long_factor", r#""all""#, &["rope_scaling.long_factor", "array of numbers"]),
    ("phi3", "rope_scaling.short_mscale", "1.2", &["rope_scaling.short_mscale", "without it"]),
    ("llama", "partial_rotary_factor", "0.5", &["partial_rotary_factor", "0.5", "supported: 1"]),
    ("llama", "max_position_embeddings", "1", &["max_position_embeddings: is 1", "at least 2"]),
    ("llama", "rope_scaling", r#"{"factor": 8.0}"#, &["rope_scaling.rope_type", "is missing"]),
    ("llama", "attention_bias", "true", &["q_proj.bias", "is missing"]),
    ("qwen3", "layer_types", r#"["full_attention", "full_attention", "full_attention"]"#, &["layer_types", "3 entries", "2 layers"]),
    ("smollm3", "no_rope_layers", "[1, 1, 1, 0, 1]", &["no_rope_layers", "4 layers"]),
    ("smollm3", "no_rope_layers", "[1, 1]", &["no_rope_layers", "4 layers"]),
    ("smollm3", "no_rope_layers", "[1, 1, 1, 7]", &["no_rope_layers", "0 and 1"]),
    ("olmo2", "sliding_window", "4096", &["sliding_window", "without it"]),
    ("granite", "logits_scaling", "0", &["logits_scaling: is 0", "above 0"]),
    ("gpt2", "activation_function", r#""gelu""#, &["activation_function", "gelu_new"]),
    ("gpt2", "scale_attn_weights", "false", &["scale_attn_weights", "supported: true"]),
    ("gpt2", "scale_attn_by_inverse_layer_idx", "true", &["scale_attn_by_inverse_layer_idx"]),
    ("gpt2", "n_head", "4", &["n_embd / n_head: is 16", "32 to 256"]),
    ("gpt2", "n_inner", "100", &["mlp.c_fc.weight", "[64, 256]", "[64, 100]", "intermediate_size"]),
    ("gpt2", "n_positions", "64", &["wpe.weight", "max_position_embeddings"]),
];

#[test]
fn c9_settings_that_are_wrong_or_not_computed_are_named() {
    for (fixture, field, value, parts) in REFUSED {
        let value = serde_json::from_str(value).unwrap();
        let Err(error) = with(fixture, field, value) else {
            panic!("{fixture}: {field} was accepted");
        };
        let text = error.to_string();
        for part in *parts {
            assert!(
                text.contains(part),
                "{fixture}: {text:?} does not say {part:?}"
            );
        }
    }
    // what nobody knows changes nothing
    assert!(with("granite", "colour", json!("blue")).is_ok());
}

#[test]
fn c9_a_key_of_a_gguf_file_is_named_as_it_is_spelled_there() {
    let mut bytes = std::fs::read(folder("llama").join("model.gguf")).unwrap();
    let key = "llama.rope.freq_base".as_bytes();
    let found = bytes.windows(key.len()).position(|part| part == key);
    let at = found.unwrap() + key.len() + 4; // behind its type
    bytes[at..at + 4].copy_from_slice(&0f32.to_le_bytes());
    let made = tempfile::tempdir().unwrap();
    let path = made.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    let error = map_error(&path);
    assert!(
        error.contains("m.gguf: llama.rope.freq_base: is 0, expected"),
        "{error}"
    );
}

#[test]
fn layers_are_of_the_kinds_that_the_settings_tell() {
    let window = |window| LayerKind { window, rope: 0 };
    let kinds = |config: Config| -> Vec<LayerKind> {
        (0..config.num_layers)
            .map(|i| config.layer_kind(i))
            .collect()
    };
    // switched on, the upper layers of Qwen have a window
    let qwen = with("qwen2", "use_sliding_window", json!(true)).unwrap();
    assert_eq!(kinds(qwen), [window(None), window(Some(16))]);
    let types = json!(["sliding_attention", "full_attention"]);
    let gemma = with("gemma2", "layer_types", types.clone()).unwrap();
    assert_eq!(kinds(gemma), [window(Some(20)), window(None)]);
    let mistral = with("mistral", "sliding_window", Value::Null).unwrap();
    assert_eq!(kinds(mistral), [window(None), window(None)]);
    // a window that the context does not exceed is none
    let mistral = with("mistral", "vocab_size", json!(160)).unwrap();
    assert_eq!(mistral.windows(), [Some(20)]);
    assert_eq!(mistral.clone().for_context(21).windows(), [Some(20)]);
    assert_eq!(mistral.for_context(20).windows(), [None]);
    let smol = with("smollm3", "no_rope_layers", Value::Null).unwrap();
    let rotated: Vec<usize> = (0..4).map(|i| smol.rope_of(i).rotated(32)).collect();
    assert_eq!(rotated, [32, 32, 32, 0]);
    let gemma = with("gemma3", "sliding_window_pattern", json!(3)).unwrap();
    let bases: Vec<f64> = (0..6).map(|i| gemma.rope_of(i).theta).collect();
    assert_eq!(bases, [1e4, 1e4, 1e6, 1e4, 1e4, 1e6]);
}
