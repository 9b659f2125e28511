//! Guesses by what a text, or one before it, said after the same tokens: prompt lookup. Answers that quote,
//! copy or change what they were given repeat long runs of it; free prose repeats pairs of words, which are
//! seldom followed by the same again. So guesses are told apart by how long a run was equal.

use super::recent::Recent;
use super::suffix::{Found, SuffixIndex};
use super::{CLASSES, Proposal, Proposer, Text};
use crate::engine::request::RequestId;
use crate::error::Result;
use std::collections::BTreeMap;

/// Texts of others are of other matters: so many tokens have to be equal.
const LEAST_RECENT: usize = 4;
/// Equal tokens from which on a guess is of the next class, in the own text and in those before it.
const OWN_CLASSES: [usize; 5] = [3, 4, 6, 10, 18];
const RECENT_CLASSES: [usize; 1] = [10];

/// How often guesses of each class are right as far as nothing was seen.
pub const FIRST_CHANCES: [f64; CLASSES] = [0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.5, 0.8];

/// Of a text that is over, the last tokens are kept: all of its tenant wait while they are taken in.
const MOST_KEPT: usize = 8192;

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
        // who never looked anything up, or was of one token, has nothing to give either
        if self.own.remove(&id).is_some() {
            let first = tokens.len().saturating_sub(MOST_KEPT);
            self.recent.take(&tokens[first..], cache_salt);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::Sampling;

    struct Told {
        tokens: Vec<u32>,
        class: usize,
    }

    fn propose(ngram: &mut NGram, id: u64, tokens: &[u32], salt: &[u8]) -> Told {
        let sampling = Sampling::default();
        let text = Text {
            id: RequestId(id),
            tokens,
            cache_salt: salt,
            sampling: &sampling,
            most: 6,
        };
        let mut proposals = ngram.propose(&[text]).unwrap();
        assert_eq!(proposals.len(), 1);
        let Proposal {
            tokens,
            choices,
            class,
        } = proposals.remove(0);
        assert!(choices.is_empty());
        Told { tokens, class }
    }

    /// A text that was gone on with, and is over.
    fn over_with(ngram: &mut NGram, tokens: &[u32]) {
        propose(ngram, 1, &tokens[..2], b"");
        ngram.end(RequestId(1), tokens, b"");
    }

    #[test]
    fn what_never_went_on_is_not_kept() {
        let mut ngram = NGram::default();
        let text = [1, 2, 3, 4, 5, 6, 7, 8];
        ngram.end(RequestId(1), &text, b"");
        assert_eq!(propose(&mut ngram, 2, &text[..5], b"").tokens, [0; 0]);
        over_with(&mut ngram, &text);
        assert_eq!(propose(&mut ngram, 3, &text[..5], b"").tokens, [6, 7, 8]);
    }

    #[test]
    fn longer_runs_are_of_other_classes() {
        let mut classes = Vec::new();
        for len in 2..=20u32 {
            let run: Vec<u32> = (0..len).collect();
            let text = [&run[..], &[100, 101], &run[..]].concat();
            let told = propose(&mut NGram::default(), 1, &text, b"");
            assert_eq!(told.tokens[..2], [100, 101]);
            classes.push(told.class);
        }
        let own = [0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5];
        assert_eq!(classes, own);

        let mut ngram = NGram::default();
        let over: Vec<u32> = (0..40).collect();
        over_with(&mut ngram, &over);
        let class = |ngram: &mut NGram, id, text: &[u32]| propose(ngram, id, text, b"").class;
        assert_eq!(propose(&mut ngram, 2, &over[..3], b"").tokens, [0; 0]);
        assert_eq!(class(&mut ngram, 3, &over[..4]), 6);
        assert_eq!(class(&mut ngram, 4, &over[..10]), 7);
        assert_eq!(
            FIRST_CHANCES.len(),
            OWN_CLASSES.len() + RECENT_CLASSES.len() + 2
        );
        assert!(
            FIRST_CHANCES
                .iter()
                .all(|chance| (0.0..1.0).contains(chance))
        );
    }

    #[test]
    fn the_own_text_comes_first_and_the_longer_run_before_that() {
        let mut ngram = NGram::default();
        over_with(&mut ngram, &[1, 2, 3, 4, 5, 77, 78]);
        let own = [2, 3, 4, 5, 88, 89, 2, 3, 4, 5];
        assert_eq!(propose(&mut ngram, 2, &own, b"").tokens[..2], [88, 89]);
        let own = [2, 3, 4, 5, 88, 89, 1, 2, 3, 4, 5];
        assert_eq!(propose(&mut ngram, 3, &own, b"").tokens, [77, 78]);
        assert_eq!(propose(&mut ngram, 4, &own, b"x").tokens[..2], [88, 89]);
    }

    #[test]
    fn a_text_is_followed_from_wherever_it_is_seen_first() {
        let text: Vec<u32> = (0..400).map(|i| i * i % 23).collect();
        let (mut always, mut at_times) = (NGram::default(), NGram::default());
        for end in 0..=text.len() {
            let told = propose(&mut always, 1, &text[..end], b"");
            // one that was preempted, or begins late, is seen again with more of it
            if end % 37 == 0 {
                let late = propose(&mut at_times, 1, &text[..end], b"");
                let new = propose(&mut NGram::default(), 1, &text[..end], b"");
                assert_eq!((&told.tokens, told.class), (&late.tokens, late.class));
                assert_eq!((&told.tokens, told.class), (&new.tokens, new.class));
            }
        }
        assert!(!propose(&mut always, 1, &text, b"").tokens.is_empty());
        // a text that is another one is begun anew
        assert_eq!(propose(&mut always, 1, &[0, 1], b"").tokens, [0; 0]);
        let told = propose(&mut always, 1, &[3, 4, 5, 3, 4], b"");
        assert_eq!(told.tokens, [5, 3, 4]);
    }

    #[test]
    fn siblings_have_indexes_of_their_own_and_nothing_is_left_of_who_is_over() {
        let mut ngram = NGram::default();
        let prompt = [1, 2, 3, 4, 1, 2];
        assert_eq!(propose(&mut ngram, 1, &prompt, b"").tokens[0], 3);
        let first = [&prompt[..], &[7, 1, 2]].concat();
        let second = [&prompt[..], &[8, 1, 2]].concat();
        assert_eq!(propose(&mut ngram, 1, &first, b"").tokens[0], 7);
        assert_eq!(propose(&mut ngram, 2, &second, b"").tokens[0], 8);
        ngram.end(RequestId(1), &first, b"");
        assert_eq!(propose(&mut ngram, 2, &second, b"").tokens[0], 8);
        ngram.end(RequestId(2), &second, b"");
        ngram.end(RequestId(3), &second, b"");
        assert!(ngram.own.is_empty());
    }
}
