//! The models in the hub's cache: what snapshots hold, what is unfinished, and what both are called.

use std::fs;
use std::path::PathBuf;

use super::cache::State;
use super::choice::{self, Candidate, Kind};
use super::hub_cache::{HubCache, Repo, names};
use super::local::{Local, Place, is_whole, look, path_of};
use super::partial::read_note;
use super::reference::{self, HubRef, Reference};
use crate::exit::Failure;

/// Appends all models, whole or not.
pub fn scan(cache: &HubCache, found: &mut Vec<Local>) -> Result<(), Failure> {
    for repo in cache.repos()? {
        // it belongs to other tools too: what one of them made of a repository hides no other one
        if let Err(failure) = of_repo(&repo, found) {
            log::warn!("{failure}: models of {} are not listed", repo.id);
        }
    }
    Ok(())
}

/// An unfinished blob, and the file of a commit that it will be.
struct Unfinished {
    blob: PathBuf,
    /// The model's reference.
    name: String,
    commit: String,
    file: String,
}

fn unfinished(repo: &Repo) -> Result<Vec<Unfinished>, Failure> {
    let blobs = names(&repo.blobs())?.into_iter();
    let found = blobs.filter(|name| name.ends_with(".partial"));
    let read = found.filter_map(|name| {
        let blob = repo.blobs().join(name);
        let (name, file) = read_note(&blob)?;
        let (commit, file) = file.split_once('/')?;
        Some(Unfinished {
            blob,
            name,
            commit: commit.to_owned(),
            file: file.to_owned(),
        })
    });
    Ok(read.collect())
}

fn of_repo(repo: &Repo, found: &mut Vec<Local>) -> Result<(), Failure> {
    let mut left = unfinished(repo)?;
    let revisions = repo.revisions()?;
    for commit in repo.commits()? {
        let files = repo.files(&commit)?;
        let all = choice::candidates(files.iter().map(String::as_str));
        for candidate in &all {
            let belongs = |it: &mut Unfinished| it.commit == commit && is_of(candidate, &it.file);
            let partials: Vec<Unfinished> = left.extract_if(.., belongs).collect();
            let label = choice::label(&all, candidate);
            found.push(of_commit(
                repo, &commit, &revisions, label, candidate, partials,
            ));
        }
    }
    // those of which no other file is there yet
    while let Some(first) = left.pop() {
        let mut partials: Vec<Unfinished> = left
            .extract_if(.., |it| it.name == first.name && it.commit == first.commit)
            .collect();
        partials.push(first);
        found.push(only_unfinished(repo, partials)?);
    }
    Ok(())
}

fn is_of(candidate: &Candidate, file: &str) -> bool {
    match candidate.kind {
        Kind::Safetensors => !file.ends_with(".gguf"),
        Kind::Gguf => {
            let mut files = candidate.files.iter().chain(&candidate.missing);
            files.any(|there| there == file)
        }
    }
}

fn of_commit(
    repo: &Repo,
    commit: &str,
    revisions: &[(String, String)],
    label: String,
    candidate: &Candidate,
    partials: Vec<Unfinished>,
) -> Local {
    let of_commit: Vec<&str> = revisions
        .iter()
        .filter(|(_, of)| of == commit)
        .map(|(revision, _)| revision.as_str())
        .collect();
    let revision = if of_commit.contains(&"main") {
        None
    } else {
        Some(of_commit.first().map_or(commit, |first| first).to_owned())
    };
    let name = HubRef {
        repo: repo.id.clone(),
        pick: Some(label.clone()),
        revision,
        explicit: false,
    };
    // the unfinished ones tell what was asked for
    let name = partials
        .first()
        .map_or_else(|| name.to_string(), |it| it.name.clone());
    let path = path_of(repo, commit, candidate);
    let whole = partials.is_empty() && is_whole(&repo.snapshot(commit), candidate);
    let (state, quant) = if whole {
        look(&path)
    } else {
        (State::Partial, None)
    };
    let of_files = candidate
        .files
        .iter()
        .map(|file| repo.snapshot(commit).join(file));
    let on_disk = of_files.chain(partials.iter().map(|it| it.blob.clone()));
    Local {
        name,
        source: source(repo, commit),
        format: candidate.kind.name().to_owned(),
        quant: quant.unwrap_or(label),
        size: bytes_of(on_disk),
        path,
        state,
        place: Place::Hub {
            repo: repo.clone(),
            commit: commit.to_owned(),
            files: candidate.files.clone(),
            partials: partials.into_iter().map(|it| it.blob).collect(),
        },
    }
}

/// A model without any finished weights.
fn only_unfinished(repo: &Repo, partials: Vec<Unfinished>) -> Result<Local, Failure> {
    let first = &partials[0];
    let (name, commit) = (first.name.clone(), first.commit.clone());
    let (kind, files) = if first.file.ends_with(".gguf") {
        (Kind::Gguf, Vec::new())
    } else {
        let mut files = repo.files(&commit)?;
        files.retain(|file| choice::is_beside_weights(file));
        (Kind::Safetensors, files)
    };
    let label = match reference::parse(&name) {
        Ok(Reference::Hub(hub)) => hub.pick.unwrap_or_default(),
        _ => String::new(),
    };
    let blobs: Vec<PathBuf> = partials.iter().map(|it| it.blob.clone()).collect();
    let finished = files.iter().map(|file| repo.snapshot(&commit).join(file));
    let on_disk = finished.chain(blobs.iter().cloned());
    Ok(Local {
        name,
        source: source(repo, &commit),
        format: kind.name().to_owned(),
        quant: label,
        size: bytes_of(on_disk),
        path: blobs[0].clone(),
        state: State::Partial,
        place: Place::Hub {
            repo: repo.clone(),
            commit,
            files,
            partials: blobs,
        },
    })
}

fn bytes_of(paths: impl Iterator<Item = PathBuf>) -> u64 {
    paths
        .map(|path| fs::metadata(path).map_or(0, |metadata| metadata.len()))
        .sum()
}

fn source(repo: &Repo, commit: &str) -> String {
    format!("hf:{}@{}", repo.id, commit.get(..12).unwrap_or(commit))
}
