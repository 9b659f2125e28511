//! Where the result of attention goes: what the attention kernel and its merge share.

use super::Tuning;
use super::activations::Activations;
use super::attention::AttentionShape;
use crate::gpu::{Call, Part, Tensor, Variant};
use crate::quant::GROUP;
use crate::wgsl;

static ROWS: Part = wgsl!("attention/out_rows.wgsl");
static RECORDS: Part = wgsl!("attention/out_records.wgsl");

/// How the result is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// `[tokens, num_heads * head_dim]` f32.
    Rows,
    /// Records of the tuning's activations, for heads of a multiple of 32 dims:
    /// [`Activations::dims`] words.
    Records,
}

impl Output {
    /// Records where a head's dims fill them, else rows.
    pub fn of(shape: &AttentionShape) -> Output {
        match shape.head_dim.is_multiple_of(GROUP) {
            true => Output::Records,
            false => Output::Rows,
        }
    }

    /// How a dispatch stores its result.
    pub(super) fn of_call(call: &Call<'_>) -> Output {
        match call.has_part(RECORDS.name) {
            true => Output::Records,
            false => Output::Rows,
        }
    }

    /// Whether the next matmul can read it.
    pub fn records(self) -> bool {
        self == Output::Records
    }

    /// Shape of a tensor of words for `tokens` rows.
    pub fn dims(self, activations: Activations, tokens: usize, width: usize) -> [usize; 2] {
        match self {
            Output::Rows => [tokens, width],
            Output::Records => activations.dims(tokens, width),
        }
    }

    /// The name of the tensor in the shaders.
    pub(super) fn binding(self) -> &'static str {
        match self {
            Output::Rows => "out",
            Output::Records => "act_out",
        }
    }

    pub(super) fn check(self, activations: Activations, shape: &AttentionShape, out: &Tensor) {
        assert!(
            self == Output::Rows || shape.head_dim.is_multiple_of(GROUP),
            "records of heads of {} dims",
            shape.head_dim
        );
        let [rows, words] = out.dims();
        let width = shape.num_heads * shape.head_dim;
        assert_eq!(
            [rows, words],
            self.dims(activations, rows, width),
            "shape of out"
        );
    }

    /// `variant` with the parts that store the result, by workgroups of `slots` members of teams.
    pub(super) fn parts(self, tuning: &Tuning, slots: u32, variant: Variant) -> Variant {
        tuning.team(self.stores(tuning.activations, variant), slots)
    }

    /// The same for a kernel that has a `team_all` of its own.
    pub(super) fn stores(self, activations: Activations, variant: Variant) -> Variant {
        match self {
            Output::Rows => variant.part(&ROWS),
            Output::Records => variant
                .part(&RECORDS)
                .part(activations.part())
                .part(activations.store_part()),
        }
    }
}

/// Every way to make teams, with every kind of activations.
pub(super) fn tunings() -> Vec<Tuning> {
    let mut all = Vec::new();
    for activations in Activations::ALL {
        for (lanes, subgroups) in [(1, true), (1, false), (8, false)] {
            all.push(Tuning {
                activations,
                lanes,
                workgroup: 64,
                tile_tokens: 8,
                subgroups,
                wide: false,
            });
        }
    }
    all
}
