//! The cases of `matmul_coop`: endings and inputs of `matmul`'s, with bounds for f16 weights.

use super::case::{Case, CaseTensor, Data};
use super::halve;
use super::matmul::reference;
use super::matmul_cases::{heads_of, rows_of};
use super::matmul_coop::{KINDS, MATMUL_COOP, configurations};
use super::matmul_endings::Heads;
use super::matmul_endings::{Call, ending};
use super::matmul_output::Kind;
use super::tuning::Tuning;
use super::twin::endings::scaled_coop;
use crate::gpu::Coop;
use crate::quant::weights::SHARD_ROWS;
use crate::quant::{FORMATS, Format};

/// Tokens, rows and columns: less than a tile, several tiles, and ends in the middle of all three. What has more
/// than 64 rows can be cut there, its scales then being at a multiple of 256 bytes.
const SHAPES: [(usize, usize, usize); 5] = [
    (9, 31, 36),
    (65, 130, 100),
    (64, 64, 32),
    (17, 100, 124),
    (97, 66, 292),
];

/// Every format, configuration and ending; shapes take turns.
pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = Vec::new();
    for format in FORMATS {
        for coop in configurations() {
            for kind in KINDS {
                for _ in 0..2 {
                    let seed = all.len();
                    let shape = SHAPES[(seed + seed / 10) % SHAPES.len()];
                    all.push(case(format, coop, kind, shape, seed as u64));
                }
            }
        }
    }
    all
}

fn case(
    format: &'static Format,
    coop: Coop,
    kind: Kind,
    shape: (usize, usize, usize),
    seed: u64,
) -> Case {
    // where biases are added, shards that do not begin with the first
    let cut = (kind.bias && shape.1 > SHARD_ROWS).then_some(SHARD_ROWS);
    let heads = heads_of(shape.1, seed);
    case_of(format, coop, kind, shape, heads, seed, cut)
}

/// Of about so many rows, but for queries, keys and values, which have those of `heads`; in two shards where
/// `cut` tells the rows of the first.
pub(super) fn case_of(
    format: &'static Format,
    coop: Coop,
    kind: Kind,
    (num_tokens, rows, columns): (usize, usize, usize),
    heads: Heads,
    seed: u64,
    cut: Option<usize>,
) -> Case {
    let rows = rows_of(kind, rows, heads);
    let mut data = Data::new(seed);
    let raw = data.weights(rows, columns);

    let mut x = data.normal(num_tokens * columns);
    x[1] = 90_000.0; // beyond f16, if it were not scaled
    let factors: Vec<f64> = (0..num_tokens).map(|_| 0.5 + data.unit()).collect();
    let words = halve::reference(&x, columns, &factors);
    let (seen, factors) = halve::unpack(&words, columns);
    let sums = reference(&format.round_trip(&raw, columns), &seen, columns);
    let rounded = format.scale_bytes > 0;
    let out = scaled_coop(&sums, &seen, &factors, [rows, columns], rounded);

    let name = format!(
        "{} {num_tokens}x{rows}x{columns} {kind:?} size={} subgroup={}{}",
        format.name,
        coop.size,
        coop.subgroup,
        if cut.is_some() { " in shards" } else { "" }
    );
    let (quants, scales) = format.matrix_bytes(rows, columns);
    let case = Case::new(&MATMUL_COOP, name)
        .needs_coop(coop)
        .work(
            2.0 * (num_tokens * rows * columns) as f64,
            (quants + scales) as f64,
        )
        .packed(["w", "w_scales"], format, &raw, columns)
        .tensor(CaseTensor::u32(
            "x",
            &halve::dims(num_tokens, columns),
            &words,
        ));
    let call = Call {
        format,
        tuning: Tuning::plain(1),
        coop: Some(coop),
        kind,
        num_tokens,
        rows,
        columns,
        cut,
    };
    ending(case, call, heads, out, &mut data)
}
