//! Requests through the scheduler on a clock that is a number: what many users would see, without a
//! device and without waiting.
//!
//! | file | holds |
//! |---|---|
//! | [`arrivals`] | who asks when, for how much: made up from a seed, or recorded |
//! | [`lengths`] | how long made-up prompts and answers are |
//! | [`run`](mod@run) | the loop: who has arrived is submitted, a step is planned, the clock goes on by its cost |
//! | `paged` | the scheduler that serves, its pages and the pacer of a device |
//! | [`contiguous`] | the same order of service where each request reserves one piece of memory, to compare with |
//! | [`cost`] | what a step takes, by the roofline |
//! | [`figures`] | what came of it: times, goodput, memory |
//!
//! The scheduler, the pool, the prefix cache and the pacer are those of the engine, called as
//! [`EngineCore::step`](super::EngineCore::step) calls them; a step's tokens are not computed, and what
//! it takes is a [`StepCost`]. So what is learned here about chunks, pools and batches is true of the
//! engine as far as the costs are. Values throughout: the same arguments, the same outcome.

pub mod arrivals;
pub mod contiguous;
pub mod cost;
pub mod figures;
pub mod lengths;
mod paged;
pub mod run;

pub use arrivals::{Arrival, Prefix, Workload};
pub use contiguous::Reserve;
pub use cost::RooflineCost;
pub use figures::{Figures, MemoryUse, Quantiles, Slo};
pub use lengths::Lengths;
pub use run::{Chunking, Memory, Outcome, Served, Setup, simulate};

use super::plan::Chunk;

/// What steps take.
pub trait StepCost {
    /// Seconds from a step's words to its tokens, above 0. Chunks that draw have a row of logits each.
    fn seconds(&self, chunks: &[Chunk]) -> f64;
}

impl<F: Fn(&[Chunk]) -> f64> StepCost for F {
    fn seconds(&self, chunks: &[Chunk]) -> f64 {
        self(chunks)
    }
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests tell what they compared")]
#[path = "../tests/simulate.rs"]
mod tests;
