//! Matrix times activations, weights packed: `out[t, r] = sum_k w[r, k] * x[t, k]`, then stored,
//! added to the residual stream, or gated.
//!
//! One text for one token and for many: the number of tokens picks how many an invocation holds,
//! never the order of a sum. So single steps, chunks and whole prompts agree bit for bit.

use super::Tuning;
use super::case::{Case, CaseTensor, Data, U, dot_bound};
use crate::gpu::recorder::grid;
use crate::gpu::{DType, Kernel, Part, Recorder, Tensor, Variant};
use crate::quant::{BLOCK_ROWS, FORMATS, Format, GROUP, Shard, Weights};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/matmul.wgsl`.
    pub struct MatmulParams {
        /// Rows of `x` and `y` in use.
        pub num_tokens: u32,
        /// Rows of the shard.
        pub num_rows: u32,
        /// Columns of the weights.
        pub columns: u32,
        /// Elements between tokens of `x`, a multiple of 4.
        pub x_stride: u32,
        /// Elements between tokens of `y`.
        pub y_stride: u32,
        /// The shard's first row in the whole matrix.
        pub first_row: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("matmul.wgsl")];
static LANES_SHARED: Part = wgsl!("lib/lanes.wgsl");
static LANES_SUBGROUP: Part = wgsl!("lib/lanes_subgroup.wgsl", subgroups: true);

static X_LOAD: Part = wgsl!("matmul/x_load.wgsl");
static X_BROADCAST: Part = wgsl!("matmul/x_broadcast.wgsl", subgroups: true);

/// Tokens an invocation can hold, each with its part.
static TOKENS: [(usize, Part); 4] = [
    (1, wgsl!("matmul/tokens_1.wgsl")),
    (2, wgsl!("matmul/tokens_2.wgsl")),
    (4, wgsl!("matmul/tokens_4.wgsl")),
    (8, wgsl!("matmul/tokens_8.wgsl")),
];

/// Tokens an invocation holds when there are more than it can hold: more would spill registers.
const TILE_TOKENS: usize = 4;

/// The kernel.
pub static MATMUL: Kernel = Kernel::new::<MatmulParams>("matmul", PARTS);

/// What becomes of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// `y = out`.
    Store,
    /// `y += out`.
    Add,
    /// `y[i] = silu(out[2 i]) * out[2 i + 1]`: rows alternate between gate and up.
    SwiGlu,
}

impl Epilogue {
    const ALL: [Epilogue; 3] = [Epilogue::Store, Epilogue::Add, Epilogue::SwiGlu];

    fn part(self) -> &'static Part {
        static STORE: Part = wgsl!("matmul/store.wgsl");
        static ADD: Part = wgsl!("matmul/add.wgsl");
        static SWIGLU: Part = wgsl!("matmul/swiglu.wgsl");
        match self {
            Epilogue::Store => &STORE,
            Epilogue::Add => &ADD,
            Epilogue::SwiGlu => &SWIGLU,
        }
    }

    fn width(self, rows: usize) -> usize {
        if self == Epilogue::SwiGlu {
            rows / 2
        } else {
            rows
        }
    }
}

/// The CPU twin in f64 over `w: [rows, columns]` as the device sees it: results, and for each the
/// sum of `|w x|` that its bound needs.
pub fn reference(w: &[f32], x: &[f32], columns: usize) -> Vec<(f64, f64)> {
    x.chunks(columns)
        .flat_map(|x| {
            w.chunks(columns).map(move |w| {
                let products = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                products.fold((0.0, 0.0), |(sum, abs), p| (sum + p, abs + p.abs()))
            })
        })
        .collect()
}

/// `y` from the first `num_tokens` rows of `x: [.., columns]`; `y: [.., rows]`, or half as wide gated.
pub fn record(
    rec: &mut Recorder,
    tuning: &Tuning,
    w: &Weights,
    x: &Tensor,
    num_tokens: usize,
    epilogue: Epilogue,
    y: &Tensor,
) {
    let [x_rows, x_columns] = x.dims();
    let [y_rows, y_columns] = y.dims();
    assert_eq!(x_columns, w.columns, "columns of x");
    assert_eq!(y_columns, epilogue.width(w.rows), "columns of y");
    assert!(
        num_tokens <= x_rows && num_tokens <= y_rows,
        "{num_tokens} tokens of {x_rows} and {y_rows}"
    );
    assert!(w.columns.is_multiple_of(4), "{} columns", w.columns);
    assert!(
        epilogue != Epilogue::SwiGlu || w.rows.is_multiple_of(2),
        "{} gated rows",
        w.rows
    );
    if num_tokens == 0 {
        return;
    }
    let (tile, variant) = variant(tuning, w.format, w.columns, num_tokens, epilogue);
    let blocks_per_workgroup = (tuning.workgroup / tuning.lanes) as usize;
    for shard in &w.shards {
        let [groups_x, groups_y, _] = grid(shard.rows.div_ceil(BLOCK_ROWS * blocks_per_workgroup));
        let params = MatmulParams {
            num_tokens: num_tokens as u32,
            num_rows: shard.rows as u32,
            columns: w.columns as u32,
            x_stride: x_columns as u32,
            y_stride: y_columns as u32,
            first_row: shard.first_row as u32,
        };
        let mut tensors: Vec<(&str, &Tensor)> = shard.bindings().collect();
        tensors.extend([("x", x), ("y", y)]);
        rec.dispatch(
            &variant,
            &tensors,
            params,
            [groups_x, groups_y, num_tokens.div_ceil(tile) as u32],
        );
    }
}

/// Tokens an invocation holds for `num_tokens` of them, and the variant that does it.
fn variant(
    tuning: &Tuning,
    format: &'static Format,
    columns: usize,
    num_tokens: usize,
    epilogue: Epilogue,
) -> (usize, Variant) {
    let wanted = if num_tokens > 8 {
        TILE_TOKENS
    } else {
        num_tokens
    };
    let (tile, tokens) = TOKENS
        .iter()
        .find(|(tile, _)| *tile >= wanted)
        .expect("a tile for 8 tokens");
    let lanes = match tuning.subgroups {
        true if tuning.lanes > 1 => &LANES_SUBGROUP,
        _ => &LANES_SHARED,
    };
    let activations = match tuning.subgroups {
        true if tuning.lanes == 1 => &X_BROADCAST,
        _ => &X_LOAD,
    };
    let variant = Variant::new(&MATMUL)
        .part(&format.part)
        .part(lanes)
        .part(tokens)
        .part(activations)
        .part(epilogue.part())
        .set("LANES", tuning.lanes)
        .set("WG", tuning.workgroup)
        .set("RAGGED", u32::from(!columns.is_multiple_of(GROUP)));
    (*tile, variant)
}

fn tunings() -> Vec<Tuning> {
    let shared = [1, 8, 32].map(|lanes| Tuning {
        lanes,
        workgroup: 8 * lanes,
        subgroups: false,
    });
    let subgroup = [1, 4, 8].map(|lanes| Tuning {
        lanes,
        workgroup: 8 * lanes,
        subgroups: true,
    });
    shared.into_iter().chain(subgroup).collect()
}

/// Every format, tile, epilogue and way to join lanes.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for format in FORMATS {
        for tuning in tunings() {
            for (tile, _) in &TOKENS {
                for epilogue in Epilogue::ALL {
                    all.push(variant(&tuning, format, GROUP, *tile, epilogue).1);
                }
            }
            all.push(variant(&tuning, format, GROUP + 4, 1, Epilogue::Store).1);
        }
    }
    all
}

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
