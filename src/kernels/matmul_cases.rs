//! The matmul's cases: what it must compute, and what its bounds are.

use super::activations::Activations;
use super::case::{Case, CaseTensor, Data, U, dot_bound};
use super::matmul::{Kind, MATMUL, Norm, Out, record, reference};
use super::pack::records;
use super::rope::{self, RopeRows, pages_tensor, some_angles, some_slots};
use super::tuning::Tuning;
use crate::gpu::{Coop, DType, Recorder};
use crate::kernels::case::Tensors;
use crate::kernels::matmul_coop;
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE};
use crate::quant::{FORMATS, Format, GROUP, Shard, Weights};

const EPS: f32 = 1e-5;
/// Heads of a case of queries, keys and values: the last number is dims of a head.
const HEADS: [(usize, usize, usize); 4] = [(1, 1, 32), (3, 1, 40), (2, 2, 64), (5, 1, 96)];
/// Pages of its slab; slots are in pages 3 to 9.
const PAGES: usize = 10;

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

/// Every format, way to pass activations, way to share and join rows, and ending. Tiles take turns,
/// since a variant costs a compilation and a shape almost nothing.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut turn = 0;
    for format in FORMATS {
        for tuning in Tuning::all_for(format) {
            for kind in Kind::ALL {
                for shape in SHAPES[turn % SHAPES.len()] {
                    all.push(case(format, tuning, kind, shape, all.len() as u64));
                }
                turn += 1;
            }
            turn += 1; // so that an ending meets another tile in the next tuning
        }
    }
    all
}

/// The matrices of a small chat model, for one token and for a chunk of a prompt; and one that fills
/// no cache.
pub fn timings() -> Vec<Case> {
    let shapes = [
        (960, 576, Kind::Qkv(KvFormat::F16)),
        (576, 576, Kind::Residual),
        (3072, 576, Kind::Gated),
        (576, 1536, Kind::Residual),
        (49152, 576, Kind::Store { norm: true }),
        (8192, 4096, Kind::Store { norm: false }),
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
    (num_tokens, rows, columns): (usize, usize, usize),
    seed: u64,
) -> Case {
    let heads = heads_of(rows, seed);
    let rows = rows_of(kind, rows, heads);
    let mut data = Data::new(seed);
    let mut raw = data.normal(rows * columns);
    raw[0] = 60.0; // one outlier sets its group's scale
    raw[columns - 4..columns].fill(0.0);
    let (quants, scales) = format.pack_rows(&raw, columns);

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
    let out = scaled(tuning, kind, &sums, &squares, (rows, columns));

    let name = format!(
        "{} {num_tokens}x{rows}x{columns} {kind:?} {}",
        format.name,
        tuning.describe()
    );
    let mut case = Case::new(&MATMUL, name)
        .needs(tuning)
        .work(
            2.0 * (num_tokens * rows * columns) as f64,
            (quants.len() + scales.len()) as f64,
        )
        .tensor(CaseTensor::input("w", DType::I8, &[quants.len()], quants))
        .tensor(CaseTensor::u32(
            "x",
            &tuning.activations.dims(num_tokens, columns),
            &words,
        ));
    if !scales.is_empty() {
        let dims = [scales.len()];
        case = case.tensor(CaseTensor::input("w_scales", DType::I8, &dims, scales));
    }
    let call = Call {
        format,
        tuning,
        coop: None,
        kind,
        num_tokens,
        rows,
        columns,
    };
    ending(case, call, heads, out, &mut data)
}

/// Heads of a case: query heads, key heads, dims.
type Heads = (usize, usize, usize);

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
    match kind {
        Kind::Store { .. } => rows,
        Kind::Qkv(_) => (heads.0 + 2 * heads.1) * heads.2,
        Kind::Gated => rows.next_multiple_of(8),
        Kind::Residual => rows.next_multiple_of(4),
    }
}

/// `case` with the tensors of its ending, which must hold what becomes of `out`.
pub(super) fn ending(
    case: Case,
    call: Call,
    heads: Heads,
    out: Vec<(f64, f64)>,
    data: &mut Data,
) -> Case {
    match call.kind {
        Kind::Store { .. } => store(case, call, out),
        Kind::Qkv(kv) => qkv(case, call, kv, heads, &out, data),
        Kind::Gated => gated(case, call, &out),
        Kind::Residual => residual(case, call, &out, data),
    }
}

/// Joined sums times the factor of the norm, with bounds.
fn scaled(
    tuning: Tuning,
    kind: Kind,
    sums: &[(f64, f64)],
    squares: &[f32],
    (rows, columns): (usize, usize),
) -> Vec<(f64, f64)> {
    let (lanes, groups) = (tuning.lanes as usize, columns.div_ceil(GROUP));
    // of f32 activations a chain of 32 and a fold; of integers a product of scales and a fold
    let inside = match tuning.activations {
        Activations::F32 => GROUP,
        Activations::Q8 => 2,
    };
    let steps = inside + 3 + groups.div_ceil(lanes) + lanes.ilog2() as usize;
    let factors: Vec<f64> = squares
        .chunks(groups)
        .map(|s| {
            let sum: f64 = s.iter().map(|&s| f64::from(s)).sum();
            let mean = sum / columns as f64 + f64::from(EPS);
            if kind.has_norm() {
                1.0 / mean.sqrt()
            } else {
                1.0
            }
        })
        .collect();
    // the sum of squares, its mean and eps, and an inverse root good to 2 ulp, at half weight or whole
    let relative = if kind.has_norm() {
        (groups.div_ceil(8) + 3 + 8) as f64 * U
    } else {
        0.0
    };
    let of = |(i, &(sum, abs)): (usize, &(f64, f64))| {
        let factor = factors[i / rows];
        let value = sum * factor;
        let bound = dot_bound(steps, abs) * factor * (1.0 + relative);
        (value, bound + value.abs() * (relative + U))
    };
    sums.iter().enumerate().map(of).collect()
}

/// How a case is dispatched.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub format: &'static Format,
    pub tuning: Tuning,
    /// By cooperative matrices, from halved rows.
    pub coop: Option<Coop>,
    pub kind: Kind,
    pub num_tokens: usize,
    pub rows: usize,
    pub columns: usize,
}

impl Call {
    fn record(&self, rec: &mut Recorder, t: &Tensors, out: Out) {
        let scales = t.find("w_scales").cloned();
        let w = Weights {
            format: self.format,
            rows: self.rows,
            columns: self.columns,
            shards: vec![Shard::new(0, self.rows, t.get("w").clone(), scales)],
        };
        if let Some(coop) = self.coop {
            matmul_coop::record(rec, coop, &w, t.get("x"), self.num_tokens, out);
            return;
        }
        let norm = self.kind.has_norm().then_some(Norm { eps: EPS });
        record(
            rec,
            &self.tuning,
            &w,
            t.get("x"),
            self.num_tokens,
            norm,
            out,
        );
    }
}

fn store(case: Case, call: Call, out: Vec<(f64, f64)>) -> Case {
    let (values, bounds) = out.into_iter().unzip();
    let dims = [call.num_tokens, call.rows];
    case.tensor(CaseTensor::output_f32("y", &dims, values, bounds))
        .record(move |rec, t| call.record(rec, t, Out::Store { y: t.get("y") }))
}

fn residual(case: Case, call: Call, out: &[(f64, f64)], data: &mut Data) -> Case {
    let Call {
        num_tokens, rows, ..
    } = call;
    let before = data.normal(num_tokens * rows);
    let gamma = data.normal(rows);
    let sum = |(&(v, bound), &b): (&(f64, f64), &f32)| {
        let sum = v + f64::from(b);
        (sum, bound + U * sum.abs())
    };
    let hidden: Vec<(f64, f64)> = out.iter().zip(&before).map(sum).collect();
    let normed = hidden.iter().enumerate().map(|(i, &(h, bound))| {
        let g = f64::from(gamma[i % rows]);
        (h * g, bound * g.abs() + U * (h * g).abs())
    });
    let normed = normed.collect();
    let square = |group: &[(f64, f64)]| {
        let sum: f64 = group.iter().map(|(h, _)| h * h).sum();
        let moved: f64 = group.iter().map(|(h, b)| 2.0 * h.abs() * b + b * b).sum();
        (sum, moved + dot_bound(GROUP, sum))
    };
    let squares = hidden.chunks(rows).flat_map(|row| row.chunks(GROUP));
    let squares = squares.map(square).collect();
    let (values, bounds) = hidden.iter().copied().unzip();
    let act = call.tuning.activations;
    case.tensor(
        CaseTensor::output_f32("hidden", &[num_tokens, rows], values, bounds)
            .starting_as(bytemuck::cast_slice(&before).to_vec()),
    )
    .tensor(CaseTensor::f32("gamma", &[rows], &gamma))
    .tensor(records(
        "act_out",
        act,
        num_tokens,
        rows,
        normed,
        Some(squares),
    ))
    .record(move |rec, t| {
        let out = Out::Residual {
            hidden: t.get("hidden"),
            gamma: t.get("gamma"),
            act: t.get("act_out"),
        };
        call.record(rec, t, out);
    })
}

fn gated(case: Case, call: Call, out: &[(f64, f64)]) -> Case {
    let values = out.chunks_exact(8).flat_map(|pair| {
        let (gates, ups) = pair.split_at(4);
        let one = |(&(gate, gate_bound), &(up, up_bound)): (&(f64, f64), &(f64, f64))| {
            let silu = gate / (1.0 + (-gate).exp());
            // |silu'| <= 1.1; exp is good to 3 + 2 |x| ulp, and three more roundings follow
            let silu_error =
                1.1 * gate_bound + silu.abs() * (2.0 * (3.0 + 2.0 * gate.abs()) + 4.0) * U;
            let error = silu_error * up.abs() + (silu.abs() + silu_error) * up_bound;
            (silu * up, error + (silu * up).abs() * 2.0 * U + 1e-30)
        };
        gates.iter().zip(ups).map(one).collect::<Vec<_>>()
    });
    let act = call.tuning.activations;
    case.tensor(records(
        "act_out",
        act,
        call.num_tokens,
        call.rows / 2,
        values.collect(),
        None,
    ))
    .record(move |rec, t| {
        let act = t.get("act_out");
        call.record(rec, t, Out::Gated { act });
    })
}

fn qkv(
    case: Case,
    call: Call,
    kv: KvFormat,
    (num_heads, num_kv_heads, head_dim): Heads,
    out: &[(f64, f64)],
    data: &mut Data,
) -> Case {
    let num_tokens = call.num_tokens;
    let angles = some_angles(data, num_tokens * head_dim / 2);
    let slots = some_slots(data, num_tokens);
    let slots_at = 3;
    let rope_at = (slots_at + num_tokens + 2).next_multiple_of(4);
    let mut meta = vec![u32::MAX; rope_at];
    meta[slots_at..slots_at + num_tokens].copy_from_slice(&slots);
    meta.extend(angles.iter().flat_map(|&(c, s)| [c.to_bits(), s.to_bits()]));

    let mut q = Vec::new();
    let size = PAGES * num_kv_heads * PAGE_SIZE * head_dim;
    let mut pages = [vec![None; size], vec![None; size]];
    for (token, row) in out.chunks(call.rows).enumerate() {
        let angles = &angles[token * head_dim / 2..][..head_dim / 2];
        for (head, x) in row.chunks(head_dim).enumerate() {
            let is_value = head >= num_heads + num_kv_heads;
            let turned = if is_value {
                x.to_vec()
            } else {
                turn(x, angles)
            };
            if head < num_heads {
                q.extend(turned);
                continue;
            }
            let kv_head = (head - num_heads) % num_kv_heads;
            let (page, token_in_page) = (slots[token] as usize / 16, slots[token] as usize % 16);
            let at = ((page * num_kv_heads + kv_head) * PAGE_SIZE + token_in_page) * head_dim;
            for (i, element) in turned.into_iter().enumerate() {
                pages[usize::from(is_value)][at + i] = Some(element);
            }
        }
    }
    let (q_values, q_bounds) = q.into_iter().unzip();
    let q_dims = [num_tokens, num_heads * head_dim];
    let page_dims = [PAGES, num_kv_heads, PAGE_SIZE, head_dim];
    let [k, v] = pages;
    case.tensor(CaseTensor::u32("step_meta", &[meta.len()], &meta))
        .tensor(CaseTensor::output_f32("q", &q_dims, q_values, q_bounds))
        .tensor(pages_tensor("k", kv, page_dims, k))
        .tensor(pages_tensor("v", kv, page_dims, v))
        .record(move |rec, t| {
            let slab = KvSlab {
                first_page: 0,
                num_pages: PAGES,
                k: t.get("k").clone(),
                v: t.get("v").clone(),
            };
            let out = Out::Qkv {
                q: t.get("q"),
                slab: &slab,
                step_meta: t.get("step_meta"),
                rows: RopeRows { slots_at, rope_at },
            };
            call.record(rec, t, out);
        })
}

/// A head of values with bounds, rotated.
fn turn(x: &[(f64, f64)], angles: &[(f32, f32)]) -> Vec<(f64, f64)> {
    let rounded: Vec<f32> = x.iter().map(|v| v.0 as f32).collect();
    let (turned, abs) = rope::reference(&rounded, angles);
    let bound = |(i, (value, abs)): (usize, (f64, f64))| {
        let (own, other) = (x[i].1, x[i ^ 1].1);
        (value, own + other + 5.0 * U * abs + 1e-30)
    };
    turned.into_iter().zip(abs).enumerate().map(bound).collect()
}
