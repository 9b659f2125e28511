//! Every kernel: its WGSL, its CPU twin, how it is recorded, and the cases that prove it.
//!
//! A kernel is `shaders/x.wgsl`, `src/kernels/x.rs` and a line in [`ALL`]; tests, benches and
//! comparisons take it from there. In each kernel file, in this order: formula, params, parts,
//! reference, `record`, cases.

pub mod argmax;
pub mod attention;
pub mod attention_batch;
pub mod attention_cases;
pub mod attention_merge;
pub mod attention_output;
pub mod attention_plan;
pub mod case;
pub mod embedding;
pub mod gather_rows;
pub mod matmul;
mod matmul_cases;
pub mod numbers;
pub mod penalties;
pub mod rms_norm;
pub mod rope;
pub mod sample;

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
    /// Shapes of real models, for benches: right as well, but slow to check every time.
    pub timings: fn() -> Vec<Case>,
}

/// The entry of a kernel's module.
macro_rules! entry {
    ($module:ident :: $kernel:ident) => {
        entry!($module::$kernel, timings: Vec::new)
    };
    ($module:ident :: $kernel:ident, timings: $timings:path) => {
        Entry {
            kernel: &$module::$kernel,
            variants: $module::variants,
            cases: $module::cases,
            timings: $timings,
        }
    };
}

/// The registry.
pub static ALL: &[Entry] = &[
    entry!(argmax::ARGMAX),
    entry!(attention::ATTENTION, timings: attention::timings),
    entry!(attention_merge::ATTENTION_MERGE),
    entry!(embedding::EMBEDDING),
    entry!(gather_rows::GATHER_ROWS),
    entry!(matmul::MATMUL, timings: matmul::timings),
    entry!(penalties::PENALTIES),
    entry!(rms_norm::RMS_NORM),
    entry!(rope::ROPE),
    entry!(sample::SAMPLE),
];

/// Choices that are made once when a model is loaded and hold for every step: a kernel may never
/// choose by the number of tokens where that would change the order of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Invocations that share one output row of a matmul: 1, 2, 4, ... 32. Part of the numerics.
    pub lanes: u32,
    /// Invocations of a matmul workgroup: a multiple of 8 times `lanes`, at most 256.
    pub workgroup: u32,
    /// Invocations talk by subgroup operations: several lanes are joined by shuffles instead of
    /// workgroup memory, single ones share their loads of activations. Same bits.
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
        let tuning = Tuning {
            lanes,
            workgroup: smallest.max(8 * lanes),
            subgroups: false,
        };
        // sharing loads pays where a load is dear: on a CPU
        let pays = lanes > 1 || gpu.is_software();
        let enough = |size| size >= tuning.subgroup_needed();
        Tuning {
            subgroups: pays && gpu.caps().subgroup.is_some_and(enough),
            ..tuning
        }
    }

    /// Invocations a subgroup must have for `subgroups`.
    pub fn subgroup_needed(&self) -> u32 {
        if self.lanes == 1 { 8 } else { self.lanes }
    }
}
