//! Rotary position embedding (Su et al., "RoFormer", 2021) of dims `(2 i, 2 i + 1)`, and the way of K
//! and V into their pages: for caches in several slabs, and for queries and keys that are normalised
//! first (Henry et al., "Query-Key Normalization for Transformers", 2020). Elsewhere the matmul of
//! queries, keys and values does this itself.

use super::case::{Case, U};
use super::row::{self, RECORD, ROW_64};
use super::twin::endings::{Exact, turned};
use super::twin::kv::Slab;
use super::twin::matmul::{angle_pairs, f32_pieces, floats};
use super::twin::{Effort, Piece};
use super::{Tuning, rope_cases};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/rope.wgsl`.
    pub struct RopeParams {
        /// Rows of `qkv` and `q` in use.
        pub num_tokens: u32,
        /// Query heads.
        pub num_heads: u32,
        /// Key heads; as many value heads.
        pub num_kv_heads: u32,
        /// Dims of a head.
        pub head_dim: u32,
        /// Where the tokens' slots begin in the step's metadata.
        pub slots_at: u32,
        /// Where the tokens' cosines and sines begin; a multiple of 4.
        pub rope_at: u32,
        /// The slab's first page.
        pub first_page: u32,
        /// The slab's pages.
        pub num_pages: u32,
        /// 1 in the dispatch that writes `q`.
        pub write_q: u32,
        /// What a norm adds to the mean of squares.
        pub eps: f32,
    }
}

const PARTS: &[Part] = &[wgsl!("lib/rope.wgsl"), wgsl!("rope.wgsl")];
static NORM_NONE: Part = wgsl!("rope/norm_none.wgsl");
static NORM_HEAD: Part = wgsl!("rope/norm_head.wgsl");
static NORM_WHOLE: Part = wgsl!("rope/norm_whole.wgsl");

/// The kernel.
pub static ROPE: Kernel = Kernel::new::<RopeParams>("rope", PARTS);

/// How queries and keys are normalised, before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself; a weight for each of its dims.
    Head,
    /// All heads of a token together; a weight for each of all dims.
    Whole,
}

impl QkNorm {
    fn of_call(call: &Call<'_>) -> Option<QkNorm> {
        if call.has_part(NORM_HEAD.name) {
            return Some(QkNorm::Head);
        }
        call.has_part(NORM_WHOLE.name).then_some(QkNorm::Whole)
    }

    /// How many weights there are for `num_heads` heads.
    pub(super) fn weights(self, num_heads: usize, head_dim: usize) -> usize {
        match self {
            QkNorm::Head => head_dim,
            QkNorm::Whole => num_heads * head_dim,
        }
    }

    /// Dims that are normalised together, and roundings that a square goes through in their sum.
    fn span(self, num_heads: usize, head_dim: usize) -> (usize, usize) {
        match self {
            QkNorm::Head => (head_dim, row::steps(8, head_dim)),
            QkNorm::Whole => (num_heads * head_dim, row::steps(WG, num_heads * head_dim)),
        }
    }
}

/// A norm of queries and keys, with its weights on the device.
#[derive(Clone, Copy)]
pub struct QkNormWeights<'a> {
    /// What is normalised together.
    pub kind: QkNorm,
    /// `[head_dim]`, or `[num_heads * head_dim]`: f32, in the order of the rows of queries.
    pub q: &'a Tensor,
    /// `[head_dim]`, or `[num_kv_heads * head_dim]`.
    pub k: &'a Tensor,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// The same on the host.
pub(super) struct QkNormValues {
    pub kind: QkNorm,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub eps: f32,
}

/// Invocations of a workgroup, as in the shader.
const WG: usize = 64;
/// Heads of a workgroup, where queries and keys are normalised.
const HEADS: usize = 8;

/// Where a step's tokens are described in its metadata: word indices.
#[derive(Clone, Copy, Debug)]
pub struct RopeRows {
    /// A slot (`page * 16 + offset in page`) per token.
    pub slots_at: usize,
    /// `[token][head_dim / 2][2]`: cosine and sine as f32 bits; a multiple of 4.
    pub rope_at: usize,
}

/// The CPU twin of a norm in f64: `x`, heads of queries or of keys of a token, in spans of `span` dims that
/// are normalised together, times `weight`, which repeats.
pub fn normed(x: &[f32], span: usize, weight: &[f32], eps: f32) -> Vec<f64> {
    let of = |x: &[f32]| -> Vec<f64> {
        let squares: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
        let factor = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
        let weights = weight.iter().cycle();
        let products = x.iter().zip(weights);
        products
            .map(|(&v, &w)| f64::from(v) * factor * f64::from(w))
            .collect()
    };
    x.chunks(span).flat_map(of).collect()
}

/// The CPU twin for one head `x` in f64, with `angles` as (cosine, sine): the rotated head and for
/// each element the sum of magnitudes that its bound needs.
pub fn reference(x: &[f32], angles: &[(f32, f32)]) -> (Vec<f64>, Vec<f64>) {
    (0..x.len())
        .map(|i| {
            let (cos, sin) = angles[i / 2];
            let (own, other) = (f64::from(x[i]), f64::from(x[i ^ 1]));
            let (straight, crossed) = (own * f64::from(cos), other * f64::from(sin));
            let sign = if i % 2 == 0 { -1.0 } else { 1.0 };
            (straight + sign * crossed, straight.abs() + crossed.abs())
        })
        .unzip()
}

/// The same head with bounds.
fn exact(x: &[f32], angles: &[(f32, f32)]) -> Vec<(f64, f64)> {
    let (values, abs) = reference(x, angles);
    let bound = abs.into_iter().map(|abs| 3.0 * U * abs + 1e-30);
    values.into_iter().zip(bound).collect()
}

/// A head that is copied.
fn copied(x: &[f32]) -> Vec<(f64, f64)> {
    x.iter().map(|&x| (f64::from(x), 1e-30)).collect()
}

/// What is stored of a token's heads, queries, keys and values, one after another: values with bounds.
pub(super) fn stored(
    x: &[f32],
    (num_heads, num_kv_heads, head_dim): (usize, usize, usize),
    norm: Option<&QkNormValues>,
    angles: &[(f32, f32)],
) -> Vec<Vec<Exact>> {
    let (q, kv) = x.split_at(num_heads * head_dim);
    let (k, v) = kv.split_at(num_kv_heads * head_dim);
    let rotated = |x: &[f32], weight: fn(&QkNormValues) -> &[f32]| -> Vec<Vec<Exact>> {
        let Some(norm) = norm else {
            return x.chunks(head_dim).map(|x| exact(x, angles)).collect();
        };
        let (span, steps) = norm.kind.span(x.len() / head_dim, head_dim);
        // the root, and two products
        let relative = row::root_error(steps) + 2.0 * U;
        let values = normed(x, span, weight(norm), norm.eps).into_iter();
        let values: Vec<Exact> = values.map(|v| (v, v.abs() * relative + 1e-30)).collect();
        values.chunks(head_dim).map(|x| turned(x, angles)).collect()
    };
    let mut all = rotated(q, |norm| &norm.q);
    all.extend(rotated(k, |norm| &norm.k));
    all.extend(v.chunks(head_dim).map(copied));
    all
}

/// Rotates the first `num_tokens` rows of `qkv: [.., (num_heads + 2 num_kv_heads) * head_dim]`, queries and
/// keys after a norm where there is one: queries into `q: [.., num_heads * head_dim]`, keys and values into
/// the pages of `slabs`.
#[expect(
    clippy::too_many_arguments,
    reason = "tensors and where to look in them"
)]
pub fn record(
    rec: &mut Recorder,
    slabs: &[KvSlab],
    qkv: &Tensor,
    num_tokens: usize,
    step_meta: &Tensor,
    rows: RopeRows,
    norm: Option<QkNormWeights>,
    q: &Tensor,
) {
    let [_, num_kv_heads, page_size, head_dim] = slabs[0].k.dims();
    let [qkv_rows, qkv_width] = qkv.dims();
    let [q_rows, q_width] = q.dims();
    let num_heads = q_width / head_dim;
    assert_eq!(page_size, PAGE_SIZE, "tokens of a page");
    assert!(
        (32..=256).contains(&head_dim) && head_dim.is_multiple_of(4),
        "head_dim {head_dim}"
    );
    assert_eq!(q_width, num_heads * head_dim, "columns of q");
    assert_eq!(
        qkv_width,
        (num_heads + 2 * num_kv_heads) * head_dim,
        "columns of qkv"
    );
    assert!(
        num_tokens <= qkv_rows && num_tokens <= q_rows,
        "{num_tokens} tokens of {qkv_rows} and {q_rows}"
    );
    assert!(rows.rope_at.is_multiple_of(4), "angles at {}", rows.rope_at);
    let all_heads = num_heads + 2 * num_kv_heads;
    let workgroups = match norm.map(|norm| norm.kind) {
        None => (num_tokens * all_heads * head_dim / 4).div_ceil(WG),
        Some(QkNorm::Head) => (num_tokens * all_heads).div_ceil(HEADS),
        Some(QkNorm::Whole) => {
            num_tokens * (num_heads.div_ceil(HEADS) + 2 * num_kv_heads.div_ceil(HEADS))
        }
    };
    if let Some(QkNormWeights { kind, q, k, .. }) = norm {
        let wanted = [num_heads, num_kv_heads].map(|heads| kind.weights(heads, head_dim));
        let found = [q, k].map(|weight| weight.dims::<1>()[0]);
        assert_eq!(found, wanted, "weights of the norms of q and k");
    }
    for (i, slab) in slabs.iter().enumerate() {
        let mut tensors = vec![
            ("qkv", qkv),
            ("step_meta", step_meta),
            ("q", q),
            ("k", &slab.k),
            ("v", &slab.v),
        ];
        if let Some(norm) = &norm {
            tensors.extend([("q_weight", norm.q), ("k_weight", norm.k)]);
        }
        rec.dispatch(
            &variant(KvFormat::of(slab.k.dtype()), norm.map(|norm| norm.kind)),
            &tensors,
            RopeParams {
                num_tokens: num_tokens as u32,
                num_heads: num_heads as u32,
                num_kv_heads: num_kv_heads as u32,
                head_dim: head_dim as u32,
                slots_at: rows.slots_at as u32,
                rope_at: rows.rope_at as u32,
                first_page: slab.first_page,
                num_pages: slab.num_pages as u32,
                write_q: u32::from(i == 0),
                eps: norm.map_or(0.0, |norm| norm.eps),
            },
            grid(workgroups),
        );
    }
}

fn variant(format: KvFormat, norm: Option<QkNorm>) -> Variant {
    let variant = Variant::new(&ROPE).part(format.part());
    // the same way to add up on every adapter
    let teams = |variant: Variant| Tuning::plain(8).team(variant.part(&RECORD), WG as u32);
    match norm {
        None => variant.part(&NORM_NONE),
        Some(QkNorm::Head) => teams(variant.part(&NORM_HEAD)),
        Some(QkNorm::Whole) => teams(variant.part(&NORM_WHOLE).part(&ROW_64)),
    }
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: RopeParams = call.params();
    let (tokens, head_dim) = (p.num_tokens as usize, p.head_dim as usize);
    let (num_heads, num_kv_heads) = (p.num_heads as usize, p.num_kv_heads as usize);
    let (slots_at, rope_at) = (p.slots_at as usize, p.rope_at as usize);
    let slots = call.read_range("step_meta", slots_at..slots_at + tokens)?;
    let angles = call.read_range("step_meta", rope_at..rope_at + tokens * head_dim)?;
    let angles = angle_pairs(&angles);
    let all_heads = num_heads + 2 * num_kv_heads;
    let qkv = floats(&call.read_range("qkv", 0..tokens * all_heads * head_dim)?);
    let kind = QkNorm::of_call(call);
    let slab = Slab {
        format: KvFormat::of_variant(&call.variant),
        first_page: p.first_page,
        num_pages: p.num_pages,
        num_kv_heads,
        head_dim,
    };
    let mut values =
        |name: &str, count| -> Result<Vec<f32>> { Ok(floats(&call.read_range(name, 0..count)?)) };
    let norm = match kind {
        Some(kind) => Some(QkNormValues {
            kind,
            q: values("q_weight", kind.weights(num_heads, head_dim))?,
            k: values("k_weight", kind.weights(num_kv_heads, head_dim))?,
            eps: p.eps,
        }),
        None => None,
    };
    let heads = (num_heads, num_kv_heads, head_dim);
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    for (token, x) in qkv.chunks(all_heads * head_dim).enumerate() {
        let angles = &angles[token * head_dim / 2..][..head_dim / 2];
        for (head, x) in stored(x, heads, norm.as_ref(), angles)
            .into_iter()
            .enumerate()
        {
            if head < num_heads {
                if p.write_q == 1 {
                    q.push(((token * num_heads + head) * head_dim, x));
                }
                continue;
            }
            let Some(at) = slab.place(slots[token], (head - num_heads) % num_kv_heads) else {
                continue;
            };
            let is_value = head >= num_heads + num_kv_heads;
            if is_value { &mut v } else { &mut k }.push((at, x));
        }
    }
    let mut pieces = f32_pieces("q", q);
    pieces.extend(slab.pieces("k", k));
    pieces.extend(slab.pieces("v", v));
    Ok(pieces)
}

/// One for each way to store K and V, and each norm.
pub fn variants() -> Vec<Variant> {
    let of = |norm| KvFormat::ALL.map(|format| variant(format, norm));
    NORMS.into_iter().flat_map(of).collect()
}

/// Every choice of a norm.
pub(super) const NORMS: [Option<QkNorm>; 3] = [None, Some(QkNorm::Head), Some(QkNorm::Whole)];

/// See [`rope_cases`].
pub fn cases() -> Vec<Case> {
    rope_cases::cases()
}

/// See [`rope_cases`].
pub fn timings() -> Vec<Case> {
    rope_cases::timings()
}
