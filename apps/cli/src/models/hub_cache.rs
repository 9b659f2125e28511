//! The hub's cache on disk, shared with its other tools:
//!
//! ```text
//! models--USER--REPO/blobs/CHECKSUM             the bytes
//!                    refs/REVISION              a commit
//!                    snapshots/COMMIT/FILE  ->  ../../blobs/CHECKSUM
//! .locks/models--USER--REPO/CHECKSUM.lock       held while a blob is written
//! ```
//!
//! Where the system has no symbolic links, a snapshot holds hard links or copies.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::checksum::{Checksum, is_hex};
use super::network::{hub_home, set};
use crate::exit::Failure;

/// Folders in folders of a snapshot; a repository has a few.
const MAX_DEPTH: usize = 8;

/// The folder of all repositories.
#[derive(Debug, Clone)]
pub struct HubCache {
    root: PathBuf,
}

/// One repository in it, which need not exist.
#[derive(Debug, Clone)]
pub struct Repo {
    /// `USER/REPO`.
    pub id: String,
    folder: PathBuf,
    locks: PathBuf,
}

impl HubCache {
    /// `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or where the hub's own tools put it. Creates nothing.
    pub fn locate() -> Result<HubCache, Failure> {
        let named = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
        let root = named
            .map(PathBuf::from)
            .or_else(|| Some(hub_home()?.join("hub")))
            .ok_or_else(|| {
                Failure::Usage(
                    "no home folder to keep models in: name one with HF_HUB_CACHE".to_owned(),
                )
            })?;
        Ok(HubCache { root })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The repository `USER/REPO`.
    pub fn repo(&self, id: &str) -> Repo {
        let name = format!("models--{}", id.replace('/', "--"));
        Repo {
            id: id.to_owned(),
            folder: self.root.join(&name),
            locks: self.root.join(".locks").join(&name),
        }
    }

    /// Those that are there.
    pub fn repos(&self) -> Result<Vec<Repo>, Failure> {
        let ids = names(&self.root)?.into_iter().filter_map(|name| {
            let id = name.strip_prefix("models--")?.replace("--", "/");
            (id.matches('/').count() <= 1).then_some(id)
        });
        Ok(ids.map(|id| self.repo(&id)).collect())
    }
}

impl Repo {
    /// Where a file's bytes lie.
    pub fn blob(&self, checksum: &Checksum) -> PathBuf {
        self.blobs().join(checksum.hex())
    }

    /// What a writer of these bytes holds. Other tools hold the same.
    pub fn lock(&self, checksum: &Checksum) -> PathBuf {
        self.lock_of_blob(checksum.hex())
    }

    /// The same by the blob's name.
    pub fn lock_of_blob(&self, name: &str) -> PathBuf {
        self.locks.join(format!("{name}.lock"))
    }

    pub fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    /// The folder of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// The commit that a branch, tag or commit meant when it was last asked for.
    pub fn commit(&self, revision: &str) -> Option<String> {
        if is_hex(revision, 40) {
            return Some(revision.to_ascii_lowercase());
        }
        let text = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        let commit = text.trim();
        is_hex(commit, 40).then(|| commit.to_ascii_lowercase())
    }

    /// All branches and tags with their commits.
    pub fn revisions(&self) -> Vec<(String, String)> {
        let mut revisions = Vec::new();
        list(&self.folder.join("refs"), "", 0, &mut revisions);
        let with_commit = revisions.into_iter();
        with_commit
            .filter_map(|revision| Some((revision.clone(), self.commit(&revision)?)))
            .collect()
    }

    /// Remembers that.
    pub fn write_ref(&self, revision: &str, commit: &str) -> Result<(), Failure> {
        if is_hex(revision, 40) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        let folder = path.parent().expect("a file in refs");
        fs::create_dir_all(folder).map_err(Failure::io(folder))?;
        // renamed, so that nobody reads half a commit
        let new = self.folder.join(format!(".ref-{}", std::process::id()));
        fs::write(&new, commit).map_err(Failure::io(&new))?;
        fs::rename(&new, &path).map_err(Failure::io(&path))
    }

    /// Commits of which there are files.
    pub fn commits(&self) -> Result<Vec<String>, Failure> {
        names(&self.folder.join("snapshots"))
    }

    /// The files of a commit that are there, as paths from the root of the repository.
    pub fn files(&self, commit: &str) -> Vec<String> {
        let mut found = Vec::new();
        list(&self.snapshot(commit), "", 0, &mut found);
        found.sort();
        found
    }

    /// Whether a file of a commit is there with this size.
    pub fn has(&self, commit: &str, file: &str, size: u64) -> bool {
        fs::metadata(self.snapshot(commit).join(file))
            .is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
    }

    /// Puts a blob into a snapshot, as a link where the system has links.
    pub fn link(&self, commit: &str, file: &str, checksum: &Checksum) -> Result<(), Failure> {
        let path = self.snapshot(commit).join(file);
        let folder = path.parent().expect("a file in a snapshot");
        fs::create_dir_all(folder).map_err(Failure::io(folder))?;
        let up = "../".repeat(2 + file.matches('/').count());
        let target = format!("{up}blobs/{}", checksum.hex());
        if fs::read_link(&path).is_ok_and(|there| there == Path::new(&target)) {
            return Ok(());
        }
        super::partial::remove_if_there(&path)?;
        match symlink(&target, &path) {
            // another process was faster
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => {
                log::debug!("{}: {error}: no link", path.display());
                copy(&self.blob(checksum), &path)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Removes these files of a commit, and those of their blobs that nothing else in the repository
    /// uses; the bytes that were freed, and blobs that were kept.
    ///
    /// A snapshot without links does not tell which blob a file is: a blob is then used while any
    /// snapshot has a file of its size.
    pub fn remove(&self, commit: &str, files: &[String]) -> Result<(u64, usize), Failure> {
        let snapshot = self.snapshot(commit);
        let mut links = BTreeSet::new();
        let mut sizes = BTreeSet::new();
        let mut freed = 0;
        for file in files {
            let path = snapshot.join(file);
            match linked_blob(&path) {
                Some(blob) => drop(links.insert(blob)),
                None => {
                    let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
                    sizes.insert(size);
                    freed += if is_shared(&path) { 0 } else { size };
                }
            }
            super::partial::remove_if_there(&path)?;
            remove_empty_folders(&path, &snapshot);
        }
        let (used, used_sizes) = self.used()?;
        let mut kept = 0;
        for blob in names(&self.blobs())? {
            let path = self.blobs().join(&blob);
            let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            let is_linked = links.contains(&blob);
            if !is_linked && (!sizes.contains(&size) || !is_blob_name(&blob)) {
                continue;
            }
            if used.contains(&blob) || used_sizes.contains(&size) {
                kept += usize::from(is_linked);
                continue;
            }
            freed += size;
            super::partial::remove_if_there(&path)?;
        }
        self.tidy(commit)?;
        Ok((freed, kept))
    }

    /// Blobs that snapshots link to, and sizes of files in snapshots that are no links.
    fn used(&self) -> Result<(BTreeSet<String>, BTreeSet<u64>), Failure> {
        let (mut blobs, mut sizes) = (BTreeSet::new(), BTreeSet::new());
        for commit in self.commits()? {
            for file in self.files(&commit) {
                let path = self.snapshot(&commit).join(file);
                match linked_blob(&path) {
                    Some(blob) => drop(blobs.insert(blob)),
                    None => drop(sizes.insert(fs::metadata(&path).map_or(0, |m| m.len()))),
                }
            }
        }
        Ok((blobs, sizes))
    }

    /// Removes an empty snapshot with the names that lead to it, and a repository without any files.
    fn tidy(&self, commit: &str) -> Result<(), Failure> {
        if !self.snapshot(commit).exists() {
            let folder = self.folder.join("refs");
            for (revision, of) in self.revisions() {
                if of == commit {
                    let path = folder.join(&revision);
                    super::partial::remove_if_there(&path)?;
                    remove_empty_folders(&path, &folder);
                }
            }
        }
        if self.commits()?.is_empty() && names(&self.blobs())?.is_empty() {
            for name in ["blobs", "refs", "snapshots", ""] {
                // what is not empty stays
                let _ = fs::remove_dir(self.folder.join(name));
            }
        }
        Ok(())
    }
}

/// The name of the blob that a snapshot's file links to.
fn linked_blob(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

fn is_blob_name(name: &str) -> bool {
    is_hex(name, 64) || is_hex(name, 40)
}

/// Removes the folders that `path` was in as long as they are empty, up to `top` itself.
fn remove_empty_folders(path: &Path, top: &Path) {
    for folder in path.ancestors().skip(1) {
        if !folder.starts_with(top) || fs::remove_dir(folder).is_err() {
            return;
        }
    }
}

/// Whether a file has other names, so that removing one frees nothing.
#[cfg(unix)]
fn is_shared(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.nlink() > 1)
}

#[cfg(not(unix))]
fn is_shared(_: &Path) -> bool {
    false
}

#[cfg(unix)]
fn symlink(target: &str, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(windows)]
fn symlink(target: &str, path: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target.replace('/', "\\"), path)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &str, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A second name for a blob, or else a second file.
fn copy(blob: &Path, path: &Path) -> Result<(), Failure> {
    if fs::hard_link(blob, path).is_ok() {
        return Ok(());
    }
    let new = super::cache::with_suffix(path, ".partial");
    fs::copy(blob, &new).map_err(Failure::io(&new))?;
    fs::rename(&new, path).map_err(Failure::io(path))
}

/// The names in a folder, sorted; none if there is no folder.
pub fn names(folder: &Path) -> Result<Vec<String>, Failure> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(Failure::io(folder)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Failure::io(folder))?;
        names.extend(entry.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

/// Files under a folder, links that lead nowhere left out.
fn list(folder: &Path, prefix: &str, depth: usize, found: &mut Vec<String>) {
    for name in names(folder).unwrap_or_default() {
        let path = folder.join(&name);
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        let name = format!("{prefix}{name}");
        if metadata.is_file() {
            found.push(name);
        } else if metadata.is_dir() && depth < MAX_DEPTH {
            list(&path, &format!("{name}/"), depth + 1, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    struct Disk {
        folder: tempfile::TempDir,
        repo: Repo,
    }

    impl Disk {
        fn new() -> Disk {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().to_owned();
            let repo = HubCache { root }.repo("u/r");
            fs::create_dir_all(repo.blobs()).unwrap();
            Disk { folder, repo }
        }

        /// A blob with these bytes, named by a digit.
        fn blob(&self, digit: char, bytes: &[u8]) -> Checksum {
            let checksum = Checksum::Sha256(digit.to_string().repeat(64));
            fs::write(self.repo.blob(&checksum), bytes).unwrap();
            checksum
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_layout_is_that_of_other_tools() {
        let disk = Disk::new();
        let blob = disk.blob('1', b"weights");
        disk.repo.link(A, "d/m.gguf", &blob).unwrap();
        disk.repo.link(A, "d/m.gguf", &blob).unwrap();
        disk.repo.write_ref("refs/pr/1", A).unwrap();
        let folder = disk.folder.path().join("models--u--r");
        let link = folder.join("snapshots").join(A).join("d/m.gguf");
        let target = format!("../../../blobs/{}", "1".repeat(64));
        assert_eq!(fs::read_link(&link).unwrap(), Path::new(&target));
        assert_eq!(fs::read(&link).unwrap(), b"weights");
        assert_eq!(
            fs::read_to_string(folder.join("refs/refs/pr/1")).unwrap(),
            A
        );
        assert_eq!(disk.repo.commit("refs/pr/1").as_deref(), Some(A));
        assert_eq!(disk.repo.commit(B).as_deref(), Some(B));
        assert_eq!(disk.repo.commit("main"), None);
        assert_eq!(disk.repo.files(A), ["d/m.gguf"]);
        assert!(disk.repo.has(A, "d/m.gguf", 7) && !disk.repo.has(A, "d/m.gguf", 8));
    }

    #[cfg(unix)]
    #[test]
    fn a_shared_blob_outlives_one_of_its_snapshots() {
        let disk = Disk::new();
        let (shared, own) = (disk.blob('1', b"both"), disk.blob('2', b"only A"));
        for (commit, file, blob) in [
            (A, "m.gguf", &shared),
            (B, "m.gguf", &shared),
            (A, "n.gguf", &own),
        ] {
            disk.repo.link(commit, file, blob).unwrap();
        }
        disk.repo.write_ref("main", A).unwrap();
        let files = ["m.gguf".to_owned(), "n.gguf".to_owned()];
        assert_eq!(disk.repo.remove(A, &files).unwrap(), (6, 1));
        assert_eq!(disk.repo.files(B), ["m.gguf"]);
        assert_eq!(disk.repo.commit("main"), None);
        assert!(disk.repo.blob(&shared).exists() && !disk.repo.blob(&own).exists());
        assert_eq!(disk.repo.remove(B, &files[..1]).unwrap(), (4, 0));
        assert!(!disk.folder.path().join("models--u--r").exists());
    }

    #[test]
    fn without_links_nothing_that_may_be_used_is_removed() {
        let disk = Disk::new();
        let (one, two) = (disk.blob('1', b"1234"), disk.blob('2', b"12345"));
        for (commit, file, blob) in [(A, "m", &one), (A, "n", &two), (B, "m", &one)] {
            let path = disk.repo.snapshot(commit).join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            copy(&disk.repo.blob(blob), &path).unwrap();
        }
        disk.repo
            .remove(A, &["m".to_owned(), "n".to_owned()])
            .unwrap();
        assert!(disk.repo.blob(&one).exists() && !disk.repo.blob(&two).exists());
        assert_eq!(disk.repo.files(B), ["m"]);
        disk.repo.remove(B, &["m".to_owned()]).unwrap();
        assert!(!disk.folder.path().join("models--u--r").exists());
    }
}
