//! Whether a draft model is asked, and for how many tokens: decided before it is, from what its guesses were
//! worth and what they took.

use super::cost::Cost;
use super::gain::{Bounds, Choice, Guess, choose};

/// A step of a draft model takes this share of a plain step, as far as nothing is known.
const FIRST: f64 = 0.25;
/// Seconds go half the way down to what was measured, and up by no more than this factor: the draft model
/// has to read what it has not seen of a text first, which is not what the next guess will take.
const MOST_UP: f64 = 1.2;
/// What a step of the draft model takes at worst, and what is charged for it at most, in what is expected.
const WORST: f64 = 3.0;
/// Steps after which it may have become twice as fast.
const STALE: u64 = 128;

/// What the draft model takes.
#[derive(Clone, Debug, Default)]
pub struct Drafting {
    /// Seconds for a token of each sequence.
    each: Option<f64>,
    /// Tokens that were asked for in this step; 0 where none were.
    asked: usize,
    /// Seconds that each of them should take.
    expected: Option<f64>,
    /// Whether nothing came of it: texts were read that it had not seen, and nothing was guessed.
    only_read: bool,
    /// Seconds of this step that are to be charged.
    charged: f64,
    /// Steps since the last.
    idle: u64,
}

/// What is asked of the draft model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// For each sequence of the step, what is proposed without it.
    pub guesses: &'a [Guess],
    /// The longest guess that it would make instead; `None` where it has nothing to do.
    pub drafts: &'a [Option<Guess>],
    /// Whether it takes no time.
    pub is_free: bool,
}

impl Drafting {
    /// How many tokens to ask for; 0 where that brings less than what there is.
    pub fn choose(&self, asked: &Asked<'_>, cost: &Cost, bounds: &Bounds) -> usize {
        let rate = |choice: Choice| choice.rate;
        let mut best = (0, rate(choose(asked.guesses, cost, bounds)));
        let each = self.each(asked, cost);
        let mut guesses = asked.guesses.to_vec();
        let longest = asked.drafts.iter().flatten().map(|draft| draft.len).max();
        for len in 1..=longest.unwrap_or(0) {
            for (guess, draft) in guesses.iter_mut().zip(asked.drafts) {
                if let Some(draft) = draft {
                    *guess = Guess {
                        len: len.min(draft.len),
                        ..*draft
                    };
                }
            }
            let beside = each.map(|seconds| seconds * len as f64);
            let choice = choose(&guesses, cost, &Bounds { beside, ..*bounds });
            let verifies = choice.lens.iter().any(|&len| len > 0);
            if verifies && choice.rate > best.1 {
                best = (len, choice.rate);
            }
        }
        best.0
    }

    /// So many tokens are asked for now; a plain step takes `plain` seconds, where that is known.
    pub fn ask(&mut self, tokens: usize, plain: Option<f64>) {
        self.asked = tokens;
        self.only_read = false;
        self.expected = self.each.or(plain.map(|plain| FIRST * plain));
    }

    /// Tokens that were asked for in this step.
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// Seconds that what was asked for should take.
    pub fn expected(&self) -> f64 {
        self.expected.unwrap_or(0.0) * self.asked as f64
    }

    /// Nothing was proposed of what was asked for: what that takes is charged, but tells nothing about what the
    /// next guess will take.
    pub fn only_read(&mut self) {
        self.only_read = true;
    }

    /// What was asked for took so many seconds.
    pub fn took(&mut self, seconds: f64) {
        let Some(expected) = self.expected.filter(|_| self.asked > 0 && seconds > 0.0) else {
            return;
        };
        self.charged = seconds.min(WORST * self.expected());
        if self.only_read {
            return;
        }
        let measured = seconds / self.asked as f64;
        self.each = Some(if measured < expected {
            (measured + expected) / 2.0
        } else {
            measured.min(MOST_UP * expected)
        });
    }

    /// The step is over: what it has to be charged for drafts.
    pub fn settle(&mut self) -> f64 {
        self.idle = if self.asked == 0 { self.idle + 1 } else { 0 };
        self.asked = 0;
        std::mem::take(&mut self.charged)
    }

    /// Seconds for a token of each sequence: at best, expected, and at worst.
    fn each(&self, asked: &Asked<'_>, cost: &Cost) -> [f64; 3] {
        let plain = cost.expected(asked.guesses.len()).unwrap_or(0.0);
        match self.each {
            _ if asked.is_free => [0.0; 3],
            None => [0.0, FIRST * plain, 2.0 * FIRST * plain],
            Some(each) if self.idle > STALE => [each / 2.0, each, each],
            Some(each) => [each; 3],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Bounds = Bounds {
        rows: 64,
        credit: 100.0,
        beside: [0.0; 3],
        spent: 0.0,
    };

    fn guess(chance: f64, len: usize) -> Guess {
        Guess {
            chance,
            hope: chance,
            len,
        }
    }

    fn flat() -> Cost {
        let mut cost = Cost::default();
        (1..=40).for_each(|rows| cost.learn(rows, 1.0));
        cost
    }

    /// Tokens that are asked for where a draft is right so often, with `each` seconds known for a token.
    fn len(each: f64, chance: f64, guesses: &[Guess]) -> usize {
        let mut drafting = Drafting::default();
        for _ in 0..40 {
            drafting.ask(1, Some(1.0));
            drafting.took(each);
            drafting.settle();
        }
        let asked = Asked {
            guesses,
            drafts: &[Some(guess(chance, 16))],
            is_free: false,
        };
        drafting.choose(&asked, &flat(), &FREE)
    }

    #[test]
    fn as_many_are_asked_for_as_pay() {
        let nothing = [guess(0.0, 0)];
        let lens: Vec<usize> = [0.01, 0.1, 0.3, 0.9]
            .map(|each| len(each, 0.8, &nothing))
            .to_vec();
        assert!(
            lens[0] > lens[1] && lens[1] > lens[2] && lens[2] > 0,
            "{lens:?}"
        );
        assert_eq!(lens[3], 0);
        assert_eq!(
            len(0.01, 0.8, &[guess(0.9, 16)]),
            0,
            "there is a better one"
        );
        assert!(len(0.01, 0.9, &[guess(0.8, 2)]) > 8);
    }

    #[test]
    fn what_it_reads_first_is_not_taken_for_what_it_takes() {
        let mut drafting = Drafting::default();
        drafting.ask(4, Some(1.0));
        assert_eq!(drafting.expected(), 4.0 * FIRST);
        drafting.took(50.0);
        assert_eq!(drafting.settle(), WORST * 4.0 * FIRST);
        assert_eq!(drafting.settle(), 0.0, "charged once");
        for _ in 0..10 {
            drafting.ask(4, Some(1.0));
            drafting.took(0.4);
            drafting.settle();
        }
        drafting.ask(1, Some(1.0));
        assert!(
            (0.1..0.11).contains(&drafting.expected()),
            "{}",
            drafting.expected()
        );
        drafting.ask(0, None);
        drafting.took(1.0);
        assert_eq!(drafting.settle(), 0.0, "nothing was asked for");
    }

    #[test]
    fn reading_a_long_prompt_makes_drafts_no_dearer() {
        let mut drafting = Drafting::default();
        drafting.ask(4, Some(1.0));
        drafting.took(0.4);
        drafting.settle();
        drafting.ask(1, Some(1.0));
        let price = drafting.expected();
        for _ in 0..50 {
            drafting.ask(4, Some(1.0));
            drafting.only_read();
            drafting.took(50.0);
            assert_eq!(drafting.settle(), WORST * 4.0 * price, "it is charged");
        }
        drafting.ask(1, Some(1.0));
        assert_eq!(drafting.expected(), price);
        // and what is guessed then is a measurement again
        drafting.took(10.0);
        assert!(drafting.expected() == price);
        drafting.settle();
        drafting.ask(1, Some(1.0));
        assert!(drafting.expected() > price);
    }
}
