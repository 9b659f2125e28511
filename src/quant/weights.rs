//! A weight matrix on the device, in row shards that each fit a binding.

use super::{BLOCK_ROWS, Format, GROUP};
use crate::error::Result;
use crate::gpu::{DType, Gpu, Tensor};

/// Shards start at multiples of this many rows, so that the rows of a team, whose results are packed
/// together, lie in one shard.
pub const SHARD_ROWS: usize = 64;

/// A matrix `[rows, columns]`, packed in a [`Format`]. Clones share it.
#[derive(Clone)]
pub struct Weights {
    /// How its groups are packed.
    pub format: &'static Format,
    /// Output rows.
    pub rows: usize,
    /// Input columns.
    pub columns: usize,
    /// Consecutive row ranges, each small enough to bind.
    pub shards: Vec<Shard>,
}

/// Rows `first_row .. first_row + rows` of a matrix. Clones share them.
#[derive(Clone)]
pub struct Shard {
    /// The first row.
    pub first_row: usize,
    /// How many.
    pub rows: usize,
    quants: Tensor,
    scales: Option<Tensor>,
}

impl Shard {
    /// A shard from tensors made elsewhere; `scales` as the format wants it.
    pub fn new(first_row: usize, rows: usize, quants: Tensor, scales: Option<Tensor>) -> Shard {
        Shard {
            first_row,
            rows,
            quants,
            scales,
        }
    }

    /// The shard's tensors by the names the parts of `shaders/quant` give them.
    pub fn bindings(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let scales = self.scales.iter().map(|scales| ("w_scales", scales));
        std::iter::once(("w", &self.quants)).chain(scales)
    }
}

impl Weights {
    /// Room for a matrix, split so that no shard is over the binding limit.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] naming `label`.
    pub fn allocate(
        gpu: &Gpu,
        label: &str,
        format: &'static Format,
        rows: usize,
        columns: usize,
    ) -> Result<Weights> {
        let per_shard = rows_per_shard(gpu.max_binding_bytes(), format, columns);
        let mut shards = Vec::with_capacity(rows.div_ceil(per_shard));
        for first_row in (0..rows).step_by(per_shard) {
            let shard_rows = per_shard.min(rows - first_row);
            let (quants, scales) = format.matrix_bytes(shard_rows, columns);
            let quants = gpu.tensor(label, DType::I8, &[quants as usize])?;
            let scales = (scales > 0)
                .then(|| gpu.tensor(label, DType::I8, &[scales as usize]))
                .transpose()?;
            shards.push(Shard {
                first_row,
                rows: shard_rows,
                quants,
                scales,
            });
        }
        Ok(Weights {
            format,
            rows,
            columns,
            shards,
        })
    }

    /// Packs and uploads `values`, whole rows from `first_row` on.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// When `first_row` is not a multiple of 4 or the rows leave the matrix.
    pub fn write_rows(&self, gpu: &Gpu, first_row: usize, values: &[f32]) -> Result<()> {
        let end = first_row + values.len() / self.columns;
        assert!(
            first_row.is_multiple_of(BLOCK_ROWS) && end <= self.rows,
            "rows {first_row}..{end} of {}",
            self.rows
        );
        let groups_per_block = BLOCK_ROWS * self.columns.div_ceil(GROUP);
        for shard in &self.shards {
            let from = first_row.max(shard.first_row);
            let to = end.min(shard.first_row + shard.rows);
            if from >= to {
                continue;
            }
            let rows = &values[(from - first_row) * self.columns..(to - first_row) * self.columns];
            let (weights, scales) = self.format.pack_rows(rows, self.columns);
            let block = (from - shard.first_row) / BLOCK_ROWS;
            gpu.upload(
                &shard.quants,
                (block * groups_per_block * self.format.group_bytes) as u64,
                &weights,
            )?;
            if let Some(tensor) = &shard.scales {
                gpu.upload(
                    tensor,
                    (block * groups_per_block * self.format.scale_bytes) as u64,
                    &scales,
                )?;
            }
        }
        Ok(())
    }

    /// Forgets the rows from `rows` on. The memory stays.
    pub fn truncate_rows(&mut self, rows: usize) {
        self.rows = self.rows.min(rows);
        self.shards.retain(|shard| shard.first_row < rows);
        for shard in &mut self.shards {
            shard.rows = shard.rows.min(rows - shard.first_row);
        }
    }

    /// Bytes on the device.
    pub fn size_bytes(&self) -> u64 {
        self.tensors().map(Tensor::size_bytes).sum()
    }

    /// All of them, shard by shard.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let all = self.shards.iter().flat_map(Shard::bindings);
        all.map(|(_, tensor)| tensor)
    }
}

/// The most rows, a multiple of [`SHARD_ROWS`], whose weights fit into `limit` bytes.
fn rows_per_shard(limit: u64, format: &Format, columns: usize) -> usize {
    let (bytes, _) = format.matrix_bytes(SHARD_ROWS, columns);
    let shards = (limit / bytes) as usize;
    assert!(
        shards > 0,
        "{SHARD_ROWS} rows of {columns} columns need {bytes} bytes, a binding holds {limit}"
    );
    shards * SHARD_ROWS
}
