//! Where the result of attention goes, and the teams that bring it there: what the attention kernel
//! and its merge share.

use super::Tuning;
use super::attention::AttentionShape;
use crate::gpu::{DType, Part, Tensor, Variant};
use crate::wgsl;

static TEAM_SHARED: Part = wgsl!("lib/team_shared.wgsl");
static TEAM_SUBGROUP: Part = wgsl!("lib/team_subgroup.wgsl", subgroups: true);

static ROWS: Part = wgsl!("attention/out_rows.wgsl");
static RECORDS: Part = wgsl!("attention/out_records.wgsl");
static ACT_F32: Part = wgsl!("act/f32.wgsl");
static ACT_Q8: Part = wgsl!("act/q8.wgsl");

/// Columns of a record.
const RECORD: usize = 32;

/// How the result is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// `[tokens, num_heads * head_dim]` f32.
    Rows,
    /// Records of f32, for heads of a multiple of 32 dims: `[tokens, records, 36]` words.
    RecordsF32,
    /// Records of 8-bit integers, for heads of a multiple of 32 dims: `[tokens, records, 12]` words.
    RecordsQ8,
}

impl Output {
    pub(super) const ALL: [Output; 3] = [Output::Rows, Output::RecordsF32, Output::RecordsQ8];

    /// Words of a token's result.
    pub fn words(self, width: usize) -> usize {
        match self {
            Output::Rows => width,
            Output::RecordsF32 => width / RECORD * 36,
            Output::RecordsQ8 => width / RECORD * 12,
        }
    }

    /// The type of a result's elements.
    pub fn dtype(self) -> DType {
        match self {
            Output::RecordsQ8 => DType::U32,
            _ => DType::F32,
        }
    }

    /// The name of the tensor in the shaders.
    pub(super) fn binding(self) -> &'static str {
        match self {
            Output::Rows => "out",
            _ => "act_out",
        }
    }

    pub(super) fn check(self, shape: &AttentionShape, out: &Tensor) {
        assert!(
            self == Output::Rows || shape.head_dim.is_multiple_of(RECORD),
            "records of heads of {} dims",
            shape.head_dim
        );
        let width = shape.num_heads * shape.head_dim;
        let words = out.size_bytes() / 4 / out.shape()[0].max(1) as u64;
        assert_eq!(words, self.words(width) as u64, "words of a row of out");
    }

    /// `variant` with the parts that store the result by workgroups of `teams`.
    pub(super) fn parts(self, tuning: &Tuning, teams: usize, variant: Variant) -> Variant {
        let variant = match self {
            Output::Rows => variant.part(&ROWS),
            Output::RecordsF32 => variant.part(&RECORDS).part(&ACT_F32),
            Output::RecordsQ8 => variant.part(&RECORDS).part(&ACT_Q8),
        };
        if tuning.lanes == 1 && tuning.subgroups {
            assert_eq!(teams, 1, "a subgroup is one team");
            return variant.part(&TEAM_SUBGROUP);
        }
        variant
            .part(&TEAM_SHARED)
            .set("TEAM_SLOTS", teams as u32 * 8)
    }
}

/// Every way to make teams.
pub(super) fn tunings() -> [Tuning; 3] {
    [(1, true), (1, false), (8, false)].map(|(lanes, subgroups)| Tuning {
        lanes,
        workgroup: 64,
        subgroups,
    })
}
