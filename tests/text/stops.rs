//! What ends an answer, by each family's convention: files often name one token of several.

use super::common::{VOCABULARIES, both, fixture};
use nelumbo::formats::gguf::Gguf;
use nelumbo::formats::write::GgufWriter;
use nelumbo::formats::{self, ModelFiles};
use nelumbo::model::Texts;
use serde_json::{Value, json};
use std::fs;

fn names(texts: &Texts) -> Vec<String> {
    let ids = texts.end_tokens.iter();
    let mut names: Vec<String> = ids.map(|&id| texts.tokenizer.token_text(id)).collect();
    names.sort();
    names
}

/// The directory of a vocabulary beside weights that nothing is asked of.
fn from_directory(vocabulary: &str, config: &Value, generation: &Value) -> Texts {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let from = fixture("tokenizers").join(vocabulary).join(name);
        fs::copy(from, folder.path().join(name)).unwrap();
    }
    let weights = fixture("families/llama/model.safetensors");
    fs::copy(weights, folder.path().join("model.safetensors")).unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    fs::write(
        folder.path().join("generation_config.json"),
        generation.to_string(),
    )
    .unwrap();
    Texts::load(&formats::open(folder.path()).unwrap()).unwrap()
}

/// The stop tokens that each family's models need.
const ENDS: &[(&str, &[&str])] = &[
    ("gpt2", &["<|endoftext|>"]),
    ("llama3", &["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]),
    ("qwen2", &["<|endoftext|>", "<|im_end|>"]),
    ("smollm2", &["<|endoftext|>", "<|im_end|>"]),
    ("tekken", &["</s>"]),
    ("phi4", &["<|end|>", "<|endoftext|>"]),
    ("olmo2", &["<|endoftext|>"]),
    ("granite", &["<|end_of_text|>"]),
    ("llama2", &["</s>"]),
    ("mistral", &["</s>"]),
    ("phi3", &["</s>", "<|endoftext|>", "<|end|>"]),
    ("gemma", &["<end_of_turn>", "<eos>"]),
    ("unigram", &["</s>"]),
];

#[test]
fn every_familys_turns_end_whatever_the_files_name() {
    assert_eq!(ENDS.len(), VOCABULARIES.len());
    for &(name, ends) in ENDS {
        let mut ends: Vec<String> = ends.iter().map(|&end| end.to_owned()).collect();
        ends.sort();
        assert_eq!(names(&both(name).gguf), ends, "{name}");
        let texts = from_directory(name, &json!({"model_type": "llama"}), &json!({}));
        assert_eq!(names(&texts), ends, "{name}");
    }
}

#[test]
fn configurations_name_one_or_several_and_all_count() {
    let vocabulary = both("smollm2");
    let id = |token: &str| vocabulary.json.token_id(token).unwrap();
    let (repo, start, word) = (id("<repo_name>"), id("<|im_start|>"), id("a"));
    for (config, generation) in [
        (
            json!({"eos_token_id": [repo, start]}),
            json!({"eos_token_id": word}),
        ),
        (
            json!({"eos_token_id": repo}),
            json!({"eos_token_id": [start, word]}),
        ),
        (
            json!({}),
            json!({"eos_token_id": [repo, start, word, repo]}),
        ),
    ] {
        let texts = from_directory("smollm2", &config, &generation);
        let ends = [
            "<repo_name>",
            "<|endoftext|>",
            "<|im_end|>",
            "<|im_start|>",
            "a",
        ];
        assert_eq!(names(&texts), ends, "{config} {generation}");
    }
}

#[test]
fn a_gguf_file_names_ends_of_turns_and_of_messages() {
    let path = fixture("tokenizers/granite/vocabulary.gguf");
    let vocabulary = both("granite");
    let id = |token: &str| vocabulary.json.token_id(token).unwrap();
    let load = |key: &str, id: u32| {
        let gguf = Gguf::open(&path).unwrap();
        let file = gguf
            .metadata
            .copy_to(GgufWriter::new(), |_| true)
            .u32(key, id);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        fs::write(&path, file.finish()).unwrap();
        Texts::load(&ModelFiles::Gguf(Gguf::open(&path).unwrap()))
    };
    for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
        let texts = load(key, id("<|tool_call|>")).unwrap();
        assert_eq!(names(&texts), ["<|end_of_text|>", "<|tool_call|>"], "{key}");
        let error = load(key, 1 << 20).err().unwrap().to_string();
        assert!(error.contains(key), "{error}");
    }
}
