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
//! tokens at each: neither depends on what the text repeats. About 40 bytes a token: 4 for the token, 4 for
//! its link, and some 32 for a pair of tokens that is new.

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

    /// What followed a place that [`SuffixIndex::longest`] found: at most `most` tokens of the same text. Where
    /// that comes to the end of what is held, it goes on as it began, if all of it was there twice in a row.
    pub fn after(&self, found: Found, most: usize) -> Vec<u32> {
        let start = (found.at - self.start) as usize;
        let turn = self.len() - start;
        let is_second = turn <= start.min(MOST_MATCHED) && {
            let first = self.tokens.range(start - turn..start);
            first.eq(self.tokens.range(start..))
        };
        let most = if is_second { most } else { most.min(turn) };
        (0..most)
            .map(|i| self.tokens[start + i % turn])
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(tokens: &[u32]) -> SuffixIndex {
        let mut index = SuffixIndex::default();
        index.extend(tokens);
        index
    }

    /// What a search has to find, by looking at every place: the position and the length.
    fn sought(held: &[u32], context: &[u32]) -> Option<(usize, usize)> {
        let mut best = None::<(usize, usize)>;
        let mut looks = 0;
        for at in (2..held.len()).rev() {
            let mut len = 0;
            while len < MOST_MATCHED
                && len < at
                && len < context.len()
                && held[at - 1 - len] == context[context.len() - 1 - len]
                && held[at - 1 - len] != BREAK
            {
                len += 1;
            }
            if len < LEAST_MATCHED || held[at] == BREAK || looks == MOST_LOOKS {
                continue;
            }
            looks += 1;
            if best.is_none_or(|(_, longest)| len > longest) {
                best = Some((at, len));
            }
        }
        best
    }

    /// What follows a place: the held text, and after its end itself again where it repeats already.
    fn follows(held: &[u32], at: usize, most: usize) -> Vec<u32> {
        let (before, mut turn) = (&held[..at], held[at..].to_vec());
        if turn.len() <= MOST_MATCHED && before.ends_with(&turn) {
            turn = turn.repeat(most);
        }
        turn.truncate(most);
        turn.into_iter()
            .take_while(|&token| token != BREAK)
            .collect()
    }

    fn agrees(index: &SuffixIndex, held: &[u32], context: &[u32]) {
        let found = index.longest(context);
        let start = index.start;
        assert_eq!(
            found.map(|found| ((found.at - start) as usize, found.len)),
            sought(held, context),
            "{held:?} {context:?}"
        );
        if let Some(found) = found {
            let after = index.after(found, 9);
            let at = (found.at - start) as usize;
            assert_eq!(after, follows(held, at, 9), "{held:?} {context:?}");
            assert!(!after.is_empty() && !after.contains(&BREAK));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn it_finds_what_looking_everywhere_finds(
            letters in 1u32..5,
            seeds in prop::collection::vec(0u32..1000, 0..120),
            context in prop::collection::vec(0u32..4, 0..12),
            forget in prop::collection::vec(0usize..40, 3),
        ) {
            let tokens: Vec<u32> = seeds.iter().map(|seed| seed % letters).collect();
            let mut index = SuffixIndex::default();
            for (i, &token) in tokens.iter().enumerate() {
                index.push(token);
                agrees(&index, &tokens[..=i], &tokens[..=i]);
            }
            agrees(&index, &tokens, &context);
            // and with breaks in it, its beginning being forgotten
            let mut held = tokens.clone();
            for count in forget {
                let count = count.min(held.len());
                index.forget(count);
                held.drain(..count);
                for &token in &[&[BREAK][..], &context[..], &[BREAK, 1, 2, 1, 2, 1]].concat() {
                    index.push(token);
                    held.push(token);
                }
                agrees(&index, &held, &context);
                agrees(&index, &held, &tokens);
                agrees(&index, &held, &held);
                assert!(index.tokens().eq(held.iter().copied()));
            }
        }
    }

    #[test]
    fn what_repeats_goes_on_as_far_as_is_asked() {
        let index = of(&[9, 1, 2, 3, 1, 2, 3, 1]);
        let found = index.longest(&[9, 1, 2, 3, 1, 2, 3, 1]).unwrap();
        assert_eq!((found.at, found.len), (5, 4));
        assert_eq!(index.after(found, 7), [2, 3, 1, 2, 3, 1, 2]);
        // once is no repetition
        let index = of(&[1, 2, 3, 4, 1, 2]);
        let found = index.longest(&[1, 2, 3, 4, 1, 2]).unwrap();
        assert_eq!(index.after(found, 9), [3, 4, 1, 2]);
    }

    #[test]
    fn a_step_of_a_long_text_takes_no_longer_than_one_of_a_short_text() {
        for (len, letters) in [
            (100_000, 1),
            (1_000_000, 1),
            (1_000_000, 2),
            (1_000_000, 50),
        ] {
            let (mut index, mut state) = (SuffixIndex::default(), 1u32);
            let (mut context, mut looks) = (Vec::new(), 0);
            for _ in 0..len {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                let token = (state >> 16) % letters;
                index.push(token);
                context.push(token);
                looks += index.search(&context).1;
            }
            let most = if letters == 1 { 1 } else { MOST_LOOKS };
            assert!(looks > len / 2, "{looks} of {len}");
            assert!(
                looks <= most * len + MOST_MATCHED * MOST_LOOKS,
                "{looks} of {len}"
            );
            assert!(index.heads.len() <= (letters * letters) as usize);
        }
    }

    #[test]
    fn nothing_is_left_of_what_was_forgotten() {
        let mut index = SuffixIndex::default();
        for turn in 0..100 {
            index.extend(&(0..50).map(|i| turn * 7 + i).collect::<Vec<u32>>());
            index.push(BREAK);
            index.forget(index.len().saturating_sub(102));
        }
        assert!(index.heads.len() <= 100, "{}", index.heads.len());
        index.forget(index.len());
        assert!(index.is_empty() && index.heads.is_empty());
        index.extend(&[1, 2, 3]);
        assert_eq!(index.after(index.longest(&[1, 2]).unwrap(), 4), [3]);
    }
}
