//! GGUF files, versions 2 and 3: one file with tensors, settings and tokenizer, or several parts of
//! one (see `split`).
//!
//! ```text
//! magic, version, number of tensors, number of keys
//! keys:    name, type, value                    -> Metadata
//! tensors: name, dimensions, type, offset       -> Checkpoint
//! padding to general.alignment, then the tensors' bytes, each padded as well
//! ```
//!
//! The reader is strict: sizes are held against the file before anything is allocated for them, and
//! every tensor has to lie exactly where its predecessors end. Dimensions are stored innermost
//! first and turned around here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkpoint::{Checkpoint, Source, TensorInfo, stored_bytes};
use super::cursor::Cursor;
use super::encoding::Encoding;
use super::metadata::Metadata;
use super::source::{FileSource, ReadAt};
use super::split::{self, Split};
use crate::error::{Error, Result};

/// The first four bytes of every GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

const HEADER_BYTES: u64 = 24;
const MAX_RECORDS: u64 = 65_536;
const MAX_METADATA_BYTES: u64 = 256 << 20;
const MAX_NAME_BYTES: u64 = 64;
const MAX_DIMENSIONS: u32 = 4;
const MAX_DIMENSION: u64 = 1 << 31;
/// A key of one byte, its type, a value of one byte.
const MIN_KEY_BYTES: u64 = 8 + 1 + 4 + 1;
/// A name of one byte, one dimension, type and offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u32 = 32;

/// Whether a file begins as a GGUF file does, whatever its name says.
pub(super) fn has_magic(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = FileSource::open(path).map(|file| file.read_exact_at(0, &mut magic));
    matches!(read, Ok(Ok(()))) && magic == MAGIC
}

/// A GGUF file, or all parts of one, read up to the weights.
#[derive(Debug, Clone)]
pub struct Gguf {
    /// The tensors.
    pub checkpoint: Checkpoint,
    /// Settings and tokenizer; those of the first part.
    pub metadata: Metadata,
}

impl Gguf {
    /// Opens a file and reads its header. If it is a part of a split model, whichever, the others
    /// are looked for beside it, by the names that parts have: `NAME-00001-of-00003.gguf`.
    ///
    /// # Errors
    /// See [`Gguf::read`] and [`Gguf::read_parts`]; [`Error::Io`] if a file cannot be read;
    /// [`Error::Field`] naming `split.count` or `split.no` if a part is missing or has another name.
    pub fn open(path: &Path) -> Result<Gguf> {
        let part = Part::read(path, Arc::new(FileSource::open(path)?))?;
        match Split::of(&part.metadata)? {
            None => part.whole(),
            Some(split) => split::join(split::open_beside(part, split)?),
        }
    }

    /// Reads the header of a GGUF file from any source; `path` only appears in messages.
    ///
    /// # Errors
    /// [`Error::File`] if this is no GGUF file; [`Error::Unsupported`] for a version, byte order or
    /// tensor type that cannot be read, and for one part of several; [`Error::Field`] and
    /// [`Error::Tensor`] naming the key or tensor that breaks a rule of the format.
    pub fn read(path: &Path, data: Arc<dyn ReadAt>) -> Result<Gguf> {
        let part = Part::read(path, data)?;
        match Split::of(&part.metadata)? {
            None => part.whole(),
            Some(split) => Err(Error::Unsupported {
                path: path.to_owned(),
                what: "one part alone of a model split over several GGUF files (split.count)"
                    .to_owned(),
                found: split.count.to_string(),
                supported: "1, or all parts together".to_owned(),
            }),
        }
    }

    /// Reads the headers of all parts of a split model, in their order, from any sources; paths only
    /// appear in messages.
    ///
    /// # Errors
    /// As [`Gguf::read`], and [`Error::Field`] naming the key of a part that does not fit the
    /// others; [`Error::Tensor`] naming both files if two parts hold tensors of one name.
    ///
    /// # Panics
    /// If there are no parts.
    pub fn read_parts(parts: impl IntoIterator<Item = (PathBuf, Arc<dyn ReadAt>)>) -> Result<Gguf> {
        let parts = parts
            .into_iter()
            .map(|(path, data)| Part::read(&path, data))
            .collect::<Result<_>>()?;
        split::join(parts)
    }
}

/// One file, which may be all there is.
pub(super) struct Part {
    pub metadata: Metadata,
    pub source: Source,
    pub tensors: Vec<TensorInfo>,
}

impl Part {
    pub fn read(path: &Path, data: Arc<dyn ReadAt>) -> Result<Part> {
        let mut cursor = Cursor::new(path, &*data);
        check_version(&mut cursor)?;
        let num_tensors = cursor.u64("tensor count")?;
        let num_keys = cursor.u64("key count")?;
        check_count(&cursor, num_tensors, MIN_TENSOR_BYTES, "tensor count")?;
        check_count(&cursor, num_keys, MIN_KEY_BYTES, "key count")?;

        cursor.limit(MAX_METADATA_BYTES, "of the 256 MiB that keys may take");
        let metadata = Metadata::read(&mut cursor, num_keys)?;
        cursor.unlimit();
        let alignment = alignment(&metadata)?;

        check_count(&cursor, num_tensors, MIN_TENSOR_BYTES, "tensor count")?;
        let tensors = read_tensors(&mut cursor, num_tensors, u64::from(alignment))?;
        let source = Source {
            path: path.to_owned(),
            data: data.clone(),
        };
        Ok(Part {
            metadata,
            source,
            tensors,
        })
    }

    fn whole(self) -> Result<Gguf> {
        let path = self.source.path.clone();
        Ok(Gguf {
            checkpoint: Checkpoint::from_files(path, vec![(self.source, self.tensors)])?,
            metadata: self.metadata,
        })
    }
}

fn check_version(cursor: &mut Cursor<'_>) -> Result<()> {
    let path = cursor.path();
    let found = cursor.remaining();
    let magic_bytes = found.min(4);
    let magic = cursor.take(magic_bytes, "magic")?;
    if *magic != MAGIC[..magic_bytes as usize] {
        let problem = format!("starts with {magic:02x?}, a GGUF file starts with {MAGIC:02x?}");
        return Err(Error::file(path, problem));
    }
    if found < HEADER_BYTES {
        let problem = format!("{found} bytes, a GGUF header needs {HEADER_BYTES}");
        return Err(Error::file(path, problem));
    }
    let version = cursor.u32("version")?;
    let unsupported = |what: &str, found: String, supported: &str| {
        Err(Error::Unsupported {
            path: path.to_owned(),
            what: what.to_owned(),
            found,
            supported: supported.to_owned(),
        })
    };
    match version {
        2 | 3 => Ok(()),
        // Versions are small numbers, so these are one with its bytes the other way round.
        _ if version & 0xffff == 0 && version != 0 => {
            let found = format!("big-endian, version {}", version.swap_bytes());
            unsupported("GGUF byte order", found, "little-endian")
        }
        _ => unsupported("GGUF version", version.to_string(), "2, 3"),
    }
}

fn check_count(cursor: &Cursor<'_>, count: u64, record_bytes: u64, field: &str) -> Result<()> {
    if count > MAX_RECORDS {
        let problem = format!("{count}, at most {MAX_RECORDS} are allowed");
        return Err(cursor.error(field, &problem));
    }
    cursor.expect_room(count, record_bytes, &format!("{count} records"), field)
}

fn alignment(metadata: &Metadata) -> Result<u32> {
    let alignment = metadata
        .opt_u32(ALIGNMENT_KEY)?
        .unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || !(8..=65_536).contains(&alignment) {
        let problem = format!("is {alignment}, expected a power of two from 8 to 65536");
        return Err(Error::field(metadata.path(), ALIGNMENT_KEY, problem));
    }
    Ok(alignment)
}

/// Reads the tensor records and checks that the tensors follow one another up to the file's end.
/// That their names differ is seen to where the checkpoint is put together.
fn read_tensors(
    cursor: &mut Cursor<'_>,
    num_tensors: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>> {
    let mut records = Vec::new();
    for idx in 0..num_tensors {
        records.push(Record::read(cursor, idx)?);
    }
    let file_bytes = cursor.position() + cursor.remaining();
    let data_start = cursor.position().next_multiple_of(alignment);

    // Relative to `data_start`. Cannot wrap: up to here the tensors fit into the file.
    let mut expected = 0u64;
    let mut tensors = Vec::with_capacity(records.len());
    for record in records {
        let Record {
            name,
            shape,
            encoding,
            bytes,
            offset,
        } = record;
        let problem = if offset != expected {
            format!("starts at offset {offset}, expected {expected}: right after its predecessor")
        } else if let end = data_start + offset + bytes
            && end > file_bytes
        {
            format!(
                "needs bytes {} to {end}, the file has {file_bytes}: {} are missing",
                data_start + offset,
                end - file_bytes
            )
        } else {
            expected = (offset + bytes).next_multiple_of(alignment);
            tensors.push(TensorInfo::new(name, shape, encoding, data_start + offset));
            continue;
        };
        return Err(Error::tensor(cursor.path(), name, problem));
    }
    Ok(tensors)
}

struct Record {
    name: String,
    shape: Vec<usize>,
    encoding: Encoding,
    /// Less than 2^62, so that sums with offsets inside a file do not wrap.
    bytes: u64,
    offset: u64,
}

impl Record {
    fn read(cursor: &mut Cursor<'_>, idx: u64) -> Result<Record> {
        let path = cursor.path();
        let name = cursor.string(format_args!("name of tensor {idx}"), MAX_NAME_BYTES)?;
        let field = format!("tensor {name}");
        let wrong = |problem: String| Err(Error::tensor(path, &name, problem));

        let num_dimensions = cursor.u32(&field)?;
        if !(1..=MAX_DIMENSIONS).contains(&num_dimensions) {
            return wrong(format!(
                "has {num_dimensions} dimensions, 1 to {MAX_DIMENSIONS} are allowed"
            ));
        }
        let mut shape = Vec::new();
        for dimension_idx in 0..num_dimensions {
            let dimension = cursor.u64(&field)?;
            match usize::try_from(dimension) {
                Ok(size) if (1..=MAX_DIMENSION).contains(&dimension) => shape.push(size),
                _ => {
                    return wrong(format!(
                        "dimension {dimension_idx} is {dimension}, 1 to {MAX_DIMENSION} are allowed"
                    ));
                }
            }
        }
        let row_len = shape[0];
        shape.reverse();

        let type_id = cursor.u32(&field)?;
        let offset = cursor.u64(&field)?;
        let Some(encoding) = Encoding::from_gguf(type_id) else {
            return Err(Error::Unsupported {
                path: path.to_owned(),
                what: format!("type of tensor {name}"),
                found: Encoding::gguf_type_name(type_id),
                supported: Encoding::supported_in_gguf(),
            });
        };
        if !row_len.is_multiple_of(encoding.group_size()) {
            return wrong(format!(
                "rows of {row_len} elements, {} stores groups of {}",
                encoding.name(),
                encoding.group_size()
            ));
        }
        match stored_bytes(&shape, encoding).map(|bytes| bytes as u64) {
            Some(bytes) if bytes < 1 << 62 => Ok(Record {
                name,
                shape,
                encoding,
                bytes,
                offset,
            }),
            _ => wrong(format!("the size of shape {shape:?} overflows")),
        }
    }
}
