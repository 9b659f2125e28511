//! Causal attention over paged keys and values, with an online softmax (Milakov and Gimelshein,
//! "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
//!
//! One kernel for single tokens, chunks and whole prompts: a row of the result depends on its
//! position and the cache, never on the items that [`attention_plan`](super::attention_plan) makes.

use super::attention_cases;
use super::case::Case;
use crate::gpu::recorder::grid;
use crate::gpu::{Kernel, Part, Recorder, Tensor, Variant};
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
        /// Dims of a head, a multiple of 4.
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

const PARTS: &[Part] = &[wgsl!("lib/softmax.wgsl"), wgsl!("attention.wgsl")];

/// The kernel.
pub static ATTENTION: Kernel = Kernel::new::<AttentionParams>("attention", PARTS);

/// Pieces (four dims of a row) that an invocation can hold, each with its part.
static PIECES: [(usize, Part); 3] = [
    (1, wgsl!("attention/pieces_1.wgsl")),
    (4, wgsl!("attention/pieces_4.wgsl")),
    (8, wgsl!("attention/pieces_8.wgsl")),
];

/// Invocations of a workgroup and its most rows, as in the shader.
const WG: usize = 64;
const MAX_ROWS: usize = 16;
/// The widest head: a row's dims are held by one workgroup.
pub const MAX_HEAD_DIM: usize = 4 * WG;

/// What stays the same over all steps of a model.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads, a multiple of `num_kv_heads`.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Dims of a head: a multiple of 4 up to [`MAX_HEAD_DIM`].
    pub head_dim: usize,
    /// Factor of the scores, commonly `1 / sqrt(head_dim)`.
    pub scale: f32,
}

impl AttentionShape {
    /// Rows (token, query head) that are held at once when each invocation holds one piece.
    fn rows_at_once(&self) -> usize {
        WG / (self.head_dim / 4)
    }

    fn tile_rows(&self) -> usize {
        MAX_ROWS.min(PIECES[PIECES.len() - 1].0 * self.rows_at_once())
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

    pub(super) fn check(&self) {
        assert!(
            self.num_kv_heads > 0 && self.num_heads.is_multiple_of(self.num_kv_heads),
            "{} heads over {} key heads",
            self.num_heads,
            self.num_kv_heads
        );
        assert!(
            self.head_dim > 0 && self.head_dim <= MAX_HEAD_DIM && self.head_dim.is_multiple_of(4),
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

/// Computes `items`, all of whose pages are in `slab`: from `q: [.., num_heads * head_dim]` into
/// `out` of the same shape, or for items that are partial into `partials`
/// ([`AttentionShape::partials_dims`]).
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
    partials: &Tensor,
    out: &Tensor,
) {
    shape.check();
    let [num_pages, num_kv_heads, page_size, head_dim] = slab.k.dims();
    assert_eq!(
        (num_pages, num_kv_heads, page_size, head_dim),
        (
            slab.num_pages,
            shape.num_kv_heads,
            PAGE_SIZE,
            shape.head_dim
        ),
        "shape of the slab"
    );
    let [_, q_width] = q.dims();
    let [_, out_width] = out.dims();
    let width = shape.num_heads * head_dim;
    assert_eq!((q_width, out_width), (width, width), "columns of q and out");
    let [slots, ..] = partials.dims::<3>();
    assert_eq!(partials.dims(), shape.partials_dims(slots), "partials");
    assert!(
        items.max_tokens <= shape.tile_tokens(),
        "items of {} tokens",
        items.max_tokens
    );
    if items.count == 0 {
        return;
    }
    let [x, y, _] = grid(items.count);
    rec.dispatch(
        &variant(shape, items.max_tokens, KvFormat::of(slab.k.dtype())),
        &[
            ("q", q),
            ("step_meta", step_meta),
            ("k", &slab.k),
            ("v", &slab.v),
            ("partials", partials),
            ("out", out),
        ],
        AttentionParams {
            items_at: items.at as u32,
            num_items: items.count as u32,
            num_heads: shape.num_heads as u32,
            num_kv_heads: shape.num_kv_heads as u32,
            head_dim: head_dim as u32,
            chunk_heads: shape.chunk_heads() as u32,
            first_page: slab.first_page,
            num_pages: slab.num_pages as u32,
            scale_log2e: (f64::from(shape.scale) * std::f64::consts::LOG2_E) as f32,
        },
        [x, y, shape.item_workgroups() as u32],
    );
}

/// The variant whose invocations hold just enough pieces for items of `max_tokens`.
fn variant(shape: &AttentionShape, max_tokens: usize, format: KvFormat) -> Variant {
    let pieces = (max_tokens * shape.chunk_heads()).div_ceil(shape.rows_at_once());
    let (_, part) = PIECES
        .iter()
        .find(|(n, _)| *n >= pieces)
        .unwrap_or_else(|| panic!("{pieces} pieces for {shape:?}"));
    Variant::new(&ATTENTION).part(format.part()).part(part)
}

/// Every way to store the cache with every number of pieces.
pub fn variants() -> Vec<Variant> {
    KvFormat::ALL
        .iter()
        .flat_map(|format| {
            PIECES
                .iter()
                .map(|(_, part)| Variant::new(&ATTENTION).part(format.part()).part(part))
        })
        .collect()
}

/// See [`attention_cases`].
pub fn cases() -> Vec<Case> {
    attention_cases::attention()
}
