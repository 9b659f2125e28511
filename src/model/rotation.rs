//! The two orders in which files store the rows of a rotated head: pairs that are rotated together side
//! by side, or half of the rotated rows apart. Rows behind those that are rotated keep their places.

/// Rows of whole heads from halves to adjacent pairs: of the first `rotated` rows of a head, row `2 i + s`
/// is stored as row `s * rotated/2 + i`.
pub(super) fn pairs_from_halves(
    values: &[f32],
    columns: usize,
    head_dim: usize,
    rotated: usize,
    out: &mut Vec<f32>,
) {
    out.clear();
    for head in values.chunks(head_dim * columns) {
        for i in 0..rotated / 2 {
            for side in 0..2 {
                let row = side * rotated / 2 + i;
                out.extend_from_slice(&head[row * columns..(row + 1) * columns]);
            }
        }
        out.extend_from_slice(&head[rotated * columns..]);
    }
}

/// The way back, from adjacent pairs to halves: row `s * D/2 + i` is stored as row `2 i + s`. All rows are
/// rotated.
pub(super) fn halves_from_pairs(
    values: &[f32],
    columns: usize,
    head_dim: usize,
    out: &mut Vec<f32>,
) {
    out.clear();
    for head in values.chunks(head_dim * columns) {
        for side in 0..2 {
            for i in 0..head_dim / 2 {
                let row = 2 * i + side;
                out.extend_from_slice(&head[row * columns..(row + 1) * columns]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{halves_from_pairs, pairs_from_halves};

    #[test]
    fn halves_become_pairs() {
        // two heads of 4 rows, 1 column: stored (0a 1a 0b 1b), wanted (0a 0b 1a 1b)
        let mut out = Vec::new();
        pairs_from_halves(
            &[0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0],
            1,
            4,
            4,
            &mut out,
        );
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]);
        let mut back = Vec::new();
        halves_from_pairs(&out, 1, 4, &mut back);
        assert_eq!(back, [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0]);
    }

    #[test]
    fn rows_that_are_not_rotated_stay() {
        // two heads of 6 rows, 2 columns, the first 4 rows rotated
        let row = |r: u8| [f32::from(r), f32::from(r) + 0.5];
        let stored: Vec<f32> = (0..12).flat_map(row).collect();
        let mut out = Vec::new();
        pairs_from_halves(&stored, 2, 6, 4, &mut out);
        let wanted = [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11];
        let wanted: Vec<f32> = wanted.into_iter().flat_map(row).collect();
        assert_eq!(out, wanted);
    }
}
