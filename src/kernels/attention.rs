//! Causal attention over paged keys and values, with an online softmax (Milakov and Gimelshein,
//! "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
//!
//! One kernel for single tokens, chunks and whole prompts: a row of the result depends on its
//! position and the cache, never on the items that [`attention_plan`](super::attention_plan) makes.

use super::attention_output::Output;
use super::attention_plan::Tiling;
use super::case::{Case, U, dot_bound};
use super::twin::{self, Effort, Piece};
use super::{Tuning, attention_cases};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/attention.wgsl`.
    pub struct AttentionParams {
        /// Where the items begin in the step's metadata.
        pub items_at: u32,
        /// How many there are.
        pub num_items: u32,
        /// Query heads.
        pub num_heads: u32,
        /// Key heads.
        pub num_kv_heads: u32,
        /// Tiles of an item for each key head.
        pub tiles: u32,
        /// The slab's first page.
        pub first_page: u32,
        /// The slab's pages.
        pub num_pages: u32,
        /// Factor of the queries, with log2(e) for the exp2 that follows.
        pub scale_log2e: f32,
    }
}

const PARTS: &[Part] = &[
    wgsl!("lib/softmax.wgsl"),
    wgsl!("lib/attention_items.wgsl"),
    wgsl!("attention.wgsl"),
];

/// The kernel.
pub static ATTENTION: Kernel = Kernel::new::<AttentionParams>("attention", PARTS);

/// Rows that a team can hold, each with its part.
static ROWS: [(usize, Part); 2] = [
    (4, wgsl!("attention/rows_4.wgsl")),
    (8, wgsl!("attention/rows_8.wgsl")),
];
/// Dims up to which a member holds one, two or four octs of a row.
static DIMS: [(usize, Part); 3] = [
    (64, wgsl!("attention/dims_64.wgsl")),
    (128, wgsl!("attention/dims_128.wgsl")),
    (256, wgsl!("attention/dims_256.wgsl")),
];

/// The widest head.
pub const MAX_HEAD_DIM: usize = 256;

/// What stays the same over all steps of a model.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads, a multiple of `num_kv_heads`.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Dims of a head: a multiple of 8 up to [`MAX_HEAD_DIM`].
    pub head_dim: usize,
    /// Factor of the scores, commonly `1 / sqrt(head_dim)`.
    pub scale: f32,
}

impl AttentionShape {
    /// Query heads of a key head.
    pub(super) fn group(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// The dims that members hold together, an index into [`DIMS`].
    fn dims(&self) -> usize {
        DIMS.iter()
            .position(|(dims, _)| self.head_dim <= *dims)
            .expect("a part for every width")
    }

    /// Rows of a tile where an item has up to `tokens`, an index into [`ROWS`]: as few as hold a
    /// token's rows, else the widest; wide heads leave room for few.
    fn rows(&self, tokens: usize) -> usize {
        usize::from(tokens * self.group() > ROWS[0].0 && self.dims() == 0)
    }

    /// How a step's rows are cut into items.
    pub fn tiling(&self) -> Tiling {
        Tiling {
            tile_tokens: self.whole_tiles(ROWS[self.rows(ROWS[1].0)].0),
            narrow_tokens: ROWS[0].0 / self.group(),
            item_teams: self.num_kv_heads * self.tiles(1),
        }
    }

    /// The fewest tokens that fill whole tiles of `tile_rows` rows.
    pub(super) fn whole_tiles(&self, tile_rows: usize) -> usize {
        let (mut rows, mut group) = (tile_rows, self.group());
        while group > 0 {
            (rows, group) = (group, rows % group);
        }
        tile_rows / rows
    }

    /// Tiles of an item of up to `tokens`, for each key head.
    fn tiles(&self, tokens: usize) -> usize {
        (tokens * self.group()).div_ceil(ROWS[self.rows(tokens)].0)
    }

    /// Rows that the tiles of an item of `tokens` have for each key head, those that are only filled up
    /// included: what is computed.
    pub fn padded_rows(&self, tokens: usize) -> usize {
        self.tiles(tokens) * ROWS[self.rows(tokens)].0
    }

    /// The shape of a tensor for `slots` partial results.
    pub fn partials_dims(&self, slots: usize) -> [usize; 3] {
        [slots, self.num_heads, self.head_dim + 4]
    }

    /// The parameters of `items`, each of `tiles` tiles for a key head.
    pub(super) fn params(&self, slab: &KvSlab, items: Items, tiles: usize) -> AttentionParams {
        AttentionParams {
            items_at: items.at as u32,
            num_items: items.count as u32,
            num_heads: self.num_heads as u32,
            num_kv_heads: self.num_kv_heads as u32,
            tiles: tiles as u32,
            first_page: slab.first_page,
            num_pages: slab.num_pages as u32,
            scale_log2e: (f64::from(self.scale) * std::f64::consts::LOG2_E) as f32,
        }
    }

    /// Asserts that tensors have this shape.
    pub(super) fn check_tensors(&self, slab: &KvSlab, q: &Tensor, partials: &Tensor) {
        self.check();
        let slab_dims = [slab.num_pages, self.num_kv_heads, PAGE_SIZE, self.head_dim];
        assert_eq!(slab.k.dims(), slab_dims, "shape of the slab");
        assert_eq!(slab.v.dims(), slab_dims, "shape of the slab");
        let [_, width] = q.dims();
        assert_eq!(width, self.num_heads * self.head_dim, "columns of q");
        let [slots, ..] = partials.dims::<3>();
        assert_eq!(partials.dims(), self.partials_dims(slots), "partials");
    }

    pub(super) fn check(&self) {
        assert!(
            self.num_kv_heads > 0 && self.num_heads.is_multiple_of(self.num_kv_heads),
            "{} heads over {} key heads",
            self.num_heads,
            self.num_kv_heads
        );
        assert!(
            self.head_dim > 0 && self.head_dim <= MAX_HEAD_DIM && self.head_dim.is_multiple_of(8),
            "head_dim {}",
            self.head_dim
        );
    }
}

/// A list of items in the step's metadata.
#[derive(Clone, Copy, Debug)]
pub struct Items {
    /// Its first word.
    pub at: usize,
    /// How many there are.
    pub count: usize,
    /// The most tokens of one, at most [`Tiling::tile_tokens`].
    pub max_tokens: usize,
}

/// The CPU twin for one row: `q` (`[head_dim]`) against `keys` and `values` (`[num_keys, head_dim]`
/// as the device sees them), in f64. The result and how far each of its elements may be off.
///
/// With `d_j` the absolute error of score j in nats, the weight of j is off by a factor of about
/// `1 + d_j + e_j`, where `e_j` is exp2's own error and that of the later rescalings; the result is
/// then off by at most `2 max|v| sum_j w_j (d_j + e_j)`, plus what the sums round.
pub fn reference(q: &[f32], keys: &[f32], values: &[f32], scale: f64) -> (Vec<f64>, f64) {
    let state = State::of(q, keys, values, scale);
    let bound = 2.0 * state.max_value * (state.off / state.sum + state.rounding) + 1e-30;
    let out = state.out.iter().map(|out| out / state.sum);
    (out.collect(), bound)
}

/// The CPU twin of a partial result: unnormalised dims, then the largest score in the domain of exp2, the
/// sum of weights, 0 and 0, each with its bound. A device that finds the largest score off by `t` nats has
/// all weights off by a factor of about `1 + t` more. There may be no keys.
pub(super) fn partial(q: &[f32], keys: &[f32], values: &[f32], scale: f64) -> Vec<(f64, f64)> {
    if keys.is_empty() {
        return empty_partial(q.len());
    }
    let state = State::of(q, keys, values, scale);
    let off = 2.0 * (state.off + (state.rounding + state.top_off) * state.sum);
    let top = state.top * std::f64::consts::LOG2_E;
    let top_bound = state.top_off * std::f64::consts::LOG2_E + 2.0 * U * top.abs();
    let dims = state
        .out
        .iter()
        .map(|&out| (out, off * state.max_value + 1e-30));
    dims.chain([(top, top_bound), (state.sum, off), (0.0, 0.0), (0.0, 0.0)])
        .collect()
}

/// The partial result of a row that sees none of a split's keys.
pub(super) fn empty_partial(dim: usize) -> Vec<(f64, f64)> {
    let mut all = vec![(0.0, 0.0); dim + 4];
    all[dim].0 = f64::from(-1e30f32);
    all
}

/// What is exact about a row: its largest score and how far that may be off, both in nats, and of weights
/// that are at most 1 the sum, the sum times values, and how far they may be off together.
struct State {
    top: f64,
    top_off: f64,
    sum: f64,
    off: f64,
    max_value: f64,
    /// What sums round, as a share of them.
    rounding: f64,
    out: Vec<f64>,
}

impl State {
    fn of(q: &[f32], keys: &[f32], values: &[f32], scale: f64) -> State {
        let dim = q.len();
        let dots: Vec<(f64, f64)> = super::matmul::reference(keys, q, dim);
        let top = dots.iter().map(|d| d.0 * scale).fold(f64::MIN, f64::max);
        let num_keys = dots.len();
        let rescalings =
            (num_keys.div_ceil(PAGE_SIZE) + num_keys.div_ceil(crate::kv::SPLIT_SIZE)) as f64;
        let (mut sum, mut off, mut max_value, mut top_off) = (0.0, 0.0, 0.0f64, 0.0f64);
        let mut out = vec![0.0; dim];
        for ((dot, abs), value) in dots.iter().zip(values.chunks(dim)) {
            let below = (top - dot * scale) * std::f64::consts::LOG2_E;
            let weight = (-below).exp2();
            let score_error = scale.abs() * (dot_bound(dim + 2, *abs));
            top_off = top_off.max(score_error);
            // exp2 is good to 3 + 2 |x| ulp, once for the weight and once for each rescaling
            let exp2_error = 2.0 * U * (3.0 * (1.0 + rescalings) + 4.0 * below) + 2.0 * U * below;
            sum += weight;
            off += weight * (score_error + exp2_error);
            for (out, &v) in out.iter_mut().zip(value) {
                *out += weight * f64::from(v);
                max_value = max_value.max(f64::from(v).abs());
            }
        }
        State {
            top,
            top_off,
            sum,
            off,
            max_value,
            rounding: 2.0 * (num_keys as f64 + 2.0 * rescalings + 4.0) * U,
            out,
        }
    }
}

/// Computes `items`, all of whose pages are in `slab`: from `q: [.., num_heads * head_dim]` into
/// `out`, as `output` tells, or for items that are partial into `partials`
/// ([`AttentionShape::partials_dims`]). Without items the kernel is only made ready: a sequence may
/// reach this slab while it decodes.
#[expect(
    clippy::too_many_arguments,
    reason = "each is one tensor or one choice"
)]
pub fn record(
    rec: &mut Recorder,
    tuning: &Tuning,
    shape: &AttentionShape,
    slab: &KvSlab,
    q: &Tensor,
    step_meta: &Tensor,
    items: Items,
    partials: &Tensor,
    output: Output,
    out: &Tensor,
) {
    shape.check_tensors(slab, q, partials);
    output.check(tuning.activations, shape, out);
    assert!(
        items.max_tokens <= shape.tiling().tile_tokens,
        "items of {} tokens",
        items.max_tokens
    );
    let (teams, variant) = variant(
        tuning,
        shape,
        items.max_tokens,
        KvFormat::of(slab.k.dtype()),
        output,
    );
    let params = shape.params(slab, items, shape.tiles(items.max_tokens.max(1)));
    let tiles = items.count * shape.num_kv_heads * params.tiles as usize;
    rec.dispatch(
        &variant,
        &[
            (output.binding(), out),
            ("step_meta", step_meta),
            ("partials", partials),
            ("q", q),
            ("k", &slab.k),
            ("v", &slab.v),
        ],
        params,
        grid(tiles.div_ceil(teams)),
    );
}

/// The variant for items of up to `tokens`, and the teams of its workgroups: one on software
/// adapters, else as many as workgroup memory holds, up to eight.
fn variant(
    tuning: &Tuning,
    shape: &AttentionShape,
    tokens: usize,
    format: KvFormat,
    output: Output,
) -> (usize, Variant) {
    let (rows, rows_part) = &ROWS[shape.rows(tokens)];
    let (dims, dims_part) = &DIMS[shape.dims()];
    // places: queries, then a page's largest scores and two keys' weights, four rows to a vec4
    let places = rows / 4 * (dims / 8 + 3);
    let teams = match tuning.lanes {
        1 => 1,
        _ => [8, 4, 2, 1]
            .into_iter()
            .find(|teams| teams * 8 * 16 * (places + 1) <= 15 * 1024)
            .expect("one team fits"),
    };
    let variant = Variant::new(&ATTENTION)
        .part(format.part())
        .part(rows_part)
        .part(dims_part);
    let variant = output.parts(tuning, teams as u32 * 8, variant);
    let variant = match tuning.shares() {
        true => variant,
        false => variant.set("TEAM_KEPT", (teams * 8 * places) as u32),
    };
    (teams, variant.set("HEAD_DIM", shape.head_dim as u32))
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let whole = |q: &[f32], keys: &[f32], values: &[f32], scale| {
        let (out, bound) = reference(q, keys, values, scale);
        out.into_iter().map(|value| (value, bound)).collect()
    };
    twin::attention::pieces(call, whole, partial)
}

/// Every way to store the cache with every number of rows and dims, team, and output.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for format in KvFormat::ALL {
        for (head_dim, tokens) in [(64, 1), (64, 8), (128, 1), (256, 1)] {
            for tuning in super::attention_output::tunings() {
                for output in [Output::Rows, Output::Records] {
                    let shape = AttentionShape {
                        num_heads: 3,
                        num_kv_heads: 1,
                        head_dim,
                        scale: 1.0,
                    };
                    all.push(variant(&tuning, &shape, tokens, format, output).1);
                }
            }
        }
    }
    all
}

/// See [`attention_cases`].
pub fn cases() -> Vec<Case> {
    attention_cases::attention()
}

/// See [`attention_cases`].
pub fn timings() -> Vec<Case> {
    attention_cases::timings()
}
