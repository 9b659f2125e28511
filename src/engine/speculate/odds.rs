//! How often guesses of a kind are right. What everybody's were tells what to expect of a request's first, and
//! its own count from then on. Both are forgotten: by what comes after them, since texts change, and by
//! steps that pass, so that what lost may be tried again.
//!
//! ```text
//! shared = (right of all + 4 first) / (all + 4)
//! chance = (right of its own + 4 shared) / (its own + 4)
//! hope   = (right of its own + 4 (1 + shared) / 2) / (its own + 4)
//! ```
//!
//! The chance is that a token is right where those before it are: of a proposal that was accepted up to
//! a wrong one, the tokens after that tell nothing.

use crate::engine::request::RequestId;
use std::collections::BTreeMap;

/// Guesses that what was believed before counts as.
const BELIEF: f64 = 4.0;
/// Guesses that are remembered, and steps after which half of them are forgotten.
const SHARED: Memory = Memory {
    guesses: 96.0,
    half_life: 256.0,
};
const OWN: Memory = Memory {
    guesses: 24.0,
    half_life: 64.0,
};
/// Nothing is certain.
const MOST: f64 = 0.98;

/// How much is remembered.
struct Memory {
    guesses: f64,
    half_life: f64,
}

/// Guesses that were right and wrong, as of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    right: f64,
    wrong: f64,
    step: u64,
}

/// What is known of guesses, by kind.
#[derive(Clone, Debug)]
pub struct Odds {
    /// For each kind, how often it is right as far as nothing was seen.
    first: Vec<f64>,
    shared: Vec<Counts>,
    own: BTreeMap<RequestId, BTreeMap<usize, Counts>>,
    step: u64,
}

impl Odds {
    /// For as many kinds as there are numbers: how often each is right, for a beginning.
    pub fn new(first: Vec<f64>) -> Odds {
        Odds {
            shared: vec![Counts::default(); first.len()],
            first,
            own: BTreeMap::new(),
            step: 0,
        }
    }

    /// The chance that a token of this kind is right for `id`, the tokens before it being so.
    pub fn chance(&self, id: RequestId, kind: usize) -> f64 {
        self.own(id, kind).mean(self.shared(kind)).min(MOST)
    }

    /// What that chance may be at best.
    pub fn hope(&self, id: RequestId, kind: usize) -> f64 {
        let believed = (1.0 + self.shared(kind)) / 2.0;
        self.own(id, kind).mean(believed).min(MOST)
    }

    /// Of `proposed` tokens of a kind the first `accepted` were right.
    ///
    /// # Panics
    /// When more were right than proposed.
    pub fn learn(&mut self, id: RequestId, kind: usize, proposed: usize, accepted: usize) {
        assert!(accepted <= proposed, "{accepted} of {proposed} accepted");
        let (right, wrong) = (accepted as f64, f64::from(accepted < proposed));
        let (step, shared) = (self.step, &mut self.shared[kind]);
        *shared = shared.with(right, wrong, step, &SHARED);
        let own = self.own.entry(id).or_default().entry(kind).or_default();
        *own = own.with(right, wrong, step, &OWN);
    }

    /// A step passed.
    pub fn tick(&mut self) {
        self.step += 1;
    }

    /// Forgets who is over.
    pub fn end(&mut self, id: RequestId) {
        self.own.remove(&id);
    }

    fn shared(&self, kind: usize) -> f64 {
        self.shared[kind]
            .at(self.step, &SHARED)
            .mean(self.first[kind])
    }

    fn own(&self, id: RequestId, kind: usize) -> Counts {
        let own = self.own.get(&id).and_then(|kinds| kinds.get(&kind));
        own.copied().unwrap_or_default().at(self.step, &OWN)
    }
}

impl Counts {
    /// What is remembered of them at a step.
    fn at(self, step: u64, memory: &Memory) -> Counts {
        let left = (-((step - self.step) as f64) / memory.half_life).exp2();
        Counts {
            right: self.right * left,
            wrong: self.wrong * left,
            step,
        }
    }

    fn with(self, right: f64, wrong: f64, step: u64, memory: &Memory) -> Counts {
        let mut counts = self.at(step, memory);
        counts.right += right;
        counts.wrong += wrong;
        let left = (memory.guesses / (counts.right + counts.wrong)).min(1.0);
        counts.right *= left;
        counts.wrong *= left;
        counts
    }

    /// The share that was right, where `believed` was expected.
    fn mean(self, believed: f64) -> f64 {
        (self.right + BELIEF * believed) / (self.right + self.wrong + BELIEF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RequestId = RequestId(1);
    const B: RequestId = RequestId(2);

    #[test]
    fn a_requests_own_guesses_count_for_more_than_those_of_all() {
        let mut odds = Odds::new(vec![0.5, 0.7]);
        assert_eq!((odds.chance(A, 0), odds.chance(A, 1)), (0.5, 0.7));
        for _ in 0..40 {
            odds.learn(A, 0, 4, 0);
        }
        let (own, other) = (odds.chance(A, 0), odds.chance(B, 0));
        assert!(own < 0.02 && other > own && other < 0.1, "{own} {other}");
        assert_eq!(odds.chance(A, 1), 0.7, "another kind");
        for _ in 0..10 {
            odds.learn(B, 0, 4, 4);
        }
        assert!(odds.chance(B, 0) > 0.85, "{}", odds.chance(B, 0));
        assert!(odds.chance(A, 0) < 0.1, "{}", odds.chance(A, 0));
        odds.end(A);
        assert!(odds.chance(A, 0) > 0.2, "{}", odds.chance(A, 0));
    }

    #[test]
    fn tokens_after_a_wrong_one_tell_nothing() {
        // of tokens that are right with a chance of 0.75, whatever is proposed at once
        for proposed in [1, 4, 16] {
            let mut odds = Odds::new(vec![0.1]);
            let mut sum = 0.0;
            let mut state = 7u64;
            for _ in 0..3000 {
                let mut draw = || {
                    state = state
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    state >> 62 < 3
                };
                let accepted = (0..proposed).take_while(|_| draw()).count();
                odds.learn(A, 0, proposed, accepted);
                sum += odds.chance(A, 0);
            }
            let mean = sum / 3000.0;
            assert!((0.7..0.8).contains(&mean), "{mean} of {proposed}");
        }
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut odds = Odds::new(vec![0.8]);
        for _ in 0..100 {
            odds.learn(A, 0, 8, 0);
        }
        let (chance, hope) = (odds.chance(A, 0), odds.hope(A, 0));
        assert!(chance < 0.02 && hope < 0.2, "{chance} {hope}");
        (0..200).for_each(|_| odds.tick());
        assert!(odds.hope(A, 0) > 0.3, "{}", odds.hope(A, 0));
        assert!(odds.chance(A, 0) < 0.2, "{}", odds.chance(A, 0));
        (0..2000).for_each(|_| odds.tick());
        assert!(odds.chance(A, 0) > 0.7, "{}", odds.chance(A, 0));
    }
}
