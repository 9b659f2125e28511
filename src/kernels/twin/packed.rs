//! Rows of packed weights on the host, unpacked block by block: whole matrices would take four times
//! the memory that they have on the device.

use crate::error::Result;
use crate::gpu::{Call, Words};
use crate::quant::{BLOCK_ROWS, Format, GROUP};
use std::ops::Range;

/// Blocks of four rows, as they lie on the device.
pub(crate) struct Packed {
    format: &'static Format,
    groups: usize,
    weights: Words,
    scales: Words,
}

impl Packed {
    /// Reads the blocks of `ranges`, one range after another, of the weights that `call` binds; rows have
    /// `groups` groups.
    ///
    /// # Errors
    /// What the device reports.
    pub(crate) fn read(
        call: &mut Call<'_>,
        ranges: &[Range<usize>],
        groups: usize,
    ) -> Result<Packed> {
        let format = Format::read_by(&call.variant);
        let words = |bytes: usize| -> Vec<Range<usize>> {
            let size = groups * BLOCK_ROWS * bytes / 4;
            let scaled = ranges.iter().map(|r| r.start * size..r.end * size);
            scaled.collect()
        };
        let weights = call.read_ranges("w", &words(format.group_bytes))?;
        let scales = match format.scale_bytes {
            0 => Words::default(),
            bytes => call.read_ranges("w_scales", &words(bytes))?,
        };
        Ok(Packed {
            format,
            groups,
            weights,
            scales,
        })
    }

    /// Whether its weights are rounded with a scale.
    pub(crate) fn has_scales(&self) -> bool {
        self.format.scale_bytes > 0
    }

    /// The four rows of block `block` of those read, `[4, groups * 32]`.
    pub(crate) fn unpack(&self, block: usize, rows: &mut [f32]) {
        let columns = self.groups * GROUP;
        assert_eq!(rows.len(), BLOCK_ROWS * columns, "values of a block");
        let (weight_bytes, scale_bytes) = (self.format.group_bytes, self.format.scale_bytes);
        let weights: &[u8] = bytemuck::cast_slice(&self.weights);
        let scales: &[u8] = bytemuck::cast_slice(&self.scales);
        for group in 0..self.groups {
            for row in 0..BLOCK_ROWS {
                let at = (block * self.groups + group) * BLOCK_ROWS + row;
                let values = (self.format.unpack)(
                    &weights[at * weight_bytes..][..weight_bytes],
                    &scales[at * scale_bytes..][..scale_bytes],
                );
                rows[row * columns + group * GROUP..][..GROUP].copy_from_slice(&values);
            }
        }
    }
}
