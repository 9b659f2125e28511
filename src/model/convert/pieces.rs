//! One tensor on its way: read, brought into order, packed, and held against what it was.

use std::path::Path;

use super::packing::{Stored, pack};
use super::{Layout, Target};
use crate::error::{Error, Result};
use crate::formats::stream::{Entry, Stream};
use crate::formats::{Checkpoint, Encoding, TensorInfo, compressed, count_non_finite};
use crate::model::rotation::{halves_from_pairs, pairs_from_halves};
use crate::quant::GROUP;

/// f32 values decoded at once: 4 MiB.
const PIECE_VALUES: usize = 1 << 20;

/// What part of the model a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Embedding or head.
    Table,
    /// A vector.
    Norm,
    /// A matrix that activations are multiplied with.
    Linear,
}

/// What becomes of the order of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    None,
    /// In heads of so many rows, rotated pairs are brought from side by side to half a head apart.
    ToHalves(usize),
    /// And back.
    ToPairs(usize),
}

/// Where values come from.
enum Source {
    File(TensorInfo),
    Values(Vec<f32>),
}

/// A tensor that is to be written.
pub(super) struct Planned {
    name: String,
    source: Source,
    turn: Turn,
    stored: Stored,
}

/// A tensor that was written, and what it lost.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorReport {
    /// Its new name.
    pub name: String,
    /// How it was stored, and how it is.
    pub encodings: (String, String),
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes before and after, scales included.
    pub bytes: (u64, u64),
    /// The largest difference of a value.
    pub max_abs: f64,
    /// The root of the squares of differences over the squares of values: 0 where all are zero.
    pub relative_rms: f64,
    /// Sums of squares of differences and of values.
    pub squares: (f64, f64),
}

impl Planned {
    /// `path` is the file that holds the tensor.
    pub fn new(
        name: String,
        info: TensorInfo,
        turn: Turn,
        part: Part,
        (target, layout): (Target, Layout),
        path: &Path,
    ) -> Result<Planned> {
        let kept = match (info.encoding, part, layout) {
            (_, Part::Norm, Layout::Gguf) | (Encoding::F32 | Encoding::F64, _, _) => Encoding::F32,
            (Encoding::Bf16, _, Layout::Directory) => Encoding::Bf16,
            _ => Encoding::F16,
        };
        let stored = match (target, part) {
            (_, Part::Norm) | (Target::Int8 { .. }, Part::Table) => Stored::As(kept),
            (Target::Int8 { group: None }, Part::Linear) => Stored::Codes(info.columns()),
            (Target::Int8 { group: Some(size) }, Part::Linear) => Stored::Codes(size),
            (Target::F16, _) => Stored::As(Encoding::F16),
            (Target::Q8_0, _) => Stored::As(Encoding::Q8_0),
        };
        let group = match stored {
            Stored::Codes(size) => size,
            Stored::As(encoding) => encoding.group_size(),
        };
        if !info.columns().is_multiple_of(group) {
            let columns = info.columns();
            let problem =
                format!("rows of {columns} values are no whole number of groups of {group}");
            return Err(Error::tensor(path, &info.name, problem));
        }
        Ok(Planned {
            name,
            source: Source::File(info),
            turn,
            stored,
        })
    }

    /// A vector of f32 that no file holds.
    pub fn values(name: String, values: Vec<f32>) -> Planned {
        Planned {
            name,
            source: Source::Values(values),
            turn: Turn::None,
            stored: Stored::As(Encoding::F32),
        }
    }

    fn shape(&self) -> Vec<usize> {
        match &self.source {
            Source::File(info) => info.shape.clone(),
            Source::Values(values) => vec![values.len()],
        }
    }

    /// The tensor in the file; after codes comes the tensor of their scales.
    pub fn entries(&self) -> Vec<Entry> {
        let shape = self.shape();
        let entry = |name: String, shape, encoding| Entry {
            name,
            shape,
            encoding,
        };
        match self.stored {
            Stored::As(encoding) => vec![entry(self.name.clone(), shape, encoding)],
            Stored::Codes(size) => {
                let scales = vec![shape[0], shape[1] / size];
                let name = format!("{}{}", self.name, compressed::SCALE_SUFFIX);
                vec![
                    entry(self.name.clone(), shape, Encoding::I8),
                    entry(name, scales, Encoding::F32),
                ]
            }
        }
    }

    /// Bytes of the tensor that it is made from.
    pub fn bytes_before(&self) -> u64 {
        match &self.source {
            Source::File(info) => info.bytes(),
            Source::Values(_) => 0,
        }
    }

    /// Reads it, and writes it to the end of `out`; `each` is told bytes as they are written.
    pub fn write(
        &self,
        checkpoint: &Checkpoint,
        out: &mut Stream,
        each: &mut dyn FnMut(u64),
    ) -> Result<TensorReport> {
        let mut lost = Lost::default();
        let mut scales = Vec::new();
        let mut bytes = Vec::new();
        self.for_each_piece(checkpoint, |values| {
            let mut after = values.to_vec();
            bytes.clear();
            pack(self.stored, &mut after, &mut bytes, &mut scales);
            lost.add(values, &after);
            out.write(&bytes)?;
            each(bytes.len() as u64);
            Ok(())
        })?;
        if !scales.is_empty() {
            let bytes = Encoding::F32.encode(&scales);
            out.write(&bytes)?;
            each(bytes.len() as u64);
        }
        let before = match &self.source {
            Source::File(info) => match info.scaled_columns() {
                None => info.encoding.name().to_owned(),
                Some(columns) => codes_name(columns, info.columns()),
            },
            Source::Values(_) => "computed".to_owned(),
        };
        let shape = self.shape();
        let after = match self.stored {
            Stored::As(encoding) => encoding.name().to_owned(),
            Stored::Codes(size) => codes_name(size, shape[1]),
        };
        Ok(TensorReport {
            name: self.name.clone(),
            encodings: (before, after),
            shape,
            bytes: (
                self.bytes_before(),
                self.entries().iter().map(Entry::bytes).sum(),
            ),
            max_abs: lost.max_abs,
            relative_rms: lost.relative_rms(),
            squares: lost.squares,
        })
    }

    fn for_each_piece(
        &self,
        checkpoint: &Checkpoint,
        mut each: impl FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        let info = match &self.source {
            Source::File(info) => info,
            Source::Values(values) => return each(values),
        };
        let unit = match self.turn {
            Turn::None => 1,
            Turn::ToHalves(head) | Turn::ToPairs(head) => head,
        };
        let step = (PIECE_VALUES / info.columns() / unit).max(1) * unit;
        let (mut values, mut turned) = (Vec::new(), Vec::new());
        for start in (0..info.rows()).step_by(step) {
            let rows = start..(start + step).min(info.rows());
            checkpoint.read_rows(info, rows, &mut values)?;
            let wrong = count_non_finite(&values);
            if wrong > 0 {
                let problem = format!("{wrong} values are NaN or infinite");
                return Err(Error::tensor(checkpoint.file_of(info), &info.name, problem));
            }
            match self.turn {
                Turn::None => each(&values)?,
                Turn::ToHalves(head) => {
                    halves_from_pairs(&values, info.columns(), head, &mut turned);
                    each(&turned)?;
                }
                Turn::ToPairs(head) => {
                    pairs_from_halves(&values, info.columns(), head, head, &mut turned);
                    each(&turned)?;
                }
            }
        }
        Ok(())
    }
}

/// `INT8/32` for groups of 32 columns, `INT8/row` for whole rows.
fn codes_name(columns: usize, all: usize) -> String {
    match columns == all && all != GROUP {
        true => "INT8/row".to_owned(),
        false => format!("INT8/{columns}"),
    }
}

/// Differences between what was and what is.
#[derive(Default)]
struct Lost {
    max_abs: f64,
    squares: (f64, f64),
}

impl Lost {
    fn add(&mut self, before: &[f32], after: &[f32]) {
        for (before, after) in before.iter().zip(after) {
            let (before, after) = (f64::from(*before), f64::from(*after));
            let lost = (before - after).abs();
            self.max_abs = self.max_abs.max(lost);
            self.squares.0 += lost * lost;
            self.squares.1 += before * before;
        }
    }

    fn relative_rms(&self) -> f64 {
        match self.squares.1 > 0.0 {
            true => (self.squares.0 / self.squares.1).sqrt(),
            false => 0.0,
        }
    }
}
