//! The engine: requests in, tokens out, one step at a time.
//!
//! [`EngineCore::step`] is the sentence that describes it all. [`Engine`] puts a core on a thread of
//! its own and talks to it through channels; whoever has no threads calls `step` in a loop.

pub mod batch;
pub mod compare;
mod drawing;
mod embed;
mod ends;
mod engine_core;
pub mod evaluate;

#[cfg(not(target_arch = "wasm32"))]
mod handle;
mod invariants;
mod ledger;
mod options;
pub mod pace;
pub mod pacer;
mod page_map;
pub mod perplexity;
pub mod plan;
mod recovery;
pub mod request;
pub mod runner;
pub mod scheduler;
pub mod sequence;
pub mod simulate;
pub mod speculate;
mod speculation;
mod stats;
#[cfg(not(target_arch = "wasm32"))]
pub mod thread;
mod trace;
pub mod trace_events;
pub mod trial;
pub mod verification;
#[cfg(not(target_arch = "wasm32"))]
mod worker;

pub use embed::Pooling;
pub use engine_core::EngineCore;
#[cfg(not(target_arch = "wasm32"))]
pub use handle::{Events, RequestHandle};
pub use options::EngineOptions;
pub use page_map::PageUse;
pub use request::{Event, Failure, FinishReason, Request, RequestId, Sampling, TokenLogprob};
pub use scheduler::{Limits, Scheduler};
pub use sequence::Counts;
pub use speculate::{Speculate, SpeculateOptions};
pub use stats::{Finished, PageCounts, RequestStats, Spread, Stats};
#[cfg(not(target_arch = "wasm32"))]
pub use thread::Engine;
pub use trace::{StepRecord, Trace};
pub use trial::Trial;
