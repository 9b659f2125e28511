//! The clipboard of the terminal, reached by an escape sequence (OSC 52): it works through ssh as well.

/// Most terminals take no more bytes than this in one sequence.
const MAX_SEQUENCE: usize = 74_994;

/// What makes a terminal take `text` into its clipboard, or why it would not.
pub fn sequence(text: &str) -> Result<String, String> {
    let sequence = format!("\x1b]52;c;{}\x07", base64(text.as_bytes()));
    if sequence.len() > MAX_SEQUENCE {
        return Err(format!(
            "{} bytes are more than terminals take; /save writes the conversation to a file",
            text.len()
        ));
    }
    Ok(sequence)
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            if digit <= group.len() {
                let value = word >> (18 - 6 * digit) & 63;
                out.push(char::from(DIGITS[value as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("한", "7ZWc"),
        ] {
            assert_eq!(base64(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn what_no_terminal_takes_is_told() {
        assert_eq!(sequence("foo").unwrap(), "\x1b]52;c;Zm9v\x07");
        assert!(sequence(&"x".repeat(80_000)).unwrap_err().contains("80000"));
    }
}
