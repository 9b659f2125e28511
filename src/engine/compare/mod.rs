//! A device held against the reference on the CPU: how far off its layers and its logits are, what it
//! would say instead, and which of its operations is the first that is wrong.
//!
//! [`Expected`] is what the CPU says of a text, computed once. [`Found::of`] is how an engine differs
//! from it, from the residual streams and logits of the same text. [`watch()`] looks at single
//! dispatches: steps of every kind that a request can lead to run on the device, and each is judged by
//! its twin, with the inputs that it really had. So the first dispatch that is out of its bounds is the
//! cause, whatever it does to those after it.

mod cases;
mod expected;
mod figures;
mod found;
mod steps;
mod tap;
mod trace;
mod watch;

pub use cases::{CaseReport, check_cases};
pub use expected::Expected;
pub use figures::{Divergence, LayerError, divergence, layer_error};
pub use found::Found;
pub use tap::{Streams, residual_streams};
pub use trace::{Traced, trace};
pub use watch::{BadOp, Looked, Watching, watch, watch_steps};

use crate::engine::EngineCore;
use crate::gpu::Recorder;

impl EngineCore {
    fn recorder(&mut self) -> &mut Recorder {
        self.runner.decoder_mut().recorder()
    }
}
