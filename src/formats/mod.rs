//! Model files as named tensors and settings, read without trusting them.
//!
//! [`open`] tells the two layouts apart: a GGUF file, which has everything in it, and a directory of
//! `config.json`, tokenizer files and safetensors weights. Both give a [`Checkpoint`], from which
//! tensors are read as `f32` rows whatever their [`Encoding`] is. Nothing here knows what a model
//! does with its tensors.
//!
//! ```text
//! open -> Gguf  { checkpoint, metadata }          gguf, split, metadata, cursor
//!      -> HfDir { checkpoint, config, dir }       hf, safetensors, compressed
//!                   |
//!                   +- get / require / expect_shape -> TensorInfo
//!                   +- read_rows -> f32           checkpoint, encoding, source
//! ```
//!
//! Rules that hold for all readers: no allocation by a size that a file declares before that size
//! was held against a limit and against the bytes there are; checked arithmetic on shapes and
//! offsets; nothing skipped or guessed; every error names the file and the key or tensor.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

pub mod checkpoint;
pub mod compressed;
mod cursor;
pub mod encoding;
mod file_type;
pub mod gguf;
pub mod hf;
pub mod metadata;
pub mod safetensors;
pub mod source;
mod split;
pub mod stream;
pub mod write;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use encoding::{Encoding, count_non_finite};
pub use gguf::Gguf;
pub use hf::HfDir;
pub use metadata::Metadata;
use source::FileSource;
pub use source::ReadAt;

/// Directory entries looked at; a model has a few dozen files.
const MAX_ENTRIES: usize = 10_000;

/// An opened model in one of the layouts.
#[derive(Debug, Clone)]
pub enum ModelFiles {
    /// One GGUF file, or all parts of one that was split.
    Gguf(Gguf),
    /// A directory with `config.json` and safetensors weights.
    HuggingFace(HfDir),
}

impl ModelFiles {
    /// The tensors, whichever the layout.
    pub fn checkpoint(&self) -> &Checkpoint {
        match self {
            ModelFiles::Gguf(gguf) => &gguf.checkpoint,
            ModelFiles::HuggingFace(dir) => &dir.checkpoint,
        }
    }
}

/// Opens the model at `path`: a GGUF file or any part of one that was split, a directory with
/// `config.json` and safetensors weights, or a directory with a single GGUF model. Reads headers and
/// settings, no weights.
///
/// # Errors
/// [`Error::ModelNotFound`] if there is no model, with what was found instead; otherwise what
/// [`Gguf::open`] and [`HfDir::open`] return.
pub fn open(path: &Path) -> Result<ModelFiles> {
    let metadata = path
        .metadata()
        .map_err(|error| not_found(path, format!("cannot be opened: {error}")))?;
    if metadata.is_dir() {
        return open_dir(path);
    }
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    match extension(path) {
        "safetensors" => Err(not_found(
            path,
            format!(
                "a safetensors model is loaded by its directory, with config.json and the \
                 tokenizer beside the weights: pass {}",
                dir.display()
            ),
        )),
        _ if is_pickle(path) && !gguf::has_magic(path) => Err(refused_pickle(path, "this file")),
        _ => Gguf::open(path).map(ModelFiles::Gguf),
    }
}

/// Reads the header of one file of a model, `format` being `gguf` or `safetensors`, and holds its
/// table of tensors against its length. It may be one part or shard of several, and have any name.
///
/// # Errors
/// What [`Gguf::read`] and [`safetensors::read`] return, but for parts and 8-bit codes.
///
/// # Panics
/// If `format` is another word.
pub fn check_file(path: &Path, format: &str) -> Result<()> {
    let data = Arc::new(FileSource::open(path)?);
    match format {
        "gguf" => gguf::Part::read(path, data).map(drop),
        // whether codes have scales, only all files of a model tell
        "safetensors" => safetensors::read_file(path, data, safetensors::Codes::Allowed).map(drop),
        _ => panic!("no file format is called {format}"),
    }
}

fn open_dir(dir: &Path) -> Result<ModelFiles> {
    let files = list(dir)?;
    let of_extension = |wanted: &str| -> Vec<&PathBuf> {
        files.iter().filter(|p| extension(p) == wanted).collect()
    };
    let safetensors = of_extension("safetensors");
    let ggufs = of_extension("gguf");
    let has_index = dir.join(hf::INDEX_NAME).exists();
    let has_config = dir.join(hf::CONFIG_NAME).exists();
    if has_config && (has_index || !safetensors.is_empty()) {
        return HfDir::open(dir).map(ModelFiles::HuggingFace);
    }
    match ggufs.as_slice() {
        [file] => return Gguf::open(file).map(ModelFiles::Gguf),
        [] => {}
        [first, ..] if split::are_parts_of_one(&ggufs) => {
            return Gguf::open(first).map(ModelFiles::Gguf);
        }
        several => {
            let problem = format!("several GGUF files, name one of them: {}", names(several));
            return Err(not_found(dir, problem));
        }
    }
    if !safetensors.is_empty() {
        let problem = format!("{} without config.json", names(&safetensors));
        return Err(not_found(dir, problem));
    }
    let pickles: Vec<&PathBuf> = files.iter().filter(|path| is_pickle(path)).collect();
    if !pickles.is_empty() {
        return Err(refused_pickle(dir, &names(&pickles)));
    }
    let found = match files.as_slice() {
        [] => "nothing".to_owned(),
        files => names(&files.iter().collect::<Vec<_>>()),
    };
    let problem = format!(
        "no .safetensors or .gguf in {}; found: {found}",
        dir.display()
    );
    Err(not_found(dir, problem))
}

/// What is in a directory, sorted.
fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |error| not_found(dir, format!("cannot be listed: {error}"));
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)?.take(MAX_ENTRIES) {
        files.push(entry.map_err(unreadable)?.path());
    }
    files.sort();
    Ok(files)
}

fn names(files: &[&PathBuf]) -> String {
    let names: Vec<_> = files
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_string_lossy()))
        .collect();
    checkpoint::listed(&names)
}

fn extension(path: &Path) -> &str {
    path.extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default()
}

/// Whether the name is that of weights stored as a Python pickle.
fn is_pickle(path: &Path) -> bool {
    matches!(extension(path), "bin" | "pt" | "pth" | "ckpt" | "pkl")
}

fn refused_pickle(path: &Path, what: &str) -> Error {
    let problem = format!(
        "no .safetensors or .gguf, only pickled weights ({what}); these can run code when they are \
         opened and are not read here: convert them to safetensors first"
    );
    not_found(path, problem)
}

fn not_found(path: &Path, problem: String) -> Error {
    Error::ModelNotFound {
        path: path.to_owned(),
        problem,
    }
}
