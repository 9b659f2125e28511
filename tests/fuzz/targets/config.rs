//! The small files of a directory: index, configurations, and the plan that follows from them. The
//! weights beside them are whole.

use super::Target;
use nelumbo::formats::{Encoding, ModelFiles, open, write::write_safetensors};
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Texts, family};
use std::cell::OnceCell;
use std::fs;
use tempfile::TempDir;

pub const TARGET: Target = Target {
    name: "config",
    run,
    seeds,
};

const NAMES: [&str; 5] = [
    "config.json",
    "model.safetensors.index.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
];

const TOKENIZER: &str = r#"{"added_tokens": [], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}"#;

/// A decoder of one layer, 64 wide, in two files.
const TENSORS: [(&str, &[usize]); 11] = [
    ("model.embed_tokens.weight", &[4, 64]),
    ("model.norm.weight", &[64]),
    ("model.layers.0.input_layernorm.weight", &[64]),
    ("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
    ("model.layers.0.self_attn.k_proj.weight", &[32, 64]),
    ("model.layers.0.self_attn.v_proj.weight", &[32, 64]),
    ("model.layers.0.self_attn.o_proj.weight", &[64, 64]),
    ("model.layers.0.post_attention_layernorm.weight", &[64]),
    ("model.layers.0.mlp.gate_proj.weight", &[32, 64]),
    ("model.layers.0.mlp.up_proj.weight", &[32, 64]),
    ("model.layers.0.mlp.down_proj.weight", &[64, 32]),
];

/// Where the files are written: once for all inputs.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let zeros = vec![0; 64 * 64 * 4];
    for (file, tensors) in ["one", "two"].iter().zip(TENSORS.chunks(6)) {
        let parts: Vec<_> = tensors
            .iter()
            .map(|&(name, shape)| {
                let bytes = 4 * shape.iter().product::<usize>();
                (name, shape, Encoding::F32, &zeros[..bytes])
            })
            .collect();
        let path = folder.path().join(format!("{file}.safetensors"));
        write_safetensors(&path, &parts).expect("weights");
    }
    fs::write(folder.path().join("tokenizer.json"), TOKENIZER).expect("a tokenizer");
    folder
}

fn run(data: &[u8]) {
    thread_local!(static FOLDER: OnceCell<TempDir> = const { OnceCell::new() });
    FOLDER.with(|cell| {
        let folder = cell.get_or_init(folder).path();
        for (name, part) in NAMES.iter().zip(super::parts::<{ NAMES.len() }>(data)) {
            let path = folder.join(name);
            if part.is_empty() {
                let _ = fs::remove_file(path); // was not there either
            } else {
                fs::write(path, part).expect("a small file");
            }
        }
        let named = |error| super::names(&error, &folder.display().to_string());
        let files = match open(folder) {
            Ok(files) => files,
            Err(error) => return named(error),
        };
        super::read_all(files.checkpoint());
        plan(&files).unwrap_or_else(named);
        Texts::load(&files).map(drop).unwrap_or_else(named);
    });
}

fn plan(files: &ModelFiles) -> nelumbo::Result<()> {
    let family = family(files)?;
    let config = (family.config)(files)?;
    let names = (family.names)(files);
    TensorMap::new(&config, &names, files.checkpoint()).map(drop)
}

fn seeds() -> Vec<Vec<u8>> {
    let config = r#"{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32, "vocab_size": 4,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 256,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
        "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": [1, 2]}"#;
    let map: Vec<String> = TENSORS
        .iter()
        .enumerate()
        .map(|(i, (name, _))| {
            let file = if i < 6 { "one" } else { "two" };
            format!("\"{name}\": \"{file}.safetensors\"")
        })
        .collect();
    let index = format!(
        "{{\"metadata\": {{}}, \"weight_map\": {{{}}}}}",
        map.join(", ")
    );
    let tokenizer = r#"{"chat_template": [{"name": "default", "template": "{{ bos_token }}"}],
        "add_bos_token": false, "eos_token": {"content": "b"}}"#;
    let generation = r#"{"eos_token_id": 1, "temperature": 0.6, "top_p": 0.9, "top_k": 20}"#;
    let plain = config.replace("\"rope_scaling\"", "\"rope_was\"");
    let gemma = r#"{"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"num_hidden_layers": 1,
        "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 4,
        "intermediate_size": 32, "layer_types": ["sliding_attention"], "sliding_window": 8,
        "rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}}}"#;
    let phi = config
        .replace("Llama", "Phi3")
        .replace("llama3", "longrope")
        .replace(
            "\"factor\": 8.0",
            "\"short_factor\": [1, 1], \"long_factor\": [2, 4]",
        );
    let smol = config
        .replace("Llama", "SmolLM3")
        .replace("\"hidden_act\"", "\"no_rope_layers\": [0], \"hidden_act\"");
    let gpt = r#"{"architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": 64, "n_head": 2, "n_inner": null,
        "n_positions": 16, "vocab_size": 4}"#;
    vec![
        super::joined(&[gemma, &index, "{}", "{}"]),
        super::joined(&[&phi, &index, "{}", "{}"]),
        super::joined(&[&smol, &index, "{}", "{}"]),
        super::joined(&[gpt, &index, "{}", "{}"]),
        super::joined(&[config, &index, tokenizer, generation, "{{ messages }}"]),
        super::joined(&[&plain, &index, "{}", "{}"]),
        super::joined(&["{}", r#"{"weight_map": {"a": "../one.safetensors"}}"#]),
    ]
}
