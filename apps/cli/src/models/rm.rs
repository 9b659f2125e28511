//! `nelumbo rm`: a model off the disk, and nothing that another one uses.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

use clap::Args;

use super::cache::{Cache, with_suffix};
use super::choice::{Candidate, Kind};
use super::hub_cache::Repo;
use super::local::{self, Local, Place};
use super::lock::Lock;
use super::obtain;
use super::partial;
use super::progress::human_bytes;
use super::reference::{HubRef, Reference};
use super::registry::Registry;
use crate::args::GlobalArgs;
use crate::exit::{Failure, say};
use crate::output::print_line;

/// What `nelumbo rm` takes.
#[derive(Debug, Clone, Args)]
pub struct RmArgs {
    /// A model as `nelumbo ls` names it
    #[arg(value_name = "NAME")]
    pub reference: OsString,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// Deletes one model, unfinished parts included, after asking.
pub fn rm(args: &RmArgs, global: &GlobalArgs) -> Result<(), Failure> {
    let cache = Cache::locate(global.cache_dir.as_deref()).ok();
    let registry = Registry::load()?;
    let all = local::all(cache.as_ref(), &registry)?;
    let model = find(args, all, cache.as_ref(), &registry)?;
    if !args.yes && !confirmed(&model)? {
        say("nothing deleted");
        return Ok(());
    }
    let (freed, kept) = delete(&model)?;
    print_line(&format!(
        "deleted {}, freed {}",
        model.name,
        human_bytes(freed)
    ))?;
    if kept > 0 {
        say(&format!(
            "note: another revision uses {kept} of its files; these were kept"
        ));
    }
    Ok(())
}

/// The one local model that is meant.
fn find(
    args: &RmArgs,
    all: Vec<Local>,
    cache: Option<&Cache>,
    registry: &Registry,
) -> Result<Local, Failure> {
    let text = args.reference.to_string_lossy();
    let (exact, others): (Vec<Local>, Vec<Local>) =
        all.into_iter().partition(|local| local.name == text);
    let mut fitting = exact;
    if fitting.is_empty() {
        if Path::new(&args.reference).exists() {
            return Err(Failure::Usage(format!(
                "{text} is a file or folder of yours: rm deletes what was downloaded, by its name in \
                 `nelumbo ls`"
            )));
        }
        let reference = super::parse(&args.reference, registry)?;
        fitting = others
            .into_iter()
            .filter(|local| is_meant(local, &reference, cache, registry))
            .collect();
    }
    match fitting.len() {
        0 => Err(Failure::Model(format!(
            "{text} is not on this machine; `nelumbo ls` lists what is"
        ))),
        1 => Ok(fitting.remove(0)),
        _ => {
            let names: Vec<String> = fitting.iter().map(|l| format!("  {}", l.name)).collect();
            Err(Failure::Usage(format!(
                "{text} could mean several; name one:\n{}",
                names.join("\n")
            )))
        }
    }
}

fn is_meant(
    local: &Local,
    reference: &Reference,
    cache: Option<&Cache>,
    registry: &Registry,
) -> bool {
    match (&local.place, reference) {
        (Place::Own(target), Reference::Name(name)) => {
            let entry = registry.find(name).zip(cache);
            entry.is_some_and(|(entry, cache)| cache.file(entry) == *target)
        }
        (Place::Own(target), Reference::Url { .. } | Reference::Pypi { .. }) => {
            let wanted = cache.and_then(|cache| obtain::download(reference, cache));
            wanted.is_some_and(|wanted| wanted.target == *target)
        }
        (
            Place::Hub {
                repo,
                commit,
                files,
                ..
            },
            Reference::Hub(hub),
        ) => repo.id == hub.repo && is_meant_of_hub(local, repo, commit, files, hub),
        _ => false,
    }
}

fn is_meant_of_hub(
    local: &Local,
    repo: &Repo,
    commit: &str,
    files: &[String],
    hub: &HubRef,
) -> bool {
    let of_name = match super::reference::parse(&local.name) {
        Ok(Reference::Hub(hub)) => hub,
        _ => return false,
    };
    let revision = match &hub.revision {
        None => true,
        Some(asked) => {
            of_name.revision.as_ref() == Some(asked)
                || repo.commit(asked).as_deref() == Some(commit)
        }
    };
    let is_gguf = local.format == Kind::Gguf.name();
    let candidate = Candidate {
        kind: if is_gguf {
            Kind::Gguf
        } else {
            Kind::Safetensors
        },
        files: files.to_vec(),
        missing: Vec::new(),
    };
    revision
        && hub.pick.as_ref().is_none_or(|pick| {
            let named = of_name.pick.as_deref();
            candidate.answers(pick) || named.is_some_and(|it| it.eq_ignore_ascii_case(pick))
        })
}

/// Asks on the terminal.
fn confirmed(model: &Local) -> Result<bool, Failure> {
    let Local {
        name, size, path, ..
    } = model;
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(format!(
            "deleting {name} needs a yes, and there is no terminal to ask on: add -y"
        )));
    }
    let _ = write!(
        std::io::stderr(),
        "delete {name} ({}, {})? [y/N] ",
        human_bytes(*size),
        path.display()
    );
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(Failure::io(Path::new("stdin")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

/// Bytes that were freed, and files that were kept since others use them.
fn delete(model: &Local) -> Result<(u64, usize), Failure> {
    match &model.place {
        Place::Own(target) => Ok((delete_own(target, &model.name)?, 0)),
        Place::Hub {
            repo,
            commit,
            files,
            partials,
        } => {
            let mut freed = 0;
            for unfinished in partials {
                let blob = unfinished.file_stem().unwrap_or_default().to_string_lossy();
                let lock = repo.lock_of_blob(&blob);
                let _lock = hold(&lock, &model.name)?;
                freed += partial::remove(unfinished)?;
            }
            let (of_files, kept) = repo.remove(commit, files)?;
            Ok((freed + of_files, kept))
        }
    }
}

fn delete_own(target: &Path, name: &str) -> Result<u64, Failure> {
    let lock = with_suffix(target, ".lock");
    let held = hold(&lock, name)?;
    let size = fs::metadata(target).map_or(0, |metadata| metadata.len());
    partial::remove_if_there(target)?;
    let freed = size + partial::remove(&with_suffix(target, ".partial"))?;
    partial::remove_if_there(&with_suffix(target, ".source"))?;
    let _ = fs::remove_dir_all(with_suffix(target, ".pip"));
    if let Some(held) = held {
        held.remove(&lock)?;
    }
    // the model's folder, unless something else is in it
    if let Some(folder) = target.parent() {
        let _ = fs::remove_dir(folder);
    }
    Ok(freed)
}

/// The lock that a download would hold.
fn hold(lock: &Path, name: &str) -> Result<Option<Lock>, Failure> {
    if !lock.parent().is_some_and(Path::is_dir) {
        return Ok(None);
    }
    match Lock::try_hold(lock)? {
        Some(held) => Ok(Some(held)),
        None => Err(Failure::Usage(format!(
            "{name} is being downloaded by another process: stop that first"
        ))),
    }
}
