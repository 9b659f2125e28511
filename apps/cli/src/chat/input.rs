//! Where lines come from: a person at a terminal, or a pipe.

use std::io::{BufRead, Read};

use super::multiline;
use crate::exit::Failure;
use crate::reading::MAX_TEXT_BYTES;

/// What was typed, or what happened instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A message or a command, of one or several lines.
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupt,
    /// No more lines: Ctrl-D, or the end of a file.
    End,
}

/// A source of lines.
pub trait Input {
    /// The next message or command, with all of its lines.
    fn next(&mut self) -> Result<Heard, Failure>;

    /// Whether lines that are typed are kept for the next run. Errors where there is nothing to keep
    /// them in.
    fn keep_history(&mut self, keep: bool) -> Result<(), Failure>;

    /// A text written in an editor, beginning with `text`.
    fn compose(&mut self, text: &str) -> Result<String, Failure>;
}

/// Lines of a pipe or a file.
pub struct Piped<R> {
    lines: R,
    /// Of the line that was read last, from 1.
    number: usize,
}

impl<R: BufRead> Piped<R> {
    pub fn new(lines: R) -> Piped<R> {
        Piped { lines, number: 0 }
    }

    /// One line without its end, or `None` after the last.
    fn line(&mut self) -> Result<Option<String>, Failure> {
        let mut bytes = Vec::new();
        (&mut self.lines)
            .take(MAX_TEXT_BYTES + 1)
            .read_until(b'\n', &mut bytes)
            .map_err(Failure::io("stdin".as_ref()))?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let number = self.number;
        if bytes.len() as u64 > MAX_TEXT_BYTES {
            return Err(too_long(number));
        }
        if bytes.pop_if(|byte| *byte == b'\n').is_some() {
            bytes.pop_if(|byte| *byte == b'\r');
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Failure::Usage(format!(
                "stdin: line {number}: not valid UTF-8 at byte {at}"
            ))
        })?;
        Ok(Some(text))
    }
}

fn too_long(number: usize) -> Failure {
    Failure::Usage(format!(
        "stdin: line {number}: a message may have {MAX_TEXT_BYTES} bytes"
    ))
}

impl<R: BufRead> Input for Piped<R> {
    fn next(&mut self) -> Result<Heard, Failure> {
        let Some(mut text) = self.line()? else {
            return Ok(Heard::End);
        };
        let is_block = multiline::is_block(&text);
        let mut open = multiline::is_open(&text);
        while open {
            // a block that the pipe does not close ends with it
            let Some(line) = self.line()? else { break };
            open = multiline::goes_on_after(&line, is_block);
            text.push('\n');
            text.push_str(&line);
            if text.len() as u64 > MAX_TEXT_BYTES {
                return Err(too_long(self.number));
            }
        }
        Ok(Heard::Text(text))
    }

    fn keep_history(&mut self, _: bool) -> Result<(), Failure> {
        Err(Failure::Usage("piped lines have no history".to_owned()))
    }

    fn compose(&mut self, _: &str) -> Result<String, Failure> {
        Err(Failure::Usage("/edit needs a terminal".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(bytes: &[u8]) -> Vec<String> {
        let mut input = Piped::new(bytes);
        let mut all = Vec::new();
        while let Heard::Text(text) = input.next().unwrap() {
            all.push(text);
        }
        assert_eq!(input.next().unwrap(), Heard::End);
        all
    }

    #[test]
    fn each_line_is_a_turn_unless_it_says_otherwise() {
        assert_eq!(heard(b""), [] as [&str; 0]);
        assert_eq!(heard(b"a\r\n\nb"), ["a", "", "b"]);
        assert_eq!(heard(b"a\\\nb\nc\n"), ["a\\\nb", "c"]);
        assert_eq!(
            heard("\"\"\"\n한\n글\n\"\"\"\nnext\n".as_bytes()),
            ["\"\"\"\n한\n글\n\"\"\"", "next"]
        );
        assert_eq!(heard(b"\"\"\"open\nend"), ["\"\"\"open\nend"]);
        // each line is looked at once, however many there are
        let long = format!("\"\"\"{}\"\"\"", "\n".repeat(1 << 20));
        assert_eq!(heard(format!("{long}\nnext").as_bytes()), [&long, "next"]);
    }

    #[test]
    fn a_line_that_is_no_text_is_told_by_number() {
        let mut input = Piped::new(&b"fine\nab\xff\n"[..]);
        assert_eq!(input.next().unwrap(), Heard::Text("fine".to_owned()));
        let failure = input.next().unwrap_err().to_string();
        assert!(
            failure.contains("line 2") && failure.contains("byte 2"),
            "{failure}"
        );
        assert!(input.keep_history(true).is_err() && input.compose("").is_err());
    }
}
