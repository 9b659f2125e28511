//! A `tokenizer.json`, the `tokenizer_config.json` beside it, and a text.

use super::Target;
use nelumbo::text::Tokenizer;
use std::path::Path;

pub const TARGET: Target = Target {
    name: "tokenizer",
    run,
    seeds,
};

const FILE: &str = "fuzzed/tokenizer.json";

fn run(data: &[u8]) {
    let [json, config, text] = super::parts::<3>(data);
    let config = serde_json::from_slice(config).ok();
    let tokenizer = match Tokenizer::from_json(json, config.as_ref(), Path::new(FILE)) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return super::names(&error, "tokenizer"),
    };
    super::encode(&tokenizer, &String::from_utf8_lossy(text));
}

fn seeds() -> Vec<Vec<u8>> {
    let bpe = r#"{"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 4, "content": "<|im_end|>", "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false}],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|im_end|>": {"id": "<|im_end|>", "ids": [4], "tokens": ["<|im_end|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"h": 0, "i": 1, "hi": 2, "y": 3}, "merges": ["h i"]}}"#;
    let unigram = r#"{"added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true,
            "vocab": [["<unk>", 0.0], ["\u2581", -2.0], ["h", -3.0], ["hi", -1.5], ["<0x0A>", -9.0]]}}"#;
    let merges = r#"{"added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Metaspace",
            "replacement": "\u2581", "prepend_scheme": "first", "split": true},
        "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "continuing_subword_prefix": "", "ignore_merges": true,
            "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3}, "merges": [["a", "b"]]}}"#;
    // a map by which `A` becomes `a`: a length, a trie that is empty but for two units, the text
    let zeros = |count| "A".repeat(count);
    let charsmap = format!("AAQ{}CAQQU{}BhAA==", zeros(347), zeros(1015));
    let mapped = unigram.replace(
        r#"{"type": "Prepend", "prepend": "\u2581"}"#,
        &format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{charsmap}"}}"#),
    );
    let config = r#"{"add_bos_token": true, "bos_token": "<|im_end|>", "eos_token": {"content": "<|im_end|>"}}"#;
    vec![
        super::joined(&[bpe, config, "hi 12"]),
        super::joined(&[unigram, "{}", "hi\n"]),
        super::joined(&[&mapped, "{}", "A hi\n"]),
        super::joined(&[merges, "", "abab"]),
    ]
}
