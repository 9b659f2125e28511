//! One safetensors file: eight bytes of length, a JSON header, then the tensors' bytes.
//!
//! Only the header is read here. The `safetensors` crate decides whether shapes, types and offsets
//! fit each other and the file; what this module adds is what the crate does not tell: which file,
//! which tensor, which bytes, and keys that occur twice (a map would keep the last).

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use safetensors::tensor::{Metadata as Validated, TensorInfo as Record};
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::checkpoint::{Checkpoint, Source, TensorInfo, num_elements};
use super::encoding::Encoding;
use super::source::ReadAt;
use crate::error::{Error, Result};

/// Bytes of the length field in front of the header.
const LEN_BYTES: u64 = 8;
/// The format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Tensors in one file; large models are split over many.
const MAX_TENSORS: usize = 65_536;
/// Dimensions of one tensor.
const MAX_DIMENSIONS: usize = 8;
/// The key of the free-form text that is no tensor.
const METADATA_KEY: &str = "__metadata__";

/// Reads the header of a safetensors file from any source; `path` only appears in messages.
///
/// # Errors
/// [`Error::File`] if the header as a whole is wrong; [`Error::Field`] for `__metadata__`;
/// [`Error::Tensor`] for the first tensor whose entry or byte range is wrong;
/// [`Error::Unsupported`] for a tensor whose type cannot be decoded.
pub fn read(path: &Path, data: Arc<dyn ReadAt>) -> Result<Checkpoint> {
    Checkpoint::from_files(
        path.to_owned(),
        vec![read_file(path, data, Codes::Refused)?],
    )
}

/// What to think of tensors of 8-bit codes, which mean nothing without their scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codes {
    /// There is nobody who knows of scales.
    Refused,
    /// Whoever calls sees to it that each gets its own.
    Allowed,
}

/// The tensors of one file, in the order of their bytes.
pub(super) fn read_file(
    path: &Path,
    data: Arc<dyn ReadAt>,
    codes: Codes,
) -> Result<(Source, Vec<TensorInfo>)> {
    let header = read_header(path, &*data)?;
    let data_start = LEN_BYTES + header.len() as u64;
    let data_bytes = data.len() - data_start;
    let mut entries = parse(path, &header)?;
    drop(header);

    let mut encodings = Vec::with_capacity(entries.len());
    let mut records = Vec::with_capacity(entries.len());
    // The crate expects the order of the bytes; the name decides between empty tensors.
    entries.sort_by(|(a, a_name), (b, b_name)| {
        (a.data_offsets, a_name).cmp(&(b.data_offsets, b_name))
    });
    for (entry, name) in entries {
        let encoding = encoding(path, &name, &entry.dtype, codes)?;
        encodings.push(encoding);
        records.push((name, record(entry, encoding)));
    }
    check_ranges(path, &records, &encodings, data_bytes)?;

    let tensors = records
        .iter()
        .zip(encodings)
        .map(|((name, record), encoding)| {
            let offset = data_start + record.data_offsets.0 as u64;
            TensorInfo::new(name.clone(), record.shape.clone(), encoding, offset)
        })
        .collect();
    Validated::new(None, records).map_err(|error| Error::file(path, error.to_string()))?;
    let source = Source {
        path: path.to_owned(),
        data,
    };
    Ok((source, tensors))
}

/// The header's bytes, after the declared length was held against the file.
fn read_header(path: &Path, data: &dyn ReadAt) -> Result<Vec<u8>> {
    let file_bytes = data.len();
    if file_bytes < LEN_BYTES {
        let problem = format!("{file_bytes} bytes, header needs {LEN_BYTES}");
        return Err(Error::file(path, problem));
    }
    let mut len = [0; LEN_BYTES as usize];
    data.read_exact_at(0, &mut len).map_err(Error::io(path))?;
    let len = u64::from_le_bytes(len);
    if len > file_bytes - LEN_BYTES {
        let problem = format!(
            "header length {len}, but only {} bytes follow in a file of {file_bytes}",
            file_bytes - LEN_BYTES
        );
        return Err(Error::file(path, problem));
    }
    if len > MAX_HEADER_BYTES {
        let problem = format!("header length {len}, at most {MAX_HEADER_BYTES} are allowed");
        return Err(Error::file(path, problem));
    }
    let mut header = vec![0; len as usize];
    data.read_exact_at(LEN_BYTES, &mut header)
        .map_err(Error::io(path))?;
    Ok(header)
}

/// One tensor's entry as it stands in the header. The type stays text, so that an unknown one can
/// be reported with the tensor's name.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: (usize, usize),
}

/// Dimensions, refused beyond [`MAX_DIMENSIONS`] while they are read: a header of two bytes for each
/// of millions of dimensions would otherwise take many times its size.
struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of dimensions")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        let mut shape = Vec::new();
        while let Some(dimension) = seq.next_element()? {
            if shape.len() == MAX_DIMENSIONS {
                let problem = format!("more than {MAX_DIMENSIONS} dimensions");
                return Err(A::Error::custom(problem));
            }
            shape.push(dimension);
        }
        Ok(Shape(shape))
    }
}

fn parse(path: &Path, header: &[u8]) -> Result<Vec<(Entry, String)>> {
    let text = std::str::from_utf8(header).map_err(|error| {
        let offset = LEN_BYTES + error.valid_up_to() as u64;
        Error::file(path, format!("header is not UTF-8 at byte {offset}"))
    })?;
    let mut header = Header::default();
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = header.deserialize(&mut json).and_then(|()| json.end());
    let Err(error) = parsed else {
        return Ok(header.entries);
    };
    let offset = LEN_BYTES + byte_offset(text, &error);
    let problem = format!("{} (byte {offset} of the file)", without_position(&error));
    Err(match header.current {
        Some(field) if field.starts_with(METADATA_KEY) => Error::field(path, field, problem),
        Some(tensor) => Error::tensor(path, tensor, problem),
        None => Error::file(path, format!("header: {problem}")),
    })
}

/// Collects the header's entries and remembers where it is, which a JSON error does not.
#[derive(Default)]
struct Header {
    entries: Vec<(Entry, String)>,
    /// The key whose value is being read.
    current: Option<String>,
}

impl<'de> DeserializeSeed<'de> for &mut Header {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Header {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with an entry for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            self.current = Some(name.clone());
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom("the key appears twice in the header"));
            }
            if self.entries.len() == MAX_TENSORS {
                let problem = format!("more than {MAX_TENSORS} tensors in one file");
                return Err(A::Error::custom(problem));
            }
            if name == METADATA_KEY {
                map.next_value_seed(FreeText(&mut self.current))?;
            } else {
                let entry = map.next_value()?;
                self.entries.push((entry, name));
            }
            self.current = None;
        }
        Ok(())
    }
}

/// `__metadata__` may only map text to text. Nothing in it matters here, so nothing is kept.
struct FreeText<'a>(&'a mut Option<String>);

impl<'de> DeserializeSeed<'de> for FreeText<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FreeText<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with string values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            *self.0 = Some(format!("{METADATA_KEY}.{key}"));
            map.next_value::<Text>()?;
        }
        *self.0 = Some(METADATA_KEY.to_owned());
        Ok(())
    }
}

/// A JSON string, read and forgotten.
struct Text;

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        String::deserialize(deserializer).map(|_| Text)
    }
}

fn encoding(path: &Path, tensor: &str, dtype: &str, codes: Codes) -> Result<Encoding> {
    if codes == Codes::Allowed && dtype == "I8" {
        return Ok(Encoding::I8);
    }
    Encoding::from_safetensors(dtype).ok_or_else(|| Error::Unsupported {
        path: path.to_owned(),
        what: format!("dtype of tensor {tensor}"),
        found: dtype.to_owned(),
        supported: Encoding::supported_in_safetensors(),
    })
}

fn record(entry: Entry, encoding: Encoding) -> Record {
    Record {
        dtype: dtype(encoding),
        shape: entry.shape.0,
        data_offsets: entry.data_offsets,
    }
}

/// The crate's name for an encoding.
///
/// # Panics
/// If safetensors has no such type.
pub(super) fn dtype(encoding: Encoding) -> Dtype {
    let name = encoding
        .safetensors_dtype()
        .unwrap_or_else(|| panic!("safetensors cannot hold {}", encoding.name()));
    let name: StrDeserializer<'_, serde::de::value::Error> = StrDeserializer::new(name);
    Dtype::deserialize(name).expect("the table of encodings spells dtypes as the crate does")
}

/// Finds the first tensor that does not lie right behind its predecessor, does not take the bytes
/// that its shape implies, or passes the end of the file. `records` are in the order of their bytes.
fn check_ranges(
    path: &Path,
    records: &[(String, Record)],
    encodings: &[Encoding],
    data_bytes: u64,
) -> Result<()> {
    let mut previous: Option<(&str, (usize, usize))> = None;
    for ((name, record), encoding) in records.iter().zip(encodings) {
        let (start, end) = record.data_offsets;
        let expected_start = previous.map_or(0, |(_, (_, end))| end);
        let shape = &record.shape;
        let expected = num_elements(shape).and_then(|elements| encoding.bytes_for(elements));
        let problem = if end < start {
            format!("bytes {start}..{end} end before they start")
        } else if start != expected_start {
            let relation = match start < expected_start {
                true => "overlap",
                false => "leave a hole after",
            };
            let before = match previous {
                Some((name, range)) => format!("{}..{} of tensor {name}", range.0, range.1),
                None => "the header".to_owned(),
            };
            format!("bytes {start}..{end} {relation} {before}")
        } else if expected.is_none() {
            format!("the size of shape {shape:?} overflows")
        } else if expected != Some(end - start) {
            format!(
                "shape {shape:?} of {} takes {} bytes, the header gives it {}",
                encoding.name(),
                expected.unwrap_or_default(),
                end - start
            )
        } else if end as u64 > data_bytes {
            format!(
                "bytes {start}..{end} pass the end of the data at {data_bytes}: {} are missing",
                end as u64 - data_bytes
            )
        } else {
            previous = Some((name, record.data_offsets));
            continue;
        };
        return Err(Error::tensor(path, name, problem));
    }
    let end = previous.map_or(0, |(_, (_, end))| end as u64);
    if end != data_bytes {
        let problem = format!("{} bytes follow the last tensor", data_bytes - end);
        return Err(Error::file(path, problem));
    }
    Ok(())
}

/// Where in `text` a JSON error lies: lines and columns count from one, columns in bytes.
fn byte_offset(text: &str, error: &serde_json::Error) -> u64 {
    let lines = text.split_inclusive('\n');
    let before: usize = lines
        .take(error.line().saturating_sub(1))
        .map(str::len)
        .sum();
    (before + error.column().saturating_sub(1)) as u64
}

/// The message alone: a line and column inside of a binary file help nobody.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&position).unwrap_or(&text).to_owned()
}
