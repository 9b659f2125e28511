//! Choices that are made once when a model is loaded and hold for every step: a kernel may never
//! choose by the number of tokens where that would change the order of a sum.

use super::activations::Activations;
use crate::gpu::{Caps, Gpu, Part, Variant};
use crate::quant::{Format, q8};
use crate::wgsl;

/// Invocations that every adapter allows in a workgroup.
const MAX_WORKGROUP: u32 = 256;

/// How kernels divide their work on one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// How activations are passed from kernel to matmul. Part of the numerics.
    pub activations: Activations,
    /// Invocations that share one output row of a matmul: 1, 2, 4, ... 32. Part of the numerics.
    pub lanes: u32,
    /// Invocations of a matmul workgroup: a multiple of 8 times `lanes`, at most 256.
    pub workgroup: u32,
    /// Tokens an invocation of matmul holds at most: 1, 2, 4 or 8.
    pub tile_tokens: u32,
    /// Invocations talk by subgroup operations: several lanes are joined by shuffles instead of
    /// workgroup memory, single ones share their loads of activations. Same bits.
    pub subgroups: bool,
    /// Weights are loaded 32 bytes at a time, as 64-bit integers. Same bits.
    pub wide: bool,
}

impl Tuning {
    /// What suits `gpu` unmeasured: one lane per row where every invocation is a CPU's SIMD lane,
    /// eight where memory wants neighbours to read neighbours; activations as computed.
    pub fn for_gpu(gpu: &Gpu) -> Tuning {
        Tuning::with_lanes(gpu, if gpu.is_software() { 1 } else { 8 })
    }

    /// The same with `lanes` given (a power of two up to 32).
    ///
    /// # Panics
    /// On other values: callers check the user's.
    pub fn with_lanes(gpu: &Gpu, lanes: u32) -> Tuning {
        assert!(lanes.is_power_of_two() && lanes <= 32, "{lanes} lanes");
        let smallest = if gpu.is_software() { 8 } else { 64 };
        let tuning = Tuning {
            activations: Activations::F32,
            lanes,
            workgroup: smallest.max(8 * lanes),
            tile_tokens: 8,
            subgroups: false,
            wide: gpu.is_software() && lanes == 1 && gpu.caps().int64,
        };
        // sharing loads pays where a load is dear: on a CPU
        let pays = lanes > 1 || gpu.is_software();
        let subgroups = pays
            && Tuning {
                subgroups: true,
                ..tuning
            }
            .missing(gpu.caps())
            .is_none();
        Tuning {
            subgroups,
            ..tuning
        }
    }

    /// Without capabilities: f32 activations, `lanes` to a row.
    pub(super) fn plain(lanes: u32) -> Tuning {
        Tuning {
            activations: Activations::F32,
            lanes,
            workgroup: 8 * lanes,
            tile_tokens: 8,
            subgroups: false,
            wide: false,
        }
    }

    /// What `caps` lack for it, if anything.
    pub fn missing(&self, caps: Caps) -> Option<String> {
        let (needed, size) = (self.subgroup_needed(), caps.subgroup.unwrap_or(0));
        if size < needed {
            return Some(format!("needs subgroups of {needed}, has {size}"));
        }
        (self.wide && !caps.int64).then(|| "needs 64-bit integers".to_owned())
    }

    /// Invocations a subgroup must have; 0 without subgroup operations.
    pub fn subgroup_needed(&self) -> u32 {
        match (self.subgroups, self.lanes) {
            (false, _) => 0,
            (true, 1) => 8,
            (true, lanes) => lanes,
        }
    }

    /// Whether eight neighbours, each with rows of its own, share what they load.
    pub(super) fn shares(&self) -> bool {
        self.subgroups && self.lanes == 1
    }

    /// `variant` with a way for teams of eight to talk; `slots` members are in a workgroup.
    pub(super) fn team(&self, variant: Variant, slots: u32) -> Variant {
        static SHARED: Part = wgsl!("lib/team_shared.wgsl");
        static SUBGROUP: Part = wgsl!("lib/team_subgroup.wgsl", subgroups: true);
        if self.shares() {
            assert_eq!(slots, 8, "a team in a workgroup");
            return variant.part(&SUBGROUP);
        }
        variant.part(&SHARED).set("TEAM_SLOTS", slots)
    }

    /// Workgroup of kernels whose invocations are all members of teams.
    pub(super) fn team_workgroup(&self) -> u32 {
        if self.lanes == 1 { 8 } else { 64 }
    }

    /// Whether matmuls of weights in `format` can read these activations.
    pub fn reads(&self, format: &Format) -> bool {
        self.activations == Activations::F32 || format.name == q8::Q8.name
    }

    /// Whether its numbers are in range and fit one another and weights in `format`, whatever the
    /// adapter offers.
    pub fn is_possible(&self, format: &Format) -> bool {
        self.lanes.is_power_of_two()
            && self.lanes <= 32
            && (8 * self.lanes..=MAX_WORKGROUP).contains(&self.workgroup)
            && self.workgroup.is_multiple_of(8 * self.lanes)
            && (!self.shares() || self.workgroup == 8)
            && matches!(self.tile_tokens, 1 | 2 | 4 | 8)
            && self.reads(format)
    }

    /// Every way to share and join rows, with every way to pass activations to `format`.
    pub(super) fn all_for(format: &Format) -> Vec<Tuning> {
        let mut all = Vec::new();
        for activations in Activations::ALL {
            for (lanes, subgroups) in [
                (1, false),
                (8, false),
                (32, false),
                (1, true),
                (4, true),
                (8, true),
            ] {
                let tuning = Tuning {
                    activations,
                    lanes,
                    workgroup: 8 * lanes,
                    tile_tokens: 8,
                    subgroups,
                    wide: false,
                };
                if !tuning.reads(format) {
                    continue;
                }
                all.push(tuning);
                if tuning.shares() && format.has_wide() {
                    let wide = true;
                    all.push(Tuning { wide, ..tuning });
                }
            }
        }
        all
    }

    /// Its choices in words, for names of cases and reports.
    pub fn describe(&self) -> String {
        let flag = |on: bool, word: &'static str| if on { word } else { "" };
        format!(
            "act={} lanes={} wg={} tile={}{}{}",
            self.activations.name(),
            self.lanes,
            self.workgroup,
            self.tile_tokens,
            flag(self.subgroups, " subgroup"),
            flag(self.wide, " wide")
        )
    }
}
