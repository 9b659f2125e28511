//! Text to token ids.
//!
//! **Guarded tokens** are recognised by their text only where the prompt's author may write them: the
//! vocabulary's control tokens, and added tokens that look like one (`<|...|>`) or go by the name of one
//! (`<end_of_turn>`), whatever the file says about them. Everything else that a file adds (`<think>`, runs of blanks) is recognised everywhere,
//! as the model was trained to expect.
//!
//! A text is cut at the guarded tokens that are recognised, and nowhere else; what lies between is
//! encoded with guarded tokens switched off. So the ids are those of the whole text wherever the
//! messages hold no guarded token's text.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tokenizers::{Model, ModelWrapper, OffsetType, PreTokenizer, PreTokenizerWrapper, Token};

use super::chat_template::Rendered;
use super::control::{ControlToken, ControlTokens};
use super::hf_json::without_first;
use super::pieces::Pieces;
use super::token_table::TokenTable;
use super::vocab::Vocab;
use crate::error::{Error, Result};

/// The most ids that a vocabulary may have.
pub const MAX_VOCAB: usize = 1 << 20;
/// The longest token, in bytes: tokens that are found by their text are looked for at every place of a
/// text, and may be the same up to their ends.
pub(super) const MAX_TOKEN_BYTES: usize = 4096;

/// A model's tokenizer. Shared freely between threads; every method takes `&self`.
pub struct Tokenizer {
    /// Never recognises guarded tokens: these are cut out before it sees the text.
    pub(super) inner: Inner,
    /// The pre-tokenizer for text that does not begin the prompt, where that makes a difference:
    /// SentencePiece tokenizers may put a space in front of the prompt's first word alone.
    inner_rest: Option<PreTokenizerWrapper>,
    guarded: ControlTokens,
    table: TokenTable,
    /// What the tokenizer puts in front of every prompt: nothing, or the BOS token.
    pub(super) prefix: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Stands for characters without a token; the only control token that plain text may produce.
    unknown: Option<u32>,
}

/// What turns text without guarded tokens into ids.
pub(super) enum Inner {
    /// The tokenizers crate.
    Library(Box<tokenizers::Tokenizer>),
    /// The pieces of a SentencePiece model in a GGUF file.
    Pieces(Box<Pieces>),
}

/// What the ways of building a tokenizer have found out.
pub(super) struct Parts {
    pub(super) inner: Inner,
    /// Recognised only where the prompt's author may write them.
    pub(super) guarded: Vec<ControlToken>,
    pub(super) table: TokenTable,
    pub(super) prefix: Vec<u32>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file: byte-level BPE, or the pieces of a SentencePiece model.
    /// `path` is the file's, for errors. An EOS token that the file would put behind every text is left
    /// out: a prompt goes on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a `tokenizer.ggml.pre` that is not in the table; [`Error::Field`] for
    /// a token, type, merge, score or special id that does not fit the rest.
    pub fn from_vocab(vocab: Vocab, path: &Path) -> Result<Tokenizer> {
        Self::from_parts(super::vocab::build(vocab, path)?, path)
    }

    /// Builds the tokenizer of a Hugging Face directory from the bytes of its `tokenizer.json` and, if
    /// there is one, its parsed `tokenizer_config.json`. `path` is the former's, for errors.
    ///
    /// Whether a BOS token is added is for the post-processor in `tokenizer.json` to say. What follows
    /// the text there (an EOS token) is left out: a prompt goes on.
    ///
    /// # Errors
    /// [`Error::File`] when the file is no JSON or too big, [`Error::Unsupported`] for another model
    /// than BPE or Unigram, [`Error::Field`] for a part that does not fit the rest.
    pub fn from_json(
        json: &[u8],
        tokenizer_config: Option<&serde_json::Value>,
        path: &Path,
    ) -> Result<Tokenizer> {
        Self::from_parts(super::hf_json::build(json, tokenizer_config, path)?, path)
    }

    fn from_parts(parts: Parts, path: &Path) -> Result<Tokenizer> {
        let Parts {
            mut inner,
            guarded,
            table,
            prefix,
            bos,
            eos,
            unknown,
        } = parts;
        let inner_rest = match &mut inner {
            Inner::Pieces(_) => None,
            Inner::Library(inner) => {
                inner.set_encode_special_tokens(true);
                match inner.get_pre_tokenizer() {
                    Some(pre) => without_first(pre)
                        .map_err(|e| Error::field(path, "pre_tokenizer", e.to_string()))?,
                    None => None,
                }
            }
        };
        Ok(Tokenizer {
            inner,
            inner_rest,
            guarded: ControlTokens::new(guarded),
            table,
            prefix,
            bos,
            eos,
            unknown,
        })
    }

    /// Forgets the tokens with ids from `count` on, which a model has no rows for, so that no text has them any
    /// more. Changes nothing and returns false where one of them is more than a name: it could be met in plain
    /// text, or begins or ends all texts.
    pub fn truncate(&mut self, count: usize) -> bool {
        let is_beyond = |id: &u32| *id as usize >= count;
        let mut beyond = (0..).take(self.vocab_size()).filter(is_beyond);
        let named = self.prefix.iter().chain(&self.bos).chain(&self.eos);
        let mut named = named.chain(&self.unknown);
        if named.any(is_beyond) || !beyond.all(|id| self.guarded.contains(id)) {
            return false;
        }
        self.table.truncate(count);
        self.guarded.stop_finding(count);
        true
    }

    /// Number of token ids; the model's output may be wider than that.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// The token that begins a text, if the vocabulary names one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that ends a text, if the vocabulary names one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether the tokenizer puts a BOS token in front of every prompt.
    pub fn add_bos(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// The id of the token whose string in the vocabulary is `token`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let id = match &self.inner {
            Inner::Library(inner) => inner.token_to_id(token),
            Inner::Pieces(pieces) => pieces.ids.get(token).copied(),
        };
        id.filter(|&id| (id as usize) < self.vocab_size())
    }

    /// Whether `id` is a control token: one that stands for no text. False beyond the vocabulary.
    pub fn is_control(&self, id: u32) -> bool {
        self.table.is_control(id)
    }

    /// Whether `id` is recognised only where the prompt's author may write it: all control tokens, and
    /// what marks turns though the file calls it text.
    pub fn is_guarded(&self, id: u32) -> bool {
        self.guarded.contains(id)
    }

    /// All control tokens, ascending.
    pub fn control_ids(&self) -> Vec<u32> {
        self.table.control().map(|(id, _)| id).collect()
    }

    /// The bytes that `id` adds to the output, possibly part of a character. Empty for control tokens
    /// and for ids beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// The text of `id` for people, as in log-probabilities: control tokens by their name, bytes that
    /// are no character on their own as U+FFFD. Empty beyond the vocabulary.
    pub fn token_text(&self, id: u32) -> String {
        self.table.text(id)
    }

    /// Encodes a prompt in which control tokens are written by name. A BOS token comes first where the
    /// tokenizer adds one and the text does not begin with it.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when the pre-tokenizer gives up on the text.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.encode_spans(text, &[])?;
        Ok(self.with_prefix(ids))
    }

    /// Encodes a text in which nothing is a control token. No BOS token is added.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_raw`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_spans(text, std::slice::from_ref(&(0..text.len())))
    }

    /// Encodes a rendered chat: control tokens are recognised only outside of the messages' own text.
    /// A BOS token comes first where the tokenizer adds one and the template has not written it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_raw`].
    pub fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<u32>> {
        let mut spans = rendered.content_spans.clone();
        spans.sort_unstable_by_key(|span| span.start);
        let ids = self.encode_spans(&rendered.text, &spans)?;
        Ok(self.with_prefix(ids))
    }

    fn with_prefix(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if !ids.starts_with(&self.prefix) {
            ids.splice(0..0, self.prefix.iter().copied());
        }
        ids
    }

    /// `content` ascending by start.
    fn encode_spans(&self, text: &str, content: &[Range<usize>]) -> Result<Vec<u32>> {
        // Regular expressions of the file run here, and the regex engine panics when a match takes too
        // many steps. Nothing of ours is half done at that moment.
        catch_unwind(AssertUnwindSafe(|| {
            let mut ids = Vec::with_capacity(text.len() / 3);
            let mut start = 0;
            for found in self.guarded.find(text, content) {
                self.encode_between(text, start..found.range.start, &mut ids)?;
                ids.push(found.id);
                start = found.range.end;
            }
            self.encode_between(text, start..text.len(), &mut ids)?;
            Ok(ids)
        }))
        .unwrap_or_else(|_| Err(problem("the pre-tokenizer gave up on this text")))
    }

    /// Encodes a part of `text` in which no guarded token is to be recognised.
    fn encode_between(&self, text: &str, part: Range<usize>, ids: &mut Vec<u32>) -> Result<()> {
        if part.is_empty() {
            return Ok(());
        }
        let inner = match &self.inner {
            Inner::Library(inner) => inner,
            Inner::Pieces(pieces) => {
                pieces.encode(&text[part], ids);
                return Ok(());
            }
        };
        let begins_text = part.start == 0;
        let added = inner.get_added_vocabulary();
        let mut pieces = added.extract_and_normalize(inner.get_normalizer(), &text[part]);
        let pre_tokenizer = if begins_text {
            None
        } else {
            self.inner_rest.as_ref()
        };
        if let Some(pre_tokenizer) = pre_tokenizer.or(inner.get_pre_tokenizer()) {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(problem)?;
        }
        pieces
            .tokenize(|piece| self.tokenize(inner.get_model(), piece.get()))
            .map_err(problem)?;
        let encoding = pieces
            .into_encoding(None, 0, OffsetType::None)
            .map_err(problem)?;
        for &id in encoding.get_ids() {
            if self.guarded.contains(id) && Some(id) != self.unknown {
                self.encode_name(inner, id, ids)?;
            } else {
                ids.push(id);
            }
        }
        Ok(())
    }

    /// The tokens of a word. A unigram model knows the names of control tokens as pieces, and these are the
    /// best there are: they are cut in two before it sees them.
    fn tokenize(&self, model: &ModelWrapper, word: &str) -> tokenizers::Result<Vec<Token>> {
        if !matches!(model, ModelWrapper::Unigram(_)) {
            return model.tokenize(word);
        }
        let mut tokens = Vec::new();
        let mut open: Vec<Range<usize>> = std::iter::once(0..word.len()).collect();
        while let Some(part) = open.pop() {
            let text = &word[part.clone()];
            let names = self.guarded.find(text, &[]);
            let mut cuts: Vec<usize> = names
                .into_iter()
                .filter_map(|name| {
                    let (at, _) = text[name.range.clone()].char_indices().nth(1)?;
                    Some(part.start + name.range.start + at)
                })
                .collect();
            if cuts.is_empty() {
                tokens.extend(model.tokenize(text)?.into_iter().map(|mut token| {
                    token.offsets.0 += part.start;
                    token.offsets.1 += part.start;
                    token
                }));
                continue;
            }
            // the first part is taken from the end
            cuts.insert(0, part.start);
            cuts.push(part.end);
            open.extend(cuts.windows(2).rev().map(|ends| ends[0]..ends[1]));
        }
        Ok(tokens)
    }

    /// The merges of some vocabularies lead from plain text to a guarded token: its name is then
    /// encoded one character at a time.
    fn encode_name(
        &self,
        inner: &tokenizers::Tokenizer,
        id: u32,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        let name = inner.id_to_token(id).unwrap_or_default();
        let mut buffer = [0; 4];
        for c in name.chars() {
            let tokens = inner
                .get_model()
                .tokenize(c.encode_utf8(&mut buffer))
                .map_err(problem)?;
            ids.extend(
                tokens
                    .iter()
                    .map(|token| token.id)
                    .filter(|&id| !self.guarded.contains(id)),
            );
        }
        Ok(())
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("prefix", &self.prefix)
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .finish_non_exhaustive()
    }
}

fn problem(e: impl std::fmt::Display) -> Error {
    Error::Tokenizer {
        problem: e.to_string(),
    }
}
