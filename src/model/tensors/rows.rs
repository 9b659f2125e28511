//! Where the rows of a matrix come from, and the values of a vector.

use super::PIECE_VALUES;
use crate::error::{Error, Result};
use crate::formats::checkpoint::{Checkpoint, TensorInfo};
use crate::formats::encoding::count_non_finite;
use crate::model::rotation::pairs_from_halves;
use crate::quant::BLOCK_ROWS;
use std::ops::Range;

/// Heads whose rows are brought from halves to adjacent pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turned {
    /// Rows of a head.
    pub head_dim: usize,
    /// The first of them, which are rotated; the others keep their places.
    pub rotated: usize,
}

/// Some rows of a tensor, as a matrix wants them.
#[derive(Clone)]
pub struct Slice<'a> {
    /// The tensor.
    pub info: &'a TensorInfo,
    /// Which of the matrix's rows that are stored there.
    pub rows: Range<usize>,
    /// The tensor is `[columns, rows]`; a vector is a matrix of one column that is stored like that.
    pub transposed: bool,
    /// What becomes of their order.
    pub turned: Option<Turned>,
}

/// Where the rows of a matrix come from.
#[derive(Clone)]
pub enum Rows<'a> {
    /// One slice after another.
    Concat(Vec<Slice<'a>>),
    /// Blocks of four rows: one of the first, then the same of the second.
    Interleave(Slice<'a>, Slice<'a>),
}

/// A vector: values of one tensor or of several, and what is done to them.
#[derive(Clone)]
pub struct Vector<'a> {
    /// How many values.
    pub len: usize,
    /// A matrix of one column; without one all values are 0.
    pub rows: Option<Rows<'a>>,
    /// What is added to each.
    pub plus: f32,
}

impl<'a> Slice<'a> {
    fn columns(&self) -> usize {
        match self.transposed {
            true => self.info.rows(),
            false => self.info.columns(),
        }
    }

    /// Whether it goes on where `before` ends, and both are taken as they are.
    fn follows(&self, before: &Slice<'a>) -> bool {
        self.info.name == before.info.name
            && before.rows.end == self.rows.start
            && before.turned.is_none()
            && self.turned.is_none()
    }
}

impl<'a> Rows<'a> {
    /// One slice after another; those that are one piece of a tensor become one.
    pub fn concat(slices: Vec<Slice<'a>>) -> Rows<'a> {
        let mut joined: Vec<Slice<'a>> = Vec::with_capacity(slices.len());
        for slice in slices {
            match joined.last_mut() {
                Some(last) if slice.follows(last) => last.rows.end = slice.rows.end,
                _ => joined.push(slice),
            }
        }
        Rows::Concat(joined)
    }

    /// Rows and columns of the whole.
    pub fn shape(&self) -> (usize, usize) {
        let slices = self.slices();
        let rows = slices.iter().map(|slice| slice.rows.len()).sum();
        (rows, slices[0].columns())
    }

    /// What it is made of.
    pub fn slices(&self) -> Vec<&Slice<'a>> {
        match self {
            Rows::Concat(slices) => slices.iter().collect(),
            Rows::Interleave(a, b) => vec![a, b],
        }
    }

    /// Calls `each(first_row, values)` for pieces in order; pieces start at multiples of 4 rows. Tells
    /// the tensors with values that are NaN or infinite, and how many there are in each.
    ///
    /// # Errors
    /// What reading reports, and what `each` does.
    pub fn for_each(
        &self,
        checkpoint: &Checkpoint,
        mut each: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<NonFinite<'a>> {
        let mut non_finite = NonFinite::default();
        let (mut values, mut other, mut mixed) = (Vec::new(), Vec::new(), Vec::new());
        match self {
            Rows::Concat(slices) => {
                let mut first_row = 0;
                for slice in slices {
                    let reader = Reader::new(slice, checkpoint)?;
                    // whole heads where rows change places within a head, whole blocks elsewhere
                    let unit = slice.turned.map_or(BLOCK_ROWS, |turned| turned.head_dim);
                    let step = (PIECE_VALUES / slice.columns() / unit).max(1) * unit;
                    for start in (0..slice.rows.len()).step_by(step) {
                        let end = (start + step).min(slice.rows.len());
                        reader.read(start..end, &mut values)?;
                        non_finite.count(slice.info, &values);
                        if let Some(turned) = slice.turned {
                            let Turned { head_dim, rotated } = turned;
                            let columns = slice.columns();
                            pairs_from_halves(&values, columns, head_dim, rotated, &mut mixed);
                            std::mem::swap(&mut values, &mut mixed);
                        }
                        each(first_row + start, &values)?;
                    }
                    first_row += slice.rows.len();
                }
            }
            Rows::Interleave(a, b) => {
                let readers = (Reader::new(a, checkpoint)?, Reader::new(b, checkpoint)?);
                let step = (PIECE_VALUES / 2 / a.columns() / BLOCK_ROWS).max(1) * BLOCK_ROWS;
                for start in (0..a.rows.len()).step_by(step) {
                    let end = (start + step).min(a.rows.len());
                    readers.0.read(start..end, &mut values)?;
                    readers.1.read(start..end, &mut other)?;
                    non_finite.count(a.info, &values);
                    non_finite.count(b.info, &other);
                    mixed.clear();
                    let block = BLOCK_ROWS * a.columns();
                    for (a, b) in values.chunks(block).zip(other.chunks(block)) {
                        mixed.extend_from_slice(a);
                        mixed.extend_from_slice(b);
                    }
                    each(2 * start, &mixed)?;
                }
            }
        }
        Ok(non_finite)
    }
}

impl<'a> Vector<'a> {
    /// `len` ones, which no file holds.
    pub fn ones(len: usize) -> Vector<'a> {
        Vector {
            len,
            rows: None,
            plus: 1.0,
        }
    }

    /// Its values.
    ///
    /// # Errors
    /// What reading reports; [`Error::Tensor`] for values that are NaN or infinite.
    pub fn read(&self, checkpoint: &Checkpoint) -> Result<Vec<f32>> {
        let Some(rows) = &self.rows else {
            return Ok(vec![self.plus; self.len]);
        };
        let mut values = Vec::with_capacity(self.len);
        let non_finite = rows.for_each(checkpoint, |_, piece| {
            values.extend(piece.iter().map(|value| value + self.plus));
            Ok(())
        })?;
        match non_finite.0.first() {
            None => Ok(values),
            Some((info, count)) => {
                let problem = format!("{count} values are NaN or infinite");
                Err(Error::tensor(checkpoint.file_of(info), &info.name, problem))
            }
        }
    }
}

/// Reads rows of a slice.
struct Reader<'r, 'a> {
    slice: &'r Slice<'a>,
    checkpoint: &'r Checkpoint,
    /// All of them, where they are stored as columns: each would be strewn over the whole tensor.
    rows: Option<Vec<f32>>,
}

impl<'r, 'a> Reader<'r, 'a> {
    fn new(slice: &'r Slice<'a>, checkpoint: &'r Checkpoint) -> Result<Reader<'r, 'a>> {
        let rows = match slice.transposed {
            true => Some(transposed(slice, checkpoint)?),
            false => None,
        };
        Ok(Reader {
            slice,
            checkpoint,
            rows,
        })
    }

    /// Rows counted from the first of the slice.
    fn read(&self, rows: Range<usize>, out: &mut Vec<f32>) -> Result<()> {
        let (columns, first) = (self.slice.columns(), self.slice.rows.start);
        match &self.rows {
            Some(all) => {
                out.clear();
                out.extend_from_slice(&all[rows.start * columns..rows.end * columns]);
                Ok(())
            }
            None => {
                let rows = first + rows.start..first + rows.end;
                self.checkpoint.read_rows(self.slice.info, rows, out)
            }
        }
    }
}

/// The rows of a slice of a tensor whose columns they are.
fn transposed(slice: &Slice, checkpoint: &Checkpoint) -> Result<Vec<f32>> {
    let (info, columns) = (slice.info, slice.columns());
    let width = info.columns();
    let mut all = vec![0.0; slice.rows.len() * columns];
    let mut values = Vec::new();
    let step = (PIECE_VALUES / width).max(1);
    for start in (0..columns).step_by(step) {
        let end = (start + step).min(columns);
        checkpoint.read_rows(info, start..end, &mut values)?;
        for (column, values) in (start..end).zip(values.chunks(width)) {
            for (row, &value) in values[slice.rows.clone()].iter().enumerate() {
                all[row * columns + column] = value;
            }
        }
    }
    Ok(all)
}

/// Tensors with values that are NaN or infinite, and how many of them.
#[derive(Default)]
pub struct NonFinite<'a>(pub Vec<(&'a TensorInfo, usize)>);

impl<'a> NonFinite<'a> {
    fn count(&mut self, info: &'a TensorInfo, values: &[f32]) {
        let count = count_non_finite(values);
        if count == 0 {
            return;
        }
        match self.0.iter_mut().find(|(known, _)| known.name == info.name) {
            Some((_, sum)) => *sum += count,
            None => self.0.push((info, count)),
        }
    }
}
