//! Models on disk: what a reference means, what is known by name, what is downloaded.

pub mod cache;
mod fetch;
mod headers;
pub mod ls;
mod partial;
mod progress;
mod pull;
mod pypi;
pub mod registry;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use cache::Cache;
use nelumbo::Error;
pub use progress::{Progress, human_bytes};
use pull::Network;
use registry::{Entry, Registry};

use crate::args::GlobalArgs;
use crate::exit::Failure;

/// The path of a model: an existing path as it is, else a name of the table, whose file
/// is downloaded when it is missing.
pub fn resolve(reference: &OsStr, global: &GlobalArgs) -> Result<Resolved, Failure> {
    let path = Path::new(reference);
    if path.exists() {
        return Ok(Resolved {
            path: path.to_owned(),
            temperature: None,
        });
    }
    let registry = Registry::load()?;
    match reference.to_str().and_then(|name| registry.find(name)) {
        Some(entry) => Ok(Resolved {
            path: fetch_entry(entry, reference, global)?,
            temperature: entry.temperature,
        }),
        None => Err(unknown(path, &registry)),
    }
}

/// The same for what only looks at a model: nothing is downloaded for that.
pub fn resolve_local(reference: &OsStr, global: &GlobalArgs) -> Result<Resolved, Failure> {
    let offline = GlobalArgs {
        offline: true,
        ..global.clone()
    };
    resolve(reference, &offline)
}

/// A model that is on this machine.
#[derive(Debug, Clone)]
pub struct Resolved {
    pub path: PathBuf,
    /// The temperature that suits it, where the table knows.
    pub temperature: Option<f32>,
}

/// `nelumbo pull REF`.
pub fn pull(reference: &OsStr, global: &GlobalArgs) -> Result<(), Failure> {
    let registry = Registry::load()?;
    let entry = reference
        .to_str()
        .and_then(|name| registry.find(name))
        .ok_or_else(|| unknown(Path::new(reference), &registry))?;
    let path = fetch_entry(entry, reference, global)?;
    crate::output::print_line(&path.display().to_string())
}

fn fetch_entry(entry: &Entry, reference: &OsStr, global: &GlobalArgs) -> Result<PathBuf, Failure> {
    let cache = Cache::locate(global.cache_dir.as_deref())?;
    let network = Network::from_env(global.offline, global.quiet)?;
    pull::ensure(entry, &cache, &network, &pull_command(reference, global))
}

/// What the user would type to get the model into the same cache.
fn pull_command(reference: &OsStr, global: &GlobalArgs) -> String {
    let mut command = format!("nelumbo pull {}", reference.to_string_lossy());
    if let Some(folder) = &global.cache_dir {
        command.push_str(&format!(" --cache-dir '{}'", folder.display()));
    }
    command
}

fn unknown(path: &Path, registry: &Registry) -> Failure {
    let problem = format!(
        "no such file or directory, nor a known name (known: {})",
        registry.names()
    );
    Error::ModelNotFound {
        path: path.to_owned(),
        problem,
    }
    .into()
}
