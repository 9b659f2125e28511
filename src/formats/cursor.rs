//! Reading a GGUF header from front to back, never past an end that was checked first.

use std::fmt::Display;
use std::path::Path;

use super::source::ReadAt;
use crate::error::{Error, Result};

/// How much is read ahead; a header is mostly records of a few bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// A position in a source, and the end that no read may pass: the source's length, or a limit that
/// lies before it. Every read is told the field it reads for, so that its error can name it.
pub(super) struct Cursor<'a> {
    path: &'a Path,
    data: &'a dyn ReadAt,
    position: u64,
    end: u64,
    /// What `end` is, for messages.
    end_name: &'static str,
    /// The source's bytes from `buffer_start` on.
    buffer: Vec<u8>,
    buffer_start: u64,
}

impl<'a> Cursor<'a> {
    pub fn new(path: &'a Path, data: &'a dyn ReadAt) -> Cursor<'a> {
        Cursor {
            path,
            data,
            position: 0,
            end: data.len(),
            end_name: "in the file",
            buffer: Vec::new(),
            buffer_start: 0,
        }
    }

    pub fn path(&self) -> &'a Path {
        self.path
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes up to the end.
    pub fn remaining(&self) -> u64 {
        self.end - self.position
    }

    /// Allows at most `bytes` more, if the source has as many; `name` says whose limit it is.
    pub fn limit(&mut self, bytes: u64, name: &'static str) {
        if bytes < self.remaining() {
            self.end = self.position + bytes;
            self.end_name = name;
        }
    }

    /// Takes the limit away again.
    pub fn unlimit(&mut self) {
        self.end = self.data.len();
        self.end_name = "in the file";
    }

    /// [`Error::Field`] in this file.
    pub fn error(&self, field: &(impl Display + ?Sized), problem: &str) -> Error {
        Error::field(self.path, field.to_string(), problem)
    }

    /// Checks that `count` records of at least `record_bytes` can follow.
    pub fn expect_room(
        &self,
        count: u64,
        record_bytes: u64,
        what: &str,
        field: &(impl Display + ?Sized),
    ) -> Result<()> {
        if count > self.remaining() / record_bytes {
            let problem = format!(
                "{what} of at least {record_bytes} bytes each, {} bytes are left {}",
                self.remaining(),
                self.end_name
            );
            return Err(self.error(field, &problem));
        }
        Ok(())
    }

    /// The next `len` bytes. Must be few: they pass through the buffer.
    pub fn take(&mut self, len: u64, field: &(impl Display + ?Sized)) -> Result<&[u8]> {
        if len > self.remaining() {
            let problem = format!(
                "{len} bytes, {} are left {}",
                self.remaining(),
                self.end_name
            );
            return Err(self.error(field, &problem));
        }
        let len = len as usize;
        if self.position + len as u64 > self.buffer_start + self.buffer.len() as u64 {
            self.fill(len)?;
        }
        let start = (self.position - self.buffer_start) as usize;
        self.position += len as u64;
        Ok(&self.buffer[start..start + len])
    }

    pub fn u32(&mut self, field: &(impl Display + ?Sized)) -> Result<u32> {
        let bytes = self.take(4, field)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    pub fn u64(&mut self, field: &(impl Display + ?Sized)) -> Result<u64> {
        let bytes = self.take(8, field)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// A length and as many bytes of UTF-8, at most `max_bytes`.
    pub fn string(&mut self, field: impl Display, max_bytes: u64) -> Result<String> {
        let len = self.u64(&field)?;
        if len > max_bytes || len > self.remaining() {
            let problem = format!(
                "string of {len} bytes, at most {max_bytes} are allowed and {} are left {}",
                self.remaining(),
                self.end_name
            );
            return Err(self.error(&field, &problem));
        }
        let bytes = self.take(len, &field)?.to_owned();
        String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            let problem = format!("string is not UTF-8 after {valid} bytes");
            self.error(&field, &problem)
        })
    }

    /// Moves the buffer to the position, with at least `len` bytes; the caller has checked that the
    /// source has them.
    fn fill(&mut self, len: usize) -> Result<()> {
        let left = self.data.len() - self.position;
        let wanted = left.min(len.max(BUFFER_BYTES) as u64) as usize;
        self.buffer.resize(wanted, 0);
        self.buffer.shrink_to(BUFFER_BYTES);
        self.buffer_start = self.position;
        self.data
            .read_exact_at(self.position, &mut self.buffer)
            .map_err(Error::io(self.path))
    }
}
