//! What becomes of a matmul's sums, in `matmul` and in `matmul_coop`: where results go, and the parts
//! that bring them there.

use super::activations::Activations;
use super::matmul::{NORM_RMS, NORM_SHARE, Norm};
use super::rope::RopeRows;
use crate::gpu::{Part, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab};
use crate::wgsl;
use std::f64::consts::PI;
use std::fmt;

static STORE: Part = wgsl!("matmul/out_store.wgsl");
static QKV: Part = wgsl!("matmul/out_qkv.wgsl");
static ACT: Part = wgsl!("matmul/out_act.wgsl");
static RESIDUAL: Part = wgsl!("matmul/out_residual.wgsl");
static BIAS: Part = wgsl!("matmul/bias.wgsl");
static BIAS_NONE: Part = wgsl!("matmul/bias_none.wgsl");
static GELU: Part = wgsl!("lib/gelu.wgsl");

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
    /// Whether the first matrix has rows of a gate, as many as of up.
    pub fn is_gated(self) -> bool {
        self != MlpKind::Gelu
    }

    /// Blocks of rows of the first matrix that one block of results is made of: gate and up, or up alone.
    pub fn blocks(self) -> usize {
        if self.is_gated() { 2 } else { 1 }
    }

    /// What becomes of the gate, or of up where there is none.
    pub fn activated(self, x: f64) -> f64 {
        match self {
            MlpKind::SwiGlu => x / (1.0 + (-x).exp()),
            MlpKind::GeGlu | MlpKind::Gelu => x / (1.0 + (-gelu_exponent(x)).exp()),
        }
    }
}

/// `gelu(x) = x / (1 + exp(-z))`, and this is z: `2 sqrt(2 / pi) (x + 0.044715 x^3)`. As with a tanh, but
/// nothing is cancelled.
pub(super) fn gelu_exponent(x: f64) -> f64 {
    2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)
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
    /// What is computed between the matrices of the MLP, as activations. Where there is a gate, blocks of 4
    /// rows alternate between gate and up.
    Gated {
        /// Records of `rows / 2` columns, or of `rows` where there is no gate.
        act: &'a Tensor,
        /// What is computed.
        kind: MlpKind,
    },
    /// `hidden += scale * out`, and `hidden * gamma` as activations.
    Residual {
        /// `[.., rows]` f32
        hidden: &'a Tensor,
        /// The weight of the norm that follows: `[rows]`.
        gamma: &'a Tensor,
        /// Records of `rows` columns.
        act: &'a Tensor,
        /// 1 in most models.
        scale: f32,
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
            Out::Gated { act, .. } => vec![("act_out", act)],
            Out::Residual {
                hidden, gamma, act, ..
            } => vec![("hidden", hidden), ("act_out", act), ("gamma", gamma)],
        }
    }
}

/// Where results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Store,
    Qkv(KvFormat),
    Gated(MlpKind),
    Residual,
}

/// What a variant is chosen by, beside tuning and format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub ending: Ending,
    /// A norm comes before it, in the same kernel.
    pub norm: bool,
    /// A bias is added.
    pub bias: bool,
}

impl Ending {
    /// Without norm and bias.
    pub(super) const fn alone(self) -> Kind {
        Kind {
            ending: self,
            norm: false,
            bias: false,
        }
    }

    /// After a norm.
    pub(super) const fn normed(self) -> Kind {
        Kind {
            norm: true,
            ..self.alone()
        }
    }
}

impl Kind {
    /// With a bias.
    pub(super) const fn biased(self) -> Kind {
        Kind { bias: true, ..self }
    }

    /// What almost every model dispatches.
    pub(super) const COMMON: [Kind; 6] = [
        Ending::Store.normed(),
        Ending::Store.alone(),
        Ending::Qkv(KvFormat::F16).normed(),
        Ending::Qkv(KvFormat::F32).normed(),
        Ending::Gated(MlpKind::SwiGlu).normed(),
        Ending::Residual.alone(),
    ];

    /// What single families dispatch beside: biases after an RMS norm or after one that the kernel before
    /// computes, other functions in the MLP.
    pub(super) const RARE: [Kind; 10] = [
        Ending::Store.normed().biased(),
        Ending::Store.alone().biased(),
        Ending::Qkv(KvFormat::F16).normed().biased(),
        Ending::Qkv(KvFormat::F16).alone().biased(),
        Ending::Qkv(KvFormat::F32).normed().biased(),
        Ending::Qkv(KvFormat::F32).alone().biased(),
        Ending::Gated(MlpKind::SwiGlu).alone(),
        Ending::Gated(MlpKind::GeGlu).normed(),
        Ending::Gated(MlpKind::Gelu).alone().biased(),
        Ending::Residual.alone().biased(),
    ];

    pub(super) fn of(out: &Out, norm: Option<Norm>, bias: Option<&Tensor>) -> Kind {
        Kind {
            ending: match out {
                Out::Store { .. } => Ending::Store,
                Out::Qkv { slab, .. } => Ending::Qkv(KvFormat::of(slab.k.dtype())),
                Out::Gated { kind, .. } => Ending::Gated(*kind),
                Out::Residual { .. } => Ending::Residual,
            },
            norm: norm.is_some(),
            bias: bias.is_some(),
        }
    }

    /// What `variant` of `matmul` or `matmul_coop` was chosen by.
    pub(super) fn of_variant(variant: &Variant) -> Kind {
        let has = |part: &Part| variant.chosen().any(|p| p == part);
        let ending = if has(&STORE) {
            Ending::Store
        } else if has(&QKV) {
            Ending::Qkv(KvFormat::of_variant(variant))
        } else if has(&RESIDUAL) {
            Ending::Residual
        } else {
            assert!(has(&ACT), "{variant} has no ending");
            Ending::Gated(match (has(&GELU), has(&BIAS) || has(&BIAS_NONE)) {
                (false, _) => MlpKind::SwiGlu,
                (true, false) => MlpKind::GeGlu,
                (true, true) => MlpKind::Gelu,
            })
        };
        Kind {
            ending,
            norm: has(&NORM_RMS) || has(&NORM_SHARE),
            bias: has(&BIAS),
        }
    }

    /// Results for each row of the weights.
    pub(super) fn width(self, rows: usize) -> usize {
        rows / self.blocks()
    }

    /// Blocks of a unit.
    pub(super) fn blocks(self) -> usize {
        match self.ending {
            Ending::Gated(mlp) => mlp.blocks(),
            _ => 1,
        }
    }

    pub(super) fn writes_records(self) -> bool {
        matches!(self.ending, Ending::Gated(_) | Ending::Residual)
    }

    /// `variant` with the parts of the ending, `values` being what makes values of sums. Where records are
    /// written a team has yet to be chosen.
    ///
    /// # Panics
    /// With a bias of a gate and up: no model has one.
    pub(super) fn ending(
        self,
        variant: Variant,
        values: &'static Values,
        activations: Activations,
    ) -> Variant {
        static ROPE: Part = wgsl!("lib/rope.wgsl");
        static RECORD: Part = wgsl!("act/record.wgsl");
        let variant = match self.ending {
            Ending::Store => variant.part(&values.plain).part(&STORE),
            Ending::Qkv(kv) => variant
                .part(&values.plain)
                .part(&QKV)
                .part(&ROPE)
                .part(kv.part()),
            Ending::Gated(MlpKind::SwiGlu) => variant.part(&values.swiglu).part(&ACT),
            Ending::Gated(MlpKind::GeGlu) => variant.part(&values.geglu).part(&GELU).part(&ACT),
            Ending::Gated(MlpKind::Gelu) => variant.part(&values.gelu).part(&GELU).part(&ACT),
            Ending::Residual => variant.part(&values.plain).part(&RESIDUAL),
        };
        let variant = match self.blocks() {
            1 => variant.part(if self.bias { &BIAS } else { &BIAS_NONE }),
            _ => {
                assert!(!self.bias, "a bias of {self:?}");
                variant
            }
        };
        match self.writes_records() {
            true => variant.part(activations.store_part()).part(&RECORD),
            false => variant,
        }
    }
}

/// In the names of cases.
impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.ending)?;
        f.write_str(if self.norm { " normed" } else { "" })?;
        f.write_str(if self.bias { " biased" } else { "" })
    }
}

/// The parts of a kernel that make values of sums.
pub(super) struct Values {
    /// Of one block.
    pub plain: Part,
    /// [`MlpKind::SwiGlu`] of two.
    pub swiglu: Part,
    /// [`MlpKind::GeGlu`] of two.
    pub geglu: Part,
    /// [`MlpKind::Gelu`] of one.
    pub gelu: Part,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_is_that_of_the_tanh_formula() {
        for x in [-9.0f64, -2.5, -0.75, -1e-3, 0.0, 1e-3, 0.5, 3.0, 40.0] {
            let tanh = ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh();
            let (found, expected) = (MlpKind::GeGlu.activated(x), 0.5 * x * (1.0 + tanh));
            assert!((found - expected).abs() <= 1e-15 * x.abs(), "{x}: {found}");
            assert_eq!(found, MlpKind::Gelu.activated(x));
        }
        assert_eq!(MlpKind::Gelu.activated(-1e9), 0.0);
        assert_eq!(MlpKind::Gelu.activated(1e9), 1e9);
    }
}
