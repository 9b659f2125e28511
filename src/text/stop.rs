//! Stop strings, searched in the text rather than in the tokens.
//!
//! The matcher reads the text byte by byte, with one Knuth-Morris-Pratt automaton for each stop string.
//! An automaton's state is the length of the longest suffix of the text so far that begins its stop
//! string, so the largest state is exactly what must be held back, and nothing depends on how the text
//! was cut into pieces. Of several stop strings the one that is complete first wins; of those complete
//! at the same byte, the longest, then the first in the list.

use crate::error::{Error, Result};

/// The most stop strings that a request may carry.
pub const MAX_STOPS: usize = 4;
/// The longest stop string of a request, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// Checks the `stop` field of a request: at most [`MAX_STOPS`] strings of 1 to [`MAX_STOP_BYTES`] bytes.
///
/// # Errors
/// [`Error::Request`] for `stop`, or for `stop[i]`, with the found and the permitted size.
pub fn check_stops(stops: &[String]) -> Result<()> {
    if stops.len() > MAX_STOPS {
        return Err(Error::request(
            "stop",
            format!("{} strings, at most {MAX_STOPS} are allowed", stops.len()),
        ));
    }
    for (i, stop) in stops.iter().enumerate() {
        if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
            return Err(Error::request(
                format!("stop[{i}]"),
                format!("{} bytes, allowed are 1 to {MAX_STOP_BYTES}", stop.len()),
            ));
        }
    }
    Ok(())
}

/// What became known by a push: text that may be shown, and whether generation has to end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text to show now; empty when everything is held back.
    pub text: String,
    /// Index of the stop string that ended the text; stays set on later pushes.
    pub stopped: Option<usize>,
}

/// Holds back text that could still become a stop string. See the module documentation.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    needles: Vec<Needle>,
    /// The text not yet shown: exactly the longest suffix that could still become a stop string.
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`. An empty string never matches.
    pub fn new(stops: Vec<String>) -> Self {
        let needles = stops
            .into_iter()
            .map(|stop| Needle::new(stop.into_bytes()))
            .collect();
        StopMatcher {
            needles,
            held: String::new(),
            stopped: None,
        }
    }

    /// Adds text and returns what is certain not to belong to a stop string. After a stop everything
    /// that follows is dropped.
    pub fn push(&mut self, text: &str) -> Piece {
        if self.stopped.is_some() {
            return Piece {
                text: String::new(),
                stopped: self.stopped,
            };
        }
        let already_read = self.held.len();
        self.held.push_str(text);
        let mut keep = 0;
        for end in already_read..self.held.len() {
            let byte = self.held.as_bytes()[end];
            keep = 0;
            let mut found: Option<(usize, usize)> = None; // (length, index)
            for (index, needle) in self.needles.iter_mut().enumerate() {
                if needle.advance(byte) {
                    let len = needle.bytes.len();
                    if found.is_none_or(|(longest, _)| len > longest) {
                        found = Some((len, index));
                    }
                }
                keep = keep.max(needle.state);
            }
            if let Some((len, index)) = found {
                self.stopped = Some(index);
                let mut shown = std::mem::take(&mut self.held);
                shown.truncate(end + 1 - len);
                return Piece {
                    text: shown,
                    stopped: self.stopped,
                };
            }
        }
        if already_read == self.held.len() {
            return Piece::default();
        }
        let rest = self.held.split_off(self.held.len() - keep);
        Piece {
            text: std::mem::replace(&mut self.held, rest),
            stopped: None,
        }
    }

    /// The text ends here: returns what was held back, as no stop string can be completed any more.
    pub fn finish(&mut self) -> String {
        for needle in &mut self.needles {
            needle.state = 0;
        }
        std::mem::take(&mut self.held)
    }
}

/// One stop string and how much of it the text's end matches.
#[derive(Debug, Clone)]
struct Needle {
    bytes: Vec<u8>,
    /// `border[i]`: length of the longest proper prefix of `bytes[..=i]` that is also its suffix.
    border: Vec<usize>,
    /// Bytes matched; below `bytes.len()` between calls.
    state: usize,
}

impl Needle {
    fn new(bytes: Vec<u8>) -> Self {
        let mut border = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            let mut len = border[i - 1];
            while len > 0 && bytes[len] != bytes[i] {
                len = border[len - 1];
            }
            border[i] = len + usize::from(bytes[len] == bytes[i]);
        }
        Needle {
            bytes,
            border,
            state: 0,
        }
    }

    /// Reads one byte; true when it completes the string.
    fn advance(&mut self, byte: u8) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        while self.state > 0 && self.bytes[self.state] != byte {
            self.state = self.border[self.state - 1];
        }
        self.state += usize::from(self.bytes[self.state] == byte);
        let complete = self.state == self.bytes.len();
        if complete {
            self.state = self.border[self.state - 1];
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    /// The whole text at once, by trying every end: what is shown, and which string stopped it.
    fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let mut hits: Vec<(usize, usize)> = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| {
                    !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes())
                })
                .map(|(i, stop)| (usize::MAX - stop.len(), i))
                .collect();
            hits.sort_unstable();
            if let Some(&(_, index)) = hits.first() {
                return (text[..end - stops[index].len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn h26_limits_of_the_stop_field() {
        assert!(check_stops(&strings(&["a", "b", "c", "d"])).is_ok());
        let five = check_stops(&strings(&["a", "b", "c", "d", "e"]))
            .unwrap_err()
            .to_string();
        assert!(five.starts_with("stop: 5 strings"), "{five}");
        let long = check_stops(&["ok".to_owned(), "x".repeat(1 << 20)])
            .unwrap_err()
            .to_string();
        assert!(long.starts_with("stop[1]: 1048576 bytes"), "{long}");
        assert!(check_stops(&strings(&[""])).is_err());
        assert!(check_stops(&["x".repeat(MAX_STOP_BYTES)]).is_ok());
    }

    #[test]
    fn h27_stop_over_several_pushes_is_never_shown() {
        let mut matcher = StopMatcher::new(strings(&["<end>"]));
        let mut shown = String::new();
        for part in ["one <", "e", "nd", "> two"] {
            let piece = matcher.push(part);
            shown.push_str(&piece.text);
            assert!(!shown.contains('<'), "{shown}");
        }
        assert_eq!(shown, "one ");
        assert_eq!(
            matcher.push("more"),
            Piece {
                text: String::new(),
                stopped: Some(0)
            }
        );
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn h28_held_text_is_released_in_order() {
        let mut matcher = StopMatcher::new(strings(&["abcd", "xyz"]));
        assert_eq!(matcher.push("1abc").text, "1");
        assert_eq!(matcher.push("abc").text, "abc");
        assert_eq!(matcher.push("x").text, "abc");
        assert_eq!(matcher.push("y").text, "");
        assert_eq!(matcher.finish(), "xy");
    }

    #[test]
    fn holds_back_no_more_than_needed() {
        let mut matcher = StopMatcher::new(strings(&["aab"]));
        assert_eq!(matcher.push("aaaa").text, "aa");
        assert_eq!(
            matcher.push("b"),
            Piece {
                text: String::new(),
                stopped: Some(0)
            }
        );
    }

    #[test]
    fn first_complete_then_longest_wins() {
        assert_eq!(
            StopMatcher::new(strings(&["abc", "b"])).push("abc").stopped,
            Some(1)
        );
        let piece = StopMatcher::new(strings(&["c", "abc"])).push("zabc");
        assert_eq!(
            piece,
            Piece {
                text: "z".into(),
                stopped: Some(1)
            }
        );
    }

    proptest! {
        #[test]
        fn h27_h28_same_as_whole_string_search(
            text in "[abé]{0,24}",
            stops in proptest::collection::vec("[abé]{0,4}", 0..4),
            cuts in proptest::collection::vec(0usize..25, 0..8),
        ) {
            let (want, want_stop) = naive(&text, &stops);
            let mut matcher = StopMatcher::new(stops.clone());
            let (mut got, mut stop) = (String::new(), None);
            let mut ends: Vec<usize> = cuts.into_iter().filter(|&c| text.is_char_boundary(c.min(text.len()))).map(|c| c.min(text.len())).collect();
            ends.push(text.len());
            ends.sort_unstable();
            let mut start = 0;
            for end in ends {
                let piece = matcher.push(&text[start..end]);
                got.push_str(&piece.text);
                stop = piece.stopped;
                start = end;
                // Held back is the longest suffix that begins a stop string, and not a byte more.
                if stop.is_none() {
                    let read = &text[..end];
                    let longest = (0..=read.len())
                        .filter(|&i| read.is_char_boundary(i))
                        .find(|&i| i == read.len() || stops.iter().any(|s| s.len() > read.len() - i && s.starts_with(&read[i..])))
                        .unwrap();
                    prop_assert_eq!(got.as_str(), &read[..longest]);
                }
            }
            got.push_str(&matcher.finish());
            prop_assert_eq!(got, want);
            prop_assert_eq!(stop, want_stop);
        }
    }
}
