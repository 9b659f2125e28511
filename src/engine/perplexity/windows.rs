//! How a text is cut into windows, and which predictions of a window count.

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Which predictions of a window count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scored {
    /// All of them, also the first ones, which know little of the text: `window - 1` a window.
    All,
    /// Those of the second half, `window - window / 2 - 1`. A window's first token gives way to the
    /// token that begins a text, where the tokenizer adds one.
    SecondHalf,
}

impl Scored {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Scored::All => "all",
            Scored::SecondHalf => "second-half",
        }
    }

    /// The position of a window of `size` tokens whose logits count first.
    pub fn first(self, size: usize) -> usize {
        match self {
            Scored::All => 0,
            Scored::SecondHalf => size / 2,
        }
    }
}

/// A text's token ids in windows that follow one another; what does not fill the last is left out.
#[derive(Debug, Clone)]
pub struct Windows {
    tokens: Vec<u32>,
    size: usize,
    scored: Scored,
    bos: Option<u32>,
    count: usize,
}

impl Windows {
    /// Cuts `tokens` into windows of `size`. `bos` is the token that the tokenizer puts in front of a
    /// text.
    ///
    /// # Errors
    /// [`Error::Request`] where not one window is filled.
    ///
    /// # Panics
    /// If `size` is below 2.
    pub fn new(tokens: Vec<u32>, size: usize, scored: Scored, bos: Option<u32>) -> Result<Windows> {
        assert!(size >= 2, "a window of {size} predicts nothing");
        let count = tokens.len() / size;
        if count == 0 {
            let problem = format!(
                "the text has {} tokens, a window takes {size}: a longer text or a smaller window \
                 is needed",
                tokens.len()
            );
            return Err(Error::request("--ctx-size", problem));
        }
        Ok(Windows {
            tokens,
            size,
            scored,
            bos: bos.filter(|_| scored == Scored::SecondHalf),
            count,
        })
    }

    /// The first `count` windows of them, of which there are so many.
    ///
    /// # Errors
    /// [`Error::Request`] where there are fewer.
    pub fn take(&mut self, count: usize) -> Result<()> {
        if !(1..=self.count).contains(&count) {
            let problem = format!(
                "is {count}, the text fills {} windows of {} tokens",
                self.count, self.size
            );
            return Err(Error::request("--chunks", problem));
        }
        self.count = count;
        Ok(())
    }

    /// How many windows there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tokens of a window.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Which predictions count.
    pub fn scored(&self) -> Scored {
        self.scored
    }

    /// The position whose logits count first.
    pub fn first(&self) -> usize {
        self.scored.first(self.size)
    }

    /// Predictions of a window that count.
    pub fn predictions(&self) -> usize {
        self.size - 1 - self.first()
    }

    /// The tokens of a window.
    pub fn window(&self, index: usize) -> Vec<u32> {
        let mut window = self.tokens[index * self.size..(index + 1) * self.size].to_vec();
        if let Some(bos) = self.bos {
            window[0] = bos;
        }
        window
    }

    /// SHA-256 of the ids of the first `count` windows, as they are evaluated.
    pub fn hash(&self, count: usize) -> [u8; 32] {
        let mut hash = Sha256::new();
        for index in 0..count {
            for id in self.window(index) {
                hash.update(id.to_le_bytes());
            }
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_one_another_and_the_rest_is_left_out() {
        let tokens: Vec<u32> = (10..21).collect();
        let all = Windows::new(tokens.clone(), 4, Scored::All, Some(1)).unwrap();
        assert_eq!((all.count(), all.first(), all.predictions()), (2, 0, 3));
        assert_eq!(all.window(1), [14, 15, 16, 17]);
        let half = Windows::new(tokens.clone(), 5, Scored::SecondHalf, Some(1)).unwrap();
        assert_eq!((half.count(), half.first(), half.predictions()), (2, 2, 2));
        assert_eq!(half.window(1), [1, 16, 17, 18, 19]);
        let plain = Windows::new(tokens, 5, Scored::SecondHalf, None).unwrap();
        assert_eq!(plain.window(1)[0], 15);
        assert_ne!(plain.hash(2), half.hash(2));
        assert_ne!(half.hash(2), half.hash(1));
    }

    #[test]
    fn too_short_a_text_and_too_many_windows_are_told_in_numbers() {
        let error = Windows::new(vec![1; 9], 10, Scored::All, None).unwrap_err();
        assert!(error.to_string().contains("9 tokens"), "{error}");
        let mut windows = Windows::new(vec![1; 30], 10, Scored::All, None).unwrap();
        let error = windows.take(4).unwrap_err().to_string();
        assert!(
            error.contains("--chunks: is 4") && error.contains("3 windows"),
            "{error}"
        );
        windows.take(2).unwrap();
        assert_eq!(windows.count(), 2);
    }
}
