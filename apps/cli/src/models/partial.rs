//! A file on its way: written under `.partial`, hashed while writing, renamed when right.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::cache::with_suffix;
use crate::exit::Failure;

/// The unfinished file with the hash of what it holds so far.
pub struct Partial {
    target: PathBuf,
    path: PathBuf,
    file: File,
    hasher: Sha256,
    len: u64,
    /// The size that the finished file has; nothing is ever written beyond it.
    size: u64,
    /// Whether bytes of an earlier run are part of the file.
    resumed: bool,
}

/// How a write can fail.
#[derive(Debug)]
pub enum WriteError {
    /// More bytes than the finished file has.
    TooLong,
    /// The disk said no.
    Disk(Failure),
}

/// Why a full file was not accepted.
pub struct Mismatch {
    /// The sha256 of the bytes that came.
    pub found: String,
    /// Whether old bytes were among them, so that a fresh start may help.
    pub resumed: bool,
}

impl Partial {
    /// Opens what is left of an earlier download of `target`, or an empty file, and
    /// hashes what is there. A left-over longer than `size` is dropped.
    pub fn open(target: &Path, size: u64) -> Result<Partial, Failure> {
        let path = with_suffix(target, ".partial");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Failure::io(&path))?;
        let mut hasher = Sha256::new();
        let mut len = 0;
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer).map_err(Failure::io(&path))? {
                0 => break,
                n => {
                    hasher.update(&buffer[..n]);
                    len += n as u64;
                }
            }
        }
        let resumed = len > 0;
        let mut partial = Partial {
            target: target.to_owned(),
            path,
            file,
            hasher,
            len,
            size,
            resumed,
        };
        if len > size {
            partial.restart()?;
        }
        Ok(partial)
    }

    /// Bytes there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes there will be.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A folder beside the file for a source that needs one. Not created here.
    pub fn scratch(&self) -> PathBuf {
        with_suffix(&self.target, ".pip")
    }

    /// Back to an empty file.
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.file.set_len(0).map_err(Failure::io(&self.path))?;
        self.file
            .seek(SeekFrom::Start(0))
            .map_err(Failure::io(&self.path))?;
        self.hasher = Sha256::new();
        self.len = 0;
        self.resumed = false;
        self.set_validator(None)
    }

    /// Appends.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        if bytes.len() as u64 > self.size - self.len {
            return Err(WriteError::TooLong);
        }
        self.file.write_all(bytes).map_err(|source| {
            WriteError::Disk(Failure::Io {
                path: self.path.clone(),
                source,
            })
        })?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// What the server called this version of the file when the bytes came, with its address.
    pub fn validator(&self, url: &str) -> Option<String> {
        let text = fs::read_to_string(self.validator_path()).ok()?;
        let (stored_url, validator) = text.split_once('\n')?;
        // It goes into a header: only what a server could have sent comes back out.
        let is_etag = validator.starts_with('"') && validator.bytes().all(|b| b.is_ascii_graphic());
        (stored_url == url && is_etag).then(|| validator.to_owned())
    }

    /// Keeps, or forgets, the server's name for this version.
    pub fn set_validator(&mut self, validator: Option<(&str, &str)>) -> Result<(), Failure> {
        let path = self.validator_path();
        match validator {
            Some((url, validator)) => {
                fs::write(&path, format!("{url}\n{validator}")).map_err(Failure::io(&path))
            }
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(Failure::io(&path)(error))
                }
                _ => Ok(()),
            },
        }
    }

    fn validator_path(&self) -> PathBuf {
        with_suffix(&self.path, ".etag")
    }

    /// Whether the full file has this sha256.
    pub fn verify(&self, sha256: &str) -> Result<(), Mismatch> {
        assert_eq!(self.len, self.size, "verify of an unfinished file");
        let found = hex(&self.hasher.clone().finalize());
        if found == sha256 {
            Ok(())
        } else {
            Err(Mismatch {
                found,
                resumed: self.resumed,
            })
        }
    }

    /// Forces the bytes to disk and gives the file its final name.
    pub fn publish(mut self) -> Result<(), Failure> {
        self.file.sync_all().map_err(Failure::io(&self.path))?;
        fs::rename(&self.path, &self.target).map_err(Failure::io(&self.target))?;
        self.set_validator(None)?;
        // A rename lasts once the folder is on disk. Only Unix can open a folder for that.
        if cfg!(unix)
            && let Some(folder) = self.target.parent()
        {
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .map_err(Failure::io(folder))?;
        }
        Ok(())
    }

    /// Removes what came: it is not what was asked for.
    pub fn discard(mut self) -> Result<(), Failure> {
        self.set_validator(None)?;
        fs::remove_file(&self.path).map_err(Failure::io(&self.path))
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn resumed_bytes_count_towards_the_hash() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("m.gguf");
        let mut first = Partial::open(&target, 3).unwrap();
        first.write(b"ab").unwrap();
        first.set_validator(Some(("http://x/m", "\"v1\""))).unwrap();
        drop(first);

        let mut second = Partial::open(&target, 3).unwrap();
        assert_eq!(
            (second.len(), second.validator("http://x/m").as_deref()),
            (2, Some("\"v1\""))
        );
        assert_eq!(second.validator("http://y/m"), None);
        let etag = folder.path().join("m.gguf.partial.etag");
        fs::write(&etag, "http://x/m\n\"v1\"\r\nX: y").unwrap();
        assert_eq!(second.validator("http://x/m"), None);
        assert!(matches!(second.write(b"cd"), Err(WriteError::TooLong)));
        second.write(b"c").unwrap();
        assert!(second.verify(ABC).is_ok());
        second.publish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"abc");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn wrong_bytes_are_told_and_a_long_left_over_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("m.gguf");
        fs::write(folder.path().join("m.gguf.partial"), b"abcd").unwrap();
        let mut partial = Partial::open(&target, 3).unwrap();
        assert_eq!(partial.len(), 0);
        partial.write(b"abd").unwrap();
        let mismatch = partial.verify(ABC).unwrap_err();
        assert!(!mismatch.resumed && mismatch.found != ABC);
        partial.discard().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
