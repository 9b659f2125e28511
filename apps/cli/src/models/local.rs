//! What is on this machine: both caches looked through, by names, sizes and headers alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use nelumbo::Error;
use nelumbo::formats::{self, ModelFiles};

use super::cache::{Cache, State, with_suffix};
use super::choice::{self, Candidate, Kind};
use super::hub_cache::{HubCache, Repo, names};
use super::hub_scan;
use super::obtain::named;
use super::partial::read_note;
use super::reference::HubRef;
use super::registry::{Entry, Registry};
use crate::exit::Failure;

/// One model, or what there is of it.
#[derive(Debug)]
pub struct Local {
    /// The reference that gets it.
    pub name: String,
    pub source: String,
    pub format: String,
    pub quant: String,
    /// Bytes on disk.
    pub size: u64,
    pub path: PathBuf,
    pub state: State,
    pub place: Place,
}

/// Where its files are.
#[derive(Debug)]
pub enum Place {
    /// One file of our own cache, under this final name.
    Own(PathBuf),
    /// Files of a commit in the hub's cache, and unfinished blobs.
    Hub {
        repo: Repo,
        commit: String,
        files: Vec<String>,
        partials: Vec<PathBuf>,
    },
}

/// Everything, by name: models of the table, downloads without a name, the hub's.
pub fn all(cache: Option<&Cache>, registry: &Registry) -> Result<Vec<Local>, Failure> {
    let mut found = Vec::new();
    if let Some(cache) = cache {
        for entry in registry.entries() {
            found.extend(of_table(entry, cache)?);
        }
        for kind in ["pypi", "url"] {
            let folder = cache.models().join(kind);
            for key in names(&folder)? {
                found.extend(of_download(&folder.join(key))?);
            }
        }
    }
    if let Ok(cache) = HubCache::locate()
        && let Err(failure) = hub_scan::scan(&cache, &mut found)
    {
        // whatever became of it, our own models are not hidden by that
        log::warn!("{failure}: models of the hub are not listed");
    }
    Ok(found)
}

/// The model in the hub's cache that a reference means, if it is there and whole.
///
/// # Errors
/// [`Failure::Usage`] with the choices if several fit.
pub fn find(repo: &Repo, hub: &HubRef) -> Result<Option<PathBuf>, Failure> {
    let Some(commit) = repo.commit(hub.revision()) else {
        return Ok(None);
    };
    let files = repo.files(&commit)?;
    let paths = files.iter().map(String::as_str);
    let chosen = match choice::choose(&hub.repo, paths, hub.pick.as_deref()) {
        Ok(chosen) => chosen,
        Err(failure @ Failure::Usage(_)) => return Err(failure),
        Err(_) => return Ok(None),
    };
    let whole = is_whole(&repo.snapshot(&commit), &chosen);
    Ok(whole.then(|| path_of(repo, &commit, &chosen)))
}

/// What to load: the first part of a GGUF model, or the folder of one of safetensors.
pub fn path_of(repo: &Repo, commit: &str, candidate: &Candidate) -> PathBuf {
    let snapshot = repo.snapshot(commit);
    match candidate.kind {
        Kind::Gguf => snapshot.join(&candidate.files[0]),
        Kind::Safetensors => snapshot,
    }
}

/// Whether all files are there that the names of parts or the list of shards tell of.
pub fn is_whole(snapshot: &Path, candidate: &Candidate) -> bool {
    candidate.missing.is_empty()
        && (candidate.kind == Kind::Gguf || {
            let has = |file: &str| candidate.files.iter().any(|there| there == file);
            let has_weights = || {
                has(choice::WEIGHTS)
                    || has(choice::INDEX) && shards(snapshot).iter().all(|shard| has(shard))
            };
            has("tokenizer.json") && has_weights()
        })
}

/// The shards that the index names; none of one that cannot be read, which opening it will tell.
fn shards(snapshot: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(snapshot.join(choice::INDEX)).unwrap_or_default();
    let index: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let map = index["weight_map"].as_object();
    let shards = map.into_iter().flatten();
    shards
        .filter_map(|(_, shard)| Some(shard.as_str()?.to_owned()))
        .collect()
}

fn of_table(entry: &Entry, cache: &Cache) -> Result<Option<Local>, Failure> {
    let wanted = named(entry, cache);
    let (state, size) = wanted.state()?;
    if state == State::Missing {
        return Ok(None);
    }
    // The note of where the file came from; before that, where it would come from.
    let source = fs::read_to_string(with_suffix(&wanted.target, ".source"))
        .unwrap_or_else(|_| entry.sources[0].to_string());
    // What the file calls itself says more than the encoding of most tensors.
    let looked_at = (state == State::Ready).then(|| look(&wanted.target));
    let quant = looked_at.and_then(|(_, quant)| quant);
    Ok(Some(Local {
        name: wanted.name,
        source,
        format: entry.format.clone(),
        quant: quant.unwrap_or_else(|| entry.quant.clone()),
        size,
        path: wanted.target.clone(),
        state,
        place: Place::Own(wanted.target),
    }))
}

/// The one file in a folder of its own.
fn of_download(folder: &Path) -> Result<Option<Local>, Failure> {
    let files = names(folder)?;
    for file in &files {
        let path = folder.join(file);
        let (name, target, (state, quant)) = if let Some(target) = file.strip_suffix(".partial") {
            let name = read_note(&path).map(|(name, _)| name);
            (name, folder.join(target), (State::Partial, None))
        } else if files.contains(&format!("{file}.source")) && !file.ends_with(".source") {
            let note = fs::read_to_string(with_suffix(&path, ".source"));
            (note.ok(), path.clone(), look(&path))
        } else {
            continue;
        };
        let Some(name) = name else { continue };
        let source = name.split('#').next().unwrap_or_default().to_owned();
        return Ok(Some(Local {
            name,
            source,
            format: Kind::Gguf.name().to_owned(),
            quant: quant.unwrap_or_default(),
            size: fs::metadata(&path).map_or(0, |metadata| metadata.len()),
            path: target.clone(),
            state,
            place: Place::Own(target),
        }));
    }
    Ok(None)
}

/// The state that a model's headers tell, and its quantisation.
pub fn look(path: &Path) -> (State, Option<String>) {
    match formats::open(path) {
        Ok(ModelFiles::Gguf(gguf)) => {
            let quant = gguf.quantisation().ok().flatten();
            (State::Ready, quant.map(str::to_owned))
        }
        Ok(files @ ModelFiles::HuggingFace(_)) => {
            let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
            for tensor in files.checkpoint().tensors() {
                *bytes.entry(tensor.encoding.name()).or_default() += tensor.bytes();
            }
            let most = bytes.into_iter().max_by_key(|(_, bytes)| *bytes);
            (State::Ready, most.map(|(name, _)| name.to_owned()))
        }
        Err(Error::Unsupported { .. }) => (State::Unsupported, None),
        Err(_) => (State::Corrupt, None),
    }
}
