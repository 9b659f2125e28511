//! Tests that need several parts of this module: tokenizers of both kinds, templates, content spans.

#[expect(
    clippy::single_range_in_vec_init,
    reason = "lists of spans happen to hold one"
)]
mod json;
mod pieces;
#[expect(
    clippy::single_range_in_vec_init,
    reason = "lists of spans happen to hold one"
)]
mod spans;
mod templates;
mod tokenizer;

use std::path::Path;

use super::{TokenType, Tokenizer, Vocab};

/// The character that stands for a byte in byte-level vocabularies.
fn byte_char(byte: u8) -> char {
    let others = (0..byte).filter(|b| !printable(*b)).count();
    if printable(byte) {
        char::from(byte)
    } else {
        char::from_u32(0x100 + u32::try_from(others).unwrap()).unwrap()
    }
}

fn printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// A text in the byte-level alphabet.
fn spell(text: &str) -> String {
    text.bytes().map(byte_char).collect()
}

/// Every byte, a few words with their merges, and the control tokens of a ChatML model. The merges
/// lead to the text of the control token `<x>` too.
fn small_vocab(pre: &str) -> Vocab {
    let mut vocab = Vocab {
        pre: pre.to_owned(),
        ..Vocab::default()
    };
    let mut add = |token: String, kind| {
        vocab.tokens.push(token);
        vocab.token_types.push(kind);
    };
    for control in ["<|im_start|>", "<|im_end|>", "<x>", "[INST]"] {
        add(control.to_owned(), TokenType::Control);
    }
    add("<think>".to_owned(), TokenType::UserDefined);
    add("<|tool|>".to_owned(), TokenType::UserDefined);
    for byte in 0..=255 {
        add(byte_char(byte).to_string(), TokenType::Normal);
    }
    for merge in [
        "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d", "1 2", "< x",
        "<x >", "Ġ Ġ",
    ] {
        let token = merge.replace(' ', "");
        if !vocab.tokens.contains(&token) {
            vocab.tokens.push(token);
            vocab.token_types.push(TokenType::Normal);
        }
        vocab.merges.push(merge.to_owned());
    }
    vocab.bos = Some(0);
    vocab.eos = Some(1);
    vocab
}

fn small(pre: &str) -> Tokenizer {
    Tokenizer::from_vocab(small_vocab(pre), Path::new("small.gguf")).unwrap()
}

/// The output for a list of ids.
fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter()
        .flat_map(|&id| tokenizer.token_bytes(id))
        .copied()
        .collect()
}
