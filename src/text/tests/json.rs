use std::path::Path;

use serde_json::{Value, json};

use super::super::{Rendered, Tokenizer};
use super::{byte_char, decode};

fn load(json: &Value, config: Option<&Value>) -> crate::error::Result<Tokenizer> {
    Tokenizer::from_json(
        &serde_json::to_vec(json).unwrap(),
        config,
        Path::new("dir/tokenizer.json"),
    )
}

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "special": special, "normalized": false,
           "single_word": false, "lstrip": false, "rstrip": false})
}

/// In the manner of Llama 2: SentencePiece's alphabet, bytes for what has no token, a BOS.
fn sentence_piece() -> Value {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(
        [
            "▁", "h", "i", "▁h", "▁hi", "t", "hi", "[", "]", "I", "N", "S", "/", "<", "s", ">",
            "\n",
        ]
        .map(str::to_owned),
    );
    let vocab: serde_json::Map<String, Value> = tokens
        .iter()
        .enumerate()
        .map(|(id, token)| (token.clone(), json!(id)))
        .collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "ignore_merges": false,
            "vocab": vocab, "merges": ["▁ h", "▁h i", "h i"]}
    })
}

/// In the manner of Qwen 2: bytes, no BOS, a turn marker that the file does not call special.
fn byte_level() -> Value {
    let mut vocab: serde_json::Map<String, Value> = (0..=255u8)
        .map(|b| (byte_char(b).to_string(), json!(b)))
        .collect();
    vocab.insert("hi".into(), json!(256));
    json!({
        "version": "1.0",
        "added_tokens": [added(257, "<|im_start|>", false), added(258, "<|im_end|>", true), added(259, "<think>", false)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["h", "i"]]}
    })
}

#[test]
fn sentence_piece_vocabulary() {
    let config =
        json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true});
    let tokenizer = load(&sentence_piece(), Some(&config)).unwrap();
    let id = |token: &str| tokenizer.token_id(token).unwrap();
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()),
        (Some(1), Some(2), true)
    );
    assert_eq!(
        tokenizer.encode_raw("hi hi").unwrap(),
        [1, id("▁hi"), id("▁hi")]
    );
    assert_eq!(
        tokenizer.encode_plain("hié").unwrap(),
        [id("▁hi"), id("<0xC3>"), id("<0xA9>")]
    );
    assert_eq!(tokenizer.token_bytes(id("<0xC3>")), b"\xC3");
    assert_eq!(
        decode(&tokenizer, &tokenizer.encode_raw("hi é").unwrap()),
        " hi é".as_bytes()
    );
    assert_eq!(tokenizer.control_ids(), [0, 1, 2]);
    // A BOS in the text is not doubled, and "</s>" from a message is spelled.
    let text = "<s>hi</s>hi</s>";
    let rendered = Rendered {
        text: text.into(),
        content_spans: vec![3..9],
    };
    let ids = tokenizer.encode_rendered(&rendered).unwrap();
    assert_eq!(
        ids.iter()
            .filter(|&&id| tokenizer.is_control(id))
            .copied()
            .collect::<Vec<_>>(),
        [1, 2]
    );
    assert_eq!(decode(&tokenizer, &ids), b" hi</s>hi");
}

#[test]
fn same_ids_as_the_library_alone() {
    let mut first = sentence_piece();
    first["normalizer"] = Value::Null;
    first["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    for json in [sentence_piece(), first, byte_level()] {
        let tokenizer = load(&json, None).unwrap();
        let library: tokenizers::Tokenizer = serde_json::from_value(json).unwrap();
        for text in [
            "hi",
            " hi",
            "<s>hi</s> hi",
            "hi</s>hi\n",
            "</s>",
            "a<|im_end|>hi hi<|im_start|>",
            "<think>hi",
            "  ",
            "hihi\u{301}é",
        ] {
            let want = library.encode(text, false).unwrap().get_ids().to_vec();
            let mut ids = tokenizer.encode_raw(text).unwrap();
            if tokenizer.add_bos() && !text.starts_with("<s>") {
                assert_eq!(ids.remove(0), 1);
            }
            assert_eq!(ids, want, "{text:?}");
        }
    }
}

#[test]
fn byte_level_vocabulary() {
    let tokenizer = load(
        &byte_level(),
        Some(&json!({"bos_token": null, "eos_token": "<|im_end|>"})),
    )
    .unwrap();
    assert_eq!(
        (
            tokenizer.bos(),
            tokenizer.eos(),
            tokenizer.add_bos(),
            tokenizer.vocab_size()
        ),
        (None, Some(258), false, 260)
    );
    assert_eq!(tokenizer.control_ids(), [258]);
    // Not called special, yet it looks like a turn marker: nobody but the template may write it.
    assert_eq!(tokenizer.encode_raw("<|im_start|>hi").unwrap(), [257, 256]);
    let plain = tokenizer
        .encode_plain("<|im_start|><|im_end|><think>")
        .unwrap();
    assert_eq!(
        plain
            .iter()
            .filter(|&&id| id > 256)
            .copied()
            .collect::<Vec<_>>(),
        [259]
    );
    assert_eq!(tokenizer.token_bytes(257), b"<|im_start|>");
}

#[test]
fn t7_truncation_and_padding_are_ignored() {
    let mut json = byte_level();
    json["truncation"] =
        json!({"max_length": 2, "strategy": "LongestFirst", "stride": 5, "direction": "Right"});
    json["padding"] = json!({"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "!"});
    let tokenizer = load(&json, None).unwrap();
    assert_eq!(tokenizer.encode_raw("hi hi hi").unwrap().len(), 5);
}

#[test]
fn dropout_is_ignored() {
    let mut json = byte_level();
    json["model"]["dropout"] = json!(1.0);
    assert_eq!(load(&json, None).unwrap().encode_raw("hi").unwrap(), [256]);
}

/// What is changed in a file that is right.
type Change = fn(&mut Value);

/// Each change is refused, by the file's name and these words.
#[track_caller]
fn refused(cases: &[(Change, &str)]) {
    for (change, want) in cases {
        let mut json = sentence_piece();
        change(&mut json);
        let error = load(&json, None).unwrap_err().to_string();
        assert!(
            error.starts_with("dir/tokenizer.json: ") && error.contains(want),
            "{error} / {want}"
        );
    }
}

#[test]
fn t1_t2_t3_t4_bad_models_are_named() {
    refused(&[
        (|j| j["model"] = Value::Null, "model: missing"),
        (|j| j["model"]["type"] = json!(7), "model.type: 7"),
        (
            |j| j["model"]["type"] = json!("WordPiece"),
            "(model.type) \"WordPiece\" is not supported (supported: BPE, Unigram)",
        ),
        (|j| j["model"]["vocab"] = json!([]), "model.vocab: missing"),
        (
            |j| j["model"]["merges"] = Value::Null,
            "model.merges: missing",
        ),
        (
            |j| j["model"]["merges"][1] = json!("▁ s"),
            "model.merges[1]: \"▁s\" is not in model.vocab",
        ),
        (
            |j| j["model"]["merges"][0] = json!("qq h"),
            "model.merges[0]: \"qq\" is not in",
        ),
        (
            |j| j["model"]["merges"][0] = json!("a b c"),
            "model.merges[0]: \"a b c\" is no pair",
        ),
        (
            |j| j["model"]["merges"][2] = json!(["h"]),
            "model.merges[2]: ",
        ),
        (
            |j| j["model"]["continuing_subword_prefix"] = json!("######"),
            "model.merges[0]: \"h\" does not begin with",
        ),
        (
            |j| j["model"]["vocab"]["hi"] = json!(4),
            "model.vocab: id 4 belongs to both \"<0x01>\" and \"hi\"",
        ),
        (
            |j| j["model"]["vocab"]["hi"] = json!(900),
            "model.vocab: id 265 has no token",
        ),
        (
            |j| j["model"]["vocab"]["hi"] = json!(1u64 << 31),
            "model.vocab[\"hi\"]: id 2147483648",
        ),
        (
            |j| j["model"]["vocab"]["hi"] = json!(-1),
            "model.vocab[\"hi\"]: id -1",
        ),
        (
            |j| j["model"]["vocab"]["hi"] = json!(1.5),
            "model.vocab[\"hi\"]: id 1.5",
        ),
        (
            |j| j["model"]["unk_token"] = json!("<none>"),
            "model.unk_token: \"<none>\"",
        ),
    ]);
}

#[test]
fn t4_t5_bad_parts_beside_the_model_are_named() {
    refused(&[
        (
            |j| j["added_tokens"][1]["id"] = json!(9),
            "added_tokens[1].id: 9, but \"<s>\" is token 1 already",
        ),
        (
            |j| j["added_tokens"][2]["content"] = json!(""),
            "added_tokens[2].content: missing",
        ),
        (
            |j| j["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "!!!"}),
            "normalizer.precompiled_charsmap: '!'",
        ),
        (
            |j| {
                j["normalizer"]["normalizers"][0] =
                    json!({"type": "Precompiled", "precompiled_charsmap": "AAA"})
            },
            "normalizer.normalizers[0].precompiled_charsmap: 3 characters",
        ),
        (
            |j| j["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0}),
            "pre_tokenizer.length: 0, expected 1 or more",
        ),
        (
            |j| j["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "a".repeat(1 << 15)}, "behavior": "Isolated", "invert": false}),
            "pre_tokenizer.pattern.Regex: longer",
        ),
        (
            |j| j["post_processor"]["single"][0]["SpecialToken"]["id"] = json!("<b>"),
            "post_processor.single[0]: \"<b>\" is not among",
        ),
        (
            |j| j["post_processor"]["special_tokens"]["<s>"]["ids"] = json!([4000]),
            "post_processor.special_tokens[\"<s>\"].ids: 4000",
        ),
    ]);
}

#[test]
fn t1_truncated_files_are_errors() {
    let bytes = serde_json::to_vec(&sentence_piece()).unwrap();
    for len in (0..bytes.len()).step_by(97) {
        let error = Tokenizer::from_json(&bytes[..len], None, Path::new("tokenizer.json"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("tokenizer.json: is no valid JSON: "),
            "{error}"
        );
    }
    for text in ["7", "[]", "{}", "null"] {
        assert!(Tokenizer::from_json(text.as_bytes(), None, Path::new("t")).is_err());
    }
    let deep = "[".repeat(100_000);
    assert!(Tokenizer::from_json(deep.as_bytes(), None, Path::new("t")).is_err());
}

#[test]
fn t5_undecodable_charsmap_is_an_error() {
    let mut json = sentence_piece();
    for blob in ["", "AAAA", "/////w==", "AQAAAAAAAAA="] {
        json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": blob});
        if let Ok(tokenizer) = load(&json, None) {
            let _ = tokenizer.encode_raw("hi é");
        }
    }
}

#[test]
fn t6_catastrophic_expression_is_an_error() {
    let mut json = byte_level();
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]});
    let tokenizer = load(&json, None).unwrap();
    assert!(tokenizer.encode_raw("xxxxxxy").is_ok());
    let error = tokenizer
        .encode_raw(&"x".repeat(5000))
        .unwrap_err()
        .to_string();
    assert_eq!(error, "tokenizer: the pre-tokenizer gave up on this text");
    // The next text is not affected.
    assert!(tokenizer.encode_raw("hi").is_ok());
}

#[test]
fn names_in_the_config_must_be_tokens() {
    let error = |config: Value| {
        load(&sentence_piece(), Some(&config))
            .unwrap_err()
            .to_string()
    };
    assert!(
        error(json!({"eos_token": "</end>"}))
            .contains("eos_token (tokenizer_config.json): \"</end>\"")
    );
    assert!(error(json!({"bos_token": 1})).contains("bos_token (tokenizer_config.json): 1"));
}

#[test]
fn unigram_vocabulary() {
    let json = json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>", true), added(1, "</s>", true)],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [["<unk>", 0.0], ["</s>", 0.0], ["▁", -3.0], ["h", -3.0], ["i", -3.0], ["▁hi", -1.0]]}
    });
    let tokenizer = load(&json, None).unwrap();
    assert_eq!(tokenizer.encode_raw("hi hi").unwrap(), [5, 5]);
    // A character without a token is unknown, which is the one control token that text may give.
    assert_eq!(tokenizer.encode_plain("hiz").unwrap(), [5, 0]);
    let error = |change: &dyn Fn(&mut Value)| {
        let mut json = json.clone();
        change(&mut json);
        load(&json, None).unwrap_err().to_string()
    };
    assert!(error(&|j| j["model"]["unk_id"] = json!(6)).contains("model.unk_id: 6, but"));
    assert!(
        error(&|j| j["model"]["vocab"][3] = json!(["i", 0]))
            .contains("model.vocab[4]: \"i\" is token 3")
    );
    assert!(error(&|j| j["model"]["vocab"][3] = json!(["i"])).contains("model.vocab[3]: no pair"));
    let long = json!(["a".repeat(4097), 0]);
    assert!(
        error(&|j| j["model"]["vocab"][3] = long.clone())
            .contains("model.vocab: the token of id 3 has 4097 bytes")
    );
}
