//! Taking models out of the hub's cache: files of a commit, and those of their blobs that nothing
//! else uses.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::checksum::is_hex;
use super::hub_cache::{Repo, names};
use super::partial::remove_if_there;
use crate::exit::Failure;

impl Repo {
    /// Removes these files of a commit, and those of their blobs that nothing else in the repository
    /// uses; the bytes that were freed, and blobs that were kept.
    ///
    /// A snapshot without links does not tell which blob a file is: a blob is then used while any
    /// snapshot has a file of its size.
    pub fn remove(&self, commit: &str, files: &[String]) -> Result<(u64, usize), Failure> {
        // before the first one is gone: a folder that cannot be read may use them all
        let (used, used_sizes) = self.used_beside(commit, files)?;
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
            remove_if_there(&path)?;
            remove_empty_folders(&path, &snapshot);
        }
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
            remove_if_there(&path)?;
        }
        self.tidy(commit)?;
        Ok((freed, kept))
    }

    /// Blobs that all files but these of a commit link to, and sizes of those that are no links.
    fn used_beside(
        &self,
        commit: &str,
        files: &[String],
    ) -> Result<(BTreeSet<String>, BTreeSet<u64>), Failure> {
        let (mut blobs, mut sizes) = (BTreeSet::new(), BTreeSet::new());
        for of in self.commits()? {
            for file in self.files(&of)? {
                if of == commit && files.contains(&file) {
                    continue;
                }
                let path = self.snapshot(&of).join(file);
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
            for (revision, of) in self.revisions()? {
                if of == commit {
                    let path = self.refs().join(&revision);
                    remove_if_there(&path)?;
                    remove_empty_folders(&path, &self.refs());
                }
            }
        }
        if self.commits()?.is_empty() && names(&self.blobs())?.is_empty() {
            for name in ["blobs", "refs", "snapshots", ""] {
                // what is not empty stays
                let _ = fs::remove_dir(self.folder().join(name));
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

#[cfg(test)]
mod tests {
    use super::super::hub_cache::copy;
    use super::super::hub_cache::tests::{A, B, Disk};
    use super::*;

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
        assert_eq!(disk.repo.files(B).unwrap(), ["m.gguf"]);
        assert_eq!(disk.repo.commit("main"), None);
        assert!(disk.repo.blob(&shared).exists() && !disk.repo.blob(&own).exists());
        assert_eq!(disk.repo.remove(B, &files[..1]).unwrap(), (4, 0));
        assert!(!disk.folder.path().join("models--u--r").exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_blob_is_used_from_however_deep_a_folder_and_links_make_no_circles() {
        let disk = Disk::new();
        let blob = disk.blob('1', b"both");
        let deep = format!("{}m.gguf", "d/".repeat(20));
        disk.repo.link(A, "m.gguf", &blob).unwrap();
        disk.repo.link(B, &deep, &blob).unwrap();
        for name in ["one", "two"] {
            std::os::unix::fs::symlink(".", disk.repo.snapshot(B).join(name)).unwrap();
        }
        assert_eq!(disk.repo.remove(A, &["m.gguf".to_owned()]).unwrap(), (0, 1));
        assert_eq!(disk.repo.files(B).unwrap(), [deep]);
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
        assert_eq!(disk.repo.files(B).unwrap(), ["m"]);
        disk.repo.remove(B, &["m".to_owned()]).unwrap();
        assert!(!disk.folder.path().join("models--u--r").exists());
    }
}
