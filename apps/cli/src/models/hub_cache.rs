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

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::checksum::{Checksum, is_hex};
use super::network::{hub_home, set};
use crate::exit::Failure;

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

    /// The folder of all that belongs to it, but for locks.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    /// The folder of branches and tags.
    pub fn refs(&self) -> PathBuf {
        self.folder.join("refs")
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
        let text = fs::read_to_string(self.refs().join(revision)).ok()?;
        let commit = text.trim();
        is_hex(commit, 40).then(|| commit.to_ascii_lowercase())
    }

    /// All branches and tags with their commits.
    pub fn revisions(&self) -> Result<Vec<(String, String)>, Failure> {
        let mut revisions = Vec::new();
        list(&self.refs(), "", &mut revisions)?;
        let with_commit = revisions
            .into_iter()
            .filter_map(|revision| Some((revision.clone(), self.commit(&revision)?)));
        Ok(with_commit.collect())
    }

    /// Remembers that.
    pub fn write_ref(&self, revision: &str, commit: &str) -> Result<(), Failure> {
        if is_hex(revision, 40) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.refs().join(revision);
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
    pub fn files(&self, commit: &str) -> Result<Vec<String>, Failure> {
        let mut found = Vec::new();
        list(&self.snapshot(commit), "", &mut found)?;
        found.sort();
        Ok(found)
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
pub fn copy(blob: &Path, path: &Path) -> Result<(), Failure> {
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

/// Files under a folder. Links that lead nowhere are left out, and folders that are links: these may
/// lead back.
fn list(folder: &Path, prefix: &str, found: &mut Vec<String>) -> Result<(), Failure> {
    for name in names(folder)? {
        let path = folder.join(&name);
        let name = format!("{prefix}{name}");
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => list(&path, &format!("{name}/"), found)?,
            Ok(_) if path.is_file() => found.push(name),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::io(&path)(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    pub const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

    /// A cache of one repository, `u/r`.
    pub struct Disk {
        pub folder: tempfile::TempDir,
        pub repo: Repo,
    }

    impl Disk {
        pub fn new() -> Disk {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().to_owned();
            let repo = HubCache { root }.repo("u/r");
            fs::create_dir_all(repo.blobs()).unwrap();
            Disk { folder, repo }
        }

        /// A blob with these bytes, named by a digit.
        pub fn blob(&self, digit: char, bytes: &[u8]) -> Checksum {
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
        assert_eq!(disk.repo.files(A).unwrap(), ["d/m.gguf"]);
        assert!(disk.repo.has(A, "d/m.gguf", 7) && !disk.repo.has(A, "d/m.gguf", 8));
    }
}
