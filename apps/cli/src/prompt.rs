//! Where the prompt comes from: arguments, a file, or stdin, in that order.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::args::PromptArgs;
use crate::exit::Failure;
use crate::reading;

/// Where the values of options that stand for one another come from: the file of settings, then the
/// environment, then the command line, each of which wins over what is before it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given {
    pub model: Option<ValueSource>,
    /// `--hf-repo`.
    pub hub: Option<ValueSource>,
    pub prompt: Option<ValueSource>,
    pub file: Option<ValueSource>,
}

impl Given {
    /// Of a subcommand, which need not have all of them.
    pub fn of(matches: &ArgMatches) -> Given {
        let source = |id| match matches.try_contains_id(id) {
            Ok(true) => matches.value_source(id),
            _ => None,
        };
        Given {
            model: source("model"),
            hub: source("hf_repo"),
            prompt: source("prompt"),
            file: source("file"),
        }
    }

    /// With a model that is named by its place on the command line, where there is one.
    pub fn with_model(self, reference: Option<&OsString>) -> Result<Given, Failure> {
        match reference {
            Some(_) if is_on_line(self.model) => {
                Err(Failure::Usage("two models: MODEL and -m".to_owned()))
            }
            Some(_) => Ok(Given {
                model: Some(ValueSource::CommandLine),
                ..self
            }),
            None => Ok(self),
        }
    }
}

/// Whether somebody typed it for this run.
pub fn is_on_line(source: Option<ValueSource>) -> bool {
    source == Some(ValueSource::CommandLine)
}

/// The model's reference and the words of the prompt.
///
/// With `-m` or `NELUMBO_MODEL` every positional argument belongs to the prompt;
/// otherwise the first one is the model.
pub fn split_model(
    model: Option<OsString>,
    mut words: Vec<OsString>,
) -> Result<(OsString, Vec<OsString>), Failure> {
    if let Some(model) = model.filter(|model| !model.is_empty()) {
        return Ok((model, words));
    }
    if words.is_empty() {
        return Err(Failure::Usage(
            "no model: give MODEL, -m MODEL or NELUMBO_MODEL".to_owned(),
        ));
    }
    let model = words.remove(0);
    Ok((model, words))
}

const EMPTY_STDIN: &str = "no prompt: stdin is empty; give PROMPT, -p TEXT or -f FILE";

/// The prompt: words, else options, else stdin.
pub fn gather(words: &[OsString], args: &PromptArgs, given: Given) -> Result<String, Failure> {
    let on_line = [
        ("PROMPT", !words.is_empty()),
        ("-p", is_on_line(given.prompt)),
        ("-f", is_on_line(given.file)),
    ];
    let named: Vec<&str> = on_line
        .iter()
        .filter(|(_, there)| *there)
        .map(|(name, _)| *name)
        .collect();
    if named.len() > 1 {
        return Err(Failure::Usage(format!(
            "more than one prompt: {}",
            named.join(" and ")
        )));
    }
    if !words.is_empty() {
        return joined(words, "the prompt");
    }
    match prompt_and_file(args, given) {
        (Some(text), None) => utf8(text, "--prompt").map(str::to_owned),
        (Some(text), Some(_)) if given.prompt >= given.file => {
            utf8(text, "--prompt").map(str::to_owned)
        }
        (_, Some(path)) if path.as_os_str() == "-" => from_stdin(EMPTY_STDIN),
        (_, Some(path)) => from_file(path),
        (None, None) if std::io::stdin().is_terminal() => Err(Failure::Usage(
            "no prompt: give PROMPT, -p TEXT, -f FILE, or pipe one in".to_owned(),
        )),
        (None, None) => from_stdin(EMPTY_STDIN),
    }
}

/// Whether neither option, variable nor setting gives a prompt.
pub fn is_absent(args: &PromptArgs, given: Given) -> bool {
    prompt_and_file(args, given) == (None, None)
}

/// `--prompt` and `--file`. A variable that is set to nothing counts as not set; an empty -p is an
/// empty prompt.
fn prompt_and_file(args: &PromptArgs, given: Given) -> (Option<&OsString>, Option<&PathBuf>) {
    let prompt = args.prompt.as_ref();
    let file = args.file.as_ref();
    (
        prompt.filter(|text| is_on_line(given.prompt) || !text.is_empty()),
        file.filter(|path| is_on_line(given.file) || !path.as_os_str().is_empty()),
    )
}

/// Words of the command line as one text, so that it needs no quotes.
pub fn joined(words: &[OsString], what: &str) -> Result<String, Failure> {
    let words: Result<Vec<&str>, Failure> = words.iter().map(|word| utf8(word, what)).collect();
    Ok(words?.join(" "))
}

/// An argument that must be text.
pub fn utf8<'a>(text: &'a OsStr, what: &str) -> Result<&'a str, Failure> {
    text.to_str().ok_or_else(|| {
        let shown = text.to_string_lossy();
        Failure::Usage(format!("{what} is not valid UTF-8: {shown:?}"))
    })
}

fn from_file(path: &Path) -> Result<String, Failure> {
    let file = File::open(path).map_err(Failure::io(path))?;
    read_text(file, path)
}

/// All of stdin; an error of these words where it is empty.
pub fn from_stdin(if_empty: &str) -> Result<String, Failure> {
    let text = read_text(std::io::stdin().lock(), Path::new("stdin"))?;
    if text.is_empty() {
        return Err(Failure::Usage(if_empty.to_owned()));
    }
    Ok(text)
}

/// All of it without the last line end, which editors and `echo` add unasked.
fn read_text(source: impl Read, path: &Path) -> Result<String, Failure> {
    let mut text = reading::read_text(source, path, reading::MAX_TEXT_BYTES)?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ')
            .filter(|word| !word.is_empty())
            .map(OsString::from)
            .collect()
    }

    fn args(prompt: Option<&str>, file: Option<&str>) -> PromptArgs {
        PromptArgs {
            prompt: prompt.map(OsString::from),
            file: file.map(Into::into),
            raw: false,
        }
    }

    #[test]
    fn the_first_word_is_the_model_unless_an_option_names_it() {
        let (model, rest) = split_model(None, words("m why not")).unwrap();
        assert_eq!((model, rest), ("m".into(), words("why not")));
        let (model, rest) = split_model(Some("m".into()), words("why not")).unwrap();
        assert_eq!((model, rest), ("m".into(), words("why not")));
        let (model, _) = split_model(Some("".into()), words("x")).unwrap();
        assert_eq!(model, "x");
        assert!(matches!(
            split_model(None, Vec::new()),
            Err(Failure::Usage(_))
        ));
    }

    #[test]
    fn arguments_win_over_the_environment_and_not_over_each_other() {
        let from_env = args(Some("env"), Some("/no/such/file"));
        assert_eq!(
            gather(&words("why not"), &from_env, Given::default()).unwrap(),
            "why not"
        );
        assert_eq!(gather(&[], &from_env, Given::default()).unwrap(), "env");
        for (prompt, file) in [
            (None, Some(ValueSource::CommandLine)),
            (
                Some(ValueSource::EnvVariable),
                Some(ValueSource::CommandLine),
            ),
            (
                Some(ValueSource::DefaultValue),
                Some(ValueSource::EnvVariable),
            ),
        ] {
            let file_wins = Given {
                prompt,
                file,
                ..Given::default()
            };
            let gathered = gather(&[], &from_env, file_wins);
            assert!(matches!(gathered, Err(Failure::Io { .. })), "{file_wins:?}");
            let prompt_wins = Given {
                prompt: file,
                file: prompt,
                ..Given::default()
            };
            assert_eq!(gather(&[], &from_env, prompt_wins).unwrap(), "env");
        }
        let both = Given {
            prompt: Some(ValueSource::CommandLine),
            ..Given::default()
        };
        let message = gather(&words("a"), &args(Some("b"), None), both)
            .unwrap_err()
            .to_string();
        assert!(message.contains("PROMPT and -p"), "{message}");
    }

    #[test]
    fn files_lose_their_last_line_end_only() {
        let read = |bytes: &[u8]| read_text(bytes, Path::new("p.txt"));
        assert_eq!(read(b" a\n\n").unwrap(), " a\n");
        assert_eq!(read(b"a\r\n").unwrap(), "a");
        assert_eq!(read("\u{e9}".as_bytes()).unwrap(), "\u{e9}");
        let message = read(b"ab\xff").unwrap_err().to_string();
        assert!(
            message.contains("p.txt") && message.contains("byte 2"),
            "{message}"
        );
    }
}
