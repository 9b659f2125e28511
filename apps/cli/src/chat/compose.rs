//! A message written in an editor of the user's choice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::files;
use crate::exit::Failure;

/// Where neither `VISUAL` nor `EDITOR` names one.
const FALLBACK: &str = if cfg!(windows) { "notepad" } else { "vi" };

/// Opens the editor on `text` and returns what was left in it, without line ends behind it. The file
/// lies in `folder` and is removed.
pub fn compose(folder: &Path, text: &str) -> Result<String, Failure> {
    let set = |name| {
        std::env::var(name)
            .ok()
            .filter(|value| !value.trim().is_empty())
    };
    let editor = set("VISUAL").or_else(|| set("EDITOR"));
    edit_with(editor.as_deref().unwrap_or(FALLBACK), folder, text)
}

fn edit_with(editor: &str, folder: &Path, text: &str) -> Result<String, Failure> {
    let file = Temporary(folder.join(format!("message-{}.md", std::process::id())));
    let _ = fs::remove_file(&file.0); // of a run that was killed and had the same number
    files::create_private(&file.0, text.as_bytes()).map_err(Failure::io(&file.0))?;
    // a command with its options, as in EDITOR="code --wait"
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or(FALLBACK);
    let status = Command::new(program)
        .args(words)
        .arg(&file.0)
        .status()
        .map_err(Failure::io(Path::new(program)))?;
    if !status.success() {
        return Err(Failure::Usage(format!(
            "the editor {program} ended with {status}"
        )));
    }
    Ok(files::read(&file.0)?.trim_end().to_owned())
}

/// A file that goes when we are done with it.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // an editor may have moved it
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_editor_gets_the_text_and_gives_another() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("ed");
        fs::write(&script, "printf 'and 더\\n\\n' >> \"$2\"\n").unwrap();
        let editor = format!("sh {} -w", script.display());
        // "$1" is the option, "$2" the file
        assert_eq!(
            edit_with(&editor, folder.path(), "한 ").unwrap(),
            "한 and 더"
        );
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn an_editor_that_fails_or_is_absent_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for editor in ["false", "no-such-editor-here --wait"] {
            let failure = edit_with(editor, folder.path(), "").unwrap_err();
            let name = editor.split(' ').next().unwrap();
            assert!(failure.to_string().contains(name), "{failure}");
        }
    }
}
