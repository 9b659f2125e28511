//! The engine: requests in, tokens out, one step at a time.
//!
//! [`EngineCore::step`] is the sentence that describes it all. [`Engine`] puts a core on a thread of
//! its own and talks to it through channels; whoever has no threads calls `step` in a loop.

pub mod batch;
mod engine_core;
pub mod evaluate;
pub mod pace;
pub mod pacer;
pub mod plan;
pub mod request;
pub mod runner;
pub mod scheduler;
pub mod sequence;
#[cfg(not(target_arch = "wasm32"))]
pub mod thread;
pub mod trial;

pub use engine_core::EngineCore;
pub use request::{Event, FinishReason, Request, RequestId, Sampling, TokenLogprob};
pub use scheduler::{Limits, Scheduler};
pub use sequence::Counts;
#[cfg(not(target_arch = "wasm32"))]
pub use thread::{Engine, RequestHandle};
pub use trial::Trial;
