//! Vocabularies of scored pieces, as SentencePiece makes them: text to ids.
//!
//! Blanks are written `▁`. A text has no words here: pieces may be joined over its whole length. Which
//! ones they are decides one of two models, `pieces_bpe` and `pieces_unigram`; what has no piece is
//! spelled in bytes (`<0xNN>`), or else stands as the unknown token.
//!
//! Ids are those of SentencePiece, ties included: equal scores are decided by which comes first in the
//! text, not by an order of pairs. So the pieces are joined here, and not by a list of merges made from
//! the scores.

use std::collections::HashMap;

use super::charsmap::Charsmap;
use super::control::ControlTokens;
use super::pieces_bpe::join;
use super::pieces_unigram::Trie;
use super::vocab::TokenType;

/// What stands for a blank.
pub(super) const BLANK: char = '▁';

/// How pieces are chosen.
#[derive(Debug)]
pub(super) enum Choice {
    /// Neighbours are joined, the best score first.
    Bpe,
    /// The sum of scores is the greatest there is.
    Unigram(Trie),
}

/// A vocabulary of pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) choice: Choice,
    /// Every token string with its id.
    pub(super) ids: HashMap<String, u32>,
    /// By id.
    pub(super) kinds: Vec<TokenType>,
    /// By id; finite, and no negative zero.
    pub(super) scores: Vec<f32>,
    /// Tokens that are recognised by their text wherever it stands.
    pub(super) whole: ControlTokens,
    /// The ids of all bytes, where the vocabulary has them.
    pub(super) bytes: Option<Box<[u32; 256]>>,
    /// Stands for what has no piece.
    pub(super) unknown: Option<u32>,
    pub(super) charsmap: Option<Charsmap>,
    /// A blank is put in front of every text.
    pub(super) add_space_prefix: bool,
    /// Blanks at both ends go, and runs of them become one.
    pub(super) remove_extra_whitespaces: bool,
}

impl Pieces {
    /// Appends the ids of a text in which no guarded token is to be recognised. A part behind a token
    /// that was recognised is a text of its own.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        // either becomes the same piece, and a run of both may be a token that is kept whole
        let blanks;
        let text = match text.contains(BLANK) && !self.remove_extra_whitespaces {
            true => {
                blanks = text.replace(BLANK, " ");
                blanks.as_str()
            }
            false => text,
        };
        let mut start = 0;
        for found in self.whole.find(text, &[]) {
            self.encode_text(&text[start..found.range.start], ids);
            ids.push(found.id);
            start = found.range.end;
        }
        self.encode_text(&text[start..], ids);
    }

    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) {
        let text = self.normalized(text);
        let mut after_unknown = false;
        let mut each = |piece: &str, id: Option<u32>| {
            let unknown = id.is_none() && self.bytes.is_none();
            match (id, &self.bytes) {
                (Some(id), _) => ids.push(id),
                (None, Some(table)) => ids.extend(piece.bytes().map(|b| table[usize::from(b)])),
                // a run of unknown characters is one token
                (None, None) if !after_unknown => ids.extend(self.unknown),
                (None, None) => {}
            }
            after_unknown = unknown;
        };
        match &self.choice {
            Choice::Bpe => join(self, &text, &mut each),
            Choice::Unigram(trie) => trie.best(&self.scores, &text, &mut each),
        }
    }

    /// The id of a piece that text can become, its score, and whether it is only a step to others.
    pub(super) fn piece(&self, text: &str) -> Option<(u32, f32, bool)> {
        let &id = self.ids.get(text)?;
        match self.kinds[id as usize] {
            TokenType::Normal | TokenType::UserDefined => {
                Some((id, self.scores[id as usize], false))
            }
            TokenType::Unused => Some((id, self.scores[id as usize], true)),
            TokenType::Unknown | TokenType::Control | TokenType::Byte => None,
        }
    }

    /// What the beginning of a text becomes, and the rest of the text.
    fn replaced<'a>(&'a self, text: &'a str) -> (&'a str, &'a str) {
        match self.charsmap.as_ref().and_then(|map| map.longest(text)) {
            Some((replacement, len)) => (replacement, &text[len..]),
            None => text.split_at(text.chars().next().map_or(0, char::len_utf8)),
        }
    }

    /// A text as the pieces spell it.
    fn normalized(&self, text: &str) -> String {
        let mut rest = text;
        while self.remove_extra_whitespaces
            && let (" ", after) = self.replaced(rest)
        {
            rest = after;
        }
        let mut out = String::with_capacity(text.len() + text.len() / 4);
        if rest.is_empty() {
            return out;
        }
        if self.add_space_prefix {
            out.push(BLANK);
        }
        let mut after_blank = self.remove_extra_whitespaces;
        while !rest.is_empty() {
            let (mut added, after) = self.replaced(rest);
            if after_blank {
                added = added.trim_start_matches(' ');
            }
            out.extend(added.chars().map(|c| if c == ' ' { BLANK } else { c }));
            if !added.is_empty() {
                after_blank = self.remove_extra_whitespaces && added.ends_with(' ');
            }
            rest = after;
        }
        if self.remove_extra_whitespaces {
            out.truncate(out.trim_end_matches(BLANK).len());
        }
        out
    }
}
