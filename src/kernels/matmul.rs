//! Matrix times activations, weights packed: `out[t, r] = sum_k w[r, k] * x[t, k]`, then stored,
//! added to the residual stream, or gated.
//!
//! One text for one token and for many: the number of tokens picks how many an invocation holds,
//! never the order of a sum. So single steps, chunks and whole prompts agree bit for bit.

use super::case::Case;
use super::{Tuning, matmul_cases};
use crate::gpu::recorder::grid;
use crate::gpu::{Kernel, Part, Recorder, Tensor, Variant};
use crate::quant::{BLOCK_ROWS, FORMATS, Format, GROUP, Weights};
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
    pub(super) const ALL: [Epilogue; 3] = [Epilogue::Store, Epilogue::Add, Epilogue::SwiGlu];

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

    pub(super) fn width(self, rows: usize) -> usize {
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

/// Every way to share and join rows.
pub(super) fn tunings() -> Vec<Tuning> {
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

/// What it must do.
pub fn cases() -> Vec<Case> {
    matmul_cases::cases()
}

/// Shapes of a real model.
pub fn timings() -> Vec<Case> {
    matmul_cases::timings()
}
