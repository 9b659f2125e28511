//! Token bytes to text: whole characters only, stop strings cut off.
//!
//! A token may end in the middle of a character, so bytes are kept until the character is complete.
//! Bytes that can never become a character turn into one U+FFFD for each unbroken run of them, however
//! the run was cut into tokens.

use super::stop::{Piece, StopMatcher};

/// One answer's text as it grows. Feed it [`Tokenizer::token_bytes`](super::Tokenizer::token_bytes).
#[derive(Debug, Clone)]
pub struct TextStream {
    /// The beginning of a character that is not complete yet; at most 3 bytes.
    pending: Vec<u8>,
    /// The last bytes read were bad and their U+FFFD is written.
    in_bad_run: bool,
    stops: StopMatcher,
}

impl TextStream {
    /// A stream that ends before the first of `stops`; an empty stop string never matches.
    pub fn new(stops: Vec<String>) -> Self {
        TextStream {
            pending: Vec::new(),
            in_bad_run: false,
            stops: StopMatcher::new(stops),
        }
    }

    /// Adds a token's bytes and returns the text that is now certain.
    pub fn push(&mut self, bytes: &[u8]) -> Piece {
        let text = self.decode(bytes);
        self.stops.push(&text)
    }

    /// The answer is complete: returns everything held back. An unfinished character counts as bad
    /// bytes. Nothing is returned after a stop.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        if !self.pending.is_empty() {
            self.pending.clear();
            if !self.in_bad_run {
                text = self.stops.push("\u{FFFD}").text;
            }
        }
        text.push_str(&self.stops.finish());
        text
    }

    fn decode(&mut self, bytes: &[u8]) -> String {
        let joined;
        let input = if self.pending.is_empty() {
            bytes
        } else {
            joined = [self.pending.as_slice(), bytes].concat();
            &joined
        };
        let mut text = String::with_capacity(input.len());
        let mut rest = Vec::new();
        let mut read = 0;
        for chunk in input.utf8_chunks() {
            read += chunk.valid().len() + chunk.invalid().len();
            if !chunk.valid().is_empty() {
                text.push_str(chunk.valid());
                self.in_bad_run = false;
            }
            if chunk.invalid().is_empty() {
                continue;
            }
            if read == input.len() && may_become_character(chunk.invalid()) {
                rest = chunk.invalid().to_vec();
            } else if !self.in_bad_run {
                text.push('\u{FFFD}');
                self.in_bad_run = true;
            }
        }
        self.pending = rest;
        text
    }
}

/// Whether `bytes`, which are not valid, are merely too short.
fn may_become_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The whole output at once: one U+FFFD for each run of bad bytes.
    fn whole(bytes: &[u8]) -> String {
        let mut text = String::new();
        let mut bad = false;
        for chunk in bytes.utf8_chunks() {
            bad &= chunk.valid().is_empty();
            text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() && !bad {
                text.push('\u{FFFD}');
                bad = true;
            }
        }
        text
    }

    fn stream(parts: &[&[u8]]) -> Vec<String> {
        let mut stream = TextStream::new(Vec::new());
        let mut texts: Vec<String> = parts.iter().map(|part| stream.push(part).text).collect();
        texts.push(stream.finish());
        texts
    }

    #[test]
    fn h29_a_character_over_four_tokens_comes_whole() {
        assert_eq!(
            stream(&[b"\xF0", b"\x9F", b"\x8C", b"\xB8"]),
            ["", "", "", "🌸", ""]
        );
        assert_eq!(stream(&[b"a\xE2\x82", b"\xAC!"]), ["a", "€!", ""]);
    }

    #[test]
    fn h30_bad_bytes_become_one_replacement_for_each_run() {
        assert_eq!(
            stream(&[b"\xFF", b"\xFE\xC0", b"a"]),
            ["\u{FFFD}", "", "a", ""]
        );
        assert_eq!(stream(&[b"\xFFa\xFF"]).concat(), "\u{FFFD}a\u{FFFD}");
        // An unfinished character inside of a bad run belongs to the run.
        assert_eq!(stream(&[b"\xFF", b"\xE2", b"x"]).concat(), "\u{FFFD}x");
        assert_eq!(
            stream(&[b"\xFF", b"\xE2\x82", b"\xAC"]).concat(),
            "\u{FFFD}€"
        );
    }

    #[test]
    fn h30_output_that_ends_inside_a_character() {
        assert_eq!(stream(&[b"ok\xF0\x9F"]), ["ok", "\u{FFFD}"]);
        let mut stopped = TextStream::new(vec!["ok".into()]);
        assert_eq!(stopped.push(b"ok\xF0\x9F").stopped, Some(0));
        assert_eq!(stopped.finish(), "");
    }

    #[test]
    fn h27_stop_string_whose_character_is_split() {
        let mut stream = TextStream::new(vec!["é.".into()]);
        let mut shown = String::new();
        for part in [b"caf".as_slice(), b"\xC3", b"\xA9", b". more"] {
            shown.push_str(&stream.push(part).text);
        }
        assert_eq!(shown + &stream.finish(), "caf");
    }

    proptest! {
        #[test]
        fn h29_h30_any_split_gives_the_whole_text(
            pieces in proptest::collection::vec(prop_oneof![
                "[aé€🌸\u{FFFD}]{0,3}".prop_map(String::into_bytes),
                proptest::collection::vec(any::<u8>(), 0..4),
            ], 0..8),
            cuts in proptest::collection::vec(0usize..40, 0..10),
        ) {
            let bytes = pieces.concat();
            let mut ends: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            ends.push(bytes.len());
            ends.sort_unstable();
            let mut start = 0;
            let mut parts = Vec::new();
            for end in ends {
                parts.push(&bytes[start..end]);
                start = end;
            }
            prop_assert_eq!(stream(&parts).concat(), whole(&bytes));
        }
    }
}
