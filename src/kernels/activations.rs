//! How activations lie between the kernel that makes them and the matmul that reads them: a record
//! for each 32 columns of a token, as `shaders/act` describes.
//!
//! `f32` is exact. `q8` rounds each group of 32 to 8-bit integers and a scale, so that products are
//! integers; the choice holds for all matmuls of a loaded model, whatever the number of tokens.

use super::numbers::U;
use super::twin::Piece;
use crate::gpu::{Call, Part};
use crate::quant::GROUP;
use crate::wgsl;

/// How activations are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activations {
    /// As computed.
    F32,
    /// 8-bit integers with one f32 scale for 32 columns.
    Q8,
}

impl Activations {
    /// All of them.
    pub const ALL: [Activations; 2] = [Activations::F32, Activations::Q8];

    /// The word of `--activations`.
    pub fn name(self) -> &'static str {
        match self {
            Activations::F32 => "f32",
            Activations::Q8 => "q8",
        }
    }

    /// What the word of `--activations` means.
    pub fn from_name(name: &str) -> Option<Activations> {
        Activations::ALL.into_iter().find(|a| a.name() == name)
    }

    /// WGSL that defines the record.
    pub fn part(self) -> &'static Part {
        static F32: Part = wgsl!("act/f32.wgsl");
        static Q8: Part = wgsl!("act/q8.wgsl");
        match self {
            Activations::F32 => &F32,
            Activations::Q8 => &Q8,
        }
    }

    /// WGSL that writes records, to `act_out` of the kernel.
    pub fn store_part(self) -> &'static Part {
        static F32: Part = wgsl!("act/f32_store.wgsl");
        static Q8: Part = wgsl!("act/q8_store.wgsl");
        match self {
            Activations::F32 => &F32,
            Activations::Q8 => &Q8,
        }
    }

    /// How a dispatch that writes records stores them.
    pub fn stored_by(call: &Call<'_>) -> Activations {
        let mut all = Activations::ALL.into_iter();
        all.find(|a| call.has_part(a.store_part().name))
            .unwrap_or_else(|| panic!("{} stores no records", call.variant))
    }

    /// The records that a dispatch reads.
    pub fn read_by(call: &Call<'_>) -> Activations {
        let mut all = Activations::ALL.into_iter();
        all.find(|a| call.has_part(a.part().name))
            .unwrap_or_else(|| panic!("{} reads no records", call.variant))
    }

    /// Records of whole rows of `columns`, for what a dispatch writes into `tensor` from word `at` on:
    /// exact values with bounds, and sums of squares with bounds for each record, or zeros.
    pub fn piece(
        self,
        tensor: &'static str,
        at: usize,
        columns: usize,
        exact: Vec<(f64, f64)>,
        squares: Option<Vec<(f64, f64)>>,
    ) -> Piece {
        let values: Vec<f32> = exact.iter().map(|v| v.0 as f32).collect();
        let groups = exact.len() / columns * columns.div_ceil(GROUP);
        let squares = squares.unwrap_or_else(|| vec![(0.0, 0.0); groups]);
        let sums: Vec<f32> = squares.iter().map(|v| v.0 as f32).collect();
        let words = self.pack(&values, columns, Some(&sums));
        Piece::judged(tensor, at, words, move |bytes| {
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(bytes);
            self.check(&words, columns, &exact, &squares)
        })
    }

    /// Words of a record.
    pub fn record_words(self) -> usize {
        match self {
            Activations::F32 => 36,
            Activations::Q8 => 12,
        }
    }

    /// Shape of a tensor of words for `tokens` rows of `columns`.
    pub fn dims(self, tokens: usize, columns: usize) -> [usize; 2] {
        [tokens, columns.div_ceil(GROUP) * self.record_words()]
    }

    /// The CPU twin: records of whole rows, with a sum of squares for each record, or zeros.
    pub fn pack(self, x: &[f32], columns: usize, squares: Option<&[f32]>) -> Vec<u32> {
        let groups = x.chunks(columns).flat_map(|row| row.chunks(GROUP));
        let mut words = Vec::new();
        for (i, group) in groups.enumerate() {
            let squares = squares.map_or(0, |s| s[i].to_bits());
            let mut padded = [0.0f32; GROUP];
            padded[..group.len()].copy_from_slice(group);
            match self {
                Activations::F32 => {
                    words.extend(padded.map(f32::to_bits));
                    words.extend([squares, 0, 0, 0]);
                }
                Activations::Q8 => {
                    let (quants, scale) = quantise(&padded);
                    words.extend_from_slice(bytemuck::cast_slice(&pack_bytes(&quants)));
                    words.extend([scale.to_bits(), squares, 0, 0]);
                }
            }
        }
        words
    }

    /// The values that a matmul sees in whole rows of records.
    pub fn unpack(self, words: &[u32], columns: usize) -> Vec<f32> {
        let row_words = columns.div_ceil(GROUP) * self.record_words();
        let record = |r: &[u32]| -> [f32; GROUP] {
            std::array::from_fn(|i| match self {
                Activations::F32 => f32::from_bits(r[i]),
                Activations::Q8 => quant_of(r, i) * f32::from_bits(r[8]),
            })
        };
        words
            .chunks(row_words)
            .flat_map(|row| {
                let values = row.chunks(self.record_words()).flat_map(record);
                values.take(columns).collect::<Vec<_>>()
            })
            .collect()
    }

    /// The sums of squares of whole records.
    pub fn squares(self, words: &[u32]) -> Vec<f32> {
        let records = words.chunks_exact(self.record_words());
        records
            .map(|r| f32::from_bits(r[self.squares_at()]))
            .collect()
    }

    /// Where a record's sum of squares is.
    fn squares_at(self) -> usize {
        match self {
            Activations::F32 => 32,
            Activations::Q8 => 9,
        }
    }

    /// Holds records of whole rows, as found on the device, against exact `values` with a bound for
    /// each, and against the exact sum of squares of each record with its bound.
    ///
    /// # Errors
    /// What is wrong first.
    pub fn check(
        self,
        found: &[u32],
        columns: usize,
        values: &[(f64, f64)],
        squares: &[(f64, f64)],
    ) -> Result<(), String> {
        let exact = values.chunks(columns).flat_map(|row| row.chunks(GROUP));
        let records = found.chunks(self.record_words());
        assert_eq!(records.len(), squares.len(), "records");
        for (i, ((record, exact), &(sum, sum_bound))) in records.zip(exact).zip(squares).enumerate()
        {
            self.check_record(record, exact)
                .map_err(|problem| format!("record {i}: {problem}"))?;
            let found = f64::from(f32::from_bits(record[self.squares_at()]));
            if (found - sum).abs() > sum_bound || found.is_nan() {
                return Err(format!(
                    "record {i}: sum of squares {found:e}, expected {sum:e} +- {sum_bound:e}"
                ));
            }
        }
        Ok(())
    }

    fn check_record(self, record: &[u32], exact: &[(f64, f64)]) -> Result<(), String> {
        let padded = |i: usize| exact.get(i).copied().unwrap_or((0.0, 0.0));
        let mut step = 0.0;
        if self == Activations::Q8 {
            let scale = f64::from(f32::from_bits(record[8]));
            let amax = exact.iter().fold(0.0f64, |m, v| m.max(v.0.abs()));
            let slack = exact.iter().fold(0.0f64, |m, v| m.max(v.1)) + 4.0 * U * amax;
            if (scale * 127.0 - amax).abs() > slack || scale.is_nan() {
                return Err(format!("scale {scale:e}, expected {:e}", amax / 127.0));
            }
            // half a step, and a little where two values are nearly as far
            step = scale * (0.5 + 1e-4);
        }
        for i in 0..GROUP {
            let found = match self {
                Activations::F32 => f64::from(f32::from_bits(record[i])),
                Activations::Q8 => {
                    f64::from(quant_of(record, i)) * f64::from(f32::from_bits(record[8]))
                }
            };
            let (value, bound) = padded(i);
            let bound = if i < exact.len() { bound + step } else { 0.0 };
            if (found - value).abs() > bound || found.is_nan() {
                return Err(format!(
                    "column {i} is {found:e}, expected {value:e} +- {bound:e}"
                ));
            }
        }
        Ok(())
    }
}

/// A group as 8-bit integers and their scale, as the kernels do it.
fn quantise(values: &[f32; GROUP]) -> ([i8; GROUP], f32) {
    let amax = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = amax / 127.0;
    let divisor = if scale > 0.0 { scale } else { 1.0 };
    let quant = |v: f32| (v / divisor).clamp(-127.0, 127.0).round_ties_even() as i8;
    (values.map(quant), scale)
}

fn pack_bytes(quants: &[i8; GROUP]) -> [u32; 8] {
    std::array::from_fn(|i| {
        u32::from_le_bytes(std::array::from_fn(|j| quants[4 * i + j].to_le_bytes()[0]))
    })
}

fn quant_of(record: &[u32], i: usize) -> f32 {
    f32::from(i8::from_le_bytes([record[i / 4].to_le_bytes()[i % 4]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::numbers::Data;

    #[test]
    fn rows_come_back_within_half_a_step() {
        let x = Data::new(1).normal(3 * 76);
        assert_eq!(
            Activations::F32.unpack(&Activations::F32.pack(&x, 76, None), 76),
            x
        );
        let words = Activations::Q8.pack(&x, 76, None);
        let exact: Vec<(f64, f64)> = x.iter().map(|&v| (f64::from(v), 0.0)).collect();
        Activations::Q8
            .check(&words, 76, &exact, &[(0.0, 0.0); 9])
            .unwrap();
        let mut wrong = words.clone();
        wrong[12] ^= 2;
        let problem = Activations::Q8.check(&wrong, 76, &exact, &[(0.0, 0.0); 9]);
        assert!(problem.unwrap_err().contains("record 1: column 0"));
    }

    #[test]
    fn edges_of_a_group() {
        let mut x = [0.0f32; GROUP];
        let words = Activations::Q8.pack(&x, GROUP, None);
        assert_eq!(words, [0; 12]);
        (x[3], x[4]) = (-254.0, 1.0); // a scale of 2: half a step is a tie, to even
        let words = Activations::Q8.pack(&x, GROUP, Some(&[7.0]));
        assert_eq!(
            (words[0], words[1], words[8], words[9]),
            (0x8100_0000, 0, 2.0f32.to_bits(), 7.0f32.to_bits())
        );
    }
}
