//! Messages of several lines: a block between `"""`, or a `\` at the end of a line.
//!
//! Pure, and the same for the editor (which holds the whole text) and for piped lines (which come one
//! by one).

/// What begins and ends a block.
const FENCE: &str = "\"\"\"";

/// Whether more lines belong to this text.
pub fn is_open(text: &str) -> bool {
    match block(text) {
        Some(inner) => goes_on_after(inner, true),
        None => goes_on_after(text, false),
    }
}

/// The same where the last line alone is new, so that the others need not be looked at again.
pub fn goes_on_after(line: &str, is_block: bool) -> bool {
    if is_block {
        !line.trim_end().ends_with(FENCE)
    } else {
        ends_with_backslash(line)
    }
}

/// Whether a text is a block, and so a message whatever it begins with.
pub fn is_block(text: &str) -> bool {
    block(text).is_some()
}

/// The message that a complete text stands for: without the fences, and without the backslashes that
/// only said that a line follows.
pub fn message(text: &str) -> String {
    if let Some(inner) = block(text) {
        let inner = inner.trim_end();
        let inner = inner.strip_suffix(FENCE).unwrap_or(inner);
        let inner = inner.strip_prefix('\n').unwrap_or(inner);
        return inner.strip_suffix('\n').unwrap_or(inner).to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut lines = text.split('\n').peekable();
    while let Some(line) = lines.next() {
        match lines.peek() {
            Some(_) if ends_with_backslash(line) => out.push_str(&line[..line.len() - 1]),
            _ => out.push_str(line),
        }
        if lines.peek().is_some() {
            out.push('\n');
        }
    }
    out
}

/// What follows the first fence, where the text begins with one.
fn block(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix(FENCE)
}

/// A single one: two stand for a backslash that is meant.
fn ends_with_backslash(line: &str) -> bool {
    let trailing = line.len() - line.trim_end_matches('\\').len();
    trailing % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_goes_on_to_its_fence() {
        for open in ["\"\"\"", "\"\"\"a", "\"\"\"\na\nb", "  \"\"\" a \\"] {
            assert!(is_open(open), "{open:?}");
        }
        for (text, expected) in [
            ("\"\"\"a\"\"\"", "a"),
            ("\"\"\"\na\nb\n\"\"\"", "a\nb"),
            ("\"\"\"a\n\n  b\"\"\" ", "a\n\n  b"),
            ("\"\"\"\"\"\"", ""),
            ("\"\"\"\n\nx\n\"\"\"", "\nx"),
            ("\"\"\"back\\\nslash\\\"\"\"", "back\\\nslash\\"),
        ] {
            assert!(!is_open(text), "{text:?}");
            assert_eq!(message(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_backslash_says_that_a_line_follows() {
        assert!(is_open("a\\") && is_open("a\nb\\") && is_open("\\"));
        assert!(!is_open("a\\\\") && !is_open("a\\b") && !is_open("a\\\nb"));
        assert_eq!(message("a\\\nb\\\nc"), "a\nb\nc");
        // lines that were pasted have line ends without backslashes
        assert_eq!(message("a\nb"), "a\nb");
        assert_eq!(message("C:\\\\"), "C:\\\\");
        assert_eq!(message("한\\\n글"), "한\n글");
    }
}
