//! The two orders in which files store the rows of a rotated head: pairs that are rotated together side
//! by side, or half a head apart.

/// Rows of whole heads from halves to adjacent pairs: row `2 i + s` is stored as row `s * D/2 + i`.
pub(super) fn pairs_from_halves(
    values: &[f32],
    columns: usize,
    head_dim: usize,
    out: &mut Vec<f32>,
) {
    out.clear();
    for head in values.chunks(head_dim * columns) {
        for i in 0..head_dim / 2 {
            for side in 0..2 {
                let row = side * head_dim / 2 + i;
                out.extend_from_slice(&head[row * columns..(row + 1) * columns]);
            }
        }
    }
}

/// The way back, from adjacent pairs to halves: row `s * D/2 + i` is stored as row `2 i + s`.
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
            &mut out,
        );
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]);
        let mut back = Vec::new();
        halves_from_pairs(&out, 1, 4, &mut back);
        assert_eq!(back, [0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0]);
    }
}
