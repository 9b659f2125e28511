//! Models on disk: what a reference means, what is known by name, what is downloaded.

pub mod cache;
mod checksum;
mod choice;
mod fetch;
mod file_names;
mod headers;
mod hub;
mod hub_cache;
mod hub_remove;
mod hub_scan;
mod local;
mod lock;
pub mod ls;
mod network;
mod obtain;
mod partial;
mod progress;
mod pull;
mod pypi;
mod reference;
pub mod registry;
mod retry;
pub mod rm;
pub mod space;

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nelumbo::Error;
use nelumbo::model::SamplingDefaults;
pub use progress::{Progress, human_bytes};
use reference::Reference;
use registry::Registry;

use crate::args::{DeviceArgs, GlobalArgs};
use crate::exit::Failure;
use crate::prompt::{Given, is_on_line};
use network::Network;
use obtain::Obtain;

/// A model that is on this machine.
#[derive(Debug, Clone)]
pub struct Resolved {
    pub path: PathBuf,
    /// The temperature that suits it, where the table knows.
    pub temperature: Option<f32>,
}

impl Resolved {
    /// How to draw from it: what the table knows comes before what its files say.
    pub fn advice(&self, files: &SamplingDefaults) -> SamplingDefaults {
        SamplingDefaults {
            temperature: self.temperature.or(files.temperature),
            ..*files
        }
    }
}

/// The path of a model: an existing path as it is, else what the reference names, downloaded if it
/// is not there. What the hub's cache has is taken without asking the hub.
pub fn resolve(reference: &OsStr, global: &GlobalArgs) -> Result<Resolved, Failure> {
    match existing(Path::new(reference))? {
        Some(path) => Ok(Resolved {
            path,
            temperature: None,
        }),
        None => obtain(reference, global, false, false),
    }
}

/// [`resolve`] for what only looks at a model: nothing is downloaded for that.
pub fn resolve_local(reference: &OsStr, global: &GlobalArgs) -> Result<Resolved, Failure> {
    let offline = GlobalArgs {
        offline: true,
        ..global.clone()
    };
    resolve(reference, &offline)
}

/// `nelumbo pull REF`: the hub is asked what a branch means today.
pub fn pull(reference: &OsStr, force: bool, global: &GlobalArgs) -> Result<(), Failure> {
    let path = match existing(Path::new(reference))? {
        Some(path) => path,
        None => obtain(reference, global, force, true)?.path,
    };
    crate::output::print_line(&path.display().to_string())
}

/// The model that `--hf-repo` and `--hf-file` name, else the other one. Of two on the command line
/// none is taken; what stands there wins over what the environment says, and that over the file of
/// settings.
pub fn from_flags(
    device: &DeviceArgs,
    model: Option<OsString>,
    given: Given,
) -> Result<Option<OsString>, Failure> {
    let usage = |problem: &str| Err(Failure::Usage(problem.to_owned()));
    // a variable that is set to nothing counts as not set
    let is_named = model.as_ref().is_some_and(|model| !model.is_empty());
    match (&device.hub.hf_repo, &device.hub.hf_file) {
        (None, None) => Ok(model),
        (None, Some(_)) => {
            usage("--hf-file names a file of a repository: give that with --hf-repo")
        }
        (Some(_), _) if is_on_line(given.model) && is_on_line(given.hub) => {
            usage("two models: --hf-repo, and -m or MODEL")
        }
        (Some(_), _) if is_named && given.model > given.hub => Ok(model),
        (Some(repo), file) => {
            let reference = reference::from_flags(repo, file.as_deref())
                .map_err(|problem| Failure::Usage(format!("--hf-repo {repo}: {problem}")))?;
            Ok(Some(reference.into()))
        }
    }
}

/// A path that is there. One that may be there but cannot be looked at is an error: nobody means
/// a repository of the hub by it.
fn existing(path: &Path) -> Result<Option<PathBuf>, Failure> {
    match path.metadata() {
        Ok(_) => Ok(Some(path.to_owned())),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::NotADirectory
            ) =>
        {
            Err(Error::ModelNotFound {
                path: path.to_owned(),
                problem: format!("cannot be opened: {error}"),
            }
            .into())
        }
        Err(_) => Ok(None),
    }
}

fn obtain(
    reference: &OsStr,
    global: &GlobalArgs,
    force: bool,
    fresh: bool,
) -> Result<Resolved, Failure> {
    let registry = Registry::load()?;
    let parsed = parse(reference, &registry)?;
    let network = Network::new(global, force)?;
    Obtain {
        global,
        network: &network,
        registry: &registry,
        fresh,
    }
    .get(&parsed)
}

/// What the words mean that are no existing path.
fn parse(reference: &OsStr, registry: &Registry) -> Result<Reference, Failure> {
    let parsed = match reference.to_str() {
        Some(text) => reference::parse(text),
        None => Err("no such file or directory".to_owned()),
    };
    parsed.map_err(|problem| {
        let text = reference.to_string_lossy();
        // whoever says which form it is does not mean a path
        if ["hf:", "pypi:", "https://", "http://"]
            .iter()
            .any(|form| text.starts_with(form))
        {
            return Failure::Usage(format!("{text}: {problem}"));
        }
        not_found(reference, problem, registry)
    })
}

fn not_found(reference: &OsStr, problem: String, registry: &Registry) -> Failure {
    let problem = format!(
        "{problem} (names: {}; also USER/REPO[:QUANT] of the hub, https://... and pypi:...)",
        registry.names()
    );
    Error::ModelNotFound {
        path: reference.into(),
        problem,
    }
    .into()
}
