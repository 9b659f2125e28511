//! The matmul's cases: what it must compute, and what its bounds are.

use super::Tuning;
use super::case::{Case, CaseTensor, Data, U, dot_bound};
use super::matmul::{Epilogue, MATMUL, record, reference, tunings};
use crate::gpu::DType;
use crate::quant::{FORMATS, Format, GROUP, Shard, Weights};

/// Ragged first: rows and columns around blocks and groups, 1 to 9 tokens and a tile; then shapes of
/// real models. Each shape runs in every format; lanes and epilogues take turns, since a variant
/// costs a compilation.
pub fn cases() -> Vec<Case> {
    let shapes: [(usize, usize, usize); 16] = [
        (1, 1, 4),
        (1, 3, 32),
        (1, 5, 36),
        (2, 31, 64),
        (3, 33, 60),
        (4, 4, 96),
        (5, 130, 100),
        (6, 64, 1028),
        (7, 66, 32),
        (8, 34, 288),
        (9, 70, 160),
        (1, 257, 576),
        (15, 64, 128),
        (17, 100, 68),
        (33, 32, 64),
        (1, 1536, 576),
    ];
    let mut all = Vec::new();
    for (f, format) in FORMATS.iter().enumerate() {
        for (i, &shape) in shapes.iter().enumerate() {
            // two of the tunings for each shape, so that each meets each tile, in both formats
            for j in [i + f, i + f + 2] {
                let tuning = tunings()[j % tunings().len()];
                all.push(case(
                    format,
                    tuning,
                    Epilogue::ALL[(i + j) % 3],
                    shape,
                    i as u64,
                ));
            }
        }
        let wide = Tuning {
            lanes: 8,
            workgroup: 256,
            subgroups: false,
        };
        all.push(case(format, wide, Epilogue::Store, (3, 577, 96), 77));
    }
    all
}

/// The matrices of a small chat model, for one token and for a chunk of a prompt.
pub fn timings() -> Vec<Case> {
    let shapes = [
        (960, 576, Epilogue::Store),
        (576, 576, Epilogue::Add),
        (3072, 576, Epilogue::SwiGlu),
        (576, 1536, Epilogue::Add),
        (49152, 576, Epilogue::Store),
    ];
    let tuning = Tuning {
        lanes: 1,
        workgroup: 8,
        subgroups: true,
    };
    let mut all = Vec::new();
    for format in FORMATS {
        for (rows, columns, epilogue) in shapes {
            for num_tokens in [1, 8, 64] {
                if num_tokens < 64 || rows < 10_000 {
                    all.push(case(
                        format,
                        tuning,
                        epilogue,
                        (num_tokens, rows, columns),
                        1,
                    ));
                }
            }
        }
    }
    all
}

fn case(
    format: &'static Format,
    tuning: Tuning,
    epilogue: Epilogue,
    (num_tokens, rows, columns): (usize, usize, usize),
    seed: u64,
) -> Case {
    // gated rows come in pairs
    let rows = if epilogue == Epilogue::SwiGlu {
        rows.next_multiple_of(2)
    } else {
        rows
    };
    let mut data = Data::new(seed);
    let mut raw = data.normal(rows * columns);
    raw[0] = 60.0; // one outlier sets its group's scale
    raw[columns - 4..columns].fill(0.0);
    let x = data.normal(num_tokens * columns);
    let before = data.normal(num_tokens * epilogue.width(rows));
    let (quants, scales) = format.pack_rows(&raw, columns);

    let out = reference(&format.round_trip(&raw, columns), &x, columns);
    let lanes = tuning.lanes as usize;
    let steps = 8 + 3 + columns.div_ceil(GROUP * lanes) + lanes.ilog2() as usize;
    let (expected, bound) = expect(epilogue, &out, steps, &before);

    let width = epilogue.width(rows);
    let subgroup = if tuning.subgroups {
        tuning.subgroup_needed()
    } else {
        0
    };
    let how = format!(
        "{} {num_tokens}x{rows}x{columns} {epilogue:?} lanes={}",
        format.name, tuning.lanes
    );
    let mut y = CaseTensor::output_f32("y", &[num_tokens, width], expected, bound);
    if epilogue == Epilogue::Add {
        y = y.starting_as(bytemuck::cast_slice(&before).to_vec());
    }
    let mut case = Case::new(
        &MATMUL,
        if tuning.subgroups {
            how + " subgroup"
        } else {
            how
        },
    )
    .needs_subgroup(subgroup)
    .work(
        2.0 * (num_tokens * rows * columns) as f64,
        (quants.len() + scales.len()) as f64,
    )
    .tensor(CaseTensor::input("w", DType::I8, &[quants.len()], quants))
    .tensor(CaseTensor::f32("x", &[num_tokens, columns], &x))
    .tensor(y);
    if !scales.is_empty() {
        case = case.tensor(CaseTensor::input(
            "w_scales",
            DType::I8,
            &[scales.len()],
            scales,
        ));
    }
    case.record(move |rec, t| {
        let shard = Shard::new(0, rows, t.get("w").clone(), t.find("w_scales").cloned());
        let w = Weights {
            format,
            rows,
            columns,
            shards: vec![shard],
        };
        record(
            rec,
            &tuning,
            &w,
            t.get("x"),
            num_tokens,
            epilogue,
            t.get("y"),
        );
    })
}

/// What the epilogue makes of exact results, and the bound of each element.
fn expect(
    epilogue: Epilogue,
    out: &[(f64, f64)],
    steps: usize,
    before: &[f32],
) -> (Vec<f64>, Vec<f64>) {
    match epilogue {
        Epilogue::Store => out
            .iter()
            .map(|&(v, abs)| (v, dot_bound(steps, abs)))
            .unzip(),
        Epilogue::Add => out
            .iter()
            .zip(before)
            .map(|(&(v, abs), &b)| {
                (
                    v + f64::from(b),
                    dot_bound(steps, abs) + U * (v + f64::from(b)).abs(),
                )
            })
            .unzip(),
        Epilogue::SwiGlu => out
            .chunks_exact(2)
            .map(|pair| {
                let [(gate, gate_abs), (up, up_abs)] = [pair[0], pair[1]];
                let silu = gate / (1.0 + (-gate).exp());
                // |silu'| <= 1.1; exp is good to 3 + 2 |x| ulp, and three more roundings follow
                let silu_error = 1.1 * dot_bound(steps, gate_abs)
                    + silu.abs() * (2.0 * (3.0 + 2.0 * gate.abs()) + 4.0) * U;
                let error =
                    silu_error * up.abs() + (silu.abs() + silu_error) * dot_bound(steps, up_abs);
                (silu * up, error + (silu * up).abs() * 2.0 * U + 1e-30)
            })
            .unzip(),
    }
}
