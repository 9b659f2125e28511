//! A file on its way: written under `.partial`, hashed while writing, renamed when right.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::cache::with_suffix;
use super::checksum::{Checksum, Hasher};
use crate::exit::Failure;

/// The unfinished file with the hash of what it holds so far.
pub struct Partial {
    target: PathBuf,
    path: PathBuf,
    file: File,
    hasher: Hasher,
    len: u64,
    /// The size that the finished file has; nothing is ever written beyond it.
    size: Option<u64>,
    /// What the finished file must be; `None` where nobody knows.
    expected: Option<Checksum>,
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
#[derive(Debug)]
pub struct Mismatch {
    /// What the bytes that came are.
    pub found: Checksum,
    /// Whether old bytes were among them, so that a fresh start may help.
    pub resumed: bool,
}

impl Partial {
    /// Opens what is left of an earlier download of `target`, or an empty file, and
    /// hashes what is there. A left-over longer than `size` is dropped.
    ///
    /// The size may be told later, by [`Partial::set_size`], where `expected` is none or a sha256.
    pub fn open(
        target: &Path,
        size: Option<u64>,
        expected: Option<Checksum>,
    ) -> Result<Partial, Failure> {
        let path = with_suffix(target, ".partial");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Failure::io(&path))?;
        let mut hasher = Hasher::new(expected.as_ref(), size);
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
            size: None,
            expected,
            resumed,
        };
        if let Some(size) = size {
            partial.set_size(size)?;
        }
        Ok(partial)
    }

    /// Tells how long the finished file will be; a left-over that is longer is dropped.
    pub fn set_size(&mut self, size: u64) -> Result<(), Failure> {
        self.size = Some(size);
        if self.len > size {
            self.restart()?;
        }
        Ok(())
    }

    /// Bytes there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Bytes there will be, once that is known.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Bytes there will be.
    ///
    /// # Panics
    /// If nobody has told yet.
    pub fn known_size(&self) -> u64 {
        self.size.expect("the size is told before bytes come")
    }

    /// Whether all bytes are there.
    pub fn is_full(&self) -> bool {
        self.size == Some(self.len)
    }

    /// What the bytes must be, where that is known.
    pub fn expected(&self) -> Option<&Checksum> {
        self.expected.as_ref()
    }

    /// Where the bytes are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that they are in.
    pub fn folder(&self) -> &Path {
        self.target.parent().unwrap_or(Path::new("."))
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
        self.hasher = Hasher::new(self.expected.as_ref(), self.size);
        self.len = 0;
        self.resumed = false;
        self.set_validator(None)
    }

    /// Appends.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        if bytes.len() as u64 > self.known_size() - self.len {
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
            None => remove_if_there(&path),
        }
    }

    fn validator_path(&self) -> PathBuf {
        with_suffix(&self.path, ".etag")
    }

    /// What the full file is, if it is what was expected or nothing was.
    pub fn verify(&self) -> Result<Checksum, Mismatch> {
        assert!(self.is_full(), "verify of an unfinished file");
        let found = self.hasher.clone().finish();
        match &self.expected {
            Some(expected) if *expected != found => Err(Mismatch {
                found,
                resumed: self.resumed,
            }),
            _ => Ok(found),
        }
    }

    /// Forces the bytes to disk and gives the file its final name.
    pub fn publish(mut self) -> Result<(), Failure> {
        self.file.sync_all().map_err(Failure::io(&self.path))?;
        fs::rename(&self.path, &self.target).map_err(Failure::io(&self.target))?;
        self.remove_notes()?;
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
        self.remove_notes()?;
        fs::remove_file(&self.path).map_err(Failure::io(&self.path))
    }

    /// Writes down what is being downloaded, for `nelumbo ls` and `rm`: the model's reference, and
    /// the file's name.
    pub fn write_note(&self, reference: &str, file: &str) -> Result<(), Failure> {
        let path = note_of(&self.path);
        fs::write(&path, format!("{reference}\n{file}")).map_err(Failure::io(&path))
    }

    fn remove_notes(&mut self) -> Result<(), Failure> {
        self.set_validator(None)?;
        remove_if_there(&note_of(&self.path))
    }
}

/// Reference and file name of an unfinished file, as [`Partial::write_note`] left them.
pub fn read_note(partial: &Path) -> Option<(String, String)> {
    let text = fs::read_to_string(note_of(partial)).ok()?;
    let (reference, file) = text.split_once('\n')?;
    Some((reference.to_owned(), file.to_owned()))
}

/// The bytes of an unfinished file, removed with all notes about it; how many there were.
pub fn remove(partial: &Path) -> Result<u64, Failure> {
    let bytes = fs::metadata(partial).map_or(0, |metadata| metadata.len());
    for path in [
        partial.to_owned(),
        with_suffix(partial, ".etag"),
        note_of(partial),
    ] {
        remove_if_there(&path)?;
    }
    Ok(bytes)
}

fn note_of(partial: &Path) -> PathBuf {
    with_suffix(partial, ".source")
}

/// Removes a file that need not exist.
pub fn remove_if_there(path: &Path) -> Result<(), Failure> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Failure::io(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(target: &Path) -> Partial {
        Partial::open(target, Some(3), Checksum::sha256(ABC)).unwrap()
    }

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn resumed_bytes_count_towards_the_hash() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("m.gguf");
        let mut first = open(&target);
        first.write(b"ab").unwrap();
        first.set_validator(Some(("http://x/m", "\"v1\""))).unwrap();
        drop(first);

        let mut second = open(&target);
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
        assert_eq!(second.verify().unwrap().hex(), ABC);
        second.write_note("u/r", "m.gguf").unwrap();
        second.publish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"abc");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn wrong_bytes_are_told_and_a_long_left_over_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("m.gguf");
        fs::write(folder.path().join("m.gguf.partial"), b"abcd").unwrap();
        let mut partial = open(&target);
        assert_eq!(partial.len(), 0);
        partial.write(b"abd").unwrap();
        let mismatch = partial.verify().unwrap_err();
        assert!(!mismatch.resumed && mismatch.found.hex() != ABC);
        partial.discard().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_size_told_late_counts_as_one_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("m.gguf");
        fs::write(folder.path().join("m.gguf.partial"), b"abcd").unwrap();
        let mut partial = Partial::open(&target, None, None).unwrap();
        assert_eq!((partial.len(), partial.is_full()), (4, false));
        partial.set_size(3).unwrap();
        assert_eq!(partial.len(), 0);
        partial.write(b"abc").unwrap();
        assert_eq!(partial.verify().unwrap().hex(), ABC);
        partial.write_note("https://x/m", "m.gguf").unwrap();
        let path = partial.path().to_owned();
        drop(partial);
        let note = read_note(&path).unwrap();
        assert_eq!(
            (note.0.as_str(), note.1.as_str()),
            ("https://x/m", "m.gguf")
        );
        assert_eq!(remove(&path).unwrap(), 3);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
