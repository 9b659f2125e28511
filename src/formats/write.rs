//! Writing small model files: for synthetic models, and for tests that need a file with a flaw.
//!
//! ```
//! use nelumbo::formats::{Encoding, Gguf, write::GgufWriter};
//! use std::{path::Path, sync::Arc};
//!
//! let bytes = GgufWriter::new()
//!     .string("general.architecture", "llama")
//!     .u32("llama.block_count", 1)
//!     .tensor("output_norm.weight", &[2], Encoding::F32, &[0; 8])
//!     .finish();
//! let gguf = Gguf::read(Path::new("tiny.gguf"), Arc::new(bytes))?;
//! assert_eq!(gguf.metadata.u32("llama.block_count")?, 1);
//! # Ok::<(), nelumbo::Error>(())
//! ```

use std::path::Path;

use safetensors::tensor::TensorView;

use super::checkpoint::stored_bytes;
use super::encoding::Encoding;
use super::gguf::MAGIC;
use super::safetensors::dtype;
use crate::error::{Error, Result};

const ALIGNMENT: usize = 32;

/// Builds a GGUF file (version 3) in memory. Keys and tensors are written in the order of the calls
/// and are not checked against each other: a test may well want a key twice.
#[derive(Debug, Clone, Default)]
pub struct GgufWriter {
    num_keys: u64,
    keys: Vec<u8>,
    num_tensors: u64,
    records: Vec<u8>,
    data: Vec<u8>,
    /// Bytes of tensors that are declared only.
    declared: u64,
    alignment: Option<usize>,
}

impl GgufWriter {
    /// A file without keys and tensors.
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    /// Adds a string.
    #[must_use]
    pub fn string(self, key: &str, value: &str) -> GgufWriter {
        let mut bytes = Vec::new();
        push_string(&mut bytes, value);
        self.raw(key, 8, &bytes)
    }

    /// Adds an unsigned 32-bit integer.
    #[must_use]
    pub fn u32(self, key: &str, value: u32) -> GgufWriter {
        self.raw(key, 4, &value.to_le_bytes())
    }

    /// Adds a signed 32-bit integer.
    #[must_use]
    pub fn i32(self, key: &str, value: i32) -> GgufWriter {
        self.raw(key, 5, &value.to_le_bytes())
    }

    /// Adds an unsigned 64-bit integer.
    #[must_use]
    pub fn u64(self, key: &str, value: u64) -> GgufWriter {
        self.raw(key, 10, &value.to_le_bytes())
    }

    /// Adds a single precision float.
    #[must_use]
    pub fn f32(self, key: &str, value: f32) -> GgufWriter {
        self.raw(key, 6, &value.to_le_bytes())
    }

    /// Adds a bool.
    #[must_use]
    pub fn bool(self, key: &str, value: bool) -> GgufWriter {
        self.raw(key, 7, &[u8::from(value)])
    }

    /// Adds an array of strings.
    #[must_use]
    pub fn strings(self, key: &str, values: &[impl AsRef<str>]) -> GgufWriter {
        let mut bytes = Vec::new();
        for value in values {
            push_string(&mut bytes, value.as_ref());
        }
        self.array(key, 8, values.len(), &bytes)
    }

    /// Adds an array of signed 32-bit integers.
    #[must_use]
    pub fn i32s(self, key: &str, values: &[i32]) -> GgufWriter {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.array(key, 5, values.len(), &bytes)
    }

    /// Adds an array of single precision floats.
    #[must_use]
    pub fn f32s(self, key: &str, values: &[f32]) -> GgufWriter {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.array(key, 6, values.len(), &bytes)
    }

    /// Adds an array of `len` elements of the given value type, with its bytes as they are.
    #[must_use]
    pub fn array(self, key: &str, element_type: u32, len: usize, elements: &[u8]) -> GgufWriter {
        let mut bytes = element_type.to_le_bytes().to_vec();
        bytes.extend((len as u64).to_le_bytes());
        bytes.extend(elements);
        self.raw(key, 9, &bytes)
    }

    /// Adds a key with the given value type and the bytes as they are.
    #[must_use]
    pub fn raw(mut self, key: &str, value_type: u32, value: &[u8]) -> GgufWriter {
        self.num_keys += 1;
        push_string(&mut self.keys, key);
        self.keys.extend(value_type.to_le_bytes());
        self.keys.extend(value);
        self
    }

    /// Adds `general.alignment` and places the tensors accordingly. To be called before the first
    /// tensor.
    ///
    /// # Panics
    /// If there is a tensor already, or for an alignment of 0.
    #[must_use]
    pub fn alignment(mut self, alignment: u32) -> GgufWriter {
        assert!(self.num_tensors == 0 && alignment > 0, "{alignment}");
        self.alignment = Some(alignment as usize);
        self.u32("general.alignment", alignment)
    }

    /// Adds a tensor; `shape` is outermost first.
    ///
    /// # Panics
    /// If `bytes` are not what the shape takes in this encoding.
    #[must_use]
    pub fn tensor(self, name: &str, shape: &[usize], encoding: Encoding, bytes: &[u8]) -> Self {
        assert_eq!(
            stored_bytes(shape, encoding),
            Some(bytes.len()),
            "{name}: {shape:?} of {} in {} bytes",
            encoding.name(),
            bytes.len()
        );
        let dimensions: Vec<u64> = shape.iter().rev().map(|&size| size as u64).collect();
        let offset = self.data.len() as u64;
        self.raw_tensor(name, &dimensions, encoding.gguf_type(), offset, bytes)
    }

    /// Adds a tensor whose bytes are written by somebody else, after all that is here; `shape` is outermost
    /// first.
    ///
    /// # Panics
    /// If rows are no whole number of groups, or if a tensor has bytes already.
    #[must_use]
    pub(super) fn declare(mut self, name: &str, shape: &[usize], encoding: Encoding) -> Self {
        assert!(self.data.is_empty(), "{name} comes after bytes");
        let bytes = stored_bytes(shape, encoding).expect("whole groups") as u64;
        let dimensions: Vec<u64> = shape.iter().rev().map(|&size| size as u64).collect();
        let offset = self.declared;
        self.declared = (offset + bytes).next_multiple_of(self.alignment_bytes() as u64);
        self.raw_tensor(name, &dimensions, encoding.gguf_type(), offset, &[])
    }

    /// What the beginnings of tensors are multiples of.
    pub(super) fn alignment_bytes(&self) -> usize {
        self.alignment.unwrap_or(ALIGNMENT)
    }

    /// Adds a tensor whose record says whatever it is told; `dimensions` are innermost first, as in
    /// the file.
    #[must_use]
    pub fn raw_tensor(
        mut self,
        name: &str,
        dimensions: &[u64],
        type_id: u32,
        offset: u64,
        bytes: &[u8],
    ) -> GgufWriter {
        self.num_tensors += 1;
        push_string(&mut self.records, name);
        self.records.extend((dimensions.len() as u32).to_le_bytes());
        for dimension in dimensions {
            self.records.extend(dimension.to_le_bytes());
        }
        self.records.extend(type_id.to_le_bytes());
        self.records.extend(offset.to_le_bytes());
        self.data.extend(bytes);
        self.pad_data();
        self
    }

    /// The file.
    pub fn finish(self) -> Vec<u8> {
        let alignment = self.alignment_bytes();
        let mut file = MAGIC.to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.num_tensors.to_le_bytes());
        file.extend(self.num_keys.to_le_bytes());
        file.extend(self.keys);
        file.extend(self.records);
        file.resize(file.len().next_multiple_of(alignment), 0);
        file.extend(self.data);
        file
    }

    fn pad_data(&mut self) {
        let alignment = self.alignment_bytes();
        self.data
            .resize(self.data.len().next_multiple_of(alignment), 0);
    }
}

fn push_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// One tensor of [`write_safetensors`]: name, shape (outermost first), encoding, bytes.
pub type Part<'a> = (&'a str, &'a [usize], Encoding, &'a [u8]);

/// Writes a safetensors file. It appears under its name only when it is complete.
///
/// # Errors
/// [`Error::Tensor`] if the bytes are not what the shape takes; [`Error::File`] if it cannot be
/// written.
///
/// # Panics
/// If an encoding is one that safetensors cannot hold.
pub fn write_safetensors(path: &Path, tensors: &[Part<'_>]) -> Result<()> {
    let mut views = Vec::new();
    for &(name, shape, encoding, bytes) in tensors {
        let view = TensorView::new(dtype(encoding), shape.to_vec(), bytes)
            .map_err(|error| Error::tensor(path, name, error.to_string()))?;
        views.push((name, view));
    }
    safetensors::serialize_to_file(views, None, path)
        .map_err(|error| Error::file(path, error.to_string()))
}
