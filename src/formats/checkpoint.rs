//! Named tensors of a model, wherever their bytes lie.
//!
//! A [`Checkpoint`] knows every tensor's place before the first weight is read: the readers of the
//! two file formats have held each range against its file's length. Weights are then read row by
//! row with positioned reads through a buffer of at most [`PIECE_BYTES`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::encoding::Encoding;
use super::source::ReadAt;
use crate::error::{Error, Result};

/// The largest piece of encoded bytes held while a tensor is decoded.
pub const PIECE_BYTES: usize = 4 << 20;

/// Names listed in one message.
const MAX_LISTED: usize = 10;

/// One tensor: its name, its shape, and where and how it is stored.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: String,
    /// Outermost dimension first: `[rows, columns]` for a matrix.
    pub shape: Vec<usize>,
    /// How the elements are stored.
    pub encoding: Encoding,
    /// Which of the checkpoint's sources holds it.
    source: usize,
    /// The first byte within that source.
    offset: u64,
    /// What the elements are to be multiplied with: a row for each row, and in it a value for each of
    /// as many groups of columns as it has.
    scales: Option<Box<TensorInfo>>,
}

impl TensorInfo {
    /// A tensor whose range the caller has checked: the product of `shape` fits into a `usize`, its
    /// last dimension is a whole number of groups, and the bytes lie within the source.
    pub(super) fn new(name: String, shape: Vec<usize>, encoding: Encoding, offset: u64) -> Self {
        TensorInfo {
            name,
            shape,
            encoding,
            source: 0,
            offset,
            scales: None,
        }
    }

    /// The product of all dimensions but the last; 1 for a vector.
    pub fn rows(&self) -> usize {
        match self.shape.split_last() {
            Some((_, outer)) => outer.iter().product(),
            None => 1,
        }
    }

    /// The last dimension: elements in a row.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Bytes that one row takes in the file.
    pub fn row_bytes(&self) -> usize {
        self.encoding
            .bytes_for(self.columns())
            .expect("row lengths are checked when a file is opened")
    }

    /// Bytes that the tensor takes in the file, with its scales where they are a tensor of their own.
    pub fn bytes(&self) -> u64 {
        let own = self.rows() as u64 * self.row_bytes() as u64;
        own + self.scales.as_ref().map_or(0, |scales| scales.bytes())
    }

    /// Columns that share a scale, where scales are a tensor of their own.
    pub fn scaled_columns(&self) -> Option<usize> {
        let scales = self.scales.as_ref()?;
        Some(self.columns() / scales.columns())
    }
}

/// One file (or buffer) of a checkpoint.
#[derive(Clone)]
pub(super) struct Source {
    pub path: PathBuf,
    pub data: Arc<dyn ReadAt>,
}

/// The tensors of a model file, or of all shards of a model directory. Cheap to clone: clones share
/// the open files.
#[derive(Clone)]
pub struct Checkpoint {
    path: PathBuf,
    sources: Vec<Source>,
    /// In the order of the files.
    tensors: Vec<TensorInfo>,
    by_name: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// A checkpoint in memory, for synthetic models and tests: `(name, shape, encoding, bytes)` for
    /// each tensor, shapes outermost first. `path` only appears in messages.
    ///
    /// # Errors
    /// [`Error::Tensor`] if a name appears twice, or if the bytes are not what the shape takes.
    pub fn from_parts(
        path: impl Into<PathBuf>,
        parts: impl IntoIterator<Item = (String, Vec<usize>, Encoding, Vec<u8>)>,
    ) -> Result<Checkpoint> {
        let path = path.into();
        let mut files = Vec::new();
        for (name, shape, encoding, bytes) in parts {
            let expected = stored_bytes(&shape, encoding);
            if expected != Some(bytes.len()) {
                let problem = format!(
                    "{} bytes for shape {shape:?} of {}, which takes {}",
                    bytes.len(),
                    encoding.name(),
                    expected.map_or("no whole number of bytes".into(), |n| n.to_string()),
                );
                return Err(Error::tensor(&path, name, problem));
            }
            let source = Source {
                path: path.clone(),
                data: Arc::new(bytes),
            };
            files.push((source, vec![TensorInfo::new(name, shape, encoding, 0)]));
        }
        Checkpoint::from_files(path, files)
    }

    /// Joins the tensors of one or more files.
    ///
    /// # Errors
    /// [`Error::Tensor`] naming both files if two tensors share a name.
    pub(super) fn from_files(
        path: PathBuf,
        files: Vec<(Source, Vec<TensorInfo>)>,
    ) -> Result<Checkpoint> {
        let mut checkpoint = Checkpoint {
            path,
            sources: Vec::with_capacity(files.len()),
            tensors: Vec::new(),
            by_name: BTreeMap::new(),
        };
        for (source_idx, (source, tensors)) in files.into_iter().enumerate() {
            checkpoint.sources.push(source);
            for mut tensor in tensors {
                tensor.source = source_idx;
                let idx = checkpoint.tensors.len();
                if let Some(first) = checkpoint.by_name.insert(tensor.name.clone(), idx) {
                    let first = checkpoint.file_of(&checkpoint.tensors[first]);
                    let problem = if first == checkpoint.file_of(&tensor) {
                        "appears twice".to_owned()
                    } else {
                        format!("appears in {} as well", first.display())
                    };
                    let path = checkpoint.file_of(&tensor);
                    return Err(Error::tensor(path, &tensor.name, problem));
                }
                checkpoint.tensors.push(tensor);
            }
        }
        Ok(checkpoint)
    }

    /// The file or directory that the checkpoint was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that holds a tensor of this checkpoint.
    pub fn file_of(&self, info: &TensorInfo) -> &Path {
        &self.sources[info.source].path
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// All names, in file order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    /// The tensor of that name, if there is one.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&idx| &self.tensors[idx])
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// [`Error::Tensor`] if it is missing.
    pub fn require(&self, name: &str) -> Result<&TensorInfo> {
        self.get(name).ok_or_else(|| {
            let problem = format!("is missing ({} others are there)", self.tensors.len());
            Error::tensor(&self.path, name, problem)
        })
    }

    /// Checks that all these tensors are there, so that one message can name what is missing.
    ///
    /// # Errors
    /// [`Error::Tensor`] for the first missing name, with up to ten names in its text.
    pub fn require_all<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let missing: Vec<&str> = names
            .into_iter()
            .filter(|name| self.get(name).is_none())
            .collect();
        match missing.as_slice() {
            [] => Ok(()),
            [name] => self.require(name).map(|_| ()),
            [name, ..] => {
                let problem = format!(
                    "is missing, as {} required tensors are: {}",
                    missing.len(),
                    listed(&missing)
                );
                Err(Error::tensor(&self.path, *name, problem))
            }
        }
    }

    /// The tensor of that name, of exactly that shape; `because` names the configuration fields
    /// that the shape follows from.
    ///
    /// # Errors
    /// [`Error::Tensor`] if it is missing, [`Error::WeightShape`] if it has another shape.
    pub fn expect_shape(&self, name: &str, shape: &[usize], because: &str) -> Result<&TensorInfo> {
        let info = self.require(name)?;
        if info.shape != shape {
            return Err(Error::WeightShape {
                path: self.file_of(info).to_owned(),
                tensor: name.to_owned(),
                expected: shape.to_owned(),
                found: info.shape.clone(),
                because: because.to_owned(),
            });
        }
        Ok(info)
    }

    /// Bytes that all tensors take in their files.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(TensorInfo::bytes).sum()
    }

    /// Of each pair makes the second tensor the scales of the first; both are there, fit each other, and
    /// are in no other pair.
    pub(super) fn attach_scales(&mut self, pairs: &[(String, String)]) {
        let mut tensors: Vec<Option<TensorInfo>> = std::mem::take(&mut self.tensors)
            .into_iter()
            .map(Some)
            .collect();
        for (name, scales) in pairs {
            let scales = tensors[self.by_name[scales]].take();
            let tensor = tensors[self.by_name[name]].as_mut();
            tensor.expect("no scales of another").scales = scales.map(Box::new);
        }
        self.tensors = tensors.into_iter().flatten().collect();
        let names = self.tensors.iter().map(|tensor| tensor.name.clone());
        self.by_name = names.zip(0..).collect();
    }

    /// Reads and decodes rows of a tensor of this checkpoint. Whatever `out` held is replaced by
    /// `rows.len() * info.columns()` values, row after row; after an error it holds nothing of use.
    ///
    /// # Errors
    /// [`Error::Tensor`] with the missing bytes if the file has become shorter since it was opened;
    /// [`Error::Io`] if the system refuses the read.
    ///
    /// # Panics
    /// If the rows are not rows of the tensor.
    pub fn read_rows(
        &self,
        info: &TensorInfo,
        rows: Range<usize>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        self.read_stored(info, rows.clone(), out)?;
        let Some(scales) = &info.scales else {
            return Ok(());
        };
        let mut factors = Vec::new();
        self.read_stored(scales, rows, &mut factors)?;
        let group = info.columns() / scales.columns();
        for (values, factor) in out.chunks_mut(group).zip(factors) {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        Ok(())
    }

    fn read_stored(&self, info: &TensorInfo, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        let num_rows = info.rows();
        assert!(
            rows.start <= rows.end && rows.end <= num_rows,
            "{}: rows {rows:?} of {num_rows}",
            info.name
        );
        out.resize(rows.len() * info.columns(), 0.0);

        let (group_size, group_bytes) = (info.encoding.group_size(), info.encoding.group_bytes());
        let piece_groups = PIECE_BYTES / group_bytes;
        let source = &self.sources[info.source];
        let mut offset = info.offset + rows.start as u64 * info.row_bytes() as u64;
        let mut piece = vec![0; (rows.len() * info.row_bytes()).min(piece_groups * group_bytes)];
        for out in out.chunks_mut(piece_groups * group_size) {
            let piece = &mut piece[..out.len() / group_size * group_bytes];
            source
                .data
                .read_exact_at(offset, piece)
                .map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => {
                        let problem = format!("the file has become shorter: {error}");
                        Error::tensor(&source.path, &info.name, problem)
                    }
                    _ => Error::io(&source.path)(error),
                })?;
            info.encoding.decode(piece, out);
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// To be asked after loading: whether what was read can be trusted to be of one state.
    ///
    /// # Errors
    /// [`Error::File`] naming a file that was rewritten after it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        for source in &self.sources {
            if source.data.changed().map_err(Error::io(&source.path))? {
                let problem = "was changed while the model was being read from it";
                return Err(Error::file(&source.path, problem));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.path)
            .field("num_files", &self.sources.len())
            .field("num_tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

/// Elements of a shape; `None` if the product does not fit, even if a later factor is zero.
pub(super) fn num_elements(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &dim| product.checked_mul(dim))
}

/// Bytes that a tensor takes in a file; `None` if they do not fit into a `usize` or if its rows are
/// no whole number of groups.
pub(super) fn stored_bytes(shape: &[usize], encoding: Encoding) -> Option<usize> {
    let columns = shape.last().copied().unwrap_or(1);
    num_elements(shape)
        .filter(|_| columns.is_multiple_of(encoding.group_size()))
        .and_then(|elements| encoding.bytes_for(elements))
}

/// Up to ten names, and how many more there are.
pub(super) fn listed(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_LISTED).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(MAX_LISTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
