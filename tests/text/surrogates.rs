//! Half a surrogate pair is no character. Wherever one can come from it is refused by name.

use super::common::fixture;
use nelumbo::formats::gguf::Gguf;
use nelumbo::text::{Message, Tokenizer};
use std::fs;
use std::path::Path;

/// In JSON: alone, in the wrong order, before another escape, at the end.
const HALVES: [&str; 5] = [
    r"\ud83d",
    r"\udc00",
    r"\ude00\ud83d",
    r"\ud83d\n",
    r"a\uD83Db",
];

#[test]
fn half_surrogates_in_messages_are_refused_and_pairs_are_read() {
    for half in HALVES {
        for json in [
            format!(r#"{{"role": "user", "content": "{half}"}}"#),
            format!(r#"{{"role": "{half}", "content": "a"}}"#),
            format!(r#"{{"role": "user", "content": "a", "name": "{half}"}}"#),
        ] {
            let error = serde_json::from_str::<Message>(&json)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("surrogate") || error.contains("hex escape"),
                "{json}: {error}"
            );
        }
    }
    let whole: Message =
        serde_json::from_str(r#"{"role": "user", "content": "\ud83d\ude00"}"#).unwrap();
    assert_eq!(whole, Message::new("user", "😀"));
}

#[test]
fn half_surrogates_in_a_tokenizer_are_refused_by_the_files_name() {
    let file = fs::read_to_string(fixture("tokenizers/qwen2/tokenizer.json")).unwrap();
    for half in HALVES {
        let broken = file.replacen("<|im_start|>", half, 1);
        let error =
            Tokenizer::from_json(broken.as_bytes(), None, Path::new("tokenizer.json")).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("tokenizer.json: is no valid JSON: "),
            "{error}"
        );
    }
    // and as the three bytes that the half would have in UTF-8
    let mut bytes = file.into_bytes();
    let at = bytes.windows(3).position(|three| three == b"im_").unwrap();
    bytes[at..at + 3].copy_from_slice(b"\xED\xA0\xBD");
    let error = Tokenizer::from_json(&bytes, None, Path::new("tokenizer.json")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("tokenizer.json: is no valid JSON: "),
        "{error}"
    );
}

#[test]
fn half_surrogates_in_a_gguf_file_are_refused_by_the_fields_name() {
    let mut bytes = fs::read(fixture("tokenizers/qwen2/vocabulary.gguf")).unwrap();
    let at = bytes
        .windows(8)
        .position(|eight| eight == b"im_start")
        .unwrap();
    bytes[at..at + 3].copy_from_slice(b"\xED\xA0\xBD");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.gguf");
    fs::write(&path, bytes).unwrap();
    let error = Gguf::open(&path).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("half.gguf") && error.contains("tokenizer.ggml.tokens"),
        "{error}"
    );
    assert!(error.contains("UTF-8"), "{error}");
}
