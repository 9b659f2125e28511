//! What reaches stdout, and the line of numbers that follows on stderr. Plain data only.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use nelumbo::gpu::Gpu;
use nelumbo::model::{Decoder, Tuned};
use serde::Serialize;

use crate::exit::{Failure, say};

/// One finished answer: the JSON object of `--format json`, field by field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    pub prompt_token_ids: Vec<u32>,
    pub token_ids: Vec<u32>,
    pub text: String,
    /// `stop`, `length` or `cancelled`.
    pub finish_reason: String,
    /// For each generated token the likeliest ones, from the logits before temperature.
    pub top_logprobs: Vec<Vec<TopLogprob>>,
    pub usage: Usage,
    pub timings: Timings,
    pub device: Device,
    pub memory: Memory,
    pub numerics: Numerics,
    pub tuning: Tuning,
    /// Kernels that this adapter computes wrongly, and what is done instead; empty where all are right.
    pub safe_mode: Vec<SafeMode>,
    /// For the line of numbers only.
    #[serde(skip)]
    pub context_limit: usize,
}

/// One candidate at one step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopLogprob {
    pub id: u32,
    /// The token's text; bytes that are no text are replaced.
    pub token: String,
    pub logprob: f32,
}

/// Tokens counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Those of the prompt that were in the cache already.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
}

impl Usage {
    /// What the speed of the prompt counts: `38`, or `12 + 460 cached`.
    fn computed(&self) -> String {
        let computed = self.prompt_tokens - self.cached_tokens;
        match self.cached_tokens {
            0 => computed.to_string(),
            cached => format!("{computed} + {cached} cached"),
        }
    }
}

/// Milliseconds, and tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timings {
    pub load_ms: f64,
    pub compile_ms: f64,
    pub ttft_ms: f64,
    /// The four parts of `ttft_ms`.
    pub tokenize_ms: f64,
    pub queue_ms: f64,
    pub prefill_ms: f64,
    pub sample_ms: f64,
    pub prefill_tok_s: f64,
    pub decode_tok_s: f64,
}

/// The adapter that did the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    pub adapter: String,
    pub backend: String,
    pub driver: String,
    pub caps: Vec<String>,
}

impl Device {
    /// The adapter behind an open device.
    pub fn of(gpu: &Gpu) -> Device {
        let report = gpu.report();
        Device {
            adapter: report.name.clone(),
            backend: report.backend.name().to_owned(),
            driver: report.driver_text(),
            caps: gpu.caps().names().into_iter().map(str::to_owned).collect(),
        }
    }
}

/// Bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub weights_bytes: u64,
    pub kv_bytes: u64,
    pub scratch_bytes: u64,
    /// Parameters, token ids, and what results are read back from.
    pub other_bytes: u64,
}

/// What the bits of an answer depend on, beside the adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Numerics {
    /// `canonical` or `fast`.
    pub mode: String,
    pub weights: String,
    pub activations: String,
    pub kv: String,
    pub lanes: u32,
}

impl Numerics {
    /// Of a loaded model.
    pub fn of(decoder: &Decoder) -> Numerics {
        let tuning = decoder.tuning();
        Numerics {
            mode: decoder.numerics().name().to_owned(),
            weights: decoder.weights().head().format.name.to_owned(),
            activations: tuning.activations.name().to_owned(),
            kv: decoder.kv().format().name().to_owned(),
            lanes: tuning.lanes,
        }
    }
}

/// How kernels divide their work, and who says so: no bit depends on it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tuning {
    /// `measured`, `cached`, `default` or `pinned`.
    pub source: String,
    /// Milliseconds that finding it took.
    pub ms: f64,
    pub workgroup: u32,
    pub tile_tokens: u32,
    pub subgroups: bool,
    pub wide: bool,
}

impl Tuning {
    /// For programs to read.
    pub fn of(tuned: &Tuned) -> Tuning {
        Tuning {
            source: tuned.source.name().to_owned(),
            ms: tuned.ms,
            workgroup: tuned.tuning.workgroup,
            tile_tokens: tuned.tuning.tile_tokens,
            subgroups: tuned.tuning.subgroups,
            wide: tuned.tuning.wide,
        }
    }
}

/// A kernel that the self-check found wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SafeMode {
    pub kernel: String,
    /// The first case that it gets wrong: shape and choices.
    pub case: String,
    pub problem: String,
    /// `other-way`, `canonical` or `host`.
    pub instead: String,
}

impl SafeMode {
    /// Of a loaded model.
    pub fn of(decoder: &Decoder) -> Vec<SafeMode> {
        let findings = decoder.safety().findings.iter();
        findings
            .map(|finding| SafeMode {
                kernel: finding.wrong.kernel.to_owned(),
                case: finding.wrong.case.clone(),
                problem: finding.wrong.problem.clone(),
                instead: finding.instead.name().to_owned(),
            })
            .collect()
    }
}

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

/// `ttft 0.31 s | prefill 120.4 tok/s (38) | decode 25.1 tok/s (120) | context 158/2048 | llvmpipe (vulkan)`
pub fn stats_line(answer: &Answer) -> String {
    let Answer {
        usage,
        timings,
        device,
        ..
    } = answer;
    format!(
        "ttft {:.2} s | prefill {:.1} tok/s ({}) | decode {:.1} tok/s ({}) | context {}/{} | {} ({})",
        timings.ttft_ms / 1000.0,
        timings.prefill_tok_s,
        usage.computed(),
        timings.decode_tok_s,
        usage.completion_tokens,
        usage.total_tokens,
        answer.context_limit,
        device.adapter,
        device.backend,
    )
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

/// Columns as wide as their widest cell, two spaces apart; one line a row.
pub fn table<const N: usize>(rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
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
                r#""tuning":{"source":"measured","ms":1.5,"workgroup":8,"tile_tokens":8,"subgroups":true,"wide":false},"safe_mode":[]}"#,
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
    }

    #[test]
    fn tables_align_without_trailing_blanks() {
        let rows = [["A", "B"], ["long", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(rows.into_iter()), "A     B\nlong  x\n");
    }
}
