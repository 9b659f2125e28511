//! Finding control tokens in a text.

use std::collections::BTreeSet;
use std::ops::Range;

/// One token that a prompt can name by its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ControlToken {
    pub(super) id: u32,
    pub(super) text: String,
    /// Takes the white space in front of it along.
    pub(super) lstrip: bool,
    /// Takes the white space behind it along.
    pub(super) rstrip: bool,
    /// Is not recognised inside of a word.
    pub(super) single_word: bool,
}

/// Marks of texts, turns and calls that have another form than `<|...|>`. Some files call them plain text.
const MARKERS: &[&str] = &[
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
];

/// Whether an added token's text is, or has the form of, what families mark turns with.
pub(super) fn looks_like_control(text: &str) -> bool {
    let inside = |open: &str, close: &str| {
        text.len() > open.len() + close.len() && text.starts_with(open) && text.ends_with(close)
    };
    inside("<|", "|>") || inside("<｜", "｜>") || MARKERS.contains(&text)
}

/// The added tokens that are marked as special.
pub(super) fn special_tokens(inner: &tokenizers::Tokenizer) -> Vec<ControlToken> {
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let special = added.iter().filter(|(_, token)| token.special);
    special
        .map(|(&id, token)| ControlToken {
            id,
            text: token.content.clone(),
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            single_word: token.single_word,
        })
        .collect()
}

/// All control tokens of a vocabulary, sorted by text so that a search narrows a range byte by byte.
#[derive(Debug, Default)]
pub(super) struct ControlTokens {
    sorted: Vec<ControlToken>,
    ids: BTreeSet<u32>,
}

/// A recognised token and the bytes of the text that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: u32,
    pub(super) range: Range<usize>,
}

impl ControlTokens {
    pub(super) fn new(tokens: impl IntoIterator<Item = ControlToken>) -> Self {
        let mut sorted: Vec<ControlToken> =
            tokens.into_iter().filter(|t| !t.text.is_empty()).collect();
        sorted.sort_unstable_by(|a, b| a.text.cmp(&b.text));
        let ids = sorted.iter().map(|token| token.id).collect();
        ControlTokens { sorted, ids }
    }

    /// No longer finds those with ids from `count` on; they are still among these.
    pub(super) fn stop_finding(&mut self, count: usize) {
        self.sorted.retain(|token| (token.id as usize) < count);
    }

    /// Whether `id` is one of them.
    pub(super) fn contains(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }

    /// All control tokens in `text` that do not touch one of `spans`: leftmost first, of several at one
    /// place the longest. `spans` are byte ranges, ascending and disjoint.
    pub(super) fn find(&self, text: &str, spans: &[Range<usize>]) -> Vec<Found> {
        let mut found = Vec::new();
        let mut spans = spans.iter().filter(|span| !span.is_empty()).peekable();
        let mut at = 0;
        let mut taken = 0;
        while at < text.len() {
            while spans.next_if(|span| span.end <= at).is_some() {}
            let limit = match spans.peek() {
                Some(span) if span.start <= at => {
                    at = span.end;
                    continue;
                }
                Some(span) => span.start.min(text.len()),
                None => text.len(),
            };
            match self.longest_at(text, at, limit) {
                Some(token) => {
                    let range = token.with_white_space(text, at, taken);
                    at = range.end;
                    taken = range.end;
                    found.push(Found {
                        id: token.id,
                        range,
                    });
                }
                None => at += 1,
            }
        }
        found
    }

    fn longest_at(&self, text: &str, at: usize, limit: usize) -> Option<&ControlToken> {
        let bytes = &text.as_bytes()[at..limit];
        let mut range = self.sorted.as_slice();
        let mut best = None;
        for (depth, &byte) in bytes.iter().enumerate() {
            let key = |token: &ControlToken| token.text.as_bytes().get(depth).copied();
            let from = range.partition_point(|token| key(token) < Some(byte));
            let len = range[from..].partition_point(|token| key(token) == Some(byte));
            range = &range[from..from + len];
            match range.first() {
                None => break,
                // The shortest of those left comes first; it is complete or none is.
                Some(token) if token.text.len() == depth + 1 && token.stands_alone(text, at) => {
                    best = Some(token)
                }
                Some(_) => {}
            }
        }
        best
    }
}

impl ControlToken {
    fn stands_alone(&self, text: &str, at: usize) -> bool {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        !self.single_word
            || !(text[..at].ends_with(is_word) || text[at + self.text.len()..].starts_with(is_word))
    }

    /// The token's bytes at `at`, with the white space it takes; what lies before `taken` is gone already.
    fn with_white_space(&self, text: &str, at: usize, taken: usize) -> Range<usize> {
        let mut range = at..at + self.text.len();
        if self.lstrip {
            range.start = text[..at].trim_end().len().max(taken);
        }
        if self.rstrip {
            let rest = &text[range.end..];
            range.end += rest.len() - rest.trim_start().len();
        }
        range
    }
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "lists of spans happen to hold one"
)]
mod tests {
    use super::*;

    fn token(id: u32, text: &str) -> ControlToken {
        ControlToken {
            id,
            text: text.into(),
            lstrip: false,
            rstrip: false,
            single_word: false,
        }
    }

    #[test]
    fn leftmost_longest_outside_of_spans() {
        let tokens = ControlTokens::new([
            token(1, "<a"),
            token(2, "<ab>"),
            token(3, "<b>"),
            token(4, "é"),
        ]);
        let ids = |text: &str, spans: &[Range<usize>]| -> Vec<(u32, usize)> {
            tokens
                .find(text, spans)
                .into_iter()
                .map(|f| (f.id, f.range.start))
                .collect()
        };
        assert_eq!(ids("x<ab><a<b>é", &[]), [(2, 1), (1, 5), (3, 7), (4, 10)]);
        assert_eq!(ids("<ab><b>", &[0..4]), [(3, 4)]);
        // A token that reaches into a span is not recognised; a shorter one before it is.
        assert_eq!(ids("<ab>", &[3..4]), [(1, 0)]);
        assert_eq!(ids("<b>", &[1..2, 5..9]), []);
        // An empty span forbids nothing.
        assert_eq!(ids("<b>", &[1..1]), [(3, 0)]);
    }

    #[test]
    fn white_space_and_words() {
        let tokens = ControlTokens::new([
            ControlToken {
                lstrip: true,
                rstrip: true,
                ..token(1, "<m>")
            },
            ControlToken {
                single_word: true,
                ..token(2, "STOP")
            },
        ]);
        let ranges = |text: &str| -> Vec<Range<usize>> {
            tokens
                .find(text, &[])
                .into_iter()
                .map(|f| f.range)
                .collect()
        };
        assert_eq!(ranges("a \u{A0}<m>  <m> b"), [1..9, 9..13]);
        assert_eq!(ranges("NONSTOP STOP STOPS"), [8..12]);
    }
}
