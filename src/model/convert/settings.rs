//! What lies beside the weights in a directory: `config.json`, and the files of the tokenizer.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::Target;
use crate::error::{Error, Result};
use crate::formats::write::GgufWriter;
use crate::formats::{Gguf, ModelFiles, compressed, hf};
use crate::model::rope::{Rope, RopeScaling};
use crate::model::texts::{TOOL_TEMPLATE, VOCABULARY_NAME};
use crate::model::{Config, Texts};

/// Files of a directory that are taken over as they are.
const COPIED: &[&str] = &[
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    VOCABULARY_NAME,
    "chat_template.jinja",
    "generation_config.json",
];

/// Files beside weights and configuration.
pub(super) struct SideFiles {
    /// By name.
    pub written: Vec<(String, Vec<u8>)>,
    /// With their names.
    pub copied: Vec<(PathBuf, String)>,
}

pub(super) fn side_files(files: &ModelFiles, texts: &Texts) -> Result<SideFiles> {
    match files {
        ModelFiles::HuggingFace(dir) => {
            let for_tools = format!("{}/{TOOL_TEMPLATE}.jinja", hf::TEMPLATES_NAME);
            let names = COPIED.iter().map(|name| (*name).to_owned());
            let paths = names
                .chain([for_tools])
                .map(|name| (dir.dir.join(&name), name));
            Ok(SideFiles {
                written: Vec::new(),
                copied: paths.filter(|(path, _)| path.is_file()).collect(),
            })
        }
        ModelFiles::Gguf(gguf) => Ok(SideFiles {
            written: of_gguf(gguf, texts)?,
            copied: Vec::new(),
        }),
    }
}

fn of_gguf(gguf: &Gguf, texts: &Texts) -> Result<Vec<(String, Vec<u8>)>> {
    let tokenizer = &texts.tokenizer;
    let mut written = Vec::new();
    match tokenizer.to_json() {
        Some(json) => written.push(("tokenizer.json".to_owned(), json.into_bytes())),
        None => {
            let keys = gguf.metadata.copy_to(GgufWriter::new(), |key| {
                key.starts_with("tokenizer.") || key == "general.architecture"
            });
            written.push((VOCABULARY_NAME.to_owned(), keys.finish()));
        }
    }
    let mut config = Map::new();
    let name = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
    config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
    config.insert("add_bos_token".into(), json!(tokenizer.add_bos()));
    for (key, token) in [
        ("bos_token", tokenizer.bos()),
        ("eos_token", tokenizer.eos()),
    ] {
        config.insert(key.into(), json!(name(token)));
    }
    let templates = Texts::template_sources(&ModelFiles::Gguf(gguf.clone()))?;
    let named = [
        ("default", &templates.usual),
        (TOOL_TEMPLATE, &templates.with_tools),
    ];
    let named = named.into_iter().filter_map(|(name, source)| {
        let source = source.as_ref()?;
        Some(json!({"name": name, "template": source}))
    });
    match (&templates.usual, &templates.with_tools) {
        (None, None) => {}
        (Some(one), None) => drop(config.insert("chat_template".into(), json!(one))),
        _ => drop(config.insert("chat_template".into(), named.collect())),
    }
    written.push(("tokenizer_config.json".to_owned(), pretty(&config.into())));
    let generation = json!({"bos_token_id": tokenizer.bos(), "eos_token_id": texts.end_tokens});
    written.push(("generation_config.json".to_owned(), pretty(&generation)));
    Ok(written)
}

/// JSON as people read it.
pub(super) fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// `config.json`: what the model's own says, or what a GGUF file tells, with what `target` changes.
pub(super) fn config_json(
    files: &ModelFiles,
    config: &Config,
    texts: &Texts,
    target: Target,
) -> Result<Vec<u8>> {
    let mut json = match files {
        ModelFiles::HuggingFace(dir) => dir.config.clone(),
        ModelFiles::Gguf(gguf) => of_config(gguf, config, texts)?,
    };
    let fields = json.as_object_mut().expect("the configuration was read");
    fields.shift_remove(compressed::FIELD);
    // a head that differs from the embedding is written, whatever was told
    fields.insert("tie_word_embeddings".into(), json!(config.tied_head));
    match target {
        Target::Int8 { group } => {
            fields.insert(compressed::FIELD.into(), quantization_config(group));
        }
        Target::F16 | Target::Q8_0 => {
            for name in ["torch_dtype", "dtype"] {
                if let Some(kind) = fields.get_mut(name) {
                    *kind = json!("float16");
                }
            }
        }
    }
    Ok(pretty(&json))
}

/// Along version 0.20 of compressed-tensors. Engines that multiply 8-bit integers quantise activations
/// token by token as they come; only with that do they take the format at all.
fn quantization_config(group: Option<usize>) -> Value {
    let strategy = if group.is_some() { "group" } else { "channel" };
    json!({
        "quant_method": compressed::METHOD,
        "format": compressed::FORMAT,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 8,
                    "type": "int",
                    "symmetric": true,
                    "strategy": strategy,
                    "group_size": group,
                    "dynamic": false,
                },
                "input_activations": {
                    "num_bits": 8,
                    "type": "int",
                    "symmetric": true,
                    "strategy": "token",
                    "group_size": null,
                    "dynamic": true,
                },
                "output_activations": null,
                "format": compressed::FORMAT,
            },
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": null,
    })
}

/// The settings of a GGUF file as the hub's layout has them.
fn of_config(gguf: &Gguf, config: &Config, texts: &Texts) -> Result<Value> {
    // the shortest text of the f32, not its digits as f64
    let eps: f64 = config.norm_eps.to_string().parse().expect("a number");
    let mut json = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": eps,
        "rope_theta": config.ropes[0].theta,
        "rope_scaling": rope_scaling(gguf, config)?,
        "attention_bias": false,
        "mlp_bias": false,
        "torch_dtype": "float16",
        "bos_token_id": texts.tokenizer.bos(),
        "eos_token_id": texts.tokenizer.eos(),
    });
    if let Some(name) = gguf.metadata.opt_string("general.name")? {
        json["_name_or_path"] = json!(name);
    }
    Ok(json)
}

fn rope_scaling(gguf: &Gguf, config: &Config) -> Result<Value> {
    match &config.ropes[0].scaling {
        RopeScaling::None => Ok(Value::Null),
        RopeScaling::Linear { factor } => Ok(json!({"rope_type": "linear", "factor": factor})),
        &RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original,
        } => Ok(json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor, "original_max_position_embeddings": original as u64,
        })),
        RopeScaling::Long { .. } => Err(Error::Unsupported {
            path: gguf.metadata.path().to_owned(),
            what: "rope scaling, for a directory,".to_owned(),
            found: "longrope".to_owned(),
            supported: "none, linear, llama3".to_owned(),
        }),
        RopeScaling::Factors(factors) => {
            let known = known_scalings().into_iter().find(|scaling| {
                let rope = |scaling: &RopeScaling| Rope {
                    scaling: scaling.clone(),
                    ..config.ropes[0].clone()
                };
                let known = rope(scaling).frequencies(config.head_dim);
                let plain = rope(&RopeScaling::None).frequencies(config.head_dim);
                let told = plain.iter().zip(factors).map(|(f, x)| f / f64::from(*x));
                known
                    .iter()
                    .zip(told)
                    .all(|(a, b)| (a / b - 1.0).abs() < 1e-4)
            });
            let Some(scaling) = known else {
                return Err(Error::Unsupported {
                    path: gguf.metadata.path().to_owned(),
                    what: "rope_freqs.weight, for a directory,".to_owned(),
                    found: format!("{} factors", factors.len()),
                    supported: "those of Llama 3.1 and 3.2".to_owned(),
                });
            };
            let rope = Rope {
                scaling,
                ..config.ropes[0].clone()
            };
            let config = Config {
                ropes: vec![rope],
                ..config.clone()
            };
            rope_scaling(gguf, &config)
        }
    }
}

/// The scalings of released models: Llama 3.1 and 3.3, then the small ones of 3.2.
fn known_scalings() -> [RopeScaling; 2] {
    [8.0, 32.0].map(|factor| RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original: 8192.0,
    })
}
