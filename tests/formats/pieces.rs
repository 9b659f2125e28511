//! Tokenizers of pieces as GGUF files hold them, down to the ids that SentencePiece gives; see
//! fixtures/pieces/ORIGIN.md.

use std::fs;

use nelumbo::Result;
use nelumbo::formats::open;
use nelumbo::formats::write::GgufWriter;
use nelumbo::model::Texts;
use serde_json::Value;

use crate::refused;

fn fixture(name: &str) -> Value {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/pieces");
    let text = fs::read_to_string(format!("{root}/{name}.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn list<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The keys of a file with this vocabulary.
fn keys(fixture: &Value) -> GgufWriter {
    let id = |name: &str| u32::try_from(fixture[name].as_u64().unwrap()).unwrap();
    let mut file = GgufWriter::new()
        .string("general.architecture", "llama")
        .string("tokenizer.ggml.model", fixture["kind"].as_str().unwrap())
        .string("tokenizer.ggml.pre", "default")
        .strings("tokenizer.ggml.tokens", &list::<String>(&fixture["tokens"]))
        .f32s("tokenizer.ggml.scores", &list::<f32>(&fixture["scores"]))
        .i32s("tokenizer.ggml.token_type", &list::<i32>(&fixture["types"]))
        .u32("tokenizer.ggml.bos_token_id", id("bos"))
        .u32("tokenizer.ggml.eos_token_id", id("eos"))
        .u32("tokenizer.ggml.unknown_token_id", id("unknown"));
    // what is usual may be left out
    if fixture["add_space_prefix"] == false {
        file = file.bool("tokenizer.ggml.add_space_prefix", false);
    }
    if fixture["remove_extra_whitespaces"] == true {
        file = file.bool("tokenizer.ggml.remove_extra_whitespaces", true);
    }
    let map: Vec<u8> = list(&fixture["charsmap"]);
    match map.len() {
        0 => file,
        len => file.array("tokenizer.ggml.precompiled_charsmap", 0, len, &map),
    }
}

fn load(file: GgufWriter) -> Result<Texts> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pieces.gguf");
    fs::write(&path, file.finish()).unwrap();
    Texts::load(&open(&path)?)
}

#[test]
fn a_directory_may_have_its_vocabulary_as_a_gguf_has_it() {
    let fixture = fixture("bpe");
    let folder = tempfile::tempdir().unwrap();
    crate::tiny_llama::TinyLlama::new().write_directory(folder.path());
    let of_dir = || Texts::load(&open(folder.path()).unwrap());
    let vocabulary = folder.path().join("tokenizer.gguf");
    fs::write(&vocabulary, keys(&fixture).finish()).unwrap();
    let own = of_dir().unwrap().tokenizer.vocab_size();
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let there = of_dir().unwrap();
    let file = load(keys(&fixture)).unwrap();
    assert_ne!(
        own,
        file.tokenizer.vocab_size(),
        "tokenizer.json comes first"
    );
    let text = "Hello there, 한국어  and  blanks";
    assert_eq!(
        there.tokenizer.encode_raw(text).unwrap(),
        file.tokenizer.encode_raw(text).unwrap()
    );
    fs::write(&vocabulary, b"GGUF, but no more").unwrap();
    refused(of_dir(), &["tokenizer.gguf"]);
    fs::remove_file(&vocabulary).unwrap();
    refused(of_dir(), &["tokenizer.json", "missing"]);
}

#[test]
fn files_of_pieces_give_the_ids_of_sentencepiece() {
    let lines: Vec<String> = list(&fixture("lines"));
    for name in ["bpe", "bpe-wide", "unigram", "unigram-bytes"] {
        let fixture = fixture(name);
        let texts = load(keys(&fixture)).unwrap();
        assert_eq!(texts.end_tokens, [2], "{name}");
        let ids: Vec<Vec<u32>> = list(&fixture["ids"]);
        for (line, ids) in lines.iter().zip(&ids) {
            let found = texts.tokenizer.encode_plain(line).unwrap();
            assert_eq!(&found, ids, "{name}: {line:?}");
        }
        // BOS by the kind of tokenizer, or as the file says
        let kind = name.starts_with("bpe");
        assert_eq!(texts.tokenizer.add_bos(), kind, "{name}");
        let key = "tokenizer.ggml.add_bos_token";
        let texts = load(keys(&fixture).bool(key, !kind)).unwrap();
        assert_eq!(texts.tokenizer.add_bos(), !kind, "{name}");
    }
}

#[test]
fn t1_pieces_without_scores_and_unknown_kinds_are_named() {
    let fixture = fixture("bpe");
    let without = GgufWriter::new()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &list::<String>(&fixture["tokens"]));
    refused(
        load(without),
        &["pieces.gguf: tokenizer.ggml.scores: is missing"],
    );
    for kind in ["bert", "rwkv", "plamo2", "gemma4", "no_vocab"] {
        refused(
            load(GgufWriter::new().string("tokenizer.ggml.model", kind)),
            &[
                "pieces.gguf",
                "tokenizer.ggml.model",
                kind,
                "gpt2",
                "llama",
                "t5",
            ],
        );
    }
    let odd = keys(&fixture).array("tokenizer.ggml.precompiled_charsmap", 5, 1, &[0, 1, 0, 0]);
    refused(load(odd), &["precompiled_charsmap[0]: is 256", "a byte"]);
}
