//! Rotary position embedding (Su et al., 2021): frequencies, their scalings, and the rows of
//! cosines and sines that a step uploads. Computed in f64: WGSL promises little of sin and cos.

use crate::error::{Error, Result};
use std::f64::consts::TAU;
use std::path::Path;

/// Rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// What became of the frequencies to reach longer contexts.
    pub scaling: RopeScaling,
    /// Dims of a head that are rotated, the first ones; `None` is all of them, 0 none.
    pub dims: Option<usize>,
    /// Factor of the cosines and sines of the dims that are rotated.
    pub magnitude: f64,
}

impl Default for Rope {
    fn default() -> Rope {
        Rope {
            theta: 10_000.0,
            scaling: RopeScaling::None,
            dims: None,
            magnitude: 1.0,
        }
    }
}

/// How the frequencies were stretched.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided by `factor`, high ones kept, smooth between.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context before stretching, in tokens.
        original: f64,
    },
    /// Each frequency divided by a factor of its own, as GGUF files store the scaling above.
    Factors(Vec<f32>),
    /// Two lists of such factors, of which the context that the model is loaded with chooses: the long ones
    /// where it is longer than `original` (Ding et al., "LongRoPE", 2024).
    Long {
        /// For contexts up to `original` tokens.
        short: Vec<f32>,
        /// For longer ones.
        long: Vec<f32>,
        /// The context before stretching, in tokens.
        original: usize,
    },
}

impl Rope {
    /// Dims of a head that are rotated.
    pub fn rotated(&self, head_dim: usize) -> usize {
        self.dims.unwrap_or(head_dim)
    }

    /// Decides for a context of `context` tokens what depends on it.
    pub fn settle(&mut self, context: usize) {
        if let RopeScaling::Long {
            short,
            long,
            original,
        } = &self.scaling
        {
            let factors = if context > *original { long } else { short };
            self.scaling = RopeScaling::Factors(factors.clone());
        }
    }

    /// Radians a token for each pair of dims that is rotated: `[rotated / 2]`.
    ///
    /// # Panics
    /// Where the context has yet to decide; see [`Rope::settle`].
    pub fn frequencies(&self, head_dim: usize) -> Vec<f64> {
        let rotated = self.rotated(head_dim);
        (0..rotated / 2)
            .map(|i| {
                let frequency = self.theta.powf(-2.0 * i as f64 / rotated as f64);
                match &self.scaling {
                    RopeScaling::None => frequency,
                    RopeScaling::Linear { factor } => frequency / factor,
                    RopeScaling::Factors(factors) => frequency / f64::from(factors[i]),
                    RopeScaling::Long { .. } => panic!("a context has not been chosen"),
                    &RopeScaling::Llama3 {
                        factor,
                        low_freq_factor,
                        high_freq_factor,
                        original,
                    } => {
                        let turns = original * frequency / TAU; // in the original context
                        let smooth =
                            (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        let kept = smooth.clamp(0.0, 1.0);
                        (1.0 - kept) * frequency / factor + kept * frequency
                    }
                }
            })
            .collect()
    }

    /// A factor above 0 for each pair that is rotated.
    fn check_factors(
        &self,
        factors: &[f32],
        head_dim: usize,
        path: &Path,
        field: &str,
    ) -> Result<()> {
        let wanted = self.rotated(head_dim) / 2;
        if factors.len() == wanted && factors.iter().all(|f| f.is_finite() && *f > 0.0) {
            return Ok(());
        }
        let problem = format!("{} factors, expected {wanted} above 0", factors.len());
        Err(Error::field(path, field, problem))
    }

    /// Refuses settings that would only show on long prompts.
    ///
    /// # Errors
    /// [`Error::Field`].
    pub fn check(&self, path: &Path, head_dim: usize) -> Result<()> {
        let wrong = |field: &str, problem: String| Err(Error::field(path, field, problem));
        if !(self.theta.is_finite() && self.theta > 0.0) {
            return wrong(
                "rope_theta",
                format!("is {}, expected a number above 0", self.theta),
            );
        }
        let rotated = self.rotated(head_dim);
        if rotated > head_dim || !rotated.is_multiple_of(4) {
            let problem = format!("rotates {rotated} of {head_dim} dims, expected a multiple of 4");
            return wrong("partial_rotary_factor", problem);
        }
        if !(self.magnitude.is_finite() && self.magnitude > 0.0) {
            let problem = format!("is {}, expected a number above 0", self.magnitude);
            return wrong("rope_scaling.attention_factor", problem);
        }
        let at_least_1 = |f: f64| f.is_finite() && f >= 1.0;
        match &self.scaling {
            RopeScaling::None => Ok(()),
            &RopeScaling::Linear { factor } | &RopeScaling::Llama3 { factor, .. }
                if !at_least_1(factor) =>
            {
                wrong(
                    "rope_scaling.factor",
                    format!("is {factor}, expected a number of at least 1"),
                )
            }
            RopeScaling::Linear { .. } => Ok(()),
            &RopeScaling::Llama3 {
                low_freq_factor: low,
                high_freq_factor: high,
                original,
                ..
            } => {
                if !(low > 0.0 && high > low && high.is_finite()) {
                    return wrong(
                        "rope_scaling.high_freq_factor",
                        format!("is {high}, expected more than low_freq_factor = {low}"),
                    );
                }
                if !at_least_1(original) {
                    return wrong(
                        "rope_scaling.original_max_position_embeddings",
                        format!("is {original}"),
                    );
                }
                Ok(())
            }
            RopeScaling::Factors(factors) => {
                self.check_factors(factors, head_dim, path, "rope_freqs.weight")
            }
            RopeScaling::Long { short, long, .. } => {
                self.check_factors(short, head_dim, path, "rope_scaling.short_factor")?;
                self.check_factors(long, head_dim, path, "rope_scaling.long_factor")
            }
        }
    }
}

/// Cosines and sines by position, for a step's upload.
pub struct RopeTable {
    frequencies: Vec<f64>,
    magnitude: f64,
    /// Pairs that stay as they are.
    still: usize,
}

impl RopeTable {
    /// For heads of `head_dim`.
    pub fn new(rope: &Rope, head_dim: usize) -> RopeTable {
        RopeTable {
            frequencies: rope.frequencies(head_dim),
            magnitude: rope.magnitude,
            still: (head_dim - rope.rotated(head_dim)) / 2,
        }
    }

    /// Appends the row of `position`: `[head_dim / 2][cos, sin]` as bits.
    pub fn push_row(&self, position: usize, out: &mut Vec<u32>) {
        for frequency in &self.frequencies {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let [cos, sin] = [cos, sin].map(|v| ((v * self.magnitude) as f32).to_bits());
            out.extend([cos, sin]);
        }
        out.extend(std::iter::repeat_n([1f32.to_bits(), 0f32.to_bits()], self.still).flatten());
    }

    /// Words of a row: a cosine and a sine for each pair of dims.
    pub fn row_words(&self) -> usize {
        2 * (self.frequencies.len() + self.still)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_of_llama_3_1_as_its_authors_scale_them() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original: 8192.0,
        };
        let plain = Rope {
            theta: 500_000.0,
            ..Rope::default()
        }
        .frequencies(128);
        let scaled = Rope {
            theta: 500_000.0,
            scaling,
            ..Rope::default()
        }
        .frequencies(128);
        // wavelengths under 2048 tokens are kept, those over 8192 are stretched eightfold
        for (plain, scaled) in plain.iter().zip(&scaled) {
            let wavelength = TAU / plain;
            let ratio = plain / scaled;
            if wavelength < 2048.0 {
                assert!((ratio - 1.0).abs() < 1e-12);
            } else if wavelength > 8192.0 {
                assert!((ratio - 8.0).abs() < 1e-12);
            } else {
                assert!((1.0..=8.0).contains(&ratio));
            }
        }
    }

    #[test]
    fn a_row_holds_cosines_and_sines_of_all_pairs() {
        let rope = Rope {
            theta: 10_000.0,
            scaling: RopeScaling::Linear { factor: 2.0 },
            ..Rope::default()
        };
        let table = RopeTable::new(&rope, 64);
        let mut row = Vec::new();
        table.push_row(10, &mut row);
        assert_eq!(row.len(), table.row_words());
        assert_eq!(
            (f32::from_bits(row[0]), f32::from_bits(row[1])),
            (5f64.cos() as f32, 5f64.sin() as f32)
        );
    }

    #[test]
    fn what_is_not_rotated_stays() {
        let rope = Rope {
            dims: Some(16),
            magnitude: 1.5,
            ..Rope::default()
        };
        let table = RopeTable::new(&rope, 24);
        let mut row = Vec::new();
        table.push_row(3, &mut row);
        let row: Vec<f32> = row.into_iter().map(f32::from_bits).collect();
        assert_eq!((row.len(), table.row_words()), (24, 24));
        assert_eq!(
            row[..2],
            [(1.5 * 3f64.cos()) as f32, (1.5 * 3f64.sin()) as f32]
        );
        assert_eq!(row[16..], [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn the_context_chooses_between_short_and_long_factors() {
        let settled = |context| {
            let (short, long) = (vec![1.0; 16], vec![4.0; 16]);
            let mut rope = Rope {
                scaling: RopeScaling::Long {
                    short,
                    long,
                    original: 64,
                },
                ..Rope::default()
            };
            rope.settle(context);
            rope.frequencies(32)[0]
        };
        assert_eq!((settled(64), settled(65)), (1.0, 0.25));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let check = |theta, scaling| {
            Rope {
                theta,
                scaling,
                ..Rope::default()
            }
            .check(Path::new("m"), 64)
            .map_err(|e| e.to_string())
        };
        assert!(
            check(0.0, RopeScaling::None)
                .unwrap_err()
                .contains("rope_theta")
        );
        assert!(check(f64::NAN, RopeScaling::None).is_err());
        assert!(
            check(1e4, RopeScaling::Linear { factor: 0.0 })
                .unwrap_err()
                .contains("factor")
        );
        assert!(
            check(1e4, RopeScaling::Factors(vec![1.0; 31]))
                .unwrap_err()
                .contains("rope_freqs")
        );
        let backwards = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 4.0,
            high_freq_factor: 1.0,
            original: 8192.0,
        };
        assert!(
            check(1e4, backwards)
                .unwrap_err()
                .contains("high_freq_factor")
        );
        assert!(check(1e4, RopeScaling::Factors(vec![1.0; 32])).is_ok());
    }
}
