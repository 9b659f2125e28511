//! How weights lie on the device: the table of formats, and the blocking they share.
//!
//! ```text
//! rows in blocks of 4, columns in groups of 32:
//!
//!            group 0            group 1
//! block 0   [r0 r1 r2 r3]      [r0 r1 r2 r3]   ...      each r: 32 weights of one row, contiguous
//! block 1   [r4 r5 r6 r7]      ...
//! ```
//!
//! One invocation reads whole blocks in order: four rows share each load of the activations. Rows
//! are padded to 4 and columns to 32 with zeros. Scales, where a format has them, are f16 in an
//! array of their own, in the same order: `[block][group][4]`.

pub mod f16;
pub mod q8;
pub mod weights;

use crate::gpu::{Part, Variant};
pub use weights::{Shard, Weights};

/// Weights that share one scale, along a row.
pub const GROUP: usize = 32;
/// Rows of a block.
pub const BLOCK_ROWS: usize = 4;

/// A format of weights in memory. A new one is a file here, a part in `shaders/quant` and a line in
/// [`FORMATS`]; every matmul case then runs for it.
pub struct Format {
    /// The word of `--weights`.
    pub name: &'static str,
    /// WGSL that defines `quant_group`, `quant_columns`, `quant_scale` and `quant_fold`.
    pub parts: &'static [Part],
    /// The same where groups are loaded as 64-bit integers; `parts` again where there is no such form.
    pub wide_parts: &'static [Part],
    /// WGSL that defines `quant_span` and `QUANT_SPANS`: the same weights as f16, for cooperative
    /// matrices.
    pub half_part: &'static Part,
    /// Bytes of a group's weights.
    pub group_bytes: usize,
    /// Bytes of a group's scale: 2 (f16) or 0.
    pub scale_bytes: usize,
    /// Writes a group: weights, then scale.
    pub pack: fn(&[f32; GROUP], &mut [u8], &mut [u8]),
    /// What the device sees of a packed group.
    pub unpack: fn(&[u8], &[u8]) -> [f32; GROUP],
}

/// The table of formats; the first is the default.
pub static FORMATS: &[&Format] = &[&q8::Q8, &f16::F16];

impl Format {
    /// The format `--weights name` means.
    pub fn from_name(name: &str) -> Option<&'static Format> {
        FORMATS.iter().copied().find(|f| f.name == name)
    }

    /// The format of the weights that `variant` reads.
    ///
    /// # Panics
    /// When it reads none.
    pub fn read_by(variant: &Variant) -> &'static Format {
        let reads = |format: &&&Format| {
            let first = [format.parts, format.wide_parts].map(|parts| parts[0]);
            let mut parts = variant.chosen();
            parts.any(|part| first.contains(part) || part == format.half_part)
        };
        let found = FORMATS.iter().find(reads);
        found.unwrap_or_else(|| panic!("{variant} reads no weights"))
    }

    /// The parts that read it, by wide loads or not.
    pub fn parts(&self, wide: bool) -> &'static [Part] {
        if wide { self.wide_parts } else { self.parts }
    }

    /// Whether there is a form with wide loads.
    pub fn has_wide(&self) -> bool {
        self.parts != self.wide_parts
    }

    /// Bytes on the device of a matrix: weights and scales.
    pub fn matrix_bytes(&self, rows: usize, columns: usize) -> (u64, u64) {
        let groups = (rows.next_multiple_of(BLOCK_ROWS) * columns.div_ceil(GROUP)) as u64;
        (
            groups * self.group_bytes as u64,
            groups * self.scale_bytes as u64,
        )
    }

    /// Packs whole rows (row-major, `columns` each): weights and scales as they lie on the device.
    ///
    /// # Panics
    /// When `values` are not whole rows.
    pub fn pack_rows(&self, values: &[f32], columns: usize) -> (Vec<u8>, Vec<u8>) {
        assert!(
            values.len().is_multiple_of(columns),
            "{} values in rows of {columns}",
            values.len()
        );
        let rows = values.len() / columns;
        let (weight_bytes, scale_bytes) = self.matrix_bytes(rows, columns);
        let mut weights = vec![0; weight_bytes as usize];
        let mut scales = vec![0; scale_bytes as usize];
        let num_groups = columns.div_ceil(GROUP);
        for (row, values) in values.chunks(columns).enumerate() {
            for (group, values) in values.chunks(GROUP).enumerate() {
                let mut padded = [0.0; GROUP];
                padded[..values.len()].copy_from_slice(values);
                let at = (row / BLOCK_ROWS * num_groups + group) * BLOCK_ROWS + row % BLOCK_ROWS;
                (self.pack)(
                    &padded,
                    &mut weights[at * self.group_bytes..][..self.group_bytes],
                    &mut scales[at * self.scale_bytes..][..self.scale_bytes],
                );
            }
        }
        (weights, scales)
    }

    /// What a row-major matrix becomes by packing and unpacking: the weights a kernel computes with.
    pub fn round_trip(&self, values: &[f32], columns: usize) -> Vec<f32> {
        let mut weights = vec![0; self.group_bytes];
        let mut scale = vec![0; self.scale_bytes];
        let mut out = Vec::with_capacity(values.len());
        for row in values.chunks(columns) {
            for group in row.chunks(GROUP) {
                let mut padded = [0.0; GROUP];
                padded[..group.len()].copy_from_slice(group);
                (self.pack)(&padded, &mut weights, &mut scale);
                out.extend_from_slice(&(self.unpack)(&weights, &scale)[..group.len()]);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_four_rows_of_each_group() {
        // 5 rows of 40 columns, each value its own place: rows pad to 8, columns to 64.
        let values: Vec<f32> = (0..200).map(|i| i as f32).collect();
        let (weights, scales) = f16::F16.pack_rows(&values, 40);
        assert_eq!((weights.len(), scales.len()), (8 * 64 * 2, 0));
        let at = |row: usize, column: usize| {
            let i = ((row / 4 * 2 + column / 32) * 4 + row % 4) * 32 + column % 32;
            half::f16::from_le_bytes([weights[2 * i], weights[2 * i + 1]]).to_f32()
        };
        for (row, column) in [(0, 0), (3, 31), (2, 32), (4, 39), (1, 39)] {
            assert_eq!(at(row, column), (row * 40 + column) as f32);
        }
        assert_eq!((at(0, 40), at(7, 0), at(5, 63)), (0.0, 0.0, 0.0));
    }

    #[test]
    fn names_find_their_format() {
        for format in FORMATS {
            assert_eq!(Format::from_name(format.name).unwrap().name, format.name);
        }
        assert!(Format::from_name("q3").is_none());
    }
}
