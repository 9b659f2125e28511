//! Writing model files of any size: the header first, then each tensor's bytes as they come.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::checkpoint::stored_bytes;
use super::encoding::Encoding;
use super::safetensors::dtype;
use super::write::GgufWriter;
use crate::error::{Error, Result};

/// Bytes between two writes.
const BUFFER: usize = 1 << 20;

/// A tensor that is to be written: its name, its shape outermost first, and its encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name in the file.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// How its elements are stored.
    pub encoding: Encoding,
}

impl Entry {
    /// Bytes that it takes.
    ///
    /// # Panics
    /// If its rows are no whole number of groups.
    pub fn bytes(&self) -> u64 {
        stored_bytes(&self.shape, self.encoding).expect("whole groups") as u64
    }
}

/// A model file of which the header is written.
pub struct Stream {
    path: PathBuf,
    file: BufWriter<File>,
    /// Bytes of the tensors that are to come, the last one first.
    to_come: Vec<u64>,
    /// Bytes that the current tensor lacks, once it has begun.
    lacks: u64,
    /// Zeros that follow the current tensor.
    padding: usize,
    alignment: u64,
}

/// The header of a safetensors file, length included, padded to 8 bytes.
pub fn safetensors_header(entries: &[Entry]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut offset = 0;
    for entry in entries {
        let end = offset + entry.bytes();
        let value = json!({
            "dtype": dtype(entry.encoding), "shape": entry.shape, "data_offsets": [offset, end],
        });
        header.insert(entry.name.clone(), value);
        offset = end;
    }
    let mut text = Value::Object(header).to_string();
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// The header of a GGUF file with these keys, and what tensors are aligned to.
pub fn gguf_header(keys: GgufWriter, entries: &[Entry]) -> (Vec<u8>, u64) {
    let alignment = keys.alignment_bytes() as u64;
    let file = entries.iter().fold(keys, |file, entry| {
        file.declare(&entry.name, &entry.shape, entry.encoding)
    });
    (file.finish(), alignment)
}

impl Stream {
    /// Begins a file that must not be there yet: a header, after which these tensors follow, each padded
    /// to `alignment`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(path: &Path, header: &[u8], entries: &[Entry], alignment: u64) -> Result<Stream> {
        let file = File::create_new(path).map_err(Error::io(path))?;
        let mut stream = Stream {
            path: path.to_owned(),
            file: BufWriter::with_capacity(BUFFER, file),
            to_come: entries.iter().rev().map(Entry::bytes).collect(),
            lacks: 0,
            padding: 0,
            alignment,
        };
        stream.put(header)?;
        Ok(stream)
    }

    /// Appends bytes of the current tensor; where that is complete, of the next one.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If the bytes reach beyond the tensor.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.lacks == 0 {
            self.pad()?;
            self.lacks = self.to_come.pop().expect("all tensors are complete");
            self.padding = (self.lacks.next_multiple_of(self.alignment) - self.lacks) as usize;
        }
        let left = self.lacks.checked_sub(bytes.len() as u64);
        self.lacks = left.expect("more bytes than the tensor has");
        self.put(bytes)
    }

    fn pad(&mut self) -> Result<()> {
        let zeros = vec![0; std::mem::take(&mut self.padding)];
        self.put(&zeros)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::io(&self.path))
    }

    /// Waits until everything is on the disk.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If a tensor is not complete.
    pub fn finish(mut self) -> Result<()> {
        let left = (self.lacks, self.to_come.len());
        assert_eq!(left, (0, 0), "bytes, tensors that are missing");
        self.pad()?;
        let file = self.file.into_inner();
        let file = file.map_err(|error| Error::io(&self.path)(error.into_error()))?;
        file.sync_all().map_err(Error::io(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Checkpoint, Gguf, safetensors};
    use super::*;

    fn entries() -> Vec<Entry> {
        let entry = |name: &str, shape: &[usize], encoding| Entry {
            name: name.to_owned(),
            shape: shape.to_vec(),
            encoding,
        };
        vec![
            entry("b", &[3, 32], Encoding::F16),
            entry("a", &[5], Encoding::F32),
            entry("c", &[1, 4], Encoding::F32),
        ]
    }

    /// Writes rising numbers, in pieces.
    fn write(path: &Path, header: &[u8], alignment: u64) {
        let mut stream = Stream::create(path, header, &entries(), alignment).unwrap();
        for entry in entries() {
            let count = entry.shape.iter().product::<usize>();
            let values: Vec<f32> = (0..count).map(|i| i as f32).collect();
            let bytes = entry.encoding.encode(&values);
            for piece in bytes.chunks(7) {
                stream.write(piece).unwrap();
            }
        }
        stream.finish().unwrap();
    }

    fn check(checkpoint: &Checkpoint) {
        let names: Vec<&str> = checkpoint.names().collect();
        assert_eq!(names, ["b", "a", "c"]);
        for info in checkpoint.tensors() {
            let mut values = Vec::new();
            checkpoint
                .read_rows(info, 0..info.rows(), &mut values)
                .unwrap();
            assert!(values.iter().enumerate().all(|(i, v)| *v == i as f32));
        }
    }

    #[test]
    fn what_is_written_piece_by_piece_is_read_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        write(&path, &safetensors_header(&entries()), 1);
        let bytes = std::fs::read(&path).unwrap();
        check(&safetensors::read(&path, std::sync::Arc::new(bytes)).unwrap());
        let path = dir.path().join("m.gguf");
        let keys = GgufWriter::new().string("general.architecture", "x");
        let (header, alignment) = gguf_header(keys, &entries());
        write(&path, &header, alignment);
        let gguf = Gguf::open(&path).unwrap();
        assert_eq!(gguf.metadata.architecture().unwrap(), "x");
        check(&gguf.checkpoint);
        let again = Stream::create(&path, &header, &entries(), 1).err().unwrap();
        assert!(matches!(again, Error::Io { .. }), "{again}");
    }

    #[test]
    #[should_panic(expected = "more bytes than the tensor has")]
    fn bytes_beyond_a_tensor_are_a_bug() {
        let dir = tempfile::tempdir().unwrap();
        let mut stream = Stream::create(&dir.path().join("m"), &[], &entries(), 1).unwrap();
        stream.write(&[0; 193]).unwrap();
    }
}
