//! Where bytes come from: positioned reads from a file, a memory buffer, or whatever a host offers.
//!
//! Files are read, never mapped: a mapping whose file is cut short kills the process with a signal
//! that no error handler sees.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::error::{Error, Result};

/// A fixed sequence of bytes that can be read at any offset, from any thread.
pub trait ReadAt: Send + Sync {
    /// Bytes there are, as seen when the source was opened.
    fn len(&self) -> u64;

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the source ends first, or the host's own error.
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// True if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the bytes may have been rewritten since the source was opened.
    ///
    /// # Errors
    /// The host's error if it cannot tell.
    fn changed(&self) -> io::Result<bool> {
        Ok(false)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = self.get(start..).unwrap_or_default();
        match found.get(..buf.len()) {
            Some(bytes) => buf.copy_from_slice(bytes),
            None => return Err(short_read(offset, buf.len(), found.len())),
        }
        Ok(())
    }
}

/// A regular file, opened for reading.
pub(super) struct FileSource {
    file: File,
    len: u64,
    modified: Option<SystemTime>,
}

impl FileSource {
    /// Opens a regular file.
    ///
    /// # Errors
    /// [`Error::Io`] with the system's reason; [`Error::File`] for a directory, pipe or device,
    /// which would block or never end.
    pub fn open(path: &Path) -> Result<FileSource> {
        // Asked before opening: opening a named pipe waits for its other end.
        if !path.metadata().map_err(Error::io(path))?.is_file() {
            return Err(Error::file(path, "is not a regular file"));
        }
        let file = File::open(path).map_err(Error::io(path))?;
        let metadata = file.metadata().map_err(Error::io(path))?;
        Ok(FileSource {
            len: metadata.len(),
            modified: metadata.modified().ok(),
            file,
        })
    }
}

impl ReadAt for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match read_at(&self.file, offset + done as u64, &mut buf[done..]) {
                Ok(0) => return Err(short_read(offset, buf.len(), done)),
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn changed(&self) -> io::Result<bool> {
        let now = self.file.metadata()?;
        Ok(now.len() != self.len || now.modified().ok() != self.modified)
    }
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buf, offset)
}

#[cfg(windows)]
fn read_at(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buf, offset)
}

#[cfg(not(any(unix, windows)))]
fn read_at(_: &File, _: u64, _: &mut [u8]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

fn short_read(offset: u64, wanted: usize, found: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!(
            "{wanted} bytes wanted at offset {offset}, {} are missing",
            wanted - found
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_a_vector_read_the_same() {
        let bytes: Vec<u8> = (0..=255).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        std::fs::write(&path, &bytes).unwrap();
        let file = FileSource::open(&path).unwrap();
        assert_eq!(ReadAt::len(&file), 256);
        assert!(!ReadAt::is_empty(&file));
        for source in [&file as &dyn ReadAt, &bytes] {
            let mut buf = [0; 16];
            source.read_exact_at(240, &mut buf).unwrap();
            assert_eq!(buf, bytes[240..]);
            let error = source.read_exact_at(241, &mut buf).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            assert!(error.to_string().contains("1 are missing"), "{error}");
            assert!(source.read_exact_at(u64::MAX - 16, &mut buf).is_err());
            assert!(!source.changed().unwrap());
        }
    }

    #[test]
    fn a_rewritten_file_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bytes");
        std::fs::write(&path, [1; 10]).unwrap();
        let file = FileSource::open(&path).unwrap();
        std::fs::write(&path, [2; 9]).unwrap();
        assert!(file.changed().unwrap());
    }

    #[test]
    fn only_regular_files_open() {
        let dir = tempfile::tempdir().unwrap();
        let error = FileSource::open(dir.path()).err().unwrap();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
