//! Building a tokenizer from the scored pieces of a GGUF file.

use std::collections::HashMap;
use std::path::Path;

use super::charsmap::Charsmap;
use super::control::{ControlToken, ControlTokens, looks_like_control};
use super::pieces::{BLANK, Choice, Pieces};
use super::pieces_unigram::Trie;
use super::token_table::{Alphabet, Entry, TokenTable, byte_token};
use super::tokenizer::{Inner, Parts};
use super::vocab::{TokenType, Vocab, VocabKind, byte_of, prefix};
use crate::error::{Error, Result};

/// The names that the special tokens have in files that do not say which they are.
const UNKNOWN: &str = "<unk>";
/// Control tokens that never take the white space behind them.
const AROUND_TEXTS: &[&str] = &["<s>", "<|endoftext|>"];

/// Builds the parts of the tokenizer; `kinds` are checked and one for each token.
pub(super) fn build(vocab: Vocab, mut kinds: Vec<TokenType>, path: &Path) -> Result<Parts> {
    let count = vocab.tokens.len();
    let scores = check_scores(&vocab.scores, count, path)?;
    let ids: HashMap<String, u32> = vocab.tokens.iter().cloned().zip(0..).collect();
    if vocab.token_types.is_empty() {
        // files of the time before types were written
        for (token, kind) in vocab.tokens.iter().zip(&mut kinds) {
            if byte_token(token).is_some() {
                *kind = TokenType::Byte;
            }
        }
    }
    let unknown = match vocab.unknown {
        Some(id) if id as usize >= count => {
            let problem = format!("{id}, but there are {count} tokens");
            return Err(Error::field(
                path,
                "tokenizer.ggml.unknown_token_id",
                problem,
            ));
        }
        Some(id) => Some(id),
        None => ids.get(UNKNOWN).copied(),
    };
    if let Some(id) = unknown {
        kinds[id as usize] = TokenType::Unknown;
    }
    let (table, bytes) = table(&vocab.tokens, &kinds, path)?;
    let (whole, guarded) = recognised(&vocab, &kinds);
    let choice = match vocab.kind {
        VocabKind::PiecesUnigram => Choice::Unigram(trie(&vocab.tokens, &kinds, &scores)),
        VocabKind::PiecesBpe | VocabKind::ByteLevel => Choice::Bpe,
    };
    for token in &guarded {
        // not to be met by joining
        if kinds[token.id as usize] == TokenType::UserDefined {
            kinds[token.id as usize] = TokenType::Control;
        }
    }
    if bytes.is_none() && unknown.is_none() {
        log::info!(
            "{}: tokenizer.ggml.tokens: neither bytes nor an unknown token; text without a piece is left out",
            path.display()
        );
    }
    let charsmap = match vocab.charsmap.as_slice() {
        [] => None,
        blob => Some(Charsmap::new(
            blob,
            "tokenizer.ggml.precompiled_charsmap",
            path,
        )?),
    };
    // SentencePiece models of the Llama family begin with BOS; those of the unigram kind do not.
    let prefix = prefix(&vocab, vocab.kind == VocabKind::PiecesBpe, path)?;
    let pieces = Pieces {
        choice,
        ids,
        kinds,
        scores,
        whole,
        bytes,
        unknown,
        charsmap,
        add_space_prefix: vocab.add_space_prefix,
        remove_extra_whitespaces: vocab.remove_extra_whitespaces,
    };
    Ok(Parts {
        inner: Inner::Pieces(Box::new(pieces)),
        guarded,
        table,
        prefix,
        bos: vocab.bos,
        eos: vocab.eos,
        unknown,
    })
}

fn check_scores(scores: &[f32], count: usize, path: &Path) -> Result<Vec<f32>> {
    let field = "tokenizer.ggml.scores";
    if scores.len() != count {
        let problem = format!(
            "{} entries for the {count} tokens of tokenizer.ggml.tokens",
            scores.len()
        );
        return Err(Error::field(path, field, problem));
    }
    if let Some(i) = scores.iter().position(|score| !score.is_finite()) {
        let field = format!("{field}[{i}]");
        return Err(Error::field(
            path,
            field,
            format!("is {}, expected a number", scores[i]),
        ));
    }
    // of the two zeros the one that counts as the lower would lose to the other
    Ok(scores.iter().map(|score| score + 0.0).collect())
}

type Bytes = Option<Box<[u32; 256]>>;

/// What every token stands for, and the tokens of the bytes if all have one.
fn table(tokens: &[String], kinds: &[TokenType], path: &Path) -> Result<(TokenTable, Bytes)> {
    let pieces = |byte_fallback| Alphabet::Metaspace { byte_fallback };
    let mut table = TokenTable::default();
    let mut bytes = [None; 256];
    for (id, (token, kind)) in (0..).zip(tokens.iter().zip(kinds)) {
        match kind {
            TokenType::Control | TokenType::Unknown => {
                table.push(&Entry::Control(token), pieces(false));
            }
            TokenType::Byte => {
                let byte = byte_of(token, id as usize, path)?;
                bytes[usize::from(byte)] = Some(id);
                table.push(&Entry::Normal(token), pieces(true));
            }
            TokenType::Normal | TokenType::UserDefined | TokenType::Unused => {
                table.push(&Entry::Normal(token), pieces(false));
            }
        }
    }
    let all: Option<Vec<u32>> = bytes.into_iter().collect();
    let bytes = all.and_then(|all| all.into_boxed_slice().try_into().ok());
    Ok((table, bytes))
}

/// Tokens that are found by their text: everywhere, and only where a prompt's author may write them.
fn recognised(vocab: &Vocab, kinds: &[TokenType]) -> (ControlTokens, Vec<ControlToken>) {
    let (mut whole, mut guarded) = (Vec::new(), Vec::new());
    for (id, (token, kind)) in (0..).zip(vocab.tokens.iter().zip(kinds)) {
        let takes_blanks = vocab.control_takes_blanks
            && *kind == TokenType::Control
            && !AROUND_TEXTS.contains(&token.as_str());
        let control = |text: String| ControlToken {
            id,
            text,
            lstrip: false,
            rstrip: takes_blanks,
            single_word: false,
        };
        match kind {
            TokenType::Control | TokenType::Unknown => guarded.push(control(token.clone())),
            TokenType::UserDefined if looks_like_control(token) => {
                guarded.push(control(token.clone()));
            }
            TokenType::UserDefined => {
                // blanks may be spelled as pieces do
                if token.contains(BLANK) {
                    whole.push(control(token.replace(BLANK, " ")));
                }
                whole.push(control(token.clone()));
            }
            TokenType::Normal | TokenType::Unused | TokenType::Byte => {}
        }
    }
    (ControlTokens::new(whole), guarded)
}

fn trie(tokens: &[String], kinds: &[TokenType], scores: &[f32]) -> Trie {
    let normal = (0..)
        .zip(tokens.iter().zip(kinds))
        .filter(|(_, (_, kind))| **kind == TokenType::Normal);
    let pieces: Vec<(String, u32)> = normal.map(|(id, (token, _))| (token.clone(), id)).collect();
    let worst = pieces
        .iter()
        .map(|&(_, id)| scores[id as usize])
        .fold(f32::INFINITY, f32::min);
    Trie::new(pieces, if worst.is_finite() { worst } else { 0.0 })
}
