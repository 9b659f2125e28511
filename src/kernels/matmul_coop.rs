//! Matrix times activations by cooperative matrices: `out[t, r] = factor[t] * sum_k f16(w[r, k]) *
//! x[t, k] + bias[r]` with f16 operands and f32 sums, for steps of many tokens in the fast mode.
//!
//! It leaves the numerics rule: the order inside of a group is the hardware's, and short steps go
//! another way. What the endings do is what [`matmul`](super::matmul)'s do.

use super::activations::Activations;
use super::case::Case;
use super::matmul::{MatmulParams, describe, dispatch};
use super::matmul_coop_cases;
use super::matmul_output::{Ending, Kind, MlpKind, Out, Values};
use super::twin::{self, Effort, Piece};
use crate::error::Result;
use crate::gpu::{Call, Coop, Kernel, Part, Recorder, Tensor, Variant};
use crate::kernels::halve;
use crate::kv::KvFormat;
use crate::quant::{FORMATS, Format, Weights};
use crate::wgsl;

/// Steps of at most so many tokens are left to `matmul`, which reads weights but once for them.
pub const MOST_CANONICAL_TOKENS: usize = 8;

/// Tokens of a workgroup, and rows.
const TILE: usize = 64;
/// Subgroups that share a workgroup's rows.
const BANDS: u32 = 4;

const PARTS: &[Part] = &[wgsl!("matmul_coop.wgsl", coop: true)];

/// The kernel.
pub static MATMUL_COOP: Kernel = Kernel::new::<MatmulParams>("matmul_coop", PARTS);

/// Sizes of matrices and of the largest subgroups that cases and translations are made for: the text
/// is the same for others. Subgroups that are smaller than that come with a surplus, which cases see
/// wherever an adapter's are.
pub(super) fn configurations() -> impl Iterator<Item = Coop> {
    let sizes = [8, 16].into_iter();
    sizes.flat_map(|size| [8, 32, 64].map(|subgroup| Coop { size, subgroup }))
}

/// `out` from the first `num_tokens` rows of `halves`, which [`halve`] made of records of `w.columns`
/// columns. `bias` as for [`matmul`](super::matmul::record).
pub fn record(
    rec: &mut Recorder,
    coop: Coop,
    w: &Weights,
    halves: &Tensor,
    num_tokens: usize,
    bias: Option<&Tensor>,
    out: Out,
) {
    let needed = halve::dims(num_tokens, w.columns);
    let [rows, words] = halves.dims();
    assert!(
        needed[0] * needed[1] <= rows * words,
        "{needed:?} words of {rows} x {words}"
    );
    let kind = Kind::of(&out, None, bias);
    let base = describe(&out, w, num_tokens, Activations::F32, None, bias);
    let variant = variant(coop, w.format, kind);
    let tensors = [("x", halves)].into_iter().chain(out.tensors());
    let tensors: Vec<_> = tensors.chain(bias.map(|b| ("bias", b))).collect();
    dispatch(rec, &variant, w, &tensors, base, [TILE; 2]);
}

fn variant(coop: Coop, format: &'static Format, kind: Kind) -> Variant {
    static SIZE_8: Part = wgsl!("matmul/coop_8.wgsl");
    static SIZE_16: Part = wgsl!("matmul/coop_16.wgsl");
    static VALUES: Values = Values {
        plain: wgsl!("matmul/coop_plain.wgsl"),
        swiglu: wgsl!("matmul/coop_swiglu.wgsl"),
        geglu: wgsl!("matmul/coop_geglu.wgsl"),
        gelu: wgsl!("matmul/coop_gelu.wgsl"),
    };
    static TEAM: Part = wgsl!("lib/team_shared.wgsl");
    let workgroup = BANDS * coop.subgroup;
    // rows of a tile lie apart where there is room for it, so that they begin in other banks
    let stride = if workgroup > 128 { 32 } else { 40 };
    let variant = Variant::new(&MATMUL_COOP)
        .part(format.half_part)
        .part(if coop.size == 8 { &SIZE_8 } else { &SIZE_16 });
    let mut variant = kind.ending(variant, &VALUES, Activations::F32);
    if kind.writes_records() {
        variant = variant.part(&TEAM).set("TEAM_SLOTS", workgroup);
    }
    variant
        .set("WG", workgroup)
        .set("STRIDE", stride)
        .set("TILE_HALVES", TILE as u32 * stride)
}

/// What a variant is chosen by: the factor of a norm is in the rows already.
pub(super) const KINDS: [Kind; 11] = [
    Ending::Store.alone(),
    Ending::Qkv(KvFormat::F16).alone(),
    Ending::Qkv(KvFormat::F32).alone(),
    Ending::Gated(MlpKind::SwiGlu).alone(),
    Ending::Residual.alone(),
    Ending::Store.alone().biased(),
    Ending::Qkv(KvFormat::F16).alone().biased(),
    Ending::Qkv(KvFormat::F32).alone().biased(),
    Ending::Gated(MlpKind::GeGlu).alone(),
    Ending::Gated(MlpKind::Gelu).alone().biased(),
    Ending::Residual.alone().biased(),
];

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, effort: Effort) -> Result<Vec<Piece>> {
    twin::matmul::coop(call, effort)
}

/// Every format, configuration and ending.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for format in FORMATS {
        for coop in configurations() {
            all.extend(KINDS.map(|kind| variant(coop, format, kind)));
        }
    }
    all
}

/// What it must do.
pub fn cases() -> Vec<Case> {
    matmul_coop_cases::cases()
}
