//! Guesses by what a text, or one before it, said after the same tokens: prompt lookup. Answers that quote,
//! copy or change what they were given repeat long runs of it; free prose repeats pairs of words, which are
//! seldom followed by the same again. So guesses are told apart by how long a run was equal.

use super::recent::Recent;
use super::suffix::{Found, SuffixIndex};
use super::{Proposal, Proposer, Text};
use crate::engine::request::RequestId;
use crate::error::Result;
use std::collections::BTreeMap;

/// Texts of others are of other matters: so many tokens have to be equal.
const LEAST_RECENT: usize = 4;
/// Equal tokens from which on a guess is of the next class, in the own text and in those before it.
const OWN_CLASSES: [usize; 5] = [3, 4, 6, 10, 18];
const RECENT_CLASSES: [usize; 1] = [10];

/// Finds guesses in texts.
#[derive(Debug, Default)]
pub struct NGram {
    /// Of each text that goes on, as much as has been seen.
    own: BTreeMap<RequestId, SuffixIndex>,
    recent: Recent,
}

impl Proposer for NGram {
    /// The longest equal run decides: in the own text where it is as long as in those before it.
    fn propose(&mut self, texts: &[Text<'_>]) -> Result<Vec<Proposal>> {
        Ok(texts.iter().map(|text| self.guess(text)).collect())
    }

    fn end(&mut self, id: RequestId, tokens: &[u32], cache_salt: &[u8]) {
        self.own.remove(&id);
        self.recent.take(tokens, cache_salt);
    }

    fn is_free(&self) -> bool {
        true
    }
}

impl NGram {
    fn guess(&mut self, text: &Text<'_>) -> Proposal {
        let index = self.own.entry(text.id).or_default();
        follow(index, text.tokens);
        let own = index.longest(text.tokens);
        let own_len = own.map_or(0, |found| found.len);
        let recent = self.recent.longest(text.tokens, text.cache_salt);
        let recent = recent.filter(|found| found.len >= LEAST_RECENT && found.len > own_len);
        let (tokens, class) = match (recent, own) {
            (Some(found), _) => {
                let tokens = self.recent.after(found, text.most, text.cache_salt);
                (
                    tokens,
                    OWN_CLASSES.len() + 1 + class_of(found, &RECENT_CLASSES),
                )
            }
            (None, Some(found)) => (index.after(found, text.most), class_of(found, &OWN_CLASSES)),
            (None, None) => return Proposal::default(),
        };
        Proposal {
            tokens,
            choices: Vec::new(),
            class,
        }
    }
}

/// Brings an index up to a text. Texts grow; one that did not is another, and begun anew.
fn follow(index: &mut SuffixIndex, tokens: &[u32]) {
    let known = index.len();
    let is_same =
        known <= tokens.len() && index.tokens().next_back() == tokens[..known].last().copied();
    if !is_same {
        *index = SuffixIndex::default();
    }
    index.extend(&tokens[index.len()..]);
}

fn class_of(found: Found, bounds: &[usize]) -> usize {
    bounds.iter().filter(|&&bound| found.len >= bound).count()
}
