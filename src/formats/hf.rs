//! A model directory as the Hugging Face hub lays it out: `config.json` beside safetensors weights.
//!
//! Weights are one `model.safetensors`, or shards listed by `model.safetensors.index.json`. That
//! list comes from whoever made the model, so a shard's name must not lead out of the directory.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::checkpoint::Checkpoint;
use super::compressed;
use super::safetensors::{self, Codes};
use super::source::FileSource;
use crate::error::{Error, Result};

/// The settings of the model.
pub const CONFIG_NAME: &str = "config.json";
/// All weights in one file.
pub const WEIGHTS_NAME: &str = "model.safetensors";
/// The list of weights in several files.
pub const INDEX_NAME: &str = "model.safetensors.index.json";

/// Where a directory keeps chat templates beside the usual one.
pub const TEMPLATES_NAME: &str = "additional_chat_templates";

const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
const MAX_INDEX_BYTES: u64 = 16 << 20;
const MAX_TEXT_BYTES: u64 = 4 << 20;
/// Tensors in one index.
const MAX_INDEXED: usize = 1 << 18;
/// Every shard stays open while the model is loaded.
const MAX_SHARDS: usize = 1_000;

/// A model directory, read up to the weights.
#[derive(Debug, Clone)]
pub struct HfDir {
    /// The tensors of all shards.
    pub checkpoint: Checkpoint,
    /// The content of `config.json`.
    pub config: Value,
    /// The directory.
    pub dir: PathBuf,
    /// `config.json` in it, for messages about its fields.
    pub config_path: PathBuf,
}

impl HfDir {
    /// Opens a directory, its configuration and the headers of its weight files.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`] if `config.json` or the weights are missing; [`Error::File`],
    /// [`Error::Field`] and [`Error::Tensor`] naming what is wrong in one of the files;
    /// [`Error::Io`] if the system refuses to read one.
    pub fn open(dir: &Path) -> Result<HfDir> {
        let config_path = dir.join(CONFIG_NAME);
        let config = read_json(&config_path)?
            .ok_or_else(|| not_found(dir, format!("no {CONFIG_NAME} in this directory")))?;
        // a scheme that is not read is for the model to refuse, which may not need the weights
        let scheme = compressed::scheme(&config_path, &config);
        let codes = match &scheme {
            Ok(Some(_)) => Codes::Allowed,
            _ => Codes::Refused,
        };
        let checkpoint = if dir.join(WEIGHTS_NAME).exists() {
            open_file(dir, codes)
        } else {
            open_shards(dir, codes)
        };
        let checkpoint = match (checkpoint, scheme) {
            // of why a type is not read the settings say more than the type
            (Err(Error::Unsupported { .. }), Err(error)) => return Err(error),
            (Ok(mut checkpoint), Ok(Some(scheme))) => {
                scheme.attach(&mut checkpoint)?;
                checkpoint
            }
            (checkpoint, _) => checkpoint?,
        };
        Ok(HfDir {
            checkpoint,
            config,
            dir: dir.to_owned(),
            config_path,
        })
    }

    /// The JSON in a file of the directory, at most 4 MiB (64 MiB for `tokenizer.json`); `None` if
    /// there is no such file. A byte order mark is skipped.
    ///
    /// A parsed value can take some forty times the bytes of its text, so a tokenizer is better read
    /// as text.
    ///
    /// # Errors
    /// [`Error::File`] with line and column if it is not JSON, or with the limit if it is too long;
    /// [`Error::Io`] if the system refuses to read it.
    pub fn read_json(&self, name: &str) -> Result<Option<Value>> {
        read_json(&self.file(name)?)
    }

    /// The text of a file of the directory, with the same limits and without a byte order mark;
    /// `None` if there is no such file.
    ///
    /// # Errors
    /// [`Error::File`] if it is not UTF-8 or too long; [`Error::Io`] if the system refuses.
    pub fn read_text(&self, name: &str) -> Result<Option<String>> {
        read_text(&self.file(name)?)
    }

    /// The text of the chat template called `name` beside the usual one, as [`HfDir::read_text`] reads it.
    ///
    /// # Errors
    /// As [`HfDir::read_text`].
    pub fn read_template(&self, name: &str) -> Result<Option<String>> {
        let file = self.file(&format!("{name}.jinja"))?;
        let file = file.file_name().expect("it is a plain name");
        read_text(&self.dir.join(TEMPLATES_NAME).join(file))
    }

    fn file(&self, name: &str) -> Result<PathBuf> {
        match plain_name(name) {
            Ok(()) => Ok(self.dir.join(name)),
            Err(problem) => Err(Error::file(&self.dir, format!("{name:?} {problem}"))),
        }
    }
}

/// The content of a `config.json` by itself.
///
/// # Errors
/// As [`HfDir::open`].
pub fn read_config(path: &Path) -> Result<Value> {
    let missing = || not_found(path, "no such file".to_owned());
    read_json(path)?.ok_or_else(missing)
}

fn not_found(dir: &Path, problem: String) -> Error {
    Error::ModelNotFound {
        path: dir.to_owned(),
        problem,
    }
}

fn read_text(path: &Path) -> Result<Option<String>> {
    let limit = match path.file_name().and_then(|name| name.to_str()) {
        Some("tokenizer.json") => MAX_TOKENIZER_BYTES,
        Some(INDEX_NAME) => MAX_INDEX_BYTES,
        _ => MAX_TEXT_BYTES,
    };
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(Error::file(path, "is not a regular file")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path)(error)),
    }
    // One byte more than allowed tells a file that is too long, whatever its size was before.
    let file = fs::File::open(path).map_err(Error::io(path))?;
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(Error::io(path))?;
    if bytes.len() as u64 > limit {
        let problem = format!("is longer than the {limit} bytes allowed");
        return Err(Error::file(path, problem));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Error::file(path, format!("is not UTF-8 at byte {offset}"))
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(Some(text))
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    // The message ends in line and column.
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| Error::file(path, error.to_string()))
}

/// Why a name is no plain file name, if so.
fn plain_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name == "." || name == ".." {
        Err("is not a file name")
    } else if name.contains(['/', '\\', ':']) {
        Err("is not a plain file name: it contains a separator")
    } else if name.contains(char::is_control) {
        Err("is not a plain file name: it contains a control character")
    } else {
        Ok(())
    }
}

/// The index file: which shard holds which tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// A map that refuses a tensor that is listed twice.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WeightMap, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut shards = BTreeMap::new();
        while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
            if shards.contains_key(&tensor) {
                let problem = format!("weight_map: tensor {tensor} appears twice");
                return Err(A::Error::custom(problem));
            }
            if shards.len() == MAX_INDEXED {
                let problem = format!("weight_map: more than {MAX_INDEXED} tensors");
                return Err(A::Error::custom(problem));
            }
            shards.insert(tensor, shard);
        }
        Ok(WeightMap(shards))
    }
}

fn open_file(dir: &Path, codes: Codes) -> Result<Checkpoint> {
    let path = dir.join(WEIGHTS_NAME);
    let file = safetensors::read_file(&path, Arc::new(FileSource::open(&path)?), codes)?;
    Checkpoint::from_files(dir.to_owned(), vec![file])
}

fn open_shards(dir: &Path, codes: Codes) -> Result<Checkpoint> {
    let index_path = dir.join(INDEX_NAME);
    let Some(Index { weight_map }) = read_json(&index_path)? else {
        let problem = format!("no {WEIGHTS_NAME} and no {INDEX_NAME} in this directory");
        return Err(not_found(dir, problem));
    };
    // Each shard with the first tensor that needs it.
    let mut shards: BTreeMap<&str, &str> = BTreeMap::new();
    for (tensor, shard) in &weight_map.0 {
        shards.entry(shard).or_insert(tensor);
    }
    if shards.len() > MAX_SHARDS {
        let problem = format!("names {} files, at most {MAX_SHARDS}", shards.len());
        return Err(Error::field(&index_path, "weight_map", problem));
    }
    // All names and links before the first file is opened.
    let paths: Vec<PathBuf> = shards
        .iter()
        .map(|(shard, tensor)| shard_path(dir, &index_path, shard, tensor))
        .collect::<Result<_>>()?;
    let mut files = Vec::new();
    for path in &paths {
        let source = FileSource::open(path)?;
        files.push(safetensors::read_file(path, Arc::new(source), codes)?);
    }
    let checkpoint = Checkpoint::from_files(dir.to_owned(), files)?;

    for (tensor, shard) in &weight_map.0 {
        let path = dir.join(shard);
        let problem = match checkpoint.get(tensor) {
            None => "is not in this file".to_owned(),
            Some(info) if checkpoint.file_of(info) != path => {
                let file = checkpoint.file_of(info).display();
                format!("is not in this file but in {file}")
            }
            Some(_) => continue,
        };
        let problem = format!("{problem}, where {INDEX_NAME} places it");
        return Err(Error::tensor(&path, tensor, problem));
    }
    Ok(checkpoint)
}

/// The path of a shard that `tensor` needs, after checking that it is a file of this model.
fn shard_path(dir: &Path, index_path: &Path, shard: &str, tensor: &str) -> Result<PathBuf> {
    let wrong = |problem: String| {
        let field = format!("weight_map.{tensor}");
        Err(Error::field(index_path, field, problem))
    };
    if let Err(problem) = plain_name(shard) {
        return wrong(format!("{shard:?} {problem}"));
    }
    let path = dir.join(shard);
    let resolved = match path.canonicalize() {
        Ok(resolved) => resolved,
        Err(error) => {
            let problem = format!("the file {shard} that should hold it cannot be read: {error}");
            return Err(Error::tensor(&path, tensor, problem));
        }
    };
    let dir = dir.canonicalize().map_err(Error::io(dir))?;
    if resolved.starts_with(&dir) || blobs_of(&dir).is_some_and(|dir| resolved.starts_with(dir)) {
        Ok(path)
    } else {
        let target = resolved.display();
        wrong(format!("{shard:?} leads out of the directory, to {target}"))
    }
}

/// The hub's cache keeps a model's files in `blobs/` and links to them from `snapshots/REVISION/`;
/// this is the former for a directory that is the latter.
fn blobs_of(dir: &Path) -> Option<PathBuf> {
    let snapshots = dir.parent()?;
    (snapshots.file_name()? == "snapshots").then(|| snapshots.with_file_name("blobs"))
}
