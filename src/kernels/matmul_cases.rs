//! The matmul's cases: what it must compute, and what its bounds are.

use super::activations::Activations;
use super::case::{Case, CaseTensor, Data};
use super::matmul::{MATMUL, Norm, reference};
use super::matmul_endings::{Call, Heads, ending};
use super::matmul_output::{Ending, Kind, MlpKind};
use super::tuning::Tuning;
use super::twin::endings::Order;
use crate::kv::KvFormat;
use crate::quant::weights::SHARD_ROWS;
use crate::quant::{BLOCK_ROWS, FORMATS, Format, GROUP};

pub(super) const EPS: f32 = 1e-5;
/// Heads of a case of queries, keys and values: the last number is dims of a head.
const HEADS: [Heads; 4] = [(1, 1, 32), (3, 1, 40), (2, 2, 64), (5, 1, 96)];

/// Tokens, rows and columns: ragged shapes for each tile of tokens.
const SHAPES: [[(usize, usize, usize); 5]; 4] = [
    [
        (1, 1, 4),
        (1, 3, 32),
        (1, 5, 36),
        (1, 257, 576),
        (1, 34, 1028),
    ],
    [
        (2, 31, 64),
        (2, 1, 28),
        (2, 33, 96),
        (2, 130, 292),
        (2, 64, 160),
    ],
    [
        (3, 33, 60),
        (4, 4, 96),
        (3, 129, 32),
        (4, 66, 288),
        (4, 70, 1028),
    ],
    [
        (5, 130, 100),
        (8, 34, 288),
        (9, 70, 160),
        (17, 100, 68),
        (33, 32, 64),
    ],
];

/// Tokens, rows and columns of a matrix in two shards, the first of which ends in the middle of a workgroup.
pub(super) const IN_SHARDS: (usize, usize, usize) = (3, 136, 100);

/// Every format, way to pass activations, way to share and join rows, and ending. Tiles take turns,
/// since a variant costs a compilation and a shape almost nothing; so do endings that are rare. Then every
/// ending in shards, by workgroups of several teams.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut turn = 0;
    for format in FORMATS {
        for tuning in Tuning::all_for(format) {
            for kind in Kind::COMMON {
                for shape in SHAPES[turn % SHAPES.len()] {
                    all.push(case(format, tuning, kind, shape, all.len() as u64));
                }
                turn += 1;
            }
            turn += 1; // so that an ending meets another tile in the next tuning
        }
        for rare in rare(format).filter(|rare| rare.has_cases) {
            for shape in SHAPES[rare.tile] {
                let seed = all.len() as u64;
                all.push(case(format, rare.tuning, rare.kind, shape, seed));
            }
        }
        for tuning in in_shards(format) {
            for kind in Kind::COMMON.into_iter().chain(Kind::RARE) {
                let heads = heads_of(IN_SHARDS.1, 1);
                let (seed, cut) = (all.len() as u64, Some(SHARD_ROWS));
                all.push(case_of(format, tuning, kind, IN_SHARDS, heads, seed, cut));
            }
        }
    }
    all
}

/// Tunings of the cases in shards.
pub(super) fn in_shards(format: &'static Format) -> impl Iterator<Item = Tuning> {
    let tunings = Activations::ALL.map(|activations| Tuning {
        activations,
        workgroup: 256,
        ..Tuning::plain(8)
    });
    tunings.into_iter().filter(|tuning| tuning.reads(format))
}

/// An ending that is rare, with a tuning.
pub(super) struct Rare {
    pub tuning: Tuning,
    pub kind: Kind,
    /// Which of the tiles.
    pub tile: usize,
    pub has_cases: bool,
}

/// Every tuning with every ending that is rare; tiles take turns. Every fourth has cases, in each of the tiles.
pub(super) fn rare(format: &'static Format) -> impl Iterator<Item = Rare> {
    let tunings = Tuning::all_for(format).into_iter().enumerate();
    tunings.flat_map(|(i, tuning)| {
        let kinds = Kind::RARE.into_iter().enumerate();
        kinds.map(move |(j, kind)| Rare {
            tuning,
            kind,
            tile: (i + j) / 4 % SHAPES.len(),
            has_cases: (i + j).is_multiple_of(4),
        })
    })
}

/// The matrices of a small chat model, for one token and for a chunk of a prompt; and one that fills
/// no cache.
pub fn timings() -> Vec<Case> {
    let shapes = [
        (960, 576, Ending::Qkv(KvFormat::F16).normed()),
        (576, 576, Ending::Residual.alone()),
        (3072, 576, Ending::Gated(MlpKind::SwiGlu).normed()),
        (576, 1536, Ending::Residual.alone()),
        (49152, 576, Ending::Store.normed()),
        (8192, 4096, Ending::Store.alone()),
    ];
    let mut all = Vec::new();
    for format in FORMATS {
        for tuning in Tuning::all_for(format).into_iter().filter(Tuning::shares) {
            for (rows, columns, kind) in shapes {
                for num_tokens in [1, 8, 64] {
                    if num_tokens < 64 || rows < 6_000 {
                        let shape = (num_tokens, rows, columns);
                        all.push(case(format, tuning, kind, shape, 1));
                    }
                }
            }
        }
    }
    all
}

fn case(
    format: &'static Format,
    tuning: Tuning,
    kind: Kind,
    shape: (usize, usize, usize),
    seed: u64,
) -> Case {
    let heads = heads_of(shape.1, seed);
    case_of(format, tuning, kind, shape, heads, seed, None)
}

/// Of about so many rows, but for queries, keys and values, which have those of `heads`; in two shards where
/// `cut` tells the rows of the first.
pub(super) fn case_of(
    format: &'static Format,
    tuning: Tuning,
    kind: Kind,
    (num_tokens, rows, columns): (usize, usize, usize),
    heads: Heads,
    seed: u64,
    cut: Option<usize>,
) -> Case {
    let rows = rows_of(kind, rows, heads);
    let mut data = Data::new(seed);
    let raw = data.weights(rows, columns);

    // what the kernel before it leaves: values times a norm's weight, and sums of squares of the values
    let before = data.normal(num_tokens * columns);
    let squares: Vec<f32> = before
        .chunks(columns)
        .flat_map(|row| row.chunks(GROUP))
        .map(|g| g.iter().map(|v| v * v).sum())
        .collect();
    let weight = data.normal(columns);
    let x: Vec<f32> = before
        .iter()
        .enumerate()
        .map(|(i, v)| v * weight[i % columns])
        .collect();
    let words = tuning.activations.pack(&x, columns, Some(&squares));

    let seen = tuning.activations.unpack(&words, columns);
    let sums = reference(&format.round_trip(&raw, columns), &seen, columns);
    let order = Order {
        activations: tuning.activations,
        lanes: tuning.lanes as usize,
        norm: kind.norm.then_some(Norm { eps: EPS }),
    };
    let out = order.scaled(&sums, &squares, [rows, columns]);

    let name = format!(
        "{} {num_tokens}x{rows}x{columns} {kind:?} {}{}",
        format.name,
        tuning.describe(),
        if cut.is_some() { " in shards" } else { "" }
    );
    let (quants, scales) = format.matrix_bytes(rows, columns);
    let case = Case::new(&MATMUL, name)
        .needs(tuning)
        .work(
            2.0 * (num_tokens * rows * columns) as f64,
            (quants + scales) as f64,
        )
        .packed(["w", "w_scales"], format, &raw, columns)
        .tensor(CaseTensor::u32(
            "x",
            &tuning.activations.dims(num_tokens, columns),
            &words,
        ));
    let call = Call {
        format,
        tuning,
        coop: None,
        kind,
        num_tokens,
        rows,
        columns,
        cut,
    };
    ending(case, call, heads, out, &mut data)
}

/// Heads of a case of queries, keys and values of about `rows` rows.
pub(super) fn heads_of(rows: usize, seed: u64) -> Heads {
    if rows == 960 {
        (9, 3, 64)
    } else {
        HEADS[seed as usize % HEADS.len()]
    }
}

/// About `rows` rows that suit an ending.
pub(super) fn rows_of(kind: Kind, rows: usize, heads: Heads) -> usize {
    match kind.ending {
        Ending::Store if !kind.bias => rows,
        Ending::Qkv(_) => (heads.0 + 2 * heads.1) * heads.2,
        _ => rows.next_multiple_of(kind.blocks() * BLOCK_ROWS),
    }
}
