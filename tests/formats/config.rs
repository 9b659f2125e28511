//! config.json, generation_config.json and their like in GGUF files: rows C2 to C7, C9 and C11 of the
//! catalogue, T14, and which tensor is the head.

use std::fs;
use std::path::Path;

use nelumbo::Result;
use nelumbo::formats::{ModelFiles, open};
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Config, Texts, family};
use nelumbo::text::Message;
use serde_json::{Value, json};

use crate::logs::{told, warnings};
use crate::refused;
use crate::tiny_llama::TinyLlama;

/// A directory with the small model, its config.json changed.
fn directory(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    TinyLlama::new().write_directory(folder.path());
    rewrite(folder.path(), change);
    folder
}

fn rewrite(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, config.to_string()).unwrap();
}

fn config_of(files: &ModelFiles) -> Result<Config> {
    (family(files)?.config)(files)
}

/// The configuration in a directory whose config.json has `field` changed to `value`, or lacks it.
fn with(field: &str, value: Value) -> Result<Config> {
    let folder = directory(|config| match value {
        Value::Null => {
            config.as_object_mut().unwrap().remove(field);
        }
        value => config[field] = value,
    });
    config_of(&open(folder.path()).unwrap())
}

/// The same for a key of the GGUF file, whose value of another type or size stands behind the usual.
fn with_key(key: &str, bytes: &[u8], kind: u32) -> Result<Config> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.gguf");
    let file = TinyLlama::new().gguf(|file| file.raw(key, kind, bytes));
    fs::write(&path, file.finish()).unwrap();
    config_of(&open(&path).unwrap())
}

#[test]
fn c2_architectures_are_one_that_is_known() {
    for (value, found) in [
        (Value::Null, "missing"),
        (json!("LlamaForCausalLM"), "no array of strings"),
        (json!([]), "is []"),
        (
            json!(["LlamaForCausalLM", "B"]),
            "is [\"LlamaForCausalLM\", \"B\"]",
        ),
        (json!(["MambaForCausalLM"]), "\"MambaForCausalLM\""),
    ] {
        refused(
            with("architectures", value),
            &["config.json", "architectures", found, "LlamaForCausalLM"],
        );
    }
}

#[test]
fn c3_heads_that_do_not_divide() {
    refused(
        with("num_attention_heads", json!(0)),
        &["config.json: num_attention_heads: is 0", "1 to"],
    );
    for kv in [3, 8] {
        refused(
            with("num_key_value_heads", json!(kv)),
            &[
                &format!("config.json: num_key_value_heads: is {kv}"),
                "num_attention_heads = 4",
            ],
        );
    }
    refused(
        with("num_key_value_heads", json!(0)),
        &["config.json: num_key_value_heads: is 0"],
    );
    // without head_dim the heads have to divide the width
    let folder = directory(|config| {
        config.as_object_mut().unwrap().remove("head_dim");
        config["num_attention_heads"] = json!(3);
    });
    refused(
        config_of(&open(folder.path()).unwrap()),
        &["config.json: num_attention_heads: is 3", "hidden_size = 64"],
    );
}

#[test]
fn c4_sizes_out_of_range_or_of_another_type() {
    for field in ["hidden_size", "head_dim", "vocab_size", "num_hidden_layers"] {
        for value in [
            json!(0),
            json!(-64),
            json!(64.5),
            json!("64"),
            json!([64]),
            json!(1u64 << 33),
            json!(u64::MAX),
            json!(1e20),
        ] {
            let found = value.to_string();
            refused(
                with(field, value),
                &[
                    &format!("config.json: {field}: is {found}, expected"),
                    "integer from 1 to",
                ],
            );
        }
    }
    for field in [
        "hidden_size",
        "vocab_size",
        "num_hidden_layers",
        "max_position_embeddings",
    ] {
        refused(
            with(field, Value::Null),
            &[&format!("config.json: {field}: is missing")],
        );
    }
}

#[test]
fn c5_rotations_that_cannot_be_computed_are_never_ignored() {
    refused(
        with("rope_theta", json!(0)),
        &["config.json: rope_theta: is 0", "above 0"],
    );
    refused(
        with("rope_theta", json!("big")),
        &["config.json: rope_theta: is \"big\"", "a number"],
    );
    refused(
        with("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
        &[
            "config.json",
            "rope_scaling.rope_type",
            "\"yarn\"",
            "linear, llama3",
        ],
    );
    refused(
        with("rope_scaling", json!({"type": "dynamic", "factor": 2.0})),
        &["config.json", "rope_scaling.type", "\"dynamic\""],
    );
    // the newer name of both, with the base in it
    let folder = directory(|config| {
        config["rope_scaling"] = Value::Null;
        config["rope_parameters"] = json!({"rope_theta": 1e4, "rope_type": "yarn"});
    });
    refused(
        config_of(&open(folder.path()).unwrap()),
        &["config.json", "rope_parameters.rope_type", "\"yarn\""],
    );
    for kind in ["linear", "llama3"] {
        refused(
            with("rope_scaling", json!({"rope_type": kind})),
            &["config.json: rope_scaling.factor: is missing"],
        );
    }
    refused(
        with(
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 0.5}),
        ),
        &["config.json: rope_scaling.factor: is 0.5"],
    );
    refused(
        with("rope_scaling", json!("linear")),
        &["config.json: rope_scaling: is \"linear\"", "an object"],
    );
    assert!(with("rope_scaling", json!({"rope_type": "default"})).is_ok());
}

#[test]
fn c6_the_norms_epsilon() {
    for eps in [json!(0), json!(-1e-5), json!(2)] {
        refused(
            with("rms_norm_eps", eps),
            &["config.json: rms_norm_eps: is ", "above 0"],
        );
    }
    let (config, heard) = warnings(|| with("rms_norm_eps", json!(1e-45)));
    assert!(config.unwrap().norm_eps > 0.0);
    told(&heard, &["config.json: rms_norm_eps: ", "denormal"]);
    let (_, heard) = warnings(|| with("rms_norm_eps", json!(1e-6)).unwrap());
    assert_eq!(heard, [""; 0]);
}

#[test]
fn c7_quantised_weights_are_not_loaded_as_plain_ones() {
    for method in ["fp8", "bitsandbytes", "gptq", "awq"] {
        let value = json!({"quant_method": method, "bits": 4, "load_in_4bit": true});
        refused(
            with("quantization_config", value),
            &[
                "config.json",
                "quantization_config",
                &format!("\"{method}\""),
                "not supported",
            ],
        );
    }
    refused(
        with("quantization_config", json!({"bits": 4})),
        &["config.json", "quantization_config", "bits"],
    );
}

#[test]
fn c9_what_a_gguf_asks_for_and_is_not_computed_is_refused_by_its_key() {
    for key in [
        "llama.attention.sliding_window",
        "llama.attn_logit_softcapping",
        "llama.final_logit_softcapping",
        "llama.logit_scale",
        "llama.embedding_scale",
        "llama.residual_scale",
        "llama.attention.scale",
        "llama.expert_count",
    ] {
        refused(
            with_key(key, &8u32.to_le_bytes(), 4),
            &["bad.gguf", key, "not supported"],
        );
    }
    refused(
        with_key("llama.rope.dimension_count", &16u32.to_le_bytes(), 4),
        &["bad.gguf: llama.rope.dimension_count: is 16", "expected 32"],
    );
}

/// Whether the embedding is the head, for a directory with or without a head of its own that says or
/// does not say so; and what is wrong with its tensors, if anything.
fn tied(stored: bool, same: bool, flag: Option<bool>) -> (Result<bool>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let mut model = TinyLlama::new();
    model.untied = stored;
    if same {
        model.copy_embedding_to_head();
    }
    model.write_directory(folder.path());
    rewrite(folder.path(), |config| match flag {
        Some(flag) => config["tie_word_embeddings"] = json!(flag),
        None => {
            config
                .as_object_mut()
                .unwrap()
                .remove("tie_word_embeddings");
        }
    });
    let files = open(folder.path()).unwrap();
    warnings(|| {
        let config = config_of(&files)?;
        let names = (family(&files)?.names)(&files);
        let map = TensorMap::new(&config, &names, files.checkpoint())?;
        assert_eq!(map.head.is_none(), config.tied_head);
        Ok(config.tied_head)
    })
}

#[test]
fn the_head_is_the_stored_one_or_the_embedding_where_the_config_says_so() {
    // (stored, as the embedding, told) -> the embedding serves
    for (stored, same, flag, serves) in [
        (true, false, Some(false), false),
        (true, false, None, false),
        (true, true, Some(false), false),
        (true, true, Some(true), true),
        (false, false, Some(true), true),
    ] {
        let (result, heard) = tied(stored, same, flag);
        assert_eq!(result.unwrap(), serves, "{stored} {same} {flag:?}");
        assert_eq!(heard, [""; 0], "{stored} {same} {flag:?}");
    }
    let (result, heard) = tied(true, false, Some(true));
    assert!(!result.unwrap());
    told(
        &heard,
        &["tie_word_embeddings", "lm_head.weight", "is used"],
    );
    for flag in [Some(false), None] {
        let (result, _) = tied(false, false, flag);
        refused(
            result,
            &["tensor lm_head.weight: is missing", "tie_word_embeddings"],
        );
    }
}

#[test]
fn the_head_of_a_gguf_is_the_stored_one_or_else_the_embedding() {
    for stored in [true, false] {
        let mut model = TinyLlama::new();
        model.untied = stored;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        fs::write(&path, model.gguf(|file| file).finish()).unwrap();
        let config = config_of(&open(&path).unwrap()).unwrap();
        assert_eq!(config.tied_head, !stored);
    }
}

#[test]
fn m17_every_missing_tensor_is_named_in_one_message() {
    let folder = directory(|config| config["num_hidden_layers"] = json!(4));
    let files = open(folder.path()).unwrap();
    let config = config_of(&files).unwrap();
    let names = (family(&files).unwrap().names)(&files);
    let map = TensorMap::new(&config, &names, files.checkpoint());
    refused(
        map,
        &[
            "tensor model.layers.2.input_layernorm.weight: is missing",
            "18 required",
            "model.layers.3.input_layernorm.weight",
            "and 8 more",
        ],
    );
    // tensors that nobody asked for are told of once
    let folder = directory(|config| config["num_hidden_layers"] = json!(1));
    let files = open(folder.path()).unwrap();
    let config = config_of(&files).unwrap();
    let (map, heard) = warnings(|| TensorMap::new(&config, &names, files.checkpoint()).map(drop));
    map.unwrap();
    told(&heard, &["9 tensors are not used", "model.layers.1."]);
}

#[test]
fn c11_generation_settings_out_of_range_are_warned_of_and_the_usual_ones_used() {
    let folder = directory(|_| ());
    let generation = folder.path().join("generation_config.json");
    let texts = |json: Value| {
        fs::write(&generation, json.to_string()).unwrap();
        let files = open(folder.path()).unwrap();
        let (texts, heard) = warnings(|| Texts::load(&files));
        (texts.unwrap().sampling, heard)
    };
    let (sampling, heard) = texts(json!({"temperature": -1, "top_p": 7, "top_k": 5}));
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.top_k),
        (None, None, Some(5))
    );
    assert_eq!(heard.len(), 2, "{heard:?}");
    told(
        &heard,
        &["generation_config.json: temperature: is -1", "0 to 100"],
    );
    told(&heard, &["generation_config.json: top_p: is 7", "0 to 1"]);
    let (sampling, heard) = texts(json!({"temperature": 0.6, "eos_token_id": [257, 3]}));
    assert_eq!((sampling.temperature, heard.len()), (Some(0.6), 0));
}

#[test]
fn t14_a_chat_without_a_template_says_what_to_do() {
    let folder = directory(|_| ());
    let texts = Texts::load(&open(folder.path()).unwrap()).unwrap();
    let message = Message::new("user", "hi");
    refused(
        texts.encode_chat(&[message], "2026-01-01"),
        &["chat template", "the model has none", "--raw"],
    );
    assert!(texts.tokenizer.encode_raw("hi").is_ok());
}

#[test]
fn t14_a_conversation_with_tools_has_the_template_for_tools() {
    let folder = directory(|_| ());
    let message = || [Message::new("user", "hi")];
    let with = |tools: Value| serde_json::Map::from_iter([("tools".to_owned(), tools)]);
    let ids = |texts: &Texts, kwargs| {
        let ids = texts.encode_chat_with(&message(), "2026-01-01", kwargs);
        let ids = ids.unwrap();
        let bytes = ids.iter().flat_map(|&id| texts.tokenizer.token_bytes(id));
        String::from_utf8(bytes.copied().collect()).unwrap()
    };
    let check = |texts: &Texts, usual: &str, tools: &str| {
        assert_eq!(ids(texts, with(json!([{"name": "f"}]))), tools);
        for none in [with(Value::Null), with(json!([])), serde_json::Map::new()] {
            assert_eq!(ids(texts, none), usual);
        }
    };
    let load = || Texts::load(&open(folder.path()).unwrap()).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let config = json!({"chat_template": [
        {"name": "rag", "template": "rag"}, {"name": "tool_use", "template": "t"},
        {"name": "default", "template": "d"}]});
    write("tokenizer_config.json", &config.to_string());
    check(&load(), "d", "t");
    // a file of its own counts before the configuration's
    let named = "additional_chat_templates/tool_use.jinja";
    write(named, "T");
    check(&load(), "d", "T");
    write("chat_template.jinja", "D");
    check(&load(), "D", "T");
    fs::remove_file(folder.path().join(named)).unwrap();
    check(&load(), "D", "D");
    // one that is broken does no harm to others
    write(named, "{% if %}");
    let texts = load();
    assert_eq!(ids(&texts, with(Value::Null)), "D");
    refused(
        texts.encode_chat_with(&message(), "2026-01-01", with(json!([1]))),
        &["chat template", "line 1"],
    );
    // and from a GGUF file
    let gguf = TinyLlama::new().gguf(|file| {
        file.string("tokenizer.chat_template", "d")
            .string("tokenizer.chat_template.tool_use", "t")
    });
    let path = folder.path().join("m.gguf");
    fs::write(&path, gguf.finish()).unwrap();
    check(&Texts::load(&open(&path).unwrap()).unwrap(), "d", "t");
}
