//! Every kernel: its WGSL, its CPU twin, how it is recorded, and the cases that prove it.
//!
//! A kernel is `shaders/x.wgsl`, `src/kernels/x.rs` and a line in [`ALL`]; tests, benches and
//! comparisons take it from there. In each kernel file, in this order: formula, params, parts,
//! reference, `record`, `twin`, `variants`, cases.

pub mod activations;
pub mod add_norm;
pub mod add_positions;
pub mod argmax;
pub mod attention;
pub mod attention_batch;
pub mod attention_cases;
pub mod attention_coop;
mod attention_coop_cases;
pub mod attention_merge;
mod attention_merge_cases;
pub mod attention_output;
pub mod attention_plan;
mod attention_reference;
mod attention_window_cases;
pub mod case;
mod case_weights;
pub mod check;
pub mod embedding;
mod expect;
pub mod finish_logits;
pub mod gather_rows;
pub mod halve;
pub mod layer_norm;
pub mod matmul;
mod matmul_cases;
pub mod matmul_coop;
mod matmul_coop_cases;
mod matmul_endings;
pub mod matmul_output;
pub mod numbers;
pub mod pack;
pub mod peaks;
mod peaks_host;
pub mod penalties;
pub mod probe_dot4;
pub mod probe_fma;
pub mod probe_stream;
pub mod rope;
mod rope_cases;
mod row;
pub mod sample;
pub mod timing;
mod tuning;
pub mod twin;

use crate::error::Result;
use crate::gpu::{Gpu, Kernel, OpenOptions, Variant};
pub use activations::Activations;
use case::Case;
use std::collections::HashSet;
use std::sync::Arc;
pub use tuning::Tuning;

/// A kernel as tests, benches and comparisons see it.
pub struct Entry {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Every variant that is ever dispatched, for translation and compilation without a device.
    pub variants: fn() -> Vec<Variant>,
    /// What a dispatch of it writes, computed on the host.
    pub twin: twin::Twin,
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
            twin: $module::twin,
            cases: $module::cases,
            timings: $timings,
        }
    };
}

/// The registry.
pub static ALL: &[Entry] = &[
    entry!(add_norm::ADD_NORM, timings: add_norm::timings),
    entry!(add_positions::ADD_POSITIONS),
    entry!(argmax::ARGMAX),
    entry!(attention::ATTENTION, timings: attention::timings),
    entry!(attention_coop::ATTENTION_COOP, timings: attention_coop::timings),
    entry!(attention_merge::ATTENTION_MERGE),
    entry!(embedding::EMBEDDING),
    entry!(finish_logits::FINISH_LOGITS, timings: finish_logits::timings),
    entry!(gather_rows::GATHER_ROWS),
    entry!(halve::HALVE),
    entry!(layer_norm::LAYER_NORM, timings: layer_norm::timings),
    entry!(matmul::MATMUL, timings: matmul::timings),
    entry!(matmul_coop::MATMUL_COOP),
    entry!(pack::PACK),
    entry!(penalties::PENALTIES),
    entry!(probe_dot4::PROBE_DOT4),
    entry!(probe_fma::PROBE_FMA),
    entry!(probe_stream::PROBE_STREAM),
    entry!(rope::ROPE, timings: rope::timings),
    entry!(sample::SAMPLE),
];

/// [`Gpu::open`], with the twins to compute by where the options ask for the processor.
///
/// # Errors
/// As [`Gpu::open`].
pub fn open(options: &OpenOptions) -> Result<Arc<Gpu>> {
    Gpu::open(&OpenOptions {
        host: Some(|| Box::new(twin::Host)),
        ..options.clone()
    })
}

/// Each variant once: choices that make no difference to a kernel lead to the same.
fn distinct(variants: impl Iterator<Item = Variant>) -> Vec<Variant> {
    let mut seen = HashSet::new();
    variants.filter(|variant| seen.insert(*variant)).collect()
}
