//! What reaches stdout, and the line of numbers that follows on stderr.

mod answer;
mod table;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

pub use answer::{
    Answer, Device, Memory, Numerics, SafeMode, Speculation, Timings, TopLogprob, Tuning, Usage,
    stats_line,
};
pub use table::{markdown_table, table};

use crate::exit::{Failure, say};

/// Takes an answer while it comes and when it is complete.
pub trait Output {
    /// More text, never half a character.
    fn piece(&mut self, text: &str) -> Result<(), Failure>;
    /// The answer has ended.
    fn finish(&mut self, answer: &Answer) -> Result<(), Failure>;
}

/// The text as it comes, and a line end after it.
pub struct TextOutput<W: Write> {
    writer: W,
    /// A person looks at it: no control characters from a model.
    terminal: bool,
    at_line_start: bool,
}

impl<W: Write> TextOutput<W> {
    pub fn new(writer: W, terminal: bool) -> TextOutput<W> {
        TextOutput {
            writer,
            terminal,
            at_line_start: false,
        }
    }
}

impl<W: Write> Output for TextOutput<W> {
    fn piece(&mut self, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        self.at_line_start = text.ends_with('\n');
        self.writer
            .write_all(harmless_on(self.terminal, text).as_bytes())
            .and_then(|()| self.writer.flush())
            .map_err(Failure::stdout)
    }

    fn finish(&mut self, _: &Answer) -> Result<(), Failure> {
        if self.at_line_start {
            Ok(())
        } else {
            self.piece("\n")
        }
    }
}

/// One object on one line, once the answer is complete.
pub struct JsonOutput<W: Write> {
    writer: W,
}

impl<W: Write> JsonOutput<W> {
    pub fn new(writer: W) -> JsonOutput<W> {
        JsonOutput { writer }
    }
}

impl<W: Write> Output for JsonOutput<W> {
    fn piece(&mut self, _: &str) -> Result<(), Failure> {
        Ok(())
    }

    fn finish(&mut self, answer: &Answer) -> Result<(), Failure> {
        let text = serde_json::to_string(answer).expect("an answer is plain data");
        writeln!(self.writer, "{text}")
            .and_then(|()| self.writer.flush())
            .map_err(Failure::stdout)
    }
}

/// Prints the numbers on stderr, dim where that shows.
pub fn print_stats(answer: &Answer) {
    let line = stats_line(answer);
    if is_colourful(&io::stderr()) {
        say(&format!("\x1b[2m{line}\x1b[0m"))
    } else {
        say(&line)
    }
}

/// Whether this is a terminal that may show colours.
pub fn is_colourful(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// A text without what a terminal would obey, where it goes to one: a model, or a file that it read,
/// may say anything. Line ends and tabs stay; other control characters become U+FFFD.
pub fn harmless_on(terminal: bool, text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if terminal && text.contains(obeyed) {
        Cow::Owned(text.replace(obeyed, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// A text on stdout; a reader that has left is no error worth a word.
pub fn print_line(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    let text = harmless_on(stdout.is_terminal(), text.trim_end_matches('\n'));
    writeln!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .map_err(Failure::stdout)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A small answer for this and other test modules.
    pub fn sample() -> Answer {
        Answer {
            prompt_token_ids: vec![1, 2],
            token_ids: vec![7, 8, 9],
            text: "a\u{e9}\"".to_owned(),
            finish_reason: "length".to_owned(),
            top_logprobs: vec![vec![TopLogprob {
                id: 7,
                token: "a".to_owned(),
                logprob: -0.5,
            }]],
            usage: Usage {
                prompt_tokens: 2,
                cached_tokens: 0,
                completion_tokens: 3,
                total_tokens: 5,
            },
            timings: Timings {
                load_ms: 10.0,
                compile_ms: 2.5,
                ttft_ms: 310.0,
                tokenize_ms: 1.5,
                queue_ms: 0.25,
                prefill_ms: 308.0,
                sample_ms: 0.25,
                prefill_tok_s: 120.44,
                decode_tok_s: 25.0,
            },
            device: Device {
                adapter: "llvmpipe".to_owned(),
                backend: "vulkan".to_owned(),
                driver: "llvmpipe 22".to_owned(),
                caps: vec!["subgroup".to_owned()],
            },
            memory: Memory {
                weights_bytes: 100,
                kv_bytes: 20,
                scratch_bytes: 3,
                other_bytes: 1,
            },
            numerics: Numerics {
                mode: "canonical".to_owned(),
                weights: "q8".to_owned(),
                activations: "f32".to_owned(),
                kv: "f16".to_owned(),
                lanes: 1,
            },
            tuning: Tuning {
                source: "measured".to_owned(),
                ms: 1.5,
                workgroup: 8,
                tile_tokens: 8,
                subgroups: true,
                wide: false,
            },
            safe_mode: Vec::new(),
            speculation: Speculation {
                proposed: 0,
                accepted: 0,
                target_passes: 3,
            },
            context_limit: 2048,
        }
    }

    #[test]
    fn json_has_exactly_the_promised_fields() {
        let mut bytes = Vec::new();
        let mut output = JsonOutput::new(&mut bytes);
        output.piece("streamed").unwrap();
        output.finish(&sample()).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"prompt_token_ids":[1,2],"token_ids":[7,8,9],"text":"aé\"","finish_reason":"length","#,
                r#""top_logprobs":[[{"id":7,"token":"a","logprob":-0.5}]],"#,
                r#""usage":{"prompt_tokens":2,"cached_tokens":0,"completion_tokens":3,"total_tokens":5},"#,
                r#""timings":{"load_ms":10.0,"compile_ms":2.5,"ttft_ms":310.0,"tokenize_ms":1.5,"queue_ms":0.25,"prefill_ms":308.0,"sample_ms":0.25,"prefill_tok_s":120.44,"decode_tok_s":25.0},"#,
                r#""device":{"adapter":"llvmpipe","backend":"vulkan","driver":"llvmpipe 22","caps":["subgroup"]},"#,
                r#""memory":{"weights_bytes":100,"kv_bytes":20,"scratch_bytes":3,"other_bytes":1},"#,
                r#""numerics":{"mode":"canonical","weights":"q8","activations":"f32","kv":"f16","lanes":1},"#,
                r#""tuning":{"source":"measured","ms":1.5,"workgroup":8,"tile_tokens":8,"subgroups":true,"wide":false},"safe_mode":[],"#,
                r#""speculation":{"proposed":0,"accepted":0,"target_passes":3}}"#,
                "\n"
            )
        );
    }

    #[test]
    fn text_streams_and_ends_with_one_line_end() {
        for (pieces, expected) in [
            (vec!["a", "", "b"], "ab\n"),
            (vec!["a\n"], "a\n"),
            (vec![], "\n"),
        ] {
            let mut bytes = Vec::new();
            let mut output = TextOutput::new(&mut bytes, false);
            for piece in pieces {
                output.piece(piece).unwrap();
            }
            output.finish(&sample()).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        }
    }

    #[test]
    fn a_terminal_obeys_no_answer_and_a_pipe_gets_it_as_it_is() {
        assert_eq!(harmless_on(true, "a\tb\n한"), "a\tb\n한");
        let text = "\x1b[2J\r\u{9b}0m\x07";
        for (terminal, expected) in [
            (true, "\u{fffd}[2J\u{fffd}\u{fffd}0m\u{fffd}"),
            (false, text),
        ] {
            let mut bytes = Vec::new();
            TextOutput::new(&mut bytes, terminal).piece(text).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        }
    }

    #[test]
    fn a_closed_pipe_ends_the_stream_quietly() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let failure = TextOutput::new(Closed, false).piece("x").unwrap_err();
        assert!(matches!(failure, Failure::OutputClosed));
    }

    #[test]
    fn the_numbers_fit_one_line() {
        assert_eq!(
            stats_line(&sample()),
            "ttft 0.31 s | prefill 120.4 tok/s (2) | decode 25.0 tok/s (3) | context 5/2048 | llvmpipe (vulkan)"
        );
        let mut again = sample();
        (again.usage.prompt_tokens, again.usage.cached_tokens) = (472, 460);
        let line = stats_line(&again);
        assert!(line.contains("tok/s (12 + 460 cached) | "), "{line}");
        again.speculation.proposed = 4;
        again.speculation.accepted = 2;
        let line = stats_line(&again);
        assert!(line.contains("(3) | guessed 2 of 4 | context"), "{line}");
    }
}
