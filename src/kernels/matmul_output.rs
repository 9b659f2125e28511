//! What becomes of a matmul's sums, in `matmul` and in `matmul_coop`: where results go, and the parts
//! that bring them there.

use super::activations::Activations;
use super::matmul::{NORM_RMS, NORM_SHARE, Norm};
use super::rope::RopeRows;
use crate::gpu::{Part, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab};
use crate::wgsl;

static STORE: Part = wgsl!("matmul/out_store.wgsl");
static QKV: Part = wgsl!("matmul/out_qkv.wgsl");
static ACT: Part = wgsl!("matmul/out_act.wgsl");
static RESIDUAL: Part = wgsl!("matmul/out_residual.wgsl");

/// What is computed between the matrices of the MLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MlpKind {
    /// `silu(gate) * up` (Shazeer, 2020).
    #[default]
    SwiGlu,
    /// `gelu(gate) * up`, by the tanh formula.
    GeGlu,
    /// `gelu(up)` by the tanh formula (Hendrycks and Gimpel, 2016): there is no gate.
    Gelu,
}

impl MlpKind {
    /// Rows of the first matrix for each of the second's columns.
    pub fn is_gated(self) -> bool {
        self != MlpKind::Gelu
    }
}

/// What becomes of the result.
#[derive(Clone, Copy)]
pub enum Out<'a> {
    /// `y[t, r] = out[t, r]`, f32.
    Store {
        /// `[.., rows]`
        y: &'a Tensor,
    },
    /// Queries, keys and values: rotated, and on their way; all pages are in one slab.
    Qkv {
        /// `[.., num_heads * head_dim]` f32
        q: &'a Tensor,
        /// The cache of the layer.
        slab: &'a KvSlab,
        /// The step's metadata.
        step_meta: &'a Tensor,
        /// Where slots and angles are.
        rows: RopeRows,
    },
    /// `silu(gate) * up`, as activations: blocks of 4 rows alternate between gate and up.
    Gated {
        /// Records of `rows / 2` columns.
        act: &'a Tensor,
    },
    /// `hidden += out`, and `hidden * gamma` as activations.
    Residual {
        /// `[.., rows]` f32
        hidden: &'a Tensor,
        /// The weight of the norm that follows: `[rows]`.
        gamma: &'a Tensor,
        /// Records of `rows` columns.
        act: &'a Tensor,
    },
}

impl Out<'_> {
    /// The tensors it needs, by the names that `matmul/out_*` gives them.
    pub(super) fn tensors(&self) -> Vec<(&'static str, &Tensor)> {
        match self {
            Out::Store { y } => vec![("y", y)],
            Out::Qkv {
                q, slab, step_meta, ..
            } => vec![
                ("step_meta", step_meta),
                ("q", q),
                ("k", &slab.k),
                ("v", &slab.v),
            ],
            Out::Gated { act } => vec![("act_out", act)],
            Out::Residual { hidden, gamma, act } => {
                vec![("hidden", hidden), ("act_out", act), ("gamma", gamma)]
            }
        }
    }
}

/// What a variant is chosen by, beside tuning and format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Store { norm: bool },
    Qkv(KvFormat),
    Gated,
    Residual,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] = [
        Kind::Store { norm: true },
        Kind::Store { norm: false },
        Kind::Qkv(KvFormat::F16),
        Kind::Qkv(KvFormat::F32),
        Kind::Gated,
        Kind::Residual,
    ];

    pub(super) fn of(out: &Out, norm: Option<Norm>) -> Kind {
        match out {
            Out::Store { .. } => Kind::Store {
                norm: norm.is_some(),
            },
            Out::Qkv { slab, .. } => Kind::Qkv(KvFormat::of(slab.k.dtype())),
            Out::Gated { .. } => Kind::Gated,
            Out::Residual { .. } => Kind::Residual,
        }
    }

    /// What becomes of the result of `variant`, and whether a norm comes before it in the same kernel.
    pub(super) fn of_variant(variant: &Variant) -> Kind {
        let has = |part: &Part| variant.chosen().any(|p| p == part);
        let norm = [&NORM_RMS, &NORM_SHARE].into_iter().any(has);
        if has(&STORE) {
            Kind::Store { norm }
        } else if has(&QKV) {
            Kind::Qkv(KvFormat::of_variant(variant))
        } else if has(&ACT) {
            Kind::Gated
        } else if has(&RESIDUAL) {
            Kind::Residual
        } else {
            panic!("{variant} has no ending")
        }
    }

    /// Results for each row of the weights.
    pub(super) fn width(self, rows: usize) -> usize {
        rows / self.blocks()
    }

    /// Blocks of a unit.
    pub(super) fn blocks(self) -> usize {
        if self == Kind::Gated { 2 } else { 1 }
    }

    pub(super) fn has_norm(self) -> bool {
        !matches!(self, Kind::Store { norm: false } | Kind::Residual)
    }

    pub(super) fn writes_records(self) -> bool {
        matches!(self, Kind::Gated | Kind::Residual)
    }

    /// `variant` with the parts of the ending, `plain` and `swiglu` being what makes values of the sums of
    /// one block or two. Where records are written a team has yet to be chosen.
    pub(super) fn ending(
        self,
        variant: Variant,
        [plain, swiglu]: [&'static Part; 2],
        activations: Activations,
    ) -> Variant {
        static ROPE: Part = wgsl!("lib/rope.wgsl");
        static RECORD: Part = wgsl!("act/record.wgsl");
        let variant = match self {
            Kind::Store { .. } => variant.part(plain).part(&STORE),
            Kind::Qkv(kv) => variant.part(plain).part(&QKV).part(&ROPE).part(kv.part()),
            Kind::Gated => variant.part(swiglu).part(&ACT),
            Kind::Residual => variant.part(plain).part(&RESIDUAL),
        };
        match self.writes_records() {
            true => variant.part(activations.store_part()).part(&RECORD),
            false => variant,
        }
    }
}
