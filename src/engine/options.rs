//! How an engine is to work.

use super::speculate::SpeculateOptions;
use std::time::Duration;

/// What is decided when an engine starts. The sizes of cache and batch belong to the decoder and were
/// decided when it was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Requests that may wait for their turn; the next one is refused.
    pub max_waiting: usize,
    /// The longest that a stream should wait for its next token while prompts of others are computed,
    /// which then get a smaller part of each step; `None` lets them have whole steps.
    pub max_itl: Option<Duration>,
    /// How many of the last steps to keep a record of, for [`Engine::take_trace`]; 0 keeps none.
    ///
    /// [`Engine::take_trace`]: super::Engine::take_trace
    pub trace_steps: usize,
    /// Who proposes tokens to be verified, and how many.
    pub speculate: SpeculateOptions,
}

impl Default for EngineOptions {
    /// 256 may wait, prompts have whole steps, nothing is recorded, texts propose what pays.
    fn default() -> EngineOptions {
        EngineOptions {
            max_waiting: 256,
            max_itl: None,
            trace_steps: 0,
            speculate: SpeculateOptions::default(),
        }
    }
}
