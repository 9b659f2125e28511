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
use super::case::{Case, U, dot_bound};
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Coop, Kernel, Part, Recorder, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab, SPLIT_SIZE};
use crate::wgsl;

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

/// The largest f16.
const MAX: f32 = 65504.0;

/// The fewest keys that a part takes at a time.
const LEAST_KEYS: usize = 32;

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

/// The CPU twin for one row, as [`attention::reference`](super::attention::reference) in f64 and of
/// operands that are not rounded, though saturated at 65504 as the device has them; and how far each
/// element of the device's result may be off.
///
/// A value rounded to f16 is off by 2^-10 of itself, either neighbour being allowed, or by 2^-24 where
/// it is subnormal: `k` and `v` of an f32 cache; `q` after its row's largest became at least 2^10. The
/// weights `w_j`, the largest being 1, are multiplied by 2^15 before, and then become 0 where they would
/// be subnormal, less than 2^-14. With `d_j` the absolute error of score j in nats, and of exp2, weight j
/// is off by
///
/// ```text
/// e_j = w_j (exp(d_j) (1 + 2^-10) - 1) + min(2^-29, w_j)
/// ```
///
/// The sum that a result is divided by is that of the same rounded weights, `w'_j`. So
///
/// ```text
/// out' - out = (sum (w'_j - w_j) (v_j - out) + sum w'_j (v'_j - v_j)) / sum w'_j
/// ```
///
/// and on top comes what the two sums of so many keys round.
pub fn reference(
    q: &[f32],
    keys: &[f32],
    values: &[f32],
    scale: f32,
    format: KvFormat,
) -> (Vec<f64>, Vec<f64>) {
    let dim = q.len();
    let saturated = |x: &[f32]| -> Vec<f32> { x.iter().map(|v| v.clamp(-MAX, MAX)).collect() };
    let (keys, values) = (saturated(keys), saturated(values));
    let scale = f64::from(scale);
    let step = 2f64.powi(-10);
    let (kv_step, kv_least) = match format {
        KvFormat::F16 => (0.0, 0.0),
        KvFormat::F32 => (step, 2f64.powi(-24)),
    };
    let abs_sum = |x: &[f32]| x.iter().map(|v| f64::from(v.abs())).sum::<f64>();
    let q_peak = q.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
    let q_sum = abs_sum(q);
    let dots: Vec<(f64, f64)> = super::matmul::reference(&keys, q, dim);
    let top = dots.iter().map(|d| d.0 * scale).fold(f64::MIN, f64::max);
    let num_keys = dots.len();
    let rescalings = (num_keys.div_ceil(LEAST_KEYS) + num_keys.div_ceil(SPLIT_SIZE)) as f64;

    let mut weights = Vec::with_capacity(num_keys); // with how far they may be off
    for ((dot, abs), key) in dots.iter().zip(keys.chunks(dim)) {
        let below = (top - dot * scale) * std::f64::consts::LOG2_E;
        let rounded = abs * ((1.0 + step) * (1.0 + kv_step) - 1.0)
            + 2f64.powi(-34) * q_peak * abs_sum(key)
            + kv_least * q_sum;
        let score = scale.abs() * (dot_bound(dim + 2, *abs) + rounded);
        // exp2 is good to 3 + 2 |x| ulp, once for the weight and once for each rescaling
        let exp2 = 2.0 * U * (3.0 * (1.0 + rescalings) + 5.0 * (below + 15.0));
        let weight = (-below).exp2();
        let least = weight.min(2f64.powi(-29));
        let off = weight * ((score + exp2).exp() * (1.0 + step) - 1.0) + least;
        weights.push((weight, off));
    }
    let sum: f64 = weights.iter().map(|w| w.0).sum();
    let least_sum = sum - weights.iter().map(|w| w.1).sum::<f64>();
    let mut out = vec![0.0; dim];
    for (&(weight, _), value) in weights.iter().zip(values.chunks(dim)) {
        let add = |(out, &v): (&mut f64, &f32)| *out += weight / sum * f64::from(v);
        out.iter_mut().zip(value).for_each(add);
    }
    let rounding = 2.0 * (num_keys as f64 + 2.0 * rescalings + 8.0) * U;
    let bound = |d: usize| {
        let (mut off, mut size) = (0.0, 0.0);
        for (&(weight, weight_off), value) in weights.iter().zip(values.chunks(dim)) {
            let v = f64::from(value[d]);
            off += weight_off * (v - out[d]).abs();
            off += (weight + weight_off) * (v.abs() * kv_step + kv_least);
            size += weight * v.abs();
        }
        off / least_sum + rounding * (size / sum + out[d].abs()) + 1e-30
    };
    let bounds = (0..dim).map(bound).collect();
    (out, bounds)
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
        &variant(coop.size, shape.head_dim, format, output),
        &[
            (output.binding(), out),
            ("step_meta", step_meta),
            ("partials", partials),
            ("q", q),
            ("k", &slab.k),
            ("v", &slab.v),
        ],
        shape.params(slab, items, tiles),
        grid(items.count * shape.num_kv_heads * tiles),
    );
}

/// The variant; subgroups may have any size, since they take matrices in turn.
fn variant(size: u32, head_dim: usize, format: KvFormat, output: Output) -> Variant {
    static SIZE_8: Part = wgsl!("attention/coop_8.wgsl");
    static SIZE_16: Part = wgsl!("attention/coop_16.wgsl");
    let variant = Variant::new(&ATTENTION_COOP)
        .part(format.part())
        .part(if size == 8 { &SIZE_8 } else { &SIZE_16 })
        .part(&Width::of(head_dim).part);
    output
        .stores(Activations::F32, variant)
        .set("HEAD_DIM", head_dim as u32)
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    unimplemented!("{}", call.variant)
}

/// Every size of matrices with every width, cache and output.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for format in KvFormat::ALL {
        for size in attention_coop_cases::SIZES {
            for width in &WIDTHS {
                for output in [Output::Rows, Output::Records] {
                    all.push(variant(size, width.dims, format, output));
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
