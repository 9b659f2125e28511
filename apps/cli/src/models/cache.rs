//! Where models lie that have a name, an address or a wheel, and in which state:
//! `<cache>/models/NAME/FILE` and `<cache>/models/KIND/KEY/FILE`. Those of the hub are in its own
//! cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use nelumbo::gpu::options::switch;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::checksum::hex;
use super::registry::Entry;
use crate::args::GlobalArgs;
use crate::exit::Failure;

/// The folder of downloaded models.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

/// What there is of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Complete. A file gets its final name only after size and sha256 were checked.
    Ready,
    /// A download was cut; `nelumbo pull` goes on from there.
    Partial,
    /// Under the final name lies a file of another size, or one that is cut or damaged.
    Corrupt,
    /// Whole, but of a kind that is not computed here.
    Unsupported,
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

    /// The final path of a model of the table.
    pub fn file(&self, entry: &Entry) -> PathBuf {
        self.models().join(&entry.name).join(&entry.file)
    }

    /// The final path of a model that only its `reference` tells, with a file name of its own.
    pub fn download(&self, kind: &str, reference: &str, file: &str) -> PathBuf {
        let key = hex(&Sha256::digest(reference)[..8]);
        self.models().join(kind).join(key).join(file)
    }

    /// The folder of all models.
    pub fn models(&self) -> PathBuf {
        self.root.join("models")
    }
}

/// The folder of compiled pipelines, where there is one that can be read. One that cannot be written
/// is told in a warning: kernels are then compiled each time.
pub fn pipelines(global: &GlobalArgs) -> Option<PathBuf> {
    // switched off, or told wrongly, which loading reports: then nothing is created here
    if !matches!(switch("NELUMBO_PIPELINE_CACHE"), Ok(None | Some(true))) {
        return None;
    }
    let Ok(cache) = Cache::locate(global.cache_dir.as_deref()) else {
        log::warn!("no home folder to keep compiled kernels in: they are compiled each time");
        return None;
    };
    let folder = cache.root.join("pipelines");
    let probe = folder.join(format!(".probe-{}", std::process::id()));
    let written = fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&probe, b""))
        .and_then(|()| fs::remove_file(&probe));
    if let Err(error) = written {
        log::warn!(
            "{}: {error}: compiled kernels are not kept",
            folder.display()
        );
    }
    folder.is_dir().then_some(folder)
}

/// The state of a file and the bytes there are, told by sizes; without a size whatever has the final
/// name is whole.
pub fn state(path: &Path, size: Option<u64>) -> Result<(State, u64), Failure> {
    if let Some(found) = size_of(path)? {
        let state = if size.is_none_or(|size| size == found) {
            State::Ready
        } else {
            State::Corrupt
        };
        return Ok((state, found));
    }
    match size_of(&with_suffix(path, ".partial"))? {
        Some(size) => Ok((State::Partial, size)),
        None => Ok((State::Missing, 0)),
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
