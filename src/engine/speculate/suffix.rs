//! Where a text's last tokens stood before: chains of the places that follow the same two tokens, newest
//! first, as compressors of the LZ77 family keep them (RFC 1951, section 4).
//!
//! ```text
//! text      a  b  c  a  b  d  a  b        the context ends with a b
//! position  0  1  2  3  4  5  6  7
//! heads     (a b) -> 5     links  5 -> 2   d and c followed it; nothing follows the last a b yet
//! ```
//!
//! A place is entered when the token that follows is known, so whatever is found has a follower. A token
//! costs an entry in a sorted map, a search looks at [`MOST_LOOKS`] places and compares [`MOST_MATCHED`]
//! tokens at each: neither depends on what the text repeats. About 44 bytes a token: 4 for the token, 4 for
//! its link, and up to 36 for a pair of tokens that is new.

use std::collections::{BTreeMap, VecDeque};

/// Stands between texts; no token, and never proposed.
pub const BREAK: u32 = u32::MAX;
/// Places that a search looks at.
pub const MOST_LOOKS: usize = 32;
/// Tokens that are compared at each.
pub const MOST_MATCHED: usize = 64;
/// Tokens that have to be equal before a place is looked at.
pub const LEAST_MATCHED: usize = 2;

/// A text, and where each two tokens of it stand.
#[derive(Clone, Debug, Default)]
pub struct SuffixIndex {
    tokens: VecDeque<u32>,
    /// Tokens that were forgotten: the first that is held stands at this position.
    start: u64,
    /// The newest position that follows two tokens.
    heads: BTreeMap<(u32, u32), u64>,
    /// For each token that is held, how far back the same two tokens were followed before; 0 where nowhere.
    links: VecDeque<u32>,
}

/// A place whose tokens before it are a context's last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The position of what followed.
    pub at: u64,
    /// How many tokens before it are equal, [`LEAST_MATCHED`] to [`MOST_MATCHED`].
    pub len: usize,
}

impl SuffixIndex {
    /// Tokens that are held.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens that are held, oldest first.
    pub fn tokens(&self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator {
        self.tokens.iter().copied()
    }

    /// The text goes on with `token`, or another one begins after a [`BREAK`].
    pub fn push(&mut self, token: u32) {
        let position = self.end();
        let link = self.pair_before(position).filter(|_| token != BREAK);
        let before = link.and_then(|pair| self.heads.insert(pair, position));
        // what is forgotten took its entry along
        self.links
            .push_back(before.map_or(0, |before| (position - before) as u32));
        self.tokens.push_back(token);
    }

    /// The text goes on with `tokens`.
    pub fn extend(&mut self, tokens: &[u32]) {
        tokens.iter().for_each(|&token| self.push(token));
    }

    /// Forgets the oldest `count` tokens.
    ///
    /// # Panics
    /// When fewer are held.
    pub fn forget(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} of {} tokens", self.len());
        let end = self.start + count as u64;
        // the first that stays still follow two that go: they are found no more
        for position in self.start..(end + LEAST_MATCHED as u64).min(self.end()) {
            if let Some(pair) = self.pair_before(position)
                && self.heads.get(&pair) == Some(&position)
            {
                self.heads.remove(&pair);
            }
        }
        self.tokens.drain(..count);
        self.links.drain(..count);
        self.start = end;
    }

    /// The longest run of tokens before a place that `context` ends with, the newest of several; `None`
    /// where its last two tokens were followed by nothing yet.
    pub fn longest(&self, context: &[u32]) -> Option<Found> {
        self.search(context).0
    }

    /// The same, and how many places were looked at.
    fn search(&self, context: &[u32]) -> (Option<Found>, usize) {
        let Some(&[first, second]) = context.last_chunk::<LEAST_MATCHED>() else {
            return (None, 0);
        };
        let (mut best, mut looks) = (None::<Found>, 0);
        let mut next = self.heads.get(&(first, second)).copied();
        while let Some(at) = next {
            let len = self.matched(at, context);
            looks += 1;
            if best.is_none_or(|best| len > best.len) {
                best = Some(Found { at, len });
            }
            if len == MOST_MATCHED || looks == MOST_LOOKS {
                break;
            }
            let back = u64::from(self.links[(at - self.start) as usize]);
            // a chain ends where it was cut: with two tokens before a place that are held no more
            let oldest = self.start + LEAST_MATCHED as u64;
            next = at.checked_sub(back).filter(|&at| back > 0 && at >= oldest);
        }
        (best, looks)
    }

    /// What followed a place that [`SuffixIndex::longest`] found: at most `most` tokens of the same text.
    /// Where the context was this text, what follows may come to its end; then it is followed by what began
    /// there, as long as more than one turn of it was equal.
    pub fn after(&self, found: Found, most: usize) -> Vec<u32> {
        let start = (found.at - self.start) as usize;
        let period = self.len() - start;
        let most = if found.len >= period {
            most
        } else {
            most.min(period)
        };
        (0..most)
            .map(|i| self.tokens[start + i % period])
            .take_while(|&token| token != BREAK)
            .collect()
    }

    /// Tokens before `at` that are equal to the last ones of `context`.
    fn matched(&self, at: u64, context: &[u32]) -> usize {
        let before = self.tokens.range(..(at - self.start) as usize).rev();
        let equal = before.zip(context.iter().rev());
        equal
            .take(MOST_MATCHED)
            .take_while(|(a, b)| a == b && **a != BREAK)
            .count()
    }

    /// The two tokens before a position, where both are held and of one text.
    fn pair_before(&self, position: u64) -> Option<(u32, u32)> {
        let at = (position - self.start) as usize;
        let (first, second) = (
            self.tokens.get(at.checked_sub(2)?)?,
            self.tokens.get(at - 1)?,
        );
        (*first != BREAK && *second != BREAK).then_some((*first, *second))
    }

    fn end(&self) -> u64 {
        self.start + self.tokens.len() as u64
    }
}
