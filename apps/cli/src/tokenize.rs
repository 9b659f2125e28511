//! `nelumbo tokenize`: a text as the model's tokenizer cuts it, and back. Opens no device.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use clap::Args;
use nelumbo::formats;
use nelumbo::model::Texts;
use nelumbo::text::Tokenizer;
use serde_json::{Value, json};

use crate::args::GlobalArgs;
use crate::exit::Failure;
use crate::models;
use crate::output::{print_line, table};
use crate::prompt;

/// What `nelumbo tokenize` takes.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
                        nelumbo tokenize smollm2-135m \"Hello there\"\n  \
                        nelumbo tokenize smollm2-135m --ids < text.txt\n  \
                        nelumbo tokenize smollm2-135m --decode 19556 665\n  \
                        nelumbo tokenize smollm2-135m -- \"-- a text that begins like an option\"")]
pub struct TokenizeArgs {
    /// A GGUF file, a model directory, or the name of a local model (`nelumbo ls`)
    #[arg(value_name = "MODEL")]
    pub reference: OsString,
    /// The text, in which special tokens count; ids with --decode; stdin where there is none
    #[arg(value_name = "TEXT")]
    pub words: Vec<OsString>,
    /// The ids alone, on one line
    #[arg(long)]
    pub ids: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    /// From ids to text
    #[arg(long)]
    pub decode: bool,
}

/// Everything from the arguments to the last line.
pub fn tokenize(args: &TokenizeArgs, global: &GlobalArgs) -> Result<(), Failure> {
    if args.decode && args.ids {
        let problem = "--ids and --decode: one makes ids of a text, the other a text of ids";
        return Err(Failure::Usage(problem.to_owned()));
    }
    let text = text(&args.words)?;
    let model = models::resolve_local(&args.reference, global)?;
    let texts = Texts::load(&formats::open(&model.path)?)?;
    let tokenizer = &texts.tokenizer;
    if args.decode {
        let ids = parse_ids(&text, tokenizer.vocab_size()).map_err(Failure::Usage)?;
        return print_decoded(tokenizer, &ids, args.json);
    }
    let ids = tokenizer.encode_raw(&text)?;
    if args.json {
        print_line(&object(tokenizer, &ids).to_string())
    } else if args.ids {
        print_line(&list(&ids))
    } else {
        let header = ["ID", "PIECE"].map(str::to_owned);
        let rows = ids
            .iter()
            .map(|&id| [id.to_string(), quoted(&piece(tokenizer, id))]);
        print_line(&table(std::iter::once(header).chain(rows)))
    }
}

fn text(words: &[OsString]) -> Result<String, Failure> {
    if words.is_empty() {
        if std::io::stdin().is_terminal() {
            let problem = "no text: give TEXT, or pipe one in";
            return Err(Failure::Usage(problem.to_owned()));
        }
        return prompt::from_stdin("no text: stdin is empty; give TEXT");
    }
    prompt::joined(words, "the text")
}

/// Ids between blanks, commas or brackets, each within the vocabulary.
fn parse_ids(text: &str, vocab_size: usize) -> Result<Vec<u32>, String> {
    let between = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']');
    let words = text.split(between).filter(|word| !word.is_empty());
    words
        .map(|word| match word.parse::<u32>() {
            Ok(id) if (id as usize) < vocab_size => Ok(id),
            Ok(id) => Err(format!("token {id} is not in 0..={}", vocab_size - 1)),
            Err(_) => Err(format!(
                "\"{word}\" is no token id: --decode takes ids in 0..={}",
                vocab_size - 1
            )),
        })
        .collect()
}

fn print_decoded(tokenizer: &Tokenizer, ids: &[u32], as_json: bool) -> Result<(), Failure> {
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| bytes(tokenizer, id)).collect();
    if as_json {
        let text = String::from_utf8_lossy(&bytes);
        return print_line(&json!({ "ids": ids, "text": text }).to_string());
    }
    // the bytes as they are, so that encoding and decoding is a round trip
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(&bytes)
        .and_then(|()| stdout.write_all(b"\n"))
        .and_then(|()| stdout.flush())
        .map_err(Failure::stdout)
}

/// What a token stands for; a control token for its name.
fn bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    if tokenizer.is_control(id) {
        tokenizer.token_text(id).into_bytes()
    } else {
        tokenizer.token_bytes(id).to_vec()
    }
}

/// A token's text; the bytes of one that is no text by itself.
fn piece(tokenizer: &Tokenizer, id: u32) -> Result<String, Vec<u8>> {
    String::from_utf8(bytes(tokenizer, id)).map_err(|error| error.into_bytes())
}

fn quoted(piece: &Result<String, Vec<u8>>) -> String {
    match piece {
        Ok(text) => format!("{text:?}"),
        Err(bytes) => {
            let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
            format!("<{}>", hex.join(" "))
        }
    }
}

/// `[1,2,3]`, which `--decode` reads.
fn list(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    format!("[{}]", ids.join(","))
}

fn object(tokenizer: &Tokenizer, ids: &[u32]) -> Value {
    let pieces: Vec<Value> = ids
        .iter()
        .map(|&id| match piece(tokenizer, id) {
            Ok(text) => text.into(),
            // bytes, as a list: no string could hold them
            Err(bytes) => bytes.into(),
        })
        .collect();
    json!({ "ids": ids, "pieces": pieces })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_in_any_list() {
        for text in ["1 2 30", "[1,2,30]\n", "1, 2,30", "[1 2][30]"] {
            assert_eq!(parse_ids(text, 31), Ok(vec![1, 2, 30]), "{text}");
        }
        assert_eq!(list(&[1, 2]), "[1,2]");
        assert!(parse_ids("31", 31).unwrap_err().contains("0..=30"));
        for bad in ["-1", "x", "1.5", "99999999999"] {
            assert!(parse_ids(bad, 31).unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn pieces_that_are_no_text_are_shown_as_bytes() {
        assert_eq!(quoted(&Ok(" a\n\"".to_owned())), r#"" a\n\"""#);
        assert_eq!(quoted(&Err(vec![0xed, 0x95])), "<ed 95>");
    }
}
