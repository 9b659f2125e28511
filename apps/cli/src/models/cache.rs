//! Where downloaded models lie, and in which state: `<cache>/models/<name>/<file>`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use serde::Serialize;

use super::registry::Entry;
use crate::exit::Failure;

/// The folder of downloaded models.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// What there is of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Complete. A file gets its final name only after size and sha256 were checked.
    Ready,
    /// A download was cut; `nelumbo pull` goes on from there.
    Partial,
    /// Under the final name lies a file of another size.
    Corrupt,
    /// Nothing.
    Missing,
}

impl Cache {
    /// The folder given, or `nelumbo` in the user's cache folder. Creates nothing.
    pub fn locate(given: Option<&Path>) -> Result<Cache, Failure> {
        if let Some(root) = given.filter(|root| !root.as_os_str().is_empty()) {
            return Ok(Cache {
                root: root.to_owned(),
            });
        }
        let folders = etcetera::choose_base_strategy().map_err(|_| {
            Failure::Usage(
                "no home folder to keep models in: give one with --cache-dir DIR".to_owned(),
            )
        })?;
        Ok(Cache {
            root: folders.cache_dir().join("nelumbo"),
        })
    }

    /// The folder of compiled pipelines.
    pub fn pipelines(&self) -> PathBuf {
        self.root.join("pipelines")
    }

    /// The folder of one model.
    pub fn folder(&self, entry: &Entry) -> PathBuf {
        self.root.join("models").join(&entry.name)
    }

    /// The final path of one model.
    pub fn file(&self, entry: &Entry) -> PathBuf {
        self.folder(entry).join(&entry.file)
    }

    /// The state on disk and the bytes there are.
    pub fn state(&self, entry: &Entry) -> Result<(State, u64), Failure> {
        let path = self.file(entry);
        if let Some(size) = size_of(&path)? {
            let state = if size == entry.size {
                State::Ready
            } else {
                State::Corrupt
            };
            return Ok((state, size));
        }
        match size_of(&with_suffix(&path, ".partial"))? {
            Some(size) => Ok((State::Partial, size)),
            None => Ok((State::Missing, 0)),
        }
    }
}

/// `a/b.gguf` and `.partial` as `a/b.gguf.partial`.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn size_of(path: &Path) -> Result<Option<u64>, Failure> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(source) => Err(Failure::Io {
            path: path.to_owned(),
            source,
        }),
    }
}
