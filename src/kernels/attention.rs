//! Causal attention over paged keys and values, with an online softmax (Milakov and Gimelshein,
//! "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
//!
//! One kernel for single tokens, chunks and whole prompts: a row of the result depends on its
//! position and the cache, never on the items that [`attention_plan`](super::attention_plan) makes.

use super::attention_output::Output;
use super::attention_plan::Tiling;
use super::attention_reference::partial;
pub use super::attention_reference::{Scores, reference};
use super::case::Case;
use super::twin::{self, Effort, Piece};
use super::{Tuning, attention_cases};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE};
use crate::{params, wgsl};
use std::f64::consts::LOG2_E;

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
        /// Keys that a token sees at most, up to [`ALL_KEYS`].
        pub window: u32,
        /// The cap of scores, with log2(e); 0 where there is none, and the part does not ask.
        pub cap_log2e: f32,
        /// 2 by the cap of scores in nats.
        pub cap_rate: f32,
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

/// Whether scores have a cap.
static PLAIN: Part = wgsl!("attention/score_plain.wgsl");
static CAPPED: Part = wgsl!("attention/score_capped.wgsl");

/// The window of a token that sees all before it: positions are less, and as many beyond them stand for
/// what is to come.
pub const ALL_KEYS: u32 = 1 << 31;

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
    /// A score `s` becomes `cap * tanh(s / cap)`; above 0.
    pub score_cap: Option<f32>,
}

impl AttentionShape {
    /// What scores are, of products.
    pub(super) fn scores(&self) -> Scores {
        Scores {
            scale: f64::from(self.scale),
            cap: self.score_cap.map(f64::from),
        }
    }

    /// What makes scores of products, as a part.
    pub(super) fn score_part(&self) -> &'static Part {
        match self.score_cap {
            None => &PLAIN,
            Some(_) => &CAPPED,
        }
    }

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
    pub(super) fn params(
        &self,
        slab: &KvSlab,
        items: Items,
        tiles: usize,
        window: Option<usize>,
    ) -> AttentionParams {
        assert_ne!(window, Some(0), "a token sees itself");
        let cap = self.score_cap.map_or(0.0, f64::from);
        AttentionParams {
            items_at: items.at as u32,
            num_items: items.count as u32,
            num_heads: self.num_heads as u32,
            num_kv_heads: self.num_kv_heads as u32,
            tiles: tiles as u32,
            first_page: slab.first_page,
            num_pages: slab.num_pages as u32,
            scale_log2e: (f64::from(self.scale) * LOG2_E) as f32,
            window: window.map_or(ALL_KEYS, |keys| keys.min(ALL_KEYS as usize) as u32),
            cap_log2e: (cap * LOG2_E) as f32,
            cap_rate: self.score_cap.map_or(0.0, |cap| 2.0 / cap),
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
        assert!(
            self.score_cap
                .is_none_or(|cap| cap.is_finite() && cap > 0.0),
            "a cap of {:?}",
            self.score_cap
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

/// What the parameters and the parts of a dispatch say of scores.
pub(super) fn scores_of(call: &Call<'_>, params: &AttentionParams) -> Scores {
    let is_capped = call.has_part(CAPPED.name);
    Scores {
        scale: f64::from(params.scale_log2e) / LOG2_E,
        cap: is_capped.then(|| f64::from(params.cap_log2e) / LOG2_E),
    }
}

/// Computes `items`, all of whose pages are in `slab`: from `q: [.., num_heads * head_dim]` into
/// `out`, as `output` tells, or for items that are partial into `partials`
/// ([`AttentionShape::partials_dims`]). A token sees itself and those before it, `window` in all or every
/// one; it is that of the plan. Without items the kernel is only made ready: a sequence may reach this
/// slab while it decodes.
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
    window: Option<usize>,
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
    let tiles = shape.tiles(items.max_tokens.max(1));
    let params = shape.params(slab, items, tiles, window);
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
        .part(dims_part)
        .part(shape.score_part());
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
    let whole = |q: &[f32], keys: &[f32], values: &[f32], scores| {
        let (out, bound) = reference(q, keys, values, scores);
        out.into_iter().map(|value| (value, bound)).collect()
    };
    twin::attention::pieces(call, whole, partial)
}

/// Every way to store the cache with every number of rows and dims, team, and output, with a cap and
/// without.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for format in KvFormat::ALL {
        for (head_dim, tokens) in [(64, 1), (64, 8), (128, 1), (256, 1)] {
            for tuning in super::attention_output::tunings() {
                for (output, score_cap) in [
                    (Output::Rows, None),
                    (Output::Rows, Some(1.0)),
                    (Output::Records, None),
                    (Output::Records, Some(1.0)),
                ] {
                    let shape = AttentionShape {
                        num_heads: 3,
                        num_kv_heads: 1,
                        head_dim,
                        scale: 1.0,
                        score_cap,
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
