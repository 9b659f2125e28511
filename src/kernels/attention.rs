//! Causal attention over paged keys and values, with an online softmax (Milakov and Gimelshein,
//! "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
//!
//! One kernel for single tokens, chunks and whole prompts: a row of the result depends on its
//! position and the cache, never on the items that [`attention_plan`](super::attention_plan) makes.

use super::case::Case;
use super::{attention_cases, attention_scores};
use crate::gpu::recorder::grid;
use crate::gpu::{Kernel, Part, Recorder, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/attention.wgsl`, and in `shaders/attention_scores.wgsl`.
    pub struct AttentionParams {
        /// Where the items begin in the step's metadata.
        pub items_at: u32,
        /// How many there are.
        pub num_items: u32,
        /// Query heads.
        pub num_heads: u32,
        /// Key heads.
        pub num_kv_heads: u32,
        /// Dims of a head, a multiple of 8.
        pub head_dim: u32,
        /// The most query heads of a workgroup.
        pub chunk_heads: u32,
        /// The slab's first page.
        pub first_page: u32,
        /// The slab's pages.
        pub num_pages: u32,
        /// Factor of the scores, with log2(e) for the exp2 that follows.
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

/// Rows that an invocation can hold eight dims of, each with its part.
static ROWS: [(usize, Part); 2] = [
    (1, wgsl!("attention/rows_1.wgsl")),
    (4, wgsl!("attention/rows_4.wgsl")),
];

/// Invocations of a workgroup, as in the shader.
const WG: usize = 64;
/// The most rows (token, query head) of a workgroup, where its invocations could hold more: more
/// items keep more workgroups busy.
const MAX_ROWS: usize = 16;
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
    /// Rows that a workgroup can hold.
    fn tile_rows(&self) -> usize {
        MAX_ROWS.min(ROWS[ROWS.len() - 1].0 * (WG / (self.head_dim / 8)))
    }

    /// Query heads of a workgroup, all of one key head.
    fn chunk_heads(&self) -> usize {
        (self.num_heads / self.num_kv_heads).min(self.tile_rows())
    }

    /// The most tokens of an item.
    pub fn tile_tokens(&self) -> usize {
        self.tile_rows() / self.chunk_heads()
    }

    /// Workgroups of an item: key heads times chunks of their query heads.
    pub fn item_workgroups(&self) -> usize {
        let group = self.num_heads / self.num_kv_heads;
        self.num_kv_heads * group.div_ceil(self.chunk_heads())
    }

    /// The shape of a tensor for `slots` partial results.
    pub fn partials_dims(&self, slots: usize) -> [usize; 3] {
        [slots, self.num_heads, self.head_dim + 4]
    }

    pub(super) fn params(&self, slab: &KvSlab, items: Items) -> AttentionParams {
        AttentionParams {
            items_at: items.at as u32,
            num_items: items.count as u32,
            num_heads: self.num_heads as u32,
            num_kv_heads: self.num_kv_heads as u32,
            head_dim: self.head_dim as u32,
            chunk_heads: self.chunk_heads() as u32,
            first_page: slab.first_page,
            num_pages: slab.num_pages as u32,
            scale_log2e: (f64::from(self.scale) * std::f64::consts::LOG2_E) as f32,
        }
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
    /// The most tokens of one, at most [`AttentionShape::tile_tokens`].
    pub max_tokens: usize,
}

/// The CPU twin for one row: `q` (`[head_dim]`) against `keys` and `values` (`[num_keys, head_dim]`
/// as the device sees them), in f64. The result and how far each of its elements may be off.
///
/// With `d_j` the absolute error of score j in nats, the weight of j is off by a factor of about
/// `1 + d_j + e_j`, where `e_j` is exp2's own error and that of the later rescalings; the result is
/// then off by at most `2 max|v| sum_j w_j (d_j + e_j)`, plus what the sums round.
pub fn reference(q: &[f32], keys: &[f32], values: &[f32], scale: f32) -> (Vec<f64>, f64) {
    use super::case::{U, dot_bound};
    let dim = q.len();
    let scale = f64::from(scale);
    let dots: Vec<(f64, f64)> = super::matmul::reference(keys, q, dim);
    let top = dots.iter().map(|d| d.0 * scale).fold(f64::MIN, f64::max);
    let num_keys = dots.len();
    let rescalings =
        (num_keys.div_ceil(PAGE_SIZE) + num_keys.div_ceil(crate::kv::SPLIT_SIZE)) as f64;
    let (mut sum, mut off, mut max_value) = (0.0, 0.0, 0.0f64);
    let mut out = vec![0.0; dim];
    for ((dot, abs), value) in dots.iter().zip(values.chunks(dim)) {
        let below = (top - dot * scale) * std::f64::consts::LOG2_E;
        let weight = (-below).exp2();
        let score_error = scale.abs() * (dot_bound(dim / 4, *abs) + 3.0 * U * dot.abs());
        // exp2 is good to 3 + 2 |x| ulp, once for the weight and once for each rescaling
        let exp2_error = 2.0 * U * (3.0 * (1.0 + rescalings) + 4.0 * below) + 2.0 * U * below;
        sum += weight;
        off += weight * (score_error + exp2_error);
        for (out, &v) in out.iter_mut().zip(value) {
            *out += weight * f64::from(v);
            max_value = max_value.max(f64::from(v).abs());
        }
    }
    out.iter_mut().for_each(|out| *out /= sum);
    let rounding = 2.0 * (num_keys as f64 + 2.0 * rescalings + 4.0) * U;
    (out, 2.0 * max_value * (off / sum + rounding) + 1e-30)
}

/// Tensors that hold what items leave for the next dispatch; any number of layers can share them.
#[derive(Clone, Copy)]
pub struct Scratch<'a> {
    /// `[scores_len]` f32, as the plan was told.
    pub scores: &'a Tensor,
    /// [`AttentionShape::partials_dims`] f32.
    pub partials: &'a Tensor,
}

/// Computes `items`, all of whose pages are in `slab`: from `q: [.., num_heads * head_dim]` into
/// `out` of the same shape, or for items that are partial into the scratch. Two dispatches: the
/// scores, then this kernel. Without items both are only made ready: a sequence may reach this slab
/// while it decodes.
#[expect(
    clippy::too_many_arguments,
    reason = "each is one tensor or one choice"
)]
pub fn record(
    rec: &mut Recorder,
    shape: &AttentionShape,
    slab: &KvSlab,
    q: &Tensor,
    step_meta: &Tensor,
    items: Items,
    scratch: Scratch,
    out: &Tensor,
) {
    attention_scores::record(rec, shape, slab, q, step_meta, items, scratch.scores);
    let [_, width] = out.dims();
    assert_eq!(width, shape.num_heads * shape.head_dim, "columns of out");
    let [slots, ..] = scratch.partials.dims::<3>();
    assert_eq!(
        scratch.partials.dims(),
        shape.partials_dims(slots),
        "partials"
    );
    let [x, y, _] = grid(items.count);
    rec.dispatch(
        &variant(shape, items, KvFormat::of(slab.v.dtype())),
        &[
            ("step_meta", step_meta),
            ("scores", scratch.scores),
            ("v", &slab.v),
            ("partials", scratch.partials),
            ("out", out),
        ],
        shape.params(slab, items),
        [x, y, shape.item_workgroups() as u32],
    );
}

/// One row to an invocation where an item has no more, else four.
fn variant(shape: &AttentionShape, items: Items, format: KvFormat) -> Variant {
    let single = items.max_tokens * shape.chunk_heads() == 1;
    let (_, part) = &ROWS[usize::from(!single)];
    Variant::new(&ATTENTION).part(format.part()).part(part)
}

/// Every way to store the cache with every number of rows.
pub fn variants() -> Vec<Variant> {
    KvFormat::ALL
        .iter()
        .flat_map(|format| {
            ROWS.iter()
                .map(|(_, part)| Variant::new(&ATTENTION).part(format.part()).part(part))
        })
        .collect()
}

/// See [`attention_cases`].
pub fn cases() -> Vec<Case> {
    attention_cases::attention()
}
