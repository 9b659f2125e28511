//! Building a tokenizer from the vocabulary of a GGUF file.

use std::collections::HashMap;
use std::path::Path;

use tokenizers::models::bpe::{BPE, Merges, Vocab as BpeVocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::token_table::{Alphabet, Entry, TokenTable};
use super::tokenizer::{MAX_VOCAB, Parts, looks_like_control};
use crate::error::{Error, Result};

/// A byte-level BPE vocabulary as a GGUF file tells it.
#[derive(Debug, Clone, Default)]
pub struct Vocab {
    /// `tokenizer.ggml.tokens`: the token strings by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, one for each token; empty when the file has none.
    pub token_types: Vec<TokenType>,
    /// `tokenizer.ggml.merges`: pairs with a space between them, the first merge first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.pre`: the name of the pre-tokenizer.
    pub pre: String,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`, or what the family does when the file does not say.
    pub add_bos: bool,
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
}

/// How a text is cut into words before byte-level BPE.
struct Pre {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    cut: Cut,
    /// A word that is a token as a whole is taken as that, without going through the merges.
    ignore_merges: bool,
    /// The text is brought to Unicode's composed form first.
    nfc: bool,
}

enum Cut {
    /// GPT-2's rule.
    Gpt2,
    /// Every digit on its own, then GPT-2's rule.
    DigitsGpt2,
    /// A rule of its own.
    Regex(&'static str),
}

/// GPT-4's rule with up to three digits in a word, as in Llama 3.
const THREE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with every digit on its own, as in Qwen 2.
const ONE_DIGIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Words are cut where upper case follows lower case; every digit on its own; as in Mistral's Tekken.
const CASED: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Every pre-tokenizer that is known by name. One line makes another one known.
const PRE: [Pre; 5] = [
    Pre {
        names: &["gpt-2", "gpt2", "default", "phi-2", "olmo"],
        cut: Cut::Gpt2,
        ignore_merges: false,
        nfc: false,
    },
    Pre {
        names: &["smollm", "starcoder", "refact", "codeshell"],
        cut: Cut::DigitsGpt2,
        ignore_merges: false,
        nfc: false,
    },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3"],
        cut: Cut::Regex(THREE_DIGITS),
        ignore_merges: true,
        nfc: false,
    },
    Pre {
        names: &["qwen2"],
        cut: Cut::Regex(ONE_DIGIT),
        ignore_merges: false,
        nfc: true,
    },
    Pre {
        names: &["tekken"],
        cut: Cut::Regex(CASED),
        ignore_merges: true,
        nfc: false,
    },
];

impl Cut {
    fn pre_tokenizer(&self) -> PreTokenizerWrapper {
        let byte_level =
            |use_regex| PreTokenizerWrapper::from(ByteLevel::new(false, false, use_regex));
        match self {
            Cut::Gpt2 => byte_level(true),
            Cut::DigitsGpt2 => {
                Sequence::new(vec![Digits::new(true).into(), byte_level(true)]).into()
            }
            Cut::Regex(rule) => {
                let split = Split::new(
                    SplitPattern::Regex((*rule).to_owned()),
                    SplitDelimiterBehavior::Isolated,
                    false,
                );
                let split = split.expect("the table holds valid expressions only");
                Sequence::new(vec![split.into(), byte_level(false)]).into()
            }
        }
    }
}

/// Checks a vocabulary and builds the parts of its tokenizer. `path` is the file's, for errors.
pub(super) fn build(vocab: Vocab, path: &Path) -> Result<Parts> {
    let pre = PRE
        .iter()
        .find(|pre| pre.names.contains(&vocab.pre.as_str()))
        .ok_or_else(|| Error::Unsupported {
            path: path.to_owned(),
            what: "pre-tokenizer (tokenizer.ggml.pre)".to_owned(),
            found: vocab.pre.clone(),
            supported: PRE
                .iter()
                .flat_map(|pre| pre.names)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        })?;
    let types = check_tokens(&vocab, path)?;
    let (bpe_vocab, table, added) = token_parts(&vocab.tokens, &types, path)?;
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
    inner.with_pre_tokenizer(Some(pre.cut.pre_tokenizer()));
    let failed = |e: tokenizers::Error| Error::field(path, "tokenizer.ggml.tokens", e.to_string());
    if pre.nfc {
        inner.with_normalizer(Some(NFC)).map_err(failed)?;
    }
    inner.add_tokens(added).map_err(failed)?;

    let prefix = match (vocab.add_bos, vocab.bos) {
        (false, _) => Vec::new(),
        (true, Some(bos)) => vec![bos],
        (true, None) => {
            return Err(Error::field(
                path,
                "tokenizer.ggml.bos_token_id",
                "missing, but tokenizer.ggml.add_bos_token is set",
            ));
        }
    };
    Ok(Parts {
        inner,
        table,
        prefix,
        bos: vocab.bos,
        eos: vocab.eos,
        unknown: None,
    })
}

/// The type of every token; BOS and EOS are control tokens whatever the file says.
fn check_tokens(vocab: &Vocab, path: &Path) -> Result<Vec<TokenType>> {
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
    for (field, id) in [("bos", vocab.bos), ("eos", vocab.eos)] {
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
    let mut ids: HashMap<&str, usize> = HashMap::with_capacity(tokens.len());
    let mut table = TokenTable::default();
    let mut added = Vec::new();
    for (id, (token, kind)) in tokens.iter().zip(types).enumerate() {
        let field = || format!("tokenizer.ggml.tokens[{id}]");
        if let Some(first) = ids.insert(token, id) {
            return Err(Error::field(
                path,
                field(),
                format!("\"{token}\" is token {first} already"),
            ));
        }
        if matches!(
            kind,
            TokenType::Control | TokenType::Unknown | TokenType::UserDefined
        ) {
            if token.is_empty() {
                return Err(Error::field(
                    path,
                    field(),
                    "a token of this type needs a text",
                ));
            }
            let guarded = *kind != TokenType::UserDefined || looks_like_control(token);
            added.push(AddedToken::from(token.clone(), guarded).normalized(false));
        }
        let entry = match kind {
            TokenType::Normal => Entry::Normal(token),
            TokenType::Control | TokenType::Unknown => Entry::Control(token),
            TokenType::UserDefined | TokenType::Unused => Entry::Literal(token),
            TokenType::Byte => {
                if super::token_table::byte_token(token).is_none() {
                    return Err(Error::field(
                        path,
                        field(),
                        format!("\"{token}\" is typed as a byte, expected <0xNN>"),
                    ));
                }
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
