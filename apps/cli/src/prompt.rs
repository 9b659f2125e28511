//! Where the prompt comes from: arguments, a file, or stdin, in that order.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

use crate::args::PromptArgs;
use crate::exit::Failure;

/// No prompt is longer than this many bytes; no context would hold it either.
const MAX_PROMPT_BYTES: u64 = 64 << 20;

/// Which of the options stood on the command line rather than in the environment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given {
    pub model: bool,
    /// `--hf-repo`.
    pub hub: bool,
    pub prompt: bool,
    pub file: bool,
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

/// The prompt. `words` are joined by spaces, so that quotes are not needed.
pub fn gather(words: &[OsString], args: &PromptArgs, given: Given) -> Result<String, Failure> {
    let on_line = [
        ("PROMPT", !words.is_empty()),
        ("-p", given.prompt),
        ("-f", given.file),
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
        let words: Result<Vec<&str>, Failure> =
            words.iter().map(|word| utf8(word, "the prompt")).collect();
        return Ok(words?.join(" "));
    }
    // A variable that is set to nothing counts as not set; an empty -p is an empty prompt.
    let prompt = args
        .prompt
        .as_ref()
        .filter(|text| given.prompt || !text.is_empty());
    let file = args
        .file
        .as_ref()
        .filter(|path| given.file || !path.as_os_str().is_empty());
    match (prompt, file) {
        (Some(text), _) if !given.file => utf8(text, "--prompt").map(str::to_owned),
        (_, Some(path)) if path.as_os_str() == "-" => from_stdin(),
        (_, Some(path)) => from_file(path),
        _ if std::io::stdin().is_terminal() => Err(Failure::Usage(
            "no prompt: give PROMPT, -p TEXT, -f FILE, or pipe one in".to_owned(),
        )),
        _ => from_stdin(),
    }
}

/// Whether neither option nor variable gives a prompt.
pub fn is_absent(args: &PromptArgs, given: Given) -> bool {
    let prompt = args
        .prompt
        .as_ref()
        .is_some_and(|text| given.prompt || !text.is_empty());
    let file = args
        .file
        .as_ref()
        .is_some_and(|path| given.file || !path.as_os_str().is_empty());
    !prompt && !file
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

/// All of stdin, which must not be empty.
pub fn from_stdin() -> Result<String, Failure> {
    let text = read_text(std::io::stdin().lock(), Path::new("stdin"))?;
    if text.is_empty() {
        let hint = "give PROMPT, -p TEXT or -f FILE";
        return Err(Failure::Usage(format!("no prompt: stdin is empty; {hint}")));
    }
    Ok(text)
}

/// All of it without the last line end, which editors and `echo` add unasked.
fn read_text(source: impl Read, path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    source
        .take(MAX_PROMPT_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(Failure::io(path))?;
    if bytes.len() as u64 > MAX_PROMPT_BYTES {
        return Err(Failure::Usage(format!(
            "{}: a prompt may have {MAX_PROMPT_BYTES} bytes",
            path.display()
        )));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Usage(format!("{}: not valid UTF-8 at byte {at}", path.display()))
    })?;
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
        let file_given = Given {
            file: true,
            ..Given::default()
        };
        assert!(matches!(
            gather(&[], &from_env, file_given),
            Err(Failure::Io { .. })
        ));
        let both = Given {
            prompt: true,
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
