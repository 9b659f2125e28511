//! Matrix times activations, weights packed: `out[t, r] = factor[t] * sum_k w[r, k] * x[t, k] + bias[r]`,
//! then stored, rotated into the cache, gated, or added to the residual stream; where another matmul
//! follows, packed for it on the spot.
//!
//! One text for one token and for many: the number of tokens picks how many an invocation holds,
//! never the order of a sum. So single steps, chunks and whole prompts agree bit for bit.

use super::activations::Activations;
use super::case::Case;
use super::matmul_output::{Kind, Out, Values};
use super::twin::{self, Effort, Piece};
use super::{Tuning, matmul_cases};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::quant::{BLOCK_ROWS, FORMATS, Format, GROUP, Weights};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/matmul.wgsl`.
    pub struct MatmulParams {
        /// Rows of `x` and of the results in use.
        pub num_tokens: u32,
        /// Rows of the shard.
        pub num_rows: u32,
        /// Groups of 32 columns of the weights, the last padded.
        pub num_groups: u32,
        /// The shard's first row in the whole matrix.
        pub first_row: u32,
        /// Results of a token, over all shards.
        pub out_columns: u32,
        /// What the norm before it adds to the mean of squares.
        pub eps: f32,
        /// Columns the mean is of.
        pub norm_columns: f32,
        /// Where the tokens' slots begin in the step's metadata.
        pub slots_at: u32,
        /// Where the tokens' cosines and sines begin; a multiple of 4.
        pub rope_at: u32,
        /// Query heads.
        pub num_heads: u32,
        /// Key heads; as many value heads.
        pub num_kv_heads: u32,
        /// Dims of a head.
        pub head_dim: u32,
        /// Factor of what is added to the residual stream.
        pub scale: f32,
    }
}

const PARTS: &[Part] = &[wgsl!("matmul.wgsl")];

/// Tokens an invocation can hold, each with its part.
static TOKENS: [(usize, Part); 4] = [
    (1, wgsl!("matmul/tokens_1.wgsl")),
    (2, wgsl!("matmul/tokens_2.wgsl")),
    (4, wgsl!("matmul/tokens_4.wgsl")),
    (8, wgsl!("matmul/tokens_8.wgsl")),
];

/// The factor of a token without a norm and with one, which neighbours may share the work for.
pub(super) static NORM_NONE: Part = wgsl!("matmul/norm_none.wgsl");
pub(super) static NORM_RMS: Part = wgsl!("matmul/norm_rms.wgsl");
pub(super) static NORM_SHARE: Part = wgsl!("matmul/norm_rms_share.wgsl", subgroups: true);

/// The kernel.
pub static MATMUL: Kernel = Kernel::new::<MatmulParams>("matmul", PARTS);

/// The norm before a matmul, of which its input has the weights and the sums of squares in it.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// Added to the mean of squares.
    pub eps: f32,
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

/// `out` from the first `num_tokens` rows of `x`, records of `w.columns` columns. `bias`, `[w.rows]`, is added
/// after the norm's factor; `w.rows` is then a multiple of 4.
#[expect(
    clippy::too_many_arguments,
    reason = "what comes before the product, the product, and what comes after"
)]
pub fn record(
    rec: &mut Recorder,
    tuning: &Tuning,
    w: &Weights,
    x: &Tensor,
    num_tokens: usize,
    norm: Option<Norm>,
    bias: Option<&Tensor>,
    out: Out,
) {
    let kind = Kind::of(&out, norm, bias);
    let num_groups = w.columns.div_ceil(GROUP);
    let [x_rows, x_words] = x.dims();
    assert_eq!(
        x_words,
        num_groups * tuning.activations.record_words(),
        "words of x"
    );
    assert!(num_tokens <= x_rows, "{num_tokens} tokens of {x_rows}");
    let base = describe(&out, w, num_tokens, tuning.activations, norm, bias);
    let (tile_tokens, variant) = variant(tuning, w.format, num_tokens, kind);
    let units = (tuning.workgroup / tuning.lanes) as usize;
    let tile = [tile_tokens, units * BLOCK_ROWS * kind.blocks()];
    let tensors = [("x", x)].into_iter().chain(out.tensors());
    let tensors: Vec<_> = tensors.chain(bias.map(|b| ("bias", b))).collect();
    dispatch(rec, &variant, w, &tensors, base, tile);
}

/// Records a dispatch for each shard of `w`, by workgroups that have `tile` tokens and rows. `others` are the
/// tensors after its weights, and `base` is what [`describe`] tells.
pub(super) fn dispatch(
    rec: &mut Recorder,
    variant: &Variant,
    w: &Weights,
    others: &[(&str, &Tensor)],
    base: MatmulParams,
    [tile_tokens, tile_rows]: [usize; 2],
) {
    for shard in &w.shards {
        let [groups_x, groups_y, _] = grid(shard.rows.div_ceil(tile_rows));
        let params = MatmulParams {
            num_rows: shard.rows as u32,
            first_row: shard.first_row as u32,
            ..base
        };
        let mut tensors: Vec<(&str, &Tensor)> = shard.bindings().collect();
        tensors.extend(others);
        let groups_z = base.num_tokens.div_ceil(tile_tokens as u32);
        rec.dispatch(variant, &tensors, params, [groups_x, groups_y, groups_z]);
    }
}

/// Checks the shapes of `out`; the parameters, but for what a shard says.
pub(super) fn describe(
    out: &Out,
    w: &Weights,
    num_tokens: usize,
    activations: Activations,
    norm: Option<Norm>,
    bias: Option<&Tensor>,
) -> MatmulParams {
    if let Some(bias) = bias {
        assert_eq!(bias.shape(), [w.rows], "bias");
        assert!(w.rows.is_multiple_of(BLOCK_ROWS), "{} rows", w.rows);
    }
    let kind = Kind::of(out, norm, bias);
    let base = MatmulParams {
        num_tokens: num_tokens as u32,
        num_rows: 0,
        num_groups: w.columns.div_ceil(GROUP) as u32,
        first_row: 0,
        out_columns: kind.width(w.rows) as u32,
        eps: norm.map_or(0.0, |n| n.eps),
        norm_columns: w.columns as f32,
        slots_at: 0,
        rope_at: 0,
        num_heads: 0,
        num_kv_heads: 0,
        head_dim: 0,
        scale: 1.0,
    };
    let holds = |name: &str, tensor: &Tensor, width: usize| {
        let [rows, columns] = tensor.dims();
        assert!(
            columns == width && num_tokens <= rows,
            "{name} is {rows} x {columns} for {num_tokens} x {width}"
        );
    };
    match *out {
        Out::Store { y } => holds("y", y, w.rows),
        Out::Qkv { q, slab, rows, .. } => {
            let [_, num_kv_heads, _, head_dim] = slab.k.dims();
            let num_heads = w.rows / head_dim - 2 * num_kv_heads;
            holds("q", q, num_heads * head_dim);
            assert!(
                slab.first_page == 0
                    && rows.rope_at.is_multiple_of(4)
                    && head_dim.is_multiple_of(4),
                "slab from {}, angles at {}, head_dim {head_dim}",
                slab.first_page,
                rows.rope_at
            );
            return MatmulParams {
                slots_at: rows.slots_at as u32,
                rope_at: rows.rope_at as u32,
                num_heads: num_heads as u32,
                num_kv_heads: num_kv_heads as u32,
                head_dim: head_dim as u32,
                ..base
            };
        }
        Out::Gated { act, .. } => {
            let unit = kind.blocks() * BLOCK_ROWS;
            assert!(w.rows.is_multiple_of(unit), "{} rows", w.rows);
            let width = kind.width(w.rows);
            holds("act", act, activations.dims(1, width)[1]);
        }
        Out::Residual {
            hidden,
            gamma,
            act,
            scale,
        } => {
            assert!(w.rows.is_multiple_of(BLOCK_ROWS), "{} rows", w.rows);
            holds("hidden", hidden, w.rows);
            holds("act", act, activations.dims(1, w.rows)[1]);
            assert_eq!(gamma.shape(), [w.rows], "gamma");
            return MatmulParams { scale, ..base };
        }
    }
    base
}

/// Tokens an invocation holds for `num_tokens` of them, and the variant that does it.
fn variant(
    tuning: &Tuning,
    format: &'static Format,
    num_tokens: usize,
    kind: Kind,
) -> (usize, Variant) {
    let wanted = num_tokens.min(tuning.tile_tokens as usize);
    let (tile, tokens) = TOKENS
        .iter()
        .find(|(tile, _)| *tile >= wanted)
        .expect("a tile of at most 8 tokens");
    let mut variant = Variant::new(&MATMUL);
    for part in format.parts(tuning.wide) {
        variant = variant.part(part);
    }
    for part in shared_parts(tuning) {
        variant = variant.part(part);
    }
    static VALUES: Values = Values {
        plain: wgsl!("matmul/value_plain.wgsl"),
        swiglu: wgsl!("matmul/value_swiglu.wgsl"),
        geglu: wgsl!("matmul/value_geglu.wgsl"),
        gelu: wgsl!("matmul/value_gelu.wgsl"),
    };
    variant = variant.part(tokens).part(match kind.norm {
        false => &NORM_NONE,
        true if tuning.shares() => &NORM_SHARE,
        true => &NORM_RMS,
    });
    variant = kind.ending(variant, &VALUES, tuning.activations);
    if kind.writes_records() {
        variant = tuning.team(variant, tuning.workgroup / tuning.lanes);
    }
    let variant = variant
        .set("LANES", tuning.lanes)
        .set("WG", tuning.workgroup);
    (*tile, variant)
}

/// How products are made, how activations get in, and how lanes are joined.
fn shared_parts(tuning: &Tuning) -> [&'static Part; 4] {
    static LANES_SHARED: Part = wgsl!("lib/lanes.wgsl");
    static LANES_SUBGROUP: Part = wgsl!("lib/lanes_subgroup.wgsl", subgroups: true);
    static DOT_FLOAT: Part = wgsl!("matmul/dot_float.wgsl");
    static DOT_INT: Part = wgsl!("matmul/dot_int.wgsl");
    static FLOAT_LOAD: Part = wgsl!("matmul/x_float_load.wgsl");
    static FLOAT_SHARE: Part = wgsl!("matmul/x_float_share.wgsl", subgroups: true);
    static INT_LOAD: Part = wgsl!("matmul/x_int_load.wgsl");
    static INT_SHARE: Part = wgsl!("matmul/x_int_share.wgsl", subgroups: true);
    let (dot, [load, share]) = match tuning.activations {
        Activations::F32 => (&DOT_FLOAT, [&FLOAT_LOAD, &FLOAT_SHARE]),
        Activations::Q8 => (&DOT_INT, [&INT_LOAD, &INT_SHARE]),
    };
    let lanes = if tuning.subgroups && tuning.lanes > 1 {
        &LANES_SUBGROUP
    } else {
        &LANES_SHARED
    };
    let x = if tuning.shares() { share } else { load };
    [tuning.activations.part(), dot, x, lanes]
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, effort: Effort) -> Result<Vec<Piece>> {
    twin::matmul::canonical(call, effort)
}

/// Every format, tile and way to join lanes, with every ending that is common; with the others, whose texts
/// have nothing to do with the tile, in one tile each, and in that of their cases in shards.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for format in FORMATS {
        for tuning in Tuning::all_for(format) {
            for (tile, _) in &TOKENS {
                all.extend(Kind::COMMON.map(|kind| variant(&tuning, format, *tile, kind).1));
            }
        }
        for rare in matmul_cases::rare(format) {
            let (tile, _) = TOKENS[rare.tile];
            all.push(variant(&rare.tuning, format, tile, rare.kind).1);
        }
        for tuning in matmul_cases::in_shards(format) {
            let tokens = matmul_cases::IN_SHARDS.0;
            all.extend(Kind::RARE.map(|kind| variant(&tuning, format, tokens, kind).1));
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
