//! Small results about an adapter that are kept between runs, beside its pipelines.
//!
//! A file is sealed as those of pipelines are, under a key that holds what theirs does and whatever
//! else the result depends on. Nothing here is ever an error: what is not there, damaged, foreign or
//! cannot be written is as if nothing had been kept.

use super::cache_file::{PipelineFolder, fnv1a, key, prune, read, write};
use super::device::Gpu;
use std::path::PathBuf;

/// Files of one extension in a folder; the ones written longest ago go first.
const MAX_FILES: usize = 64;
/// A longer body is not read.
const MAX_BODY_BYTES: usize = 1 << 16;

/// Where a device keeps its results.
#[derive(Debug)]
pub(crate) struct Kept {
    folder: PathBuf,
    /// Of adapter, driver, backend, wgpu and shaders.
    key: u64,
}

impl Kept {
    pub fn new(adapter: &wgpu::AdapterInfo, folder: &PipelineFolder) -> Kept {
        Kept {
            folder: folder.folder.clone(),
            key: key(adapter, folder.shaders),
        }
    }

    fn file(&self, extension: &'static str, about: &[&[u8]]) -> KeptFile {
        let own = self.key.to_le_bytes();
        let key = fnv1a(
            [&own[..], extension.as_bytes()]
                .into_iter()
                .chain(about.iter().copied()),
        );
        KeptFile {
            path: self.folder.join(format!("{key:016x}.{extension}")),
            extension,
            key,
        }
    }
}

/// One result: a few bytes under a key.
#[derive(Debug)]
pub struct KeptFile {
    path: PathBuf,
    extension: &'static str,
    key: u64,
}

impl Gpu {
    /// The file of a result that depends on adapter, driver, backend, version of wgpu, shaders and
    /// `about`; `extension` says what it is. `None` where no folder was given.
    pub fn kept_file(&self, extension: &'static str, about: &[&[u8]]) -> Option<KeptFile> {
        self.kept.as_ref().map(|kept| kept.file(extension, about))
    }
}

impl KeptFile {
    /// What an earlier run wrote under the same key, whole.
    pub fn read(&self) -> Option<Vec<u8>> {
        read(&self.path, self.key)
            .and_then(|body| match body.len() {
                0..=MAX_BODY_BYTES => Ok(body),
                bytes => Err(format!("it has {bytes} bytes")),
            })
            .inspect_err(|why| log::debug!("{}: not used: {why}", self.path.display()))
            .ok()
    }

    /// Puts `body` in place, whole or not at all.
    pub fn write(&self, body: &[u8]) {
        let folder = self.path.parent().expect("a file in a folder");
        let written = write(&self.path, self.key, body)
            .and_then(|()| prune(folder, self.extension, MAX_FILES));
        if let Err(error) = written {
            log::debug!("{}: not kept: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn kept(folder: &Path, key: u64) -> Kept {
        Kept {
            folder: folder.to_owned(),
            key,
        }
    }

    #[test]
    fn a_result_comes_back_under_the_same_key_only() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("made/when/needed");
        let file = kept(&place, 1).file("word", &[b"a", b"b"]);
        assert_eq!(file.read(), None);
        file.write(b"first");
        file.write(b"result");
        assert_eq!(file.read(), Some(b"result".to_vec()));
        for other in [
            kept(&place, 2).file("word", &[b"a", b"b"]),
            kept(&place, 1).file("word", &[b"ab"]),
            kept(&place, 1).file("word", &[b"a", b"c"]),
            kept(&place, 1).file("other", &[b"a", b"b"]),
        ] {
            assert_eq!(other.read(), None);
            // nor when a file is given the name of another
            fs::copy(&file.path, &other.path).unwrap();
            assert_eq!(other.read(), None);
        }
    }

    #[test]
    fn what_is_damaged_is_not_there_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = kept(folder.path(), 1).file("word", &[]);
        file.write(b"result");
        let whole = fs::read(&file.path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 4;
            fs::write(&file.path, damaged).unwrap();
            assert_eq!(file.read(), None, "byte {at}");
            fs::write(&file.path, &whole[..at]).unwrap();
            assert_eq!(file.read(), None, "{at} bytes");
        }
        file.write(&vec![0; MAX_BODY_BYTES + 1]);
        assert_eq!(file.read(), None);
        file.write(b"result");
        assert_eq!(file.read(), Some(b"result".to_vec()));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let in_the_way = folder.path().join("file");
        fs::write(&in_the_way, "mine").unwrap();
        let file = kept(&in_the_way, 1).file("word", &[]);
        file.write(b"result");
        assert_eq!(file.read(), None);
        assert_eq!(fs::read(&in_the_way).unwrap(), b"mine");
    }
}
