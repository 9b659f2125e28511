//! How many of the proposed tokens to verify.
//!
//! A step of `n` sequences brings a token each; the j-th proposed token of one, whose tokens are right with a
//! chance of a, brings a^j more. The likeliest `m` of all of them are worth verifying where
//!
//! ```text
//! (n + sum of the m likeliest) / seconds(n + m)
//! ```
//!
//! is largest. Seconds are a stair where kernels take rows in tiles, so each `m` is looked at. Where seconds or
//! chances are not known well, what they may be at best counts: that is how they become known.
//!
//! Whatever is verified has to be affordable: if it takes what it may at worst, and brings half of what is
//! expected.

use super::cost::{Cost, MOST_ROWS};

/// Plain steps are as good as what brings no more than this factor of them...
const MARGIN: f64 = 1.03;
/// ... and what is known is as good as what may bring no more than this factor of it.
const HOPE_MARGIN: f64 = 1.05;
/// Of what is expected to be accepted, so much is counted on.
const COUNTED_ON: f64 = 0.5;
/// A step has at most so many times the rows of the largest that was measured.
const GROWTH: usize = 2;

/// What is proposed for a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Guess {
    /// The chance that a token is right where those before it are.
    pub chance: f64,
    /// What that may be at best.
    pub hope: f64,
    /// Tokens.
    pub len: usize,
}

/// What bounds a step.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Rows that it may have, those of the sequences' own tokens included.
    pub rows: usize,
    /// Seconds that may be lost.
    pub credit: f64,
    /// Seconds that proposing takes where something is verified: at best, as far as is known, and at worst.
    pub beside: [f64; 3],
    /// Seconds that proposing took, whatever is verified.
    pub spent: f64,
}

/// What is verified, and what it brings.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The first tokens of each guess.
    pub lens: Vec<usize>,
    /// Tokens per second, as expected or hoped for.
    pub rate: f64,
}

/// A proposed token: what it is worth, and whose it is.
type Worth = (f64, usize);

/// What to verify of guesses, one for each sequence of the step. Nothing where no step of so many rows was
/// measured, or nothing pays.
pub fn choose(guesses: &[Guess], cost: &Cost, bounds: &Bounds) -> Choice {
    let base = guesses.len();
    let nothing = Choice {
        lens: vec![0; base],
        rate: 0.0,
    };
    let Some(plain) = cost.expected(base).filter(|_| cost.has_seen(base)) else {
        return nothing;
    };
    let most = bounds.rows.min(MOST_ROWS).saturating_sub(base);
    let plain_rate = base as f64 / (plain + bounds.spent);
    let [low, expected, high] = bounds.beside.map(|seconds| seconds + bounds.spent);
    let likely = worths(guesses, most, |guess| guess.chance);
    let counted_on: Vec<f64> = likely
        .iter()
        .scan(0.0, |tokens, &(worth, _)| {
            *tokens += COUNTED_ON * worth;
            Some(*tokens)
        })
        .collect();
    let affords = |rows: usize, seconds: f64| {
        let saved = plain * counted_on[rows - base - 1] / base as f64;
        bounds.credit >= 0.0 && seconds + high - plain - saved <= bounds.credit
    };
    let known = best(base, &likely, |rows| {
        let seconds = cost.seconds(rows).filter(|seconds| seconds.is_known)?;
        affords(rows, seconds.high).then_some(seconds.expected + expected)
    });
    let known = known.filter(|&(_, rate)| rate > plain_rate * MARGIN);
    // as long as something pays, chances are found out by it
    let hopeful = match known {
        Some(_) => likely.clone(),
        None => worths(guesses, most, |guess| guess.hope),
    };
    let growth = GROWTH * cost.most_rows();
    let hoped = best(base, &hopeful, |rows| {
        let seconds = cost.seconds(rows).filter(|_| rows <= growth)?;
        affords(rows, seconds.high).then_some(seconds.low + low)
    });
    let enough = known.map_or(plain_rate, |(_, rate)| rate) * HOPE_MARGIN;
    let (picked, (count, rate)) = match (known, hoped.filter(|&(_, rate)| rate > enough)) {
        (_, Some(hoped)) => (&hopeful, hoped),
        (Some(known), None) => (&likely, known),
        (None, None) => {
            return Choice {
                rate: plain_rate,
                ..nothing
            };
        }
    };
    let mut lens = nothing.lens;
    picked[..count]
        .iter()
        .for_each(|&(_, whose)| lens[whose] += 1);
    Choice { lens, rate }
}

/// The worth of each proposed token, the largest `most` first.
fn worths(guesses: &[Guess], most: usize, chance: impl Fn(&Guess) -> f64) -> Vec<Worth> {
    let mut worths: Vec<Worth> = Vec::new();
    for (whose, guess) in guesses.iter().enumerate() {
        let (chance, mut worth) = (chance(guess).clamp(0.0, 1.0), 1.0);
        for _ in 0..guess.len.min(most) {
            worth *= chance;
            worths.push((worth, whose));
        }
    }
    // of those of a sequence, the earlier comes first even where both are worth the same
    worths.sort_by(|a, b| b.0.total_cmp(&a.0));
    worths.truncate(most);
    worths
}

/// How many of `worths` bring the most tokens per second, and how many these are; `None` where there is no
/// number of rows that has `seconds`.
fn best(
    base: usize,
    worths: &[Worth],
    seconds: impl Fn(usize) -> Option<f64>,
) -> Option<(usize, f64)> {
    let mut best = None::<(usize, f64)>;
    let mut tokens = base as f64;
    for (i, &(worth, _)) in worths.iter().enumerate() {
        tokens += worth;
        let count = i + 1;
        let rate = seconds(base + count).map(|seconds| tokens / seconds);
        if let Some(rate) = rate
            && best.is_none_or(|(_, best)| rate > best)
        {
            best = Some((count, rate));
        }
    }
    best
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

    /// Every number of rows up to 32 is known.
    fn known(device: impl Fn(usize) -> f64) -> Cost {
        let mut cost = Cost::default();
        (1..=32).for_each(|rows| cost.learn(rows, device(rows)));
        cost
    }

    fn guess(chance: f64, len: usize) -> Guess {
        Guess {
            chance,
            hope: chance,
            len,
        }
    }

    fn lens(guesses: &[Guess], cost: &Cost, bounds: &Bounds) -> Vec<usize> {
        choose(guesses, cost, bounds).lens
    }

    #[test]
    fn rows_that_are_free_are_all_used_and_rows_that_are_dear_none() {
        let guesses = [guess(0.5, 8)];
        assert_eq!(lens(&guesses, &known(|_| 1.0), &FREE), [8]);
        assert_eq!(lens(&guesses, &known(|rows| rows as f64), &FREE), [0]);
        let bounds = Bounds { rows: 4, ..FREE };
        assert_eq!(lens(&guesses, &known(|_| 1.0), &bounds), [3]);
        assert_eq!(lens(&[], &known(|_| 1.0), &FREE), [0; 0]);
    }

    #[test]
    fn a_stair_is_climbed_where_its_end_pays() {
        // the second row costs half a step, and so do all up to the eighth together
        let cost = known(|rows| 1.0 + 0.5 * (rows - 1).min(1) as f64 + 2.0 * (rows / 9) as f64);
        assert_eq!(lens(&[guess(0.4, 12)], &cost, &FREE), [7]);
        assert_eq!(lens(&[guess(0.3, 12)], &cost, &FREE), [0]);
        assert_eq!(lens(&[guess(0.4, 1)], &cost, &FREE), [0]);
    }

    #[test]
    fn the_likeliest_of_all_sequences_are_verified() {
        let cost = known(|rows| 1.0 + 0.05 * (rows - 1) as f64);
        let guesses = [guess(0.9, 16), guess(0.2, 16), guess(0.6, 2), guess(0.0, 0)];
        let lens = lens(&guesses, &cost, &FREE);
        assert!(lens[0] > 3 && lens[0] < 16, "{lens:?}");
        assert_eq!(lens[1..], [0, 2, 0]);
        // a token more is worth less than what its row takes would bring otherwise
        let worth = |j: usize| 0.9f64.powi(j as i32);
        let tokens = 4.0 + 0.6 + 0.36 + (1..=lens[0]).map(worth).sum::<f64>();
        let rate = tokens / cost.expected(6 + lens[0]).unwrap();
        assert!(worth(lens[0]) > 0.05 * rate && worth(lens[0] + 1) < 0.05 * rate);
    }

    #[test]
    fn what_cannot_be_afforded_is_not_tried() {
        let mut cost = Cost::default();
        let guesses = [guess(0.9, 16)];
        assert_eq!(
            lens(&guesses, &cost, &FREE),
            [0],
            "a plain step comes first"
        );
        cost.learn(1, 1.0);
        assert_eq!(lens(&guesses, &cost, &FREE), [1], "twice the rows at most");
        let poor = Bounds {
            credit: 0.0,
            ..FREE
        };
        assert_eq!(lens(&guesses, &cost, &poor), [0]);
        cost.learn(2, 1.3);
        assert_eq!(lens(&guesses, &cost, &poor), [1], "known to cost little");
        assert_eq!(lens(&guesses, &cost, &FREE), [3]);
        let broke = Bounds {
            credit: -0.01,
            ..FREE
        };
        assert_eq!(lens(&guesses, &cost, &broke), [0]);
    }

    #[test]
    fn hope_counts_while_nothing_pays() {
        let cost = known(|rows| if rows > 1 { 1.5 } else { 1.0 });
        let hopeful = Guess {
            chance: 0.1,
            hope: 0.7,
            len: 4,
        };
        assert_eq!(lens(&[hopeful], &cost, &FREE), [4]);
        let poor = Bounds {
            credit: 0.4,
            ..FREE
        };
        assert_eq!(lens(&[hopeful], &cost, &poor), [0]);
        // beside one that pays it is not worth a row of its own
        let cost = known(|rows| 1.0 + 0.1 * (rows - 1) as f64);
        let both = lens(&[guess(0.9, 4), hopeful], &cost, &FREE);
        assert_eq!(both, [4, 0]);
    }

    #[test]
    fn what_proposing_takes_counts() {
        let cost = known(|_| 1.0);
        let beside = |seconds: f64| Bounds {
            beside: [seconds; 3],
            ..FREE
        };
        let guesses = [guess(0.6, 1)];
        let free = choose(&guesses, &cost, &FREE);
        assert_eq!((free.lens, free.rate), (vec![1], 1.6));
        let dear = choose(&guesses, &cost, &beside(0.25));
        assert_eq!((dear.lens, dear.rate), (vec![1], 1.28));
        let none = choose(&guesses, &cost, &beside(0.6));
        assert_eq!((none.lens, none.rate), (vec![0], 1.0));
        // what is spent already is no reason to waste it
        let spent = Bounds { spent: 0.6, ..FREE };
        let choice = choose(&guesses, &cost, &spent);
        assert_eq!((choice.lens, choice.rate), (vec![1], 1.0));
        // but it is lost as well
        let poor = Bounds {
            credit: 0.2,
            ..spent
        };
        assert_eq!(choose(&guesses, &cost, &poor).lens, [0]);
    }
}
