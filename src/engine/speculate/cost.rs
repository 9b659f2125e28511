//! What a step takes by the number of its rows, learned from steps that had no prompt. Pure: seconds are data.
//!
//! ```text
//! seconds(rows) = common * relative(rows)
//! ```
//!
//! Steps get slower as texts get longer, and all of them by about the same factor; so a step moves the common
//! factor as well as its own. What was measured at other lengths stays right that way: one row is measured
//! all the time, sixteen are not.
//!
//! ```text
//! seconds |                                  o   what is known is believed while it is fresh;
//!         |                        o  .  -       between two that are known lies a line, and what is
//!         |            o   . - '  ,  '           hoped for lies half-way between that and the lower one:
//!         |    o   -   ,  -  '                   kernels take rows in tiles, so the truth may be a stair
//!         +----1-------4---------7---------12
//! ```

use std::collections::BTreeMap;

/// Rows up to which steps are told apart; beyond them they compute as much as they read.
pub const MOST_ROWS: usize = 64;
/// Steps after which a figure is measured again where that may pay.
const FRESH: u64 = 512;
/// How far the common factor and a count's own go towards what a step took: of the logarithm, so much.
const COMMON_RATE: f64 = 0.15;
const OWN_RATE: f64 = 0.05;
/// The common factor goes half as far for a count that was measured so often. Of counts that were measured once,
/// those that were fast by chance are chosen, and then look as if all steps had got slower.
const SURE: f64 = 8.0;
/// A count's own goes farther by its share of so many steps since it was measured, up to a half.
const RATE_STEPS: f64 = 512.0;
const MOST_RATE: f64 = 0.5;
/// A step that took longer than foretold by this factor was held up by something else.
const HELD_UP: f64 = 1.5;
/// A figure that is no longer fresh may have become smaller by this factor.
const STALE: f64 = 0.75;

/// Figures of a number of rows.
#[derive(Clone, Copy, Debug)]
struct Known {
    relative: f64,
    /// Steps that were measured.
    count: u32,
    /// When the last of them was.
    step: u64,
}

/// What a step may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seconds {
    /// At best; where it is known, what is expected.
    pub low: f64,
    /// As far as is known.
    pub expected: f64,
    /// At worst; where it is known, what is expected.
    pub high: f64,
    /// Whether it was measured not long ago.
    pub is_known: bool,
}

/// What steps take.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    common: f64,
    known: BTreeMap<usize, Known>,
    step: u64,
}

impl Cost {
    /// A step of `rows` took `seconds`. Of more than [`MOST_ROWS`], and what is no time, tells nothing.
    pub fn learn(&mut self, rows: usize, seconds: f64) {
        self.step += 1;
        if !(1..=MOST_ROWS).contains(&rows) || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        if self.known.is_empty() {
            self.common = seconds;
        }
        let (step, fresh) = (self.step, self.is_fresh(rows));
        let measured = seconds / self.common;
        let known = self.known.entry(rows).or_insert(Known {
            relative: measured,
            count: 0,
            step,
        });
        let age = (step - known.step) as f64;
        known.step = step;
        if known.count == 0 || !fresh {
            (known.relative, known.count) = (measured, 1);
            return;
        }
        let count = f64::from(known.count);
        known.count = known.count.saturating_add(1);
        let ratio = (measured / known.relative).min(HELD_UP);
        if count == 1.0 && ratio < 1.0 {
            // the first may have been slowed down by what a device does once
            known.relative = measured;
            return;
        }
        let own = (OWN_RATE + age / RATE_STEPS).min(MOST_RATE);
        known.relative *= ratio.powf(own.max(1.0 / (count + 1.0)));
        self.common *= ratio.powf(COMMON_RATE * count / (count + SURE));
    }

    /// Seconds that a step of `rows` takes, as far as is known; `None` before any was measured.
    pub fn expected(&self, rows: usize) -> Option<f64> {
        self.seconds(rows).map(|seconds| seconds.expected)
    }

    /// Whether a step of `rows` was ever measured.
    pub fn has_seen(&self, rows: usize) -> bool {
        self.known.contains_key(&rows)
    }

    /// Rows of the largest step that was measured.
    pub fn most_rows(&self) -> usize {
        self.known.keys().next_back().copied().unwrap_or(0)
    }

    /// What a step of `rows` may take; `None` before any was measured.
    pub fn seconds(&self, rows: usize) -> Option<Seconds> {
        let first = self.known.first_key_value()?;
        let of = |known: &Known| known.relative * self.common;
        if let Some(known) = self.known.get(&rows) {
            let (expected, is_known) = (of(known), self.is_fresh(rows));
            return Some(Seconds {
                low: expected * if is_known { 1.0 } else { STALE },
                expected,
                high: expected,
                is_known,
            });
        }
        let below = self.known.range(..rows).next_back();
        let above = self.known.range(rows..).next();
        let (low, expected, high) = match (below, above) {
            (Some((&below, a)), Some((&above, b))) => {
                let share = (rows - below) as f64 / (above - below) as f64;
                let (a, b) = (of(a), of(b));
                let expected = a + share * (b - a);
                ((a + expected) / 2.0, expected, a.max(b))
            }
            // on from the last in the direction in which it lies from half as many rows; at worst rows cost
            // as much as they do on a processor
            (Some((&below, b)), None) => {
                let half = self.known.range(..=below / 2).next_back();
                let (&from, a) = half.unwrap_or(first);
                let rise = (of(b) - of(a)).max(0.0) / (below - from).max(1) as f64;
                let more = rise * (rows - below) as f64;
                let high = of(b) * rows as f64 / below as f64;
                (of(b) + more / 2.0, of(b) + more, high.max(of(b) + more))
            }
            (None, Some((&above, b))) => {
                let least = of(b) * rows as f64 / above as f64;
                (least, (least + of(b)) / 2.0, of(b))
            }
            (None, None) => return None,
        };
        Some(Seconds {
            low: low.min(expected),
            expected,
            high: high.max(expected),
            is_known: false,
        })
    }

    fn is_fresh(&self, rows: usize) -> bool {
        let known = self.known.get(&rows);
        known.is_some_and(|known| self.step - known.step <= FRESH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64, share: f64) -> bool {
        (a - b).abs() <= share * b
    }

    #[test]
    fn what_was_not_measured_lies_between_what_was_and_is_hoped_for_beyond() {
        let mut cost = Cost::default();
        assert_eq!((cost.seconds(1), cost.expected(4)), (None, None));
        cost.learn(1, 1.0);
        let beyond = cost.seconds(4).unwrap();
        assert_eq!(
            (beyond.low, beyond.high, beyond.is_known),
            (1.0, 4.0, false)
        );
        cost.learn(5, 3.0);
        let between = cost.seconds(3).unwrap();
        assert_eq!((between.low, between.expected), (1.5, 2.0));
        assert_eq!((between.high, between.is_known), (3.0, false));
        let beyond = cost.seconds(9).unwrap();
        assert_eq!((beyond.low, beyond.expected), (4.0, 5.0));
        assert!(cost.seconds(5).unwrap().is_known);
        cost.learn(10, 3.0);
        let flat = cost.seconds(20).unwrap();
        assert_eq!((flat.low, flat.expected, flat.high), (3.0, 3.0, 6.0));
        cost.learn(0, 1.0);
        cost.learn(MOST_ROWS + 1, 1.0);
        cost.learn(2, f64::NAN);
        cost.learn(2, 0.0);
        assert_eq!(cost.most_rows(), 10);
    }

    #[test]
    fn longer_texts_slow_all_steps_down() {
        let mut cost = Cost::default();
        let curve = [(1, 1.0), (4, 1.2), (16, 2.0)];
        for (rows, seconds) in curve {
            (0..4).for_each(|_| cost.learn(rows, seconds));
        }
        // twice as slow over 400 steps, in which mostly one row is measured, sometimes 16, never 4
        for step in 0..400 {
            let slower = 1.0 + f64::from(step) / 400.0;
            match step % 20 {
                0 => cost.learn(16, 2.0 * slower),
                _ => cost.learn(1, slower),
            }
        }
        let expected = |rows| cost.expected(rows).unwrap();
        assert!(near(expected(1), 2.0, 0.03), "{}", expected(1));
        assert!(near(expected(16), 4.0, 0.1), "{}", expected(16));
        assert!(near(expected(4), 2.4, 0.3), "{}", expected(4));
    }

    #[test]
    fn a_step_that_was_held_up_counts_for_little() {
        let mut cost = Cost::default();
        // the first of all by what a device does once
        cost.learn(1, 7.0);
        (0..20).for_each(|_| cost.learn(1, 1.0));
        assert!(near(cost.expected(1).unwrap(), 1.0, 1e-9));
        cost.learn(1, 50.0);
        assert!(cost.expected(1).unwrap() < 1.1);
        (0..5).for_each(|_| cost.learn(8, 1.0));
        // while a device that is slower now is followed
        (0..40).for_each(|_| cost.learn(8, 3.0));
        assert!(near(cost.expected(8).unwrap(), 3.0, 0.05));
    }

    #[test]
    fn a_figure_that_is_old_is_known_no_more() {
        let mut cost = Cost::default();
        cost.learn(1, 1.0);
        cost.learn(8, 6.0);
        (0..FRESH).for_each(|_| cost.learn(1, 1.0));
        assert!(cost.seconds(8).unwrap().is_known);
        cost.learn(1, 1.0);
        let old = cost.seconds(8).unwrap();
        assert!(!old.is_known && old.low < old.expected, "{old:?}");
        cost.learn(8, 2.0);
        assert!(near(cost.expected(8).unwrap(), 2.0, 0.01));
    }
}
