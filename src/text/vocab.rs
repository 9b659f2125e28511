//! Building a tokenizer from the vocabulary of a GGUF file; byte-level BPE. Pieces are in `vocab_pieces`.

use std::collections::HashMap;
use std::path::Path;

use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Merges, Vocab as BpeVocab};
use tokenizers::normalizers::unicode::NFC;

use super::control::{looks_like_control, special_tokens};
use super::pre_tokenizers;
use super::token_table::{Alphabet, Entry, TokenTable, byte_token};
use super::tokenizer::{Inner, MAX_TOKEN_BYTES, MAX_VOCAB, Parts};
use crate::error::{Error, Result};

/// A vocabulary as a GGUF file tells it.
#[derive(Debug, Clone, Default)]
pub struct Vocab {
    /// `tokenizer.ggml.model`.
    pub kind: VocabKind,
    /// `tokenizer.ggml.tokens`: the token strings by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, one for each token; empty when the file has none.
    pub token_types: Vec<TokenType>,
    /// `tokenizer.ggml.merges`: pairs with a space between them, the first merge first. Byte-level BPE
    /// only.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.scores`, one for each token. Pieces only.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer. Byte-level BPE only.
    pub pre: String,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`: ends a turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`: ends a message that a tool is to answer.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`. Pieces only.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`, where the file says; else what the kind of tokenizer does.
    pub add_bos: Option<bool>,
    /// Control tokens take the white space behind them along, but for those around a text. No key tells of
    /// it: tokenizers of the Phi-3 family are made that way. Pieces only.
    pub control_takes_blanks: bool,
    /// `tokenizer.ggml.add_space_prefix`. Pieces only.
    pub add_space_prefix: bool,
    /// `tokenizer.ggml.remove_extra_whitespaces`. Pieces only.
    pub remove_extra_whitespaces: bool,
    /// `tokenizer.ggml.precompiled_charsmap`; empty when the file has none. Pieces only.
    pub charsmap: Vec<u8>,
}

/// How a vocabulary turns text into tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VocabKind {
    /// `gpt2`: byte-level BPE by a list of merges.
    #[default]
    ByteLevel,
    /// `llama`: SentencePiece's BPE by scores.
    PiecesBpe,
    /// `t5`: SentencePiece's unigram model.
    PiecesUnigram,
}

impl VocabKind {
    /// The kind with the given name in `tokenizer.ggml.model`.
    pub fn from_gguf(name: &str) -> Option<VocabKind> {
        Some(match name {
            "gpt2" => VocabKind::ByteLevel,
            "llama" => VocabKind::PiecesBpe,
            "t5" => VocabKind::PiecesUnigram,
            _ => return None,
        })
    }

    /// The names of all kinds, for messages.
    pub fn supported() -> &'static str {
        "gpt2 (byte-level BPE), llama (SentencePiece BPE), t5 (SentencePiece unigram)"
    }
}

/// What kind of token an id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Text.
    Normal,
    /// Stands for what has no token.
    Unknown,
    /// Steers the model and stands for no text.
    Control,
    /// Text that is kept whole.
    UserDefined,
    /// Reserved.
    Unused,
    /// One byte, written `<0xNN>`.
    Byte,
}

impl TokenType {
    /// The type with the given number in `tokenizer.ggml.token_type`.
    pub fn from_gguf(number: i32) -> Option<TokenType> {
        Some(match number {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return None,
        })
    }

    /// The number of the type in `tokenizer.ggml.token_type`.
    pub fn number(self) -> i32 {
        match self {
            TokenType::Normal => 1,
            TokenType::Unknown => 2,
            TokenType::Control => 3,
            TokenType::UserDefined => 4,
            TokenType::Unused => 5,
            TokenType::Byte => 6,
        }
    }
}

/// Checks a vocabulary and builds the parts of its tokenizer. `path` is the file's, for errors.
pub(super) fn build(mut vocab: Vocab, path: &Path) -> Result<Parts> {
    if vocab.kind != VocabKind::ByteLevel {
        // in files that do not say, these go by the names that the trainer gives them
        let find = |name| vocab.tokens.iter().position(|token| token == name);
        let id = |name| find(name).and_then(|id| u32::try_from(id).ok());
        (vocab.bos, vocab.eos) = (vocab.bos.or(id("<s>")), vocab.eos.or(id("</s>")));
    }
    let types = check_tokens(&mut vocab, path)?;
    match vocab.kind {
        VocabKind::ByteLevel => byte_level(&vocab, &types, path),
        VocabKind::PiecesBpe | VocabKind::PiecesUnigram => {
            super::vocab_pieces::build(vocab, types, path)
        }
    }
}

fn byte_level(vocab: &Vocab, types: &[TokenType], path: &Path) -> Result<Parts> {
    let pre = pre_tokenizers::find(&vocab.pre).ok_or_else(|| Error::Unsupported {
        path: path.to_owned(),
        what: "pre-tokenizer (tokenizer.ggml.pre)".to_owned(),
        found: vocab.pre.clone(),
        // a tokenizer.json holds its rule, whatever that is called
        supported: format!(
            "{}; or take the model as a directory with its tokenizer.json",
            pre_tokenizers::supported()
        ),
    })?;
    let (bpe_vocab, table, added) = token_parts(&vocab.tokens, types, path)?;
    let merges = check_merges(&vocab.merges, &bpe_vocab, path)?;

    let missing = table.missing_bytes();
    if !missing.is_empty() {
        log::info!(
            "{}: tokenizer.ggml.tokens: no token stands for the bytes {missing:02x?}; text that needs them is encoded without",
            path.display()
        );
    }
    let model = BPE::builder()
        .vocab_and_merges(bpe_vocab, merges)
        .ignore_merges(pre.ignore_merges)
        .build();
    let model = model.map_err(|e| Error::field(path, "tokenizer.ggml.merges", e.to_string()))?;
    let mut inner = tokenizers::Tokenizer::new(model);
    inner.with_pre_tokenizer(Some(pre.pre_tokenizer()));
    let failed = |e: tokenizers::Error| Error::field(path, "tokenizer.ggml.tokens", e.to_string());
    if pre.nfc {
        inner.with_normalizer(Some(NFC)).map_err(failed)?;
    }
    inner.add_tokens(added).map_err(failed)?;
    Ok(Parts {
        guarded: special_tokens(&inner),
        inner: Inner::Library(Box::new(inner)),
        table,
        prefix: prefix(vocab, pre.add_bos, path)?,
        bos: vocab.bos,
        eos: vocab.eos,
        unknown: None,
    })
}

/// What comes in front of every prompt. `usual`: a BOS token does where the file does not say.
pub(super) fn prefix(vocab: &Vocab, usual: bool, path: &Path) -> Result<Vec<u32>> {
    match (vocab.add_bos, vocab.bos) {
        (Some(false), _) | (None, None) => Ok(Vec::new()),
        (None, Some(bos)) => Ok(if usual { vec![bos] } else { Vec::new() }),
        (Some(true), Some(bos)) => Ok(vec![bos]),
        (Some(true), None) => Err(Error::field(
            path,
            "tokenizer.ggml.bos_token_id",
            "missing, but tokenizer.ggml.add_bos_token is set",
        )),
    }
}

/// The type of every token; those that begin and end texts and turns are control tokens whatever the
/// file says. Tokens without a text get a name, and are never used. No text is there twice.
fn check_tokens(vocab: &mut Vocab, path: &Path) -> Result<Vec<TokenType>> {
    let count = vocab.tokens.len();
    if count == 0 || count > MAX_VOCAB {
        return Err(Error::field(
            path,
            "tokenizer.ggml.tokens",
            format!("{count} tokens, allowed are 1 to {MAX_VOCAB}"),
        ));
    }
    let mut types = vocab.token_types.clone();
    if types.is_empty() {
        types = vec![TokenType::Normal; count];
    }
    if types.len() != count {
        let problem = format!(
            "{} entries for the {count} tokens of tokenizer.ggml.tokens",
            types.len()
        );
        return Err(Error::field(path, "tokenizer.ggml.token_type", problem));
    }
    for (id, (token, kind)) in vocab.tokens.iter_mut().zip(&mut types).enumerate() {
        if token.is_empty() {
            *token = format!("[EMPTY_{id}]");
            *kind = TokenType::Unused;
        }
    }
    let mut ids: HashMap<&str, usize> = HashMap::with_capacity(count);
    for (id, token) in vocab.tokens.iter().enumerate() {
        let wrong = |problem| {
            Err(Error::field(
                path,
                format!("tokenizer.ggml.tokens[{id}]"),
                problem,
            ))
        };
        if token.len() > MAX_TOKEN_BYTES {
            let len = token.len();
            return wrong(format!("{len} bytes, allowed are {MAX_TOKEN_BYTES}"));
        }
        if let Some(first) = ids.insert(token, id) {
            return wrong(format!("\"{token}\" is token {first} already"));
        }
    }
    for (field, id) in [
        ("bos", vocab.bos),
        ("eos", vocab.eos),
        ("eot", vocab.eot),
        ("eom", vocab.eom),
    ] {
        let Some(id) = id else { continue };
        match types.get_mut(id as usize) {
            Some(kind) => *kind = TokenType::Control,
            None => {
                let field = format!("tokenizer.ggml.{field}_token_id");
                return Err(Error::field(
                    path,
                    field,
                    format!("{id}, but there are {count} tokens"),
                ));
            }
        }
    }
    Ok(types)
}

fn token_parts(
    tokens: &[String],
    types: &[TokenType],
    path: &Path,
) -> Result<(BpeVocab, TokenTable, Vec<AddedToken>)> {
    let mut table = TokenTable::default();
    let mut added = Vec::new();
    for (id, (token, kind)) in tokens.iter().zip(types).enumerate() {
        if matches!(
            kind,
            TokenType::Control | TokenType::Unknown | TokenType::UserDefined
        ) {
            let guarded = *kind != TokenType::UserDefined || looks_like_control(token);
            added.push(AddedToken::from(token.clone(), guarded).normalized(false));
        }
        let entry = match kind {
            TokenType::Normal => Entry::Normal(token),
            TokenType::Control | TokenType::Unknown => Entry::Control(token),
            TokenType::UserDefined | TokenType::Unused => Entry::Literal(token),
            TokenType::Byte => {
                byte_of(token, id, path)?;
                table.push(
                    &Entry::Normal(token),
                    Alphabet::Metaspace {
                        byte_fallback: true,
                    },
                );
                continue;
            }
        };
        table.push(&entry, Alphabet::ByteLevel);
    }
    let id = |id: usize| u32::try_from(id).expect("the vocabulary's size is limited");
    let vocab = tokens
        .iter()
        .enumerate()
        .map(|(i, token)| (token.clone(), id(i)))
        .collect();
    Ok((vocab, table, added))
}

/// The byte that a token of this type stands for.
pub(super) fn byte_of(token: &str, id: usize, path: &Path) -> Result<u8> {
    byte_token(token).ok_or_else(|| {
        let problem = format!("\"{token}\" is typed as a byte, expected <0xNN>");
        Error::field(path, format!("tokenizer.ggml.tokens[{id}]"), problem)
    })
}

fn check_merges(merges: &[String], vocab: &BpeVocab, path: &Path) -> Result<Merges> {
    let mut pairs = Vec::with_capacity(merges.len());
    for (i, merge) in merges.iter().enumerate() {
        let fail =
            |problem: String| Error::field(path, format!("tokenizer.ggml.merges[{i}]"), problem);
        // A byte-level token holds no space, so the only one is between the two.
        let Some((left, right)) = merge.split_once(' ') else {
            return Err(fail(format!(
                "\"{merge}\" is no pair of tokens with a space between"
            )));
        };
        for token in [left, right, &format!("{left}{right}")] {
            if !vocab.contains_key(token) {
                return Err(fail(format!(
                    "\"{merge}\" needs the token \"{token}\", which tokenizer.ggml.tokens lacks"
                )));
            }
        }
        pairs.push((left.to_owned(), right.to_owned()));
    }
    Ok(pairs)
}
