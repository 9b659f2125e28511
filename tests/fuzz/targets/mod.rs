//! What is fuzzed: readers of files that others wrote, and what stands between tokens and text.
//!
//! A target takes any bytes and panics if a promise is broken. What is an error is checked to name its
//! file; what is accepted is used to its end.

mod config;
mod gguf;
mod safetensors;
mod stops;
mod template;
mod tokenizer;

use nelumbo::Error;
use nelumbo::formats::Checkpoint;
use nelumbo::text::Tokenizer;

/// A name, what to do with an input, and inputs to begin from.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// A line makes a target known; `Cargo.toml` beside names it once more, as a program.
pub static ALL: &[Target] = &[
    config::TARGET,
    gguf::TARGET,
    safetensors::TARGET,
    stops::TARGET,
    template::TARGET,
    tokenizer::TARGET,
];

/// The target of a name.
pub fn named(name: &str) -> &'static Target {
    let found = ALL.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("no target {name}"))
}

/// Between the parts of an input that is several texts: no byte of UTF-8.
const BETWEEN: u8 = 0xFF;

/// An input of several texts.
fn joined(parts: &[&str]) -> Vec<u8> {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    parts.join(&BETWEEN)
}

/// Its parts; those that are missing are empty.
fn parts<const N: usize>(data: &[u8]) -> [&[u8]; N] {
    let mut parts = data.splitn(N, |&byte| byte == BETWEEN);
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// Reads every tensor: a header that was accepted promises that this works.
fn read_all(checkpoint: &Checkpoint) {
    let mut rows = Vec::new();
    for info in checkpoint.tensors() {
        // in pieces, since blocks of 2 bits a weight become 16 times as long
        let step = ((1 << 20) / info.columns().max(1)).max(1);
        for first in (0..info.rows()).step_by(step) {
            let range = first..(first + step).min(info.rows());
            let len = range.len() * info.columns();
            let result = checkpoint.read_rows(info, range, &mut rows);
            result.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(rows.len(), len);
        }
    }
}

/// Encodes this text and one with a bit of everything: ids are tokens, and what cannot be encoded is
/// the tokenizer's error.
fn encode(tokenizer: &Tokenizer, text: &str) {
    for text in [text, "Why is the sky blue?\n\n  하늘 é <|im_end|> 12345\0"] {
        let plain = match tokenizer.encode_plain(text) {
            Ok(ids) => ids,
            Err(error) => {
                assert!(matches!(error, Error::Tokenizer { .. }), "{error}");
                continue;
            }
        };
        for &id in &plain {
            assert!((id as usize) < tokenizer.vocab_size());
            let _ = (tokenizer.token_bytes(id), tokenizer.token_text(id));
        }
        let _ = tokenizer.encode_raw(text);
    }
    assert_eq!(tokenizer.token_bytes(u32::MAX), b"");
}

/// An error that a file caused says which one.
fn names(error: &Error, file: &str) {
    let message = error.to_string();
    assert!(message.contains(file), "{message}");
}
