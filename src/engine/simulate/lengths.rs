//! How long made-up prompts and answers are, and the numbers that they are drawn by.

use std::fmt;
use std::str::FromStr;

/// How long prompts or answers are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lengths {
    /// All alike.
    Fixed(usize),
    /// Each length from the first to the last as often.
    Uniform(usize, usize),
    /// Many short and few long ones: the logarithm is normal with this deviation about the median's.
    LogNormal {
        /// Half are longer.
        median: usize,
        /// 1 is about what conversations have.
        sigma: f64,
    },
}

/// No length is beyond this.
pub(super) const LONGEST_TEXT: usize = 1 << 20;

impl FromStr for Lengths {
    type Err = String;

    /// `512`, `16-2048`, or `lognormal:256:1`.
    fn from_str(text: &str) -> Result<Lengths, String> {
        let count = |part: &str| {
            let value: usize = part.trim().parse().ok()?;
            (1..=LONGEST_TEXT).contains(&value).then_some(value)
        };
        let lengths = if let Some(rest) = text.strip_prefix("lognormal:") {
            rest.split_once(':').and_then(|(median, sigma)| {
                let sigma: f64 = sigma.parse().ok()?;
                let median = count(median)?;
                (0.0..=4.0)
                    .contains(&sigma)
                    .then_some(Lengths::LogNormal { median, sigma })
            })
        } else if let Some((first, last)) = text.split_once('-') {
            let (first, last) = (count(first), count(last));
            first
                .zip(last)
                .filter(|(first, last)| first <= last)
                .map(|(first, last)| Lengths::Uniform(first, last))
        } else {
            count(text).map(Lengths::Fixed)
        };
        lengths.ok_or_else(|| {
            format!(
                "\"{text}\" is neither N, FIRST-LAST nor lognormal:MEDIAN:SIGMA, with lengths of 1 to \
                 {LONGEST_TEXT} and a sigma of 0 to 4"
            )
        })
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(length) => write!(f, "{length}"),
            Lengths::Uniform(first, last) => write!(f, "{first}-{last}"),
            Lengths::LogNormal { median, sigma } => write!(f, "lognormal:{median}:{sigma}"),
        }
    }
}

impl Lengths {
    pub(super) fn draw(&self, random: &mut Random, most: usize) -> usize {
        let length = match *self {
            Lengths::Fixed(length) => length,
            Lengths::Uniform(first, last) => {
                let span = (last - first + 1) as f64;
                (first + (random.unit() * span) as usize).min(last)
            }
            Lengths::LogNormal { median, sigma } => {
                (median as f64 * (sigma * random.normal()).exp()).round() as usize
            }
        };
        length.clamp(1, most.max(1))
    }
}

/// A sequence of numbers that look drawn, the same for the same seed.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        scrambled(self.0)
    }

    /// 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About 0 with a deviation of 1.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Other bits for each number.
pub(super) fn scrambled(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_they_are_printed_and_drawn_as_they_say() {
        let mut random = Random(3);
        for (text, low, high, mean) in [
            ("512", 512, 512, 512.0),
            ("16-2048", 16, 2048, 1032.0),
            // the mean of a lognormal is beyond its median
            ("lognormal:256:0.8", 1, 100_000, 352.5),
        ] {
            let lengths: Lengths = text.parse().unwrap();
            assert_eq!(lengths.to_string(), text);
            let drawn: Vec<usize> = (0..20_000)
                .map(|_| lengths.draw(&mut random, 100_000))
                .collect();
            assert!(drawn.iter().all(|l| (low..=high).contains(l)), "{text}");
            let found = drawn.iter().sum::<usize>() as f64 / 20_000.0;
            assert!((found / mean - 1.0).abs() < 0.03, "{text}: {found}");
        }
        for bad in [
            "",
            "0",
            "-5",
            "9-1",
            "x",
            "1-",
            "lognormal:5",
            "lognormal:5:9",
            "9999999",
        ] {
            assert!(bad.parse::<Lengths>().unwrap_err().contains(bad), "{bad}");
        }
    }
}
