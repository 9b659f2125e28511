//! What the conversation prints: answers on stdout, remarks on stderr.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::Failure;
use crate::output::harmless_on;

/// Two places to write to, and what may be written there.
pub struct Screen<'a> {
    pub out: &'a mut dyn Write,
    pub err: &'a mut dyn Write,
    /// A person looks at it: no control characters from a model, a sign of life while it thinks.
    pub terminal: bool,
    /// Remarks may be dim.
    pub colour: bool,
    /// Errors only.
    pub quiet: bool,
    at_line_start: bool,
}

impl<'a> Screen<'a> {
    pub fn new(out: &'a mut dyn Write, err: &'a mut dyn Write) -> Screen<'a> {
        Screen {
            out,
            err,
            terminal: false,
            colour: false,
            quiet: false,
            at_line_start: true,
        }
    }

    /// A part of an answer, at once.
    pub fn piece(&mut self, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        self.at_line_start = text.ends_with('\n');
        let text = harmless_on(self.terminal, text);
        self.out
            .write_all(text.as_bytes())
            .and_then(|()| self.out.flush())
            .map_err(Failure::stdout)
    }

    /// The answer is over: what follows begins on a new line, and even an empty answer is a line.
    pub fn end_answer(&mut self, was_empty: bool) -> Result<(), Failure> {
        let open = was_empty || !self.at_line_start;
        self.at_line_start = true;
        if open { self.piece("\n") } else { Ok(()) }
    }

    /// What was asked for, on stdout.
    pub fn show(&mut self, text: &str) -> Result<(), Failure> {
        self.piece(text.trim_end_matches('\n'))?;
        self.piece("\n")
    }

    /// A remark on stderr, dim where that shows. A closed stderr is no reason to fail.
    pub fn remark(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        let text = harmless_on(self.terminal, text);
        let _ = if self.colour {
            writeln!(self.err, "\x1b[2m{text}\x1b[0m")
        } else {
            writeln!(self.err, "{text}")
        };
    }

    /// An error, after which the conversation goes on.
    pub fn problem(&mut self, failure: &Failure) {
        // behind an answer that it has cut; if that cannot be written, the next one tells
        let _ = self.end_answer(false);
        let text = failure.to_string();
        let text = harmless_on(self.terminal, &text);
        let _ = writeln!(self.err, "error: {text}");
        // the hint for usage is about the command line
        if let Some(hint) = failure
            .hint()
            .filter(|_| !matches!(failure, Failure::Usage(_)))
        {
            let _ = writeln!(self.err, "hint: {hint}");
        }
    }

    /// A sign of life until the first token, for people alone.
    pub fn waiting(&self) -> ProgressBar {
        if !self.terminal || self.quiet {
            return ProgressBar::hidden();
        }
        let spinner = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {elapsed}");
        spinner.set_style(style.expect("the template is ours"));
        spinner.enable_steady_tick(Duration::from_millis(120));
        spinner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_no_answer() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut screen = Screen::new(&mut out, &mut err);
        screen.piece("\x1b[1m").unwrap();
        screen.terminal = true;
        screen.piece("\x1b[1m").unwrap();
        screen.remark("a\x1bb");
        screen.problem(&Failure::Model("c\x1bd".to_owned()));
        // the error begins on a line of its own
        assert_eq!(String::from_utf8(out).unwrap(), "\x1b[1m\u{fffd}[1m\n");
        let err = String::from_utf8(err).unwrap();
        assert_eq!(err, "a\u{fffd}b\nerror: c\u{fffd}d\n");
    }

    #[test]
    fn every_answer_ends_with_one_line_end() {
        for (text, expected) in [("a", "a\n"), ("a\n", "a\n"), ("", "\n")] {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let mut screen = Screen::new(&mut out, &mut err);
            screen.piece(text).unwrap();
            screen.end_answer(text.is_empty()).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
