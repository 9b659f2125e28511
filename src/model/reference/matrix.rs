//! A matrix times many vectors in f64, on all cores.

use crate::kernels::twin::parallel;

/// Vectors that are multiplied with a row together: it is read once for them.
const LANES: usize = 8;
/// Multiplications that a thread takes at a time.
const TURN: usize = 1 << 20;

/// Rows of f32, as the device's weights are after rounding.
pub(super) struct Matrix {
    pub columns: usize,
    pub values: Vec<f32>,
}

impl Matrix {
    /// Row `index`.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.columns..][..self.columns]
    }

    /// The product with each of `inputs`.
    pub fn times(&self, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        if inputs.is_empty() {
            return Vec::new();
        }
        let blocks: Vec<Block> = inputs.chunks(LANES).map(Block::new).collect();
        let turn_rows = TURN.div_ceil(self.columns * inputs.len());
        let turns: Vec<&[f32]> = self.values.chunks(turn_rows * self.columns).collect();
        // sums of each row: one for each input
        let turn = |turn: usize| -> Vec<f64> {
            let rows = turns[turn].chunks(self.columns);
            let mut sums = vec![0.0; rows.len() * inputs.len()];
            for (row, sums) in rows.zip(sums.chunks_mut(inputs.len())) {
                for (block, sums) in blocks.iter().zip(sums.chunks_mut(LANES)) {
                    block.times(row, sums);
                }
            }
            sums
        };
        let sums = parallel::map(turns.len(), turn).concat();
        let of = |input: usize| sums[input..].iter().step_by(inputs.len());
        (0..inputs.len())
            .map(|input| of(input).copied().collect())
            .collect()
    }
}

/// Up to [`LANES`] vectors, so that a row can be multiplied with all of them at once.
enum Block<'a> {
    /// By itself: its columns are the lanes.
    One(&'a [f64]),
    /// Side by side, columns outside; missing ones are 0.
    Many(Vec<[f64; LANES]>),
}

impl<'a> Block<'a> {
    fn new(inputs: &'a [Vec<f64>]) -> Block<'a> {
        if let [one] = inputs {
            return Block::One(one);
        }
        let mut columns = vec![[0.0; LANES]; inputs[0].len()];
        for (lane, input) in inputs.iter().enumerate() {
            for (column, value) in columns.iter_mut().zip(input) {
                column[lane] = *value;
            }
        }
        Block::Many(columns)
    }

    /// The sums of one row, one for each vector.
    fn times(&self, row: &[f32], sums: &mut [f64]) {
        let mut lanes = [0.0; LANES];
        match self {
            Block::One(input) => {
                for (row, input) in row.chunks(LANES).zip(input.chunks(LANES)) {
                    for ((lane, &w), x) in lanes.iter_mut().zip(row).zip(input) {
                        *lane += f64::from(w) * x;
                    }
                }
                sums[0] = lanes.iter().sum();
            }
            Block::Many(columns) => {
                for (&w, column) in row.iter().zip(columns) {
                    for (lane, x) in lanes.iter_mut().zip(column) {
                        *lane += f64::from(w) * x;
                    }
                }
                sums.copy_from_slice(&lanes[..sums.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_vectors_and_threads_gives_the_plain_sums() {
        let (rows, columns) = (301, 97);
        let value = |i: usize| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5;
        let matrix = Matrix {
            columns,
            values: (0..rows * columns).map(value).collect(),
        };
        for count in [1, 2, 7, 8, 9, 17, 40] {
            let input = |i: usize| (0..columns).map(|c| f64::from(value(i * 31 + c))).collect();
            let inputs: Vec<Vec<f64>> = (0..count).map(input).collect();
            let found = matrix.times(&inputs);
            assert_eq!((found.len(), found[0].len()), (count, rows));
            for (input, found) in inputs.iter().zip(&found) {
                for (row, found) in matrix.values.chunks(columns).zip(found) {
                    let exact: f64 = row.iter().zip(input).map(|(&w, x)| f64::from(w) * x).sum();
                    assert!((exact - found).abs() < 1e-12, "{count}: {exact} {found}");
                }
            }
        }
    }

    #[test]
    fn no_vectors_give_no_sums() {
        let matrix = Matrix {
            columns: 4,
            values: vec![1.0; 16],
        };
        assert!(matrix.times(&[]).is_empty());
    }
}
