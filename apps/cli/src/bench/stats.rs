//! Mean and deviation of a few samples, and whether two sets of them differ by more than noise.

/// The mean; 0 of nothing.
pub fn mean(samples: &[f64]) -> f64 {
    match samples.len() {
        0 => 0.0,
        count => samples.iter().sum::<f64>() / count as f64,
    }
}

/// The standard deviation of what the samples are drawn from (`n - 1` in the denominator); 0 of one
/// sample.
pub fn deviation(samples: &[f64]) -> f64 {
    if samples.len() < 2 {
        return 0.0;
    }
    let mean = mean(samples);
    let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
    (squares / (samples.len() - 1) as f64).sqrt()
}

/// Two runs of one program differ by this share at least, whatever their own samples say: heat, memory
/// layout, what else a machine does.
pub const LEAST_NOISE: f64 = 0.02;
/// The noise that is assumed where neither side has two samples.
pub const UNKNOWN_NOISE: f64 = 0.1;

/// Student's t for 99 % between both tails, for 1, 2, ... degrees of freedom.
const T_99: [f64; 20] = [
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012,
    2.977, 2.947, 2.921, 2.898, 2.878, 2.861, 2.845,
];
/// The same for any number of degrees.
const T_99_LIMIT: f64 = 2.576;

/// How far samples have moved, relative to where they were.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Movement {
    /// The new mean over the old one.
    pub ratio: f64,
    /// By so much the ratio may be off from 1 by chance, either way, in 99 of 100 comparisons.
    pub noise: f64,
}

impl Movement {
    /// Of positive samples, at least one on each side. By Welch's test: the sides may scatter differently.
    /// Where one side is a single sample, it is taken to scatter as the other does.
    pub fn between(old: &[f64], new: &[f64]) -> Movement {
        let spread = |samples: &[f64]| {
            let degrees = samples.len() as f64 - 1.0;
            (degrees > 0.0).then(|| ((deviation(samples) / mean(samples)).powi(2), degrees))
        };
        let (a, b) = (spread(old), spread(new));
        let noise = match (a.or(b), b.or(a)) {
            (Some((a, a_degrees)), Some((b, b_degrees))) => {
                let (a, b) = (a / old.len() as f64, b / new.len() as f64);
                let variance = a + b;
                let degrees = variance.powi(2) / (a * a / a_degrees + b * b / b_degrees);
                // of samples without any spread nothing can be divided
                let by_chance = if variance > 0.0 {
                    t_99(degrees) * variance.sqrt()
                } else {
                    0.0
                };
                by_chance.max(LEAST_NOISE)
            }
            _ => UNKNOWN_NOISE,
        };
        Movement {
            ratio: mean(new) / mean(old),
            noise,
        }
    }

    /// Whether the mean has grown (`Some(true)`) or shrunk by more than noise.
    pub fn direction(&self) -> Option<bool> {
        // half as much and twice as much are equally far away
        (self.ratio.ln().abs() > self.noise.ln_1p()).then_some(self.ratio > 1.0)
    }
}

/// Student's t at 99 %, between whole degrees by a straight line.
fn t_99(degrees: f64) -> f64 {
    let below = (degrees.max(1.0).floor() as usize).min(T_99.len());
    if below == T_99.len() {
        let last = T_99[T_99.len() - 1];
        // beyond the table the excess over the limit falls with the degrees
        return T_99_LIMIT + (last - T_99_LIMIT) * T_99.len() as f64 / degrees;
    }
    let (low, high) = (T_99[below - 1], T_99[below]);
    low + (high - low) * (degrees.max(1.0) - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_known_samples() {
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&samples), 5.0);
        assert!((deviation(&samples) - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!((mean(&[]), deviation(&[])), (0.0, 0.0));
        assert_eq!((mean(&[3.0]), deviation(&[3.0])), (3.0, 0.0));
    }

    /// The same sequence each time, about 0 with a deviation of 1: sums of twelve uniform numbers.
    fn normal(state: &mut u64) -> f64 {
        let mut uniform = || {
            *state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (*state >> 40) as f64 / (1u64 << 24) as f64
        };
        (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    }

    fn samples(state: &mut u64, count: usize, mean: f64, deviation: f64) -> Vec<f64> {
        (0..count)
            .map(|_| mean + deviation * normal(state))
            .collect()
    }

    #[test]
    fn noise_alone_is_not_flagged() {
        let mut state = 7;
        for (old, new) in [(3, 3), (5, 5), (3, 10), (30, 30)] {
            let flagged = (0..2000).filter(|_| {
                let old = samples(&mut state, old, 100.0, 5.0);
                let new = samples(&mut state, new, 100.0, 5.0);
                Movement::between(&old, &new).direction().is_some()
            });
            let flagged = flagged.count();
            // one of a hundred, and a little more where the sides have very different numbers
            assert!(
                flagged <= 80,
                "{flagged} of 2000 with {old} and {new} samples"
            );
        }
    }

    #[test]
    fn what_moved_beyond_its_noise_is_flagged() {
        let mut state = 11;
        for (count, factor) in [(3, 0.9), (3, 1.1), (5, 0.95), (5, 1.05), (20, 0.97)] {
            let flagged = (0..500).filter(|_| {
                let old = samples(&mut state, count, 100.0, 1.0);
                let new = samples(&mut state, count, 100.0 * factor, 1.0);
                Movement::between(&old, &new).direction() == Some(factor > 1.0)
            });
            let flagged = flagged.count();
            assert!(
                flagged >= 450,
                "{flagged} of 500 at {factor} with {count} samples"
            );
        }
        // but not the same shift where samples scatter by more than it
        let wide = Movement::between(&[100.0, 80.0, 120.0], &[90.0, 70.0, 110.0]);
        assert_eq!(wide.direction(), None, "{wide:?}");
    }

    #[test]
    fn few_samples_tell_little() {
        let single = Movement::between(&[100.0], &[92.0]);
        assert_eq!((single.noise, single.direction()), (UNKNOWN_NOISE, None));
        assert_eq!(
            Movement::between(&[100.0], &[50.0]).direction(),
            Some(false)
        );
        // one side's spread stands for both
        let mixed = Movement::between(&[100.0, 101.0, 99.0, 100.0], &[80.0]);
        assert!(mixed.noise > LEAST_NOISE && mixed.noise < 0.1, "{mixed:?}");
        assert_eq!(mixed.direction(), Some(false));
        let same = Movement::between(&[5.0, 5.0], &[5.0, 5.0]);
        assert_eq!((same.ratio, same.noise), (1.0, LEAST_NOISE));
        assert_eq!(same.direction(), None);
    }

    #[test]
    fn students_t_is_that_of_tables() {
        for (degrees, t) in [(1.0, 63.657), (2.5, 7.883), (4.0, 4.604), (20.0, 2.845)] {
            assert!(
                (t_99(degrees) - t).abs() < 1e-3,
                "{degrees}: {}",
                t_99(degrees)
            );
        }
        assert!((t_99(30.0) - 2.750).abs() < 0.01 && (t_99(1e9) - T_99_LIMIT).abs() < 1e-3);
    }
}
