//! Causal attention by cooperative matrices, f16 operands with f32 sums, for steps of many tokens in
//! the fast mode (Dao et al., "FlashAttention", 2022).
//!
//! It leaves the numerics rule: the order inside of a chunk of keys is the hardware's, operands are
//! rounded, and short steps go another way. Items, partial results and outputs are those of
//! [`attention`](super::attention); its tiles are larger.

use super::activations::Activations;
use super::attention::{AttentionParams, AttentionShape, Items, MAX_HEAD_DIM};
use super::attention_coop_cases;
use super::attention_output::Output;
use super::attention_plan::Tiling;
use super::case::Case;
use super::twin::{self, Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Coop, Kernel, Part, Recorder, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab};
use crate::wgsl;
use exact::partial;
pub use exact::reference;

mod exact;

const PARTS: &[Part] = &[
    wgsl!("lib/softmax.wgsl"),
    wgsl!("lib/attention_items.wgsl"),
    wgsl!("attention_coop.wgsl", coop: true),
];

/// The kernel.
pub static ATTENTION_COOP: Kernel = Kernel::new::<AttentionParams>("attention_coop", PARTS);

/// How far wide heads leave room in workgroup memory.
struct Width {
    /// Dims up to which a head is taken by it.
    dims: usize,
    /// Rows of a workgroup, each with four invocations.
    rows: usize,
    part: Part,
}

static WIDTHS: [Width; 3] = [
    Width {
        dims: 64,
        rows: 32,
        part: wgsl!("attention/coop_dims_64.wgsl"),
    },
    Width {
        dims: 128,
        rows: 16,
        part: wgsl!("attention/coop_dims_128.wgsl"),
    },
    Width {
        dims: MAX_HEAD_DIM,
        rows: 16,
        part: wgsl!("attention/coop_dims_256.wgsl"),
    },
];

impl Width {
    fn of(head_dim: usize) -> &'static Width {
        WIDTHS
            .iter()
            .find(|width| head_dim <= width.dims)
            .expect("a part for every width")
    }

    /// Tiles of `tokens` for each key head.
    fn tiles(&self, shape: &AttentionShape, tokens: usize) -> usize {
        (tokens * shape.group()).div_ceil(self.rows)
    }
}

/// How a step's rows are cut into items.
pub fn tiling(shape: &AttentionShape) -> Tiling {
    let width = Width::of(shape.head_dim);
    let tile_teams = width.rows * 4 / 8;
    Tiling {
        tile_tokens: shape.whole_tiles(width.rows),
        narrow_tokens: 0,
        item_teams: shape.num_kv_heads * width.tiles(shape, 1) * tile_teams,
    }
}

/// Computes `items` of a plan by [`tiling`], as [`attention::record`](super::attention::record) does.
/// Records are of f32 activations. Values of an f32 cache beyond 65504 count as 65504.
#[expect(
    clippy::too_many_arguments,
    reason = "each is one tensor or one choice"
)]
pub fn record(
    rec: &mut Recorder,
    coop: Coop,
    shape: &AttentionShape,
    slab: &KvSlab,
    q: &Tensor,
    step_meta: &Tensor,
    items: Items,
    window: Option<usize>,
    partials: &Tensor,
    output: Output,
    out: &Tensor,
) {
    shape.check_tensors(slab, q, partials);
    output.check(Activations::F32, shape, out);
    let most = tiling(shape).tile_tokens;
    assert!(
        items.max_tokens <= most,
        "items of {} tokens",
        items.max_tokens
    );
    let tiles = Width::of(shape.head_dim).tiles(shape, items.max_tokens.max(1));
    let format = KvFormat::of(slab.k.dtype());
    rec.dispatch(
        &variant(coop.size, shape, format, output),
        &[
            (output.binding(), out),
            ("step_meta", step_meta),
            ("partials", partials),
            ("q", q),
            ("k", &slab.k),
            ("v", &slab.v),
        ],
        shape.params(slab, items, tiles, window),
        grid(items.count * shape.num_kv_heads * tiles),
    );
}

/// The variant; subgroups may have any size, since they take matrices in turn.
fn variant(size: u32, shape: &AttentionShape, format: KvFormat, output: Output) -> Variant {
    static SIZE_8: Part = wgsl!("attention/coop_8.wgsl");
    static SIZE_16: Part = wgsl!("attention/coop_16.wgsl");
    let variant = Variant::new(&ATTENTION_COOP)
        .part(format.part())
        .part(if size == 8 { &SIZE_8 } else { &SIZE_16 })
        .part(&Width::of(shape.head_dim).part)
        .part(shape.score_part());
    output
        .stores(Activations::F32, variant)
        .set("HEAD_DIM", shape.head_dim as u32)
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let format = KvFormat::of_variant(&call.variant);
    let whole = |q: &[f32], keys: &[f32], values: &[f32], scores| {
        let (out, bounds) = reference(q, keys, values, scores, format);
        out.into_iter().zip(bounds).collect()
    };
    let part =
        |q: &[f32], keys: &[f32], values: &[f32], scores| partial(q, keys, values, scores, format);
    twin::attention::pieces(call, whole, part)
}

/// Every size of matrices with every width, cache and output, with a cap and without.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for format in KvFormat::ALL {
        for size in attention_coop_cases::SIZES {
            for width in &WIDTHS {
                for (output, score_cap) in [
                    (Output::Rows, None),
                    (Output::Rows, Some(1.0)),
                    (Output::Records, None),
                    (Output::Records, Some(1.0)),
                ] {
                    let shape = AttentionShape {
                        num_heads: 1,
                        num_kv_heads: 1,
                        head_dim: width.dims,
                        scale: 1.0,
                        score_cap,
                    };
                    all.push(variant(size, &shape, format, output));
                }
            }
        }
    }
    all
}

/// See [`attention_coop_cases`].
pub fn cases() -> Vec<Case> {
    attention_coop_cases::cases()
}

/// See [`attention_coop_cases`].
pub fn timings() -> Vec<Case> {
    attention_coop_cases::timings()
}
