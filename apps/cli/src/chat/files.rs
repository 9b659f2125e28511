//! Files that the conversation touches: saved ones, read ones, and what is remembered between runs.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;

use crate::exit::Failure;
use crate::reading;

/// Where the user's histories and the like belong.
#[derive(Debug, Clone)]
pub struct StateFolder(PathBuf);

impl StateFolder {
    /// `nelumbo` in the user's state folder, or in the data folder where a system knows no states.
    /// Creates it. Without one nothing is remembered; the error says why.
    pub fn open() -> Result<StateFolder, String> {
        let folders = etcetera::choose_base_strategy().map_err(|e| e.to_string())?;
        let root = folders.state_dir().unwrap_or_else(|| folders.data_dir());
        let folder = root.join("nelumbo");
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok(StateFolder(folder))
    }

    /// The file of typed lines, made private before anything is in it.
    pub fn history(&self) -> Result<PathBuf, String> {
        let path = self.0.join("history.txt");
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        private(&mut options)
            .open(&path)
            .map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    /// The folder itself, for files of a moment.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The model that was used last.
    pub fn last_model(&self) -> Option<String> {
        let text = fs::read_to_string(self.0.join("last-model")).ok()?;
        Some(text.trim_end_matches('\n').to_owned()).filter(|name| !name.is_empty())
    }

    /// Remembers a model for the next time. What cannot be remembered is no failure.
    pub fn remember_model(&self, reference: &str) {
        let path = self.0.join("last-model");
        if let Err(error) = replace(&path, format!("{reference}\n").as_bytes()) {
            log::debug!("{}: {error}", path.display());
        }
    }
}

/// Files that others of the machine may not read.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Writes a file that must not be there yet, readable to its owner alone.
pub fn create_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    private(&mut options).open(path)?.write_all(bytes)
}

/// Writes beside the final name and renames, so that under that name there is a whole file or the
/// one before.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(name);
    let written = create_private(&partial, bytes)
        .and_then(|()| File::open(&partial)?.sync_all())
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial); // may not have been made at all
    }
    written
}

/// Writes a file of the user's choice. Without `may_replace` one that is there is left alone.
pub fn save(path: &Path, bytes: &[u8], may_replace: bool) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::Usage(format!("{} is a folder", path.display())));
    }
    if let Ok(there) = path.symlink_metadata() {
        if !may_replace {
            return Err(Failure::Usage(format!(
                "{} is there already; /save -f replaces it",
                path.display()
            )));
        }
        // a rename would put a file in the place of a device or a pipe
        if !there.is_file() && !there.is_symlink() {
            return Err(Failure::Usage(format!("{} is no file", path.display())));
        }
    }
    replace(path, bytes).map_err(Failure::io(path))
}

/// A text file as a whole.
pub fn read(path: &Path) -> Result<String, Failure> {
    let file = File::open(path).map_err(Failure::io(path))?;
    if path.is_dir() {
        return Err(Failure::Usage(format!("{} is a folder", path.display())));
    }
    reading::read_text(file, path, reading::MAX_TEXT_BYTES)
}

/// Whether a path is that of a saved conversation rather than of a model: JSON begins with a brace,
/// no model file does.
pub fn is_conversation(path: &Path) -> bool {
    let mut first = [0; 64];
    // opening a pipe would wait for whoever writes to it
    if !path.is_file() {
        return false;
    }
    let Ok(read) = File::open(path).and_then(|mut file| file.read(&mut first)) else {
        return false;
    };
    let text = first[..read]
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(&first[..read]);
    text.trim_ascii_start().first() == Some(&b'{')
}

/// A path as typed, where no shell has replaced `~`.
pub fn typed_path(text: &str) -> PathBuf {
    if let Some(rest) = text.strip_prefix("~/")
        && let Ok(home) = etcetera::home_dir()
    {
        return home.join(rest);
    }
    PathBuf::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_is_replaced_only_when_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        save(&path, b"one", false).unwrap();
        let failure = save(&path, b"two", false).unwrap_err();
        assert!(failure.to_string().contains("-f replaces"), "{failure}");
        assert_eq!(fs::read(&path).unwrap(), b"one");
        save(&path, b"two", true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        for may_replace in [false, true] {
            let failure = save(folder.path(), b"x", may_replace).unwrap_err();
            assert!(failure.to_string().contains("is a folder"), "{failure}");
        }
        assert!(matches!(
            save(&folder.path().join("no/such/file"), b"x", false),
            Err(Failure::Io { .. })
        ));
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[cfg(unix)]
    #[test]
    fn l6_what_is_no_file_is_not_replaced_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let failure = save(&path, b"x", true).unwrap_err();
        assert!(failure.to_string().ends_with("is no file"), "{failure}");
        assert!(!path.is_file());
    }

    #[test]
    fn files_are_told_apart_by_how_they_begin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        for (bytes, expected) in [
            (&b"{\"messages\":[]}"[..], true),
            (b"\xef\xbb\xbf \n{", true),
            (b"GGUF\x03", false),
            (b"", false),
        ] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(is_conversation(&path), expected, "{bytes:?}");
        }
        assert!(!is_conversation(folder.path()) && !is_conversation(&folder.path().join("y")));
        fs::write(&path, b"ab\xff").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("byte 2"));
        assert!(read(folder.path()).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_remembered_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder(folder.path().to_owned());
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&state.history().unwrap()), 0o600);
        assert_eq!(state.last_model(), None);
        state.remember_model("a b");
        state.remember_model("/models/한글.gguf");
        assert_eq!(state.last_model().as_deref(), Some("/models/한글.gguf"));
        assert_eq!(mode(&folder.path().join("last-model")), 0o600);
    }
}
