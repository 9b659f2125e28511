//! Drafted tokens: what they were drawn from, and the draw itself.

use super::random::{DRAFT, NOISE, gumbel, stream};

/// Entries of a list, at most.
pub const MOST_CHOICES: usize = 32;

/// How far from 1 the sum of a list may be: f32 probabilities that were added up in f32.
const OPEN_SUM: f64 = 1e-5;

/// A token that a draft proposed, and what it was drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Drafted {
    /// The token.
    pub token: u32,
    /// What it was drawn from, by [`draw_from`]: different tokens of the vocabulary with their
    /// probabilities, which sum to 1; the token among them, with more than 0. At most [`MOST_CHOICES`].
    ///
    /// Any list is right, so a draft may leave out what is unlikely, as long as it draws from what is
    /// left. What is drawn in the end is distributed as without a draft up to what the sum differs from 1.
    pub choices: Vec<(u32, f32)>,
}

impl Drafted {
    /// The probability with which `token` was drawn.
    pub(super) fn share(&self, token: u32) -> f32 {
        let of = self.choices.iter().find(|(id, _)| *id == token);
        of.map_or(0.0, |(_, share)| *share)
    }

    /// The list as words of a step: the token first.
    ///
    /// # Panics
    /// Where it is none of a vocabulary of `vocab_size` tokens.
    pub(super) fn words(&self, vocab_size: usize) -> Vec<u32> {
        self.check(vocab_size);
        let own = self.choices.iter().filter(|(id, _)| *id == self.token);
        let others = self.choices.iter().filter(|(id, _)| *id != self.token);
        let words = |(id, share): &(u32, f32)| [*id, share.to_bits()];
        own.chain(others).flat_map(words).collect()
    }

    /// What [`Drafted::words`] made; nothing of no words.
    pub(super) fn from_words(words: &[u32]) -> Option<Drafted> {
        let choice = |words: &[u32]| (words[0], f32::from_bits(words[1]));
        let choices: Vec<(u32, f32)> = words.chunks_exact(2).map(choice).collect();
        let token = choices.first()?.0;
        Some(Drafted { token, choices })
    }

    fn check(&self, vocab_size: usize) {
        let (token, count) = (self.token, self.choices.len());
        assert!(
            (1..=MOST_CHOICES).contains(&count),
            "{count} choices of 1 to {MOST_CHOICES}"
        );
        // masses are added as 64-bit integers, in units of 2^-40
        assert!(vocab_size < 1 << 24, "{vocab_size} tokens");
        let mut ids: Vec<u32> = self.choices.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let twice = ids.windows(2).find(|pair| pair[0] == pair[1]);
        assert!(twice.is_none(), "token {twice:?} in a list twice");
        let last = ids[count - 1];
        assert!((last as usize) < vocab_size, "token {last} of {vocab_size}");
        let is_share = |(_, share): &(u32, f32)| (0.0..=1.0).contains(share);
        let wrong = self.choices.iter().find(|choice| !is_share(choice));
        assert!(wrong.is_none(), "{wrong:?} is no probability");
        assert!(
            self.share(token) > 0.0,
            "token {token} cannot have been drawn"
        );
        let sum: f64 = self.choices.iter().map(|(_, s)| f64::from(*s)).sum();
        assert!((sum - 1.0).abs() <= OPEN_SUM, "probabilities sum to {sum}");
    }
}

/// Draws from `choices`, tokens with their probabilities, in whatever order they are: the place of the
/// one that is drawn. By a stream of (seed, position) that neither the sampler's noise nor what accepts
/// a drafted token hangs together with.
///
/// # Panics
/// Where there is none with a probability above 0.
pub fn draw_from(choices: &[(u32, f32)], seed: u64, position: u32) -> usize {
    drawn(choices, stream(seed, position, DRAFT))
}

/// The same with the sampler's own noise: where `choices` are near what a row without a list draws from, the
/// token is the one that it draws.
///
/// # Panics
/// As [`draw_from`].
pub fn draw_alike(choices: &[(u32, f32)], seed: u64, position: u32) -> usize {
    drawn(choices, stream(seed, position, NOISE))
}

fn drawn(choices: &[(u32, f32)], stream: [u32; 4]) -> usize {
    let score = |&(id, share): &(u32, f32)| f64::from(share).ln() + gumbel(stream, id);
    let likely = choices.iter().enumerate().filter(|(_, c)| c.1 > 0.0);
    let scored = likely.map(|(at, choice)| (at, choice.0, score(choice)));
    // of equals the lower id, so that the order is nothing
    let drawn = scored.max_by(|a, b| a.2.total_cmp(&b.2).then(b.1.cmp(&a.1)));
    drawn.expect("a choice that can be drawn").0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(token: u32, choices: &[(u32, f32)]) -> Drafted {
        let choices = choices.to_vec();
        Drafted { token, choices }
    }

    #[test]
    fn a_list_comes_back_from_its_words_with_its_token_first() {
        let list = drafted(7, &[(3, 0.25), (7, 0.5), (900, 0.25), (4, 0.0)]);
        let words = list.words(901);
        let half = 0.5f32.to_bits();
        assert_eq!((words.len(), &words[..2]), (8, &[7, half][..]));
        let back = Drafted::from_words(&words).unwrap();
        assert_eq!(back.token, 7);
        for (id, share) in list.choices {
            assert_eq!(back.share(id), share);
        }
        assert_eq!((back.share(5), back.choices.len()), (0.0, 4));
        assert_eq!(Drafted::from_words(&[]), None);
    }

    #[test]
    fn lists_that_are_none_are_our_own_bug() {
        let many: Vec<(u32, f32)> = (0..33).map(|id| (id, 1.0 / 33.0)).collect();
        for (wrong, list, what) in [
            ("nothing", drafted(0, &[]), "0 choices"),
            ("too many", drafted(0, &many), "33 choices"),
            (
                "beyond",
                drafted(0, &[(0, 0.5), (50, 0.5)]),
                "token 50 of 50",
            ),
            ("twice", drafted(1, &[(1, 0.5), (1, 0.5)]), "twice"),
            ("other token", drafted(2, &[(1, 1.0)]), "token 2 cannot"),
            (
                "never drawn",
                drafted(2, &[(1, 1.0), (2, 0.0)]),
                "token 2 cannot",
            ),
            ("too little", drafted(1, &[(1, 0.999)]), "sum to 0.99"),
            (
                "negative",
                drafted(1, &[(1, 1.0), (2, -1e-9)]),
                "no probability",
            ),
            (
                "NaN",
                drafted(1, &[(1, 1.0), (2, f32::NAN)]),
                "no probability",
            ),
            (
                "more than all",
                drafted(1, &[(1, f32::INFINITY)]),
                "no probability",
            ),
        ] {
            let panic = std::panic::catch_unwind(|| list.words(50)).expect_err(wrong);
            let said = panic.downcast_ref::<String>().expect("a text");
            assert!(said.contains(what), "{wrong}: {said}");
        }
        // nothing that is right is refused
        let least = drafted(1, &[(1, f32::from_bits(1)), (49, 1.0)]);
        assert_eq!(least.words(50).len(), 4);
    }

    #[test]
    fn a_draw_is_of_the_list_whatever_its_order() {
        let mut choices: Vec<(u32, f32)> = (0..32).map(|i| (i * 1000, 0.03125)).collect();
        let drawn = |choices: &[(u32, f32)], position| {
            choices[draw_from(choices, 0xABCD_EF01_2345_6789, position)].0
        };
        let first: Vec<u32> = (0..500).map(|at| drawn(&choices, at)).collect();
        choices.reverse();
        let again: Vec<u32> = (0..500).map(|at| drawn(&choices, at)).collect();
        assert_eq!(first, again);
        let different: std::collections::BTreeSet<u32> = first.into_iter().collect();
        assert_eq!(different.len(), 32, "of 500 draws of 32 tokens");
        // what has no probability is never drawn
        let rare = [(1, 0.0), (2, 1.0), (3, 0.0)];
        assert!((0..500).all(|at| drawn(&rare, at) == 2));
    }
}
