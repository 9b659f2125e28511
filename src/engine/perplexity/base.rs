//! Predictions of a base model as bytes, for other models to be held against.
//!
//! ```text
//! header   magic 8, version 4, header's bytes 4, vocabulary 4, window 4, windows 4, first scored 4,
//!          SHA-256 of the token ids 32, length of the text about it 4, zeros 4, that text; checksum 8
//! row      likeliest token 4, its log-probability 4, step 4, the right token's log-probability 4,
//!          a code of 2 bytes for each token of the vocabulary, checksum 8
//! ```
//!
//! All little-endian; a row for each prediction, in order. A token's log-probability is the likeliest
//! one's minus `code * step`, a step being the distance of the unlikeliest over 65535: at most 6e-4
//! nats, as what is further than 40 nats from the likeliest counts as 40. A checksum is the beginning
//! of the SHA-256 of what is before it in its part.

use sha2::{Digest, Sha256};

use super::{LogSoftmax, Windows};

/// The first bytes of such a file.
pub const MAGIC: [u8; 8] = *b"NELUMBKL";
/// The version of what is written here, the only one that is read.
pub const VERSION: u32 = 1;
/// Bytes of a header before the text about the base.
const FIXED_BYTES: usize = 72;
/// No text about a base is longer.
const MAX_ABOUT: usize = 4096;
/// The longest header.
pub const MAX_HEADER_BYTES: usize = FIXED_BYTES + MAX_ABOUT + CHECKSUM_BYTES;
/// Nats from the likeliest token to the unlikeliest at most: e^-40 of a probability is nothing.
const RANGE: f32 = 40.0;
const ROW_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;

/// What a file of predictions begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Codes of a row.
    pub vocab_size: u32,
    /// Tokens of a window.
    pub window: u32,
    /// How many windows.
    pub windows: u32,
    /// The position in a window whose prediction is the first.
    pub first: u32,
    /// SHA-256 of the token ids of all windows.
    pub tokens: [u8; 32],
    /// What made the predictions, for people.
    pub about: String,
}

/// Why bytes are no header: the field, and what is wrong with it.
pub type Wrong = (&'static str, String);

impl Header {
    /// For predictions of these windows.
    pub fn new(vocab_size: usize, windows: &Windows, about: String) -> Header {
        Header {
            vocab_size: vocab_size as u32,
            window: windows.size() as u32,
            windows: windows.count() as u32,
            first: windows.first() as u32,
            tokens: windows.hash(windows.count()),
            about,
        }
    }

    /// Predictions of a window.
    pub fn predictions(&self) -> u64 {
        u64::from(self.window - 1 - self.first)
    }

    /// Bytes of the whole file; the largest number where they are more.
    pub fn file_bytes(&self) -> u64 {
        let rows = u64::from(self.windows) * self.predictions();
        let bytes = rows.saturating_mul(row_bytes(self.vocab_size as usize) as u64);
        bytes.saturating_add(self.bytes().len() as u64)
    }

    /// The header as it is stored.
    ///
    /// # Panics
    /// If the text about the base has more than 4096 bytes.
    pub fn bytes(&self) -> Vec<u8> {
        assert!(self.about.len() <= MAX_ABOUT, "{}", self.about.len());
        let len = FIXED_BYTES + self.about.len() + CHECKSUM_BYTES;
        let mut bytes = MAGIC.to_vec();
        for word in [
            VERSION,
            len as u32,
            self.vocab_size,
            self.window,
            self.windows,
            self.first,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.tokens);
        bytes.extend((self.about.len() as u32).to_le_bytes());
        bytes.resize(FIXED_BYTES, 0);
        bytes.extend(self.about.as_bytes());
        let sum = checksum(&bytes);
        bytes.extend(sum);
        bytes
    }

    /// Reads a header at the beginning of `bytes`, which need not be more than
    /// [`MAX_HEADER_BYTES`] of the file; also how many bytes it takes.
    ///
    /// # Errors
    /// The field that is wrong, and what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<(Header, usize), Wrong> {
        let wrong = |field, problem: String| Err((field, problem));
        if bytes.len() < FIXED_BYTES + CHECKSUM_BYTES || bytes[..8] != MAGIC {
            let problem = "this is no file of predictions (--kl-divergence-base)";
            return wrong("magic", problem.to_owned());
        }
        let word = |at: usize| u32_at(bytes, at);
        if word(8) != VERSION {
            return wrong("version", format!("is {}, expected {VERSION}", word(8)));
        }
        let (len, about_len) = (word(12) as usize, word(64) as usize);
        if about_len > MAX_ABOUT || len != FIXED_BYTES + about_len + CHECKSUM_BYTES {
            return wrong("header length", format!("is {len}"));
        }
        let Some(whole) = bytes.get(..len) else {
            let problem = format!("is {len}, but only {} bytes are there", bytes.len());
            return wrong("header length", problem);
        };
        let (content, sum) = whole.split_at(len - CHECKSUM_BYTES);
        if checksum(content) != sum {
            return wrong("header checksum", "does not fit: it is damaged".to_owned());
        }
        let header = Header {
            vocab_size: word(16),
            window: word(20),
            windows: word(24),
            first: word(28),
            tokens: bytes[32..64].try_into().expect("32 bytes"),
            about: String::from_utf8_lossy(&content[FIXED_BYTES..]).into_owned(),
        };
        // whoever made the sum fit may have written anything
        if header.vocab_size == 0 || header.vocab_size > 1 << 24 {
            return wrong("vocabulary", format!("is {}", header.vocab_size));
        }
        if !(2..=1 << 24).contains(&header.window) || header.first >= header.window - 1 {
            let problem = format!("is {}, scored from {}", header.window, header.first);
            return wrong("window", problem);
        }
        if header.windows == 0 {
            return wrong("windows", "is 0".to_owned());
        }
        Ok((header, len))
    }
}

/// Bytes of a row.
pub fn row_bytes(vocab_size: usize) -> usize {
    ROW_BYTES + 2 * vocab_size + CHECKSUM_BYTES
}

/// Appends a prediction: its logits, what turns them into log-probabilities, and the right token.
pub fn put_row(bytes: &mut Vec<u8>, soft: &LogSoftmax, logits: &[f32], target: u32) {
    let start = bytes.len();
    let least = logits.iter().copied().fold(soft.max, f32::min);
    let step = (soft.max - least).min(RANGE) / f32::from(u16::MAX);
    bytes.extend(soft.best.to_le_bytes());
    bytes.extend((soft.logprob(soft.max) as f32).to_le_bytes());
    bytes.extend(step.to_le_bytes());
    bytes.extend((soft.logprob(logits[target as usize]) as f32).to_le_bytes());
    let per_nat = if step > 0.0 { 1.0 / step } else { 0.0 };
    bytes.extend(logits.iter().flat_map(|&logit| {
        // a cast saturates: what is beyond the range has the last code
        (((soft.max - logit) * per_nat).round() as u16).to_le_bytes()
    }));
    let sum = checksum(&bytes[start..]);
    bytes.extend(sum);
}

/// A prediction of the base.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The likeliest token.
    pub best: u32,
    /// The right token's log-probability, in nats.
    pub target: f32,
    best_logprob: f32,
    step: f32,
    codes: &'a [[u8; 2]],
}

impl Row<'_> {
    /// Reads a row of exactly [`row_bytes`]; `None` where its checksum or its numbers are wrong.
    ///
    /// # Panics
    /// If the bytes are more or fewer.
    pub fn parse(bytes: &[u8], vocab_size: usize) -> Option<Row<'_>> {
        assert_eq!(bytes.len(), row_bytes(vocab_size), "a row of {vocab_size}");
        let (content, sum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
        let float = |at: usize| f32::from_bits(u32_at(bytes, at));
        let row = Row {
            best: u32_at(bytes, 0),
            best_logprob: float(4),
            step: float(8),
            target: float(12),
            codes: content[ROW_BYTES..].as_chunks().0,
        };
        let numbers = [row.best_logprob, row.step, row.target];
        let sound = numbers.iter().all(|n| n.is_finite()) && row.step >= 0.0;
        (sound && checksum(content) == sum).then_some(row)
    }

    /// KL(this || model), in nats, for the model's logits of the same vocabulary. Probabilities that
    /// do not sum to one by a rounding of the codes are made to.
    ///
    /// # Panics
    /// If there are more or fewer logits than codes.
    pub fn divergence(&self, soft: &LogSoftmax, logits: &[f32]) -> f64 {
        assert_eq!(logits.len(), self.codes.len(), "logits of another model");
        let (best, step) = (f64::from(self.best_logprob), f64::from(self.step));
        let (mut sum, mut weighted) = (0.0, 0.0);
        // where both exclude a token, one infinity would be all there is
        let floor = soft.max - 4.0 * RANGE;
        for (&code, &logit) in self.codes.iter().zip(logits) {
            let theirs = best - f64::from(u16::from_le_bytes(code)) * step;
            let p = theirs.exp();
            sum += p;
            weighted += p * (theirs - soft.logprob(logit.max(floor)));
        }
        (weighted / sum - f64::ln(sum)).max(0.0)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(word)
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash: [u8; 32] = Sha256::digest(bytes).into();
    hash[..CHECKSUM_BYTES].try_into().expect("a hash has 32")
}

#[cfg(test)]
mod tests {
    use super::super::Scored;
    use super::*;

    fn header() -> Header {
        let windows = Windows::new(vec![7; 30], 10, Scored::SecondHalf, None).unwrap();
        Header::new(100, &windows, "m.gguf, f16".to_owned())
    }

    #[test]
    fn a_header_comes_back_and_tells_the_files_size() {
        let bytes = header().bytes();
        let (back, len) = Header::parse(&[&bytes[..], &[9; 100]].concat()).unwrap();
        assert_eq!((back, len), (header(), bytes.len()));
        let rows = 3 * 4 * (16 + 200 + 8);
        assert_eq!(header().file_bytes(), (bytes.len() + rows) as u64);
        assert!(bytes.len() <= MAX_HEADER_BYTES);
        // numbers that are in range each may be too much together
        let huge = Header {
            vocab_size: 1 << 24,
            window: 1 << 24,
            windows: u32::MAX,
            ..header()
        };
        let (back, _) = Header::parse(&huge.bytes()).unwrap();
        assert_eq!(back.file_bytes(), u64::MAX);
    }

    #[test]
    fn every_damaged_byte_and_every_cut_of_a_header_is_noticed() {
        let bytes = header().bytes();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x41;
            assert!(Header::parse(&damaged).is_err(), "byte {at}");
            assert!(Header::parse(&bytes[..at]).is_err(), "cut at {at}");
        }
        let (field, problem) = Header::parse(b"GGUF").unwrap_err();
        assert_eq!(field, "magic");
        assert!(problem.contains("no file of predictions"));
        let mut newer = bytes;
        newer[8] = 2;
        assert_eq!(Header::parse(&newer).unwrap_err().0, "version");
    }

    #[test]
    fn numbers_out_of_range_are_refused_even_with_a_sum_that_fits() {
        for (field, header) in [
            (
                "vocabulary",
                Header {
                    vocab_size: 0,
                    ..header()
                },
            ),
            (
                "vocabulary",
                Header {
                    vocab_size: u32::MAX,
                    ..header()
                },
            ),
            (
                "window",
                Header {
                    window: 1,
                    first: 0,
                    ..header()
                },
            ),
            (
                "window",
                Header {
                    first: 9,
                    ..header()
                },
            ),
            (
                "windows",
                Header {
                    windows: 0,
                    ..header()
                },
            ),
        ] {
            // not by `file_bytes`, which trusts what was checked
            assert_eq!(Header::parse(&header.bytes()).unwrap_err().0, field);
        }
    }

    #[test]
    fn rows_keep_log_probabilities_within_a_step() {
        let logits: Vec<f32> = (0..999).map(|i| (i as f32 * 0.37).sin() * 15.0).collect();
        let soft = LogSoftmax::of(&logits).unwrap();
        let mut bytes = Vec::new();
        put_row(&mut bytes, &soft, &logits, 5);
        assert_eq!(bytes.len(), row_bytes(999));
        let row = Row::parse(&bytes, 999).unwrap();
        assert_eq!(row.best, soft.best);
        assert!((f64::from(row.target) - soft.logprob(logits[5])).abs() < 1e-6);
        for (code, &logit) in row.codes.iter().zip(&logits) {
            let back = row.best_logprob - f32::from(u16::from_le_bytes(*code)) * row.step;
            assert!((f64::from(back) - soft.logprob(logit)).abs() < 3.1e-4);
        }
        for at in [0, 5, 13, 16, 700, bytes.len() - 1] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(Row::parse(&damaged, 999).is_none(), "byte {at}");
        }
    }

    #[test]
    fn far_and_excluded_tokens_do_not_widen_the_steps() {
        let logits = [0.0, -1.0, -1e9, f32::NEG_INFINITY];
        let soft = LogSoftmax::of(&logits).unwrap();
        let mut bytes = Vec::new();
        put_row(&mut bytes, &soft, &logits, 1);
        let row = Row::parse(&bytes, 4).unwrap();
        assert!(row.step <= RANGE / 65_535.0 * 1.001);
        assert_eq!(row.codes[2], [0xff; 2]);
        // all alike: a step of nothing
        let mut bytes = Vec::new();
        let soft = LogSoftmax::of(&[2.0; 3]).unwrap();
        put_row(&mut bytes, &soft, &[2.0; 3], 0);
        assert!(Row::parse(&bytes, 3).unwrap().divergence(&soft, &[2.0; 3]) < 1e-12);
    }
}
