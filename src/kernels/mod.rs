//! Every kernel: its WGSL, its CPU twin, how it is recorded, and the cases that prove it.
//!
//! A kernel is `shaders/x.wgsl`, `src/kernels/x.rs` and a line in [`ALL`]; tests, benches and
//! comparisons take it from there. In each kernel file, in this order: formula, params, parts,
//! reference, `record`, cases.

pub mod attention;
pub mod attention_batch;
pub mod attention_cases;
pub mod attention_merge;
pub mod attention_plan;
pub mod attention_scores;
pub mod case;
pub mod matmul;
pub mod rms_norm;
pub mod rope;

use crate::gpu::{Gpu, Kernel, Variant};
use case::Case;

/// A kernel as tests, benches and comparisons see it.
pub struct Entry {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Every variant that is ever dispatched, for translation and compilation without a device.
    pub variants: fn() -> Vec<Variant>,
    /// What it must do, ragged shapes first.
    pub cases: fn() -> Vec<Case>,
}

/// The registry.
pub static ALL: &[Entry] = &[
    Entry {
        kernel: &attention::ATTENTION,
        variants: attention::variants,
        cases: attention::cases,
    },
    Entry {
        kernel: &attention_scores::ATTENTION_SCORES,
        variants: attention_scores::variants,
        cases: attention_scores::cases,
    },
    Entry {
        kernel: &attention_merge::ATTENTION_MERGE,
        variants: attention_merge::variants,
        cases: attention_merge::cases,
    },
    Entry {
        kernel: &matmul::MATMUL,
        variants: matmul::variants,
        cases: matmul::cases,
    },
    Entry {
        kernel: &rms_norm::RMS_NORM,
        variants: rms_norm::variants,
        cases: rms_norm::cases,
    },
    Entry {
        kernel: &rope::ROPE,
        variants: rope::variants,
        cases: rope::cases,
    },
];

/// Choices that are made once when a model is loaded and hold for every step: a kernel may never
/// choose by the number of tokens where that would change the order of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Invocations that share one output row of a matmul: 1, 2, 4, ... 32. Part of the numerics.
    pub lanes: u32,
    /// Invocations of a matmul workgroup: a multiple of 8 times `lanes`, at most 256.
    pub workgroup: u32,
    /// Lanes are joined by subgroup shuffles instead of workgroup memory. Same bits.
    pub subgroups: bool,
}

impl Tuning {
    /// What suits `gpu` unmeasured: one lane per row where every invocation is a CPU's SIMD lane,
    /// eight where memory wants neighbours to read neighbours.
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
        Tuning {
            lanes,
            workgroup: smallest.max(8 * lanes),
            subgroups: lanes > 1 && gpu.caps().subgroup.is_some_and(|size| size >= lanes),
        }
    }
}
