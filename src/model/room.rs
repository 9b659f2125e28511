//! What load options mean in numbers: context, sequences, tokens of a step, and the bytes beside weights
//! and cache. Loading and planning both ask here; nothing here needs a device.

use super::budget::{MemoryLimit, Wish};
use super::decoder::DecoderOptions;
use super::scratch::{MAX_HEAD_ROWS, Scratch, most_tokens};
use super::tune::Tuned;
use super::{Config, LoadOptions};
use crate::error::{Error, Result};
use crate::gpu::{Coop, Gpu};

/// The context when none is asked for and the model allows more.
pub(super) const DEFAULT_CONTEXT: usize = 8192;
/// The longest context that can be asked for: no model comes near, and every index fits a u32.
pub(super) const MAX_CONTEXT: usize = 1 << 24;
/// Tokens of a step when nothing is asked for.
const DEFAULT_BATCHED_TOKENS: usize = 512;
/// Requests at a time when nothing is asked for.
pub(super) const DEFAULT_RUNNING: usize = 16;
/// Requests at a time at most: rows of logits a step can have.
pub(super) const MOST_RUNNING: usize = MAX_HEAD_ROWS;
/// The part of a device's memory that is used at most when nothing is asked for, in percent: others
/// use it, too, and it is never whole.
const DEVICE_SHARE: f64 = 90.0;
/// The same of the host's, where the model's file and everybody else are.
const HOST_SHARE: f64 = 80.0;
/// Tokens of a step on a CPU, where a longer one only makes the first sign of life later.
const SOFTWARE_BATCHED_TOKENS: usize = 128;

/// What sizes depend on, of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The largest window of a buffer that a kernel binds, in bytes.
    pub max_binding: u64,
    /// It is the host's CPU, and its memory the host's.
    pub is_software: bool,
}

impl Bounds {
    /// Of a device.
    pub fn of(gpu: &Gpu) -> Bounds {
        Bounds {
            max_binding: gpu.max_binding_bytes(),
            is_software: gpu.is_software(),
        }
    }

    /// What everything on it may take where nothing is asked for.
    pub fn default_limit(&self) -> MemoryLimit {
        MemoryLimit::Percent(if self.is_software {
            HOST_SHARE
        } else {
            DEVICE_SHARE
        })
    }

    /// What `options` ask for, were there memory for all of it.
    ///
    /// # Errors
    /// [`Error::Request`] for a context out of range, [`Error::DoesNotFit`] where the activations of one
    /// token do not fit a binding.
    pub(super) fn wanted(
        &self,
        config: &Config,
        options: &LoadOptions,
        tuned: Tuned,
        coop: Option<Coop>,
    ) -> Result<(Wish, DecoderOptions)> {
        let default_batch = if self.is_software {
            SOFTWARE_BATCHED_TOKENS
        } else {
            DEFAULT_BATCHED_TOKENS
        };
        let wish = Wish {
            context: options
                .ctx_size
                .unwrap_or(config.max_position_embeddings.min(DEFAULT_CONTEXT)),
            is_asked: options.ctx_size.is_some(),
            sequences: options.max_running.clamp(1, MOST_RUNNING),
            pool_tokens: options.pool_tokens,
        };
        let made_for = config.max_position_embeddings;
        if config.learned_positions && wish.context > made_for {
            let problem = format!(
                "is {}, but the model's table of positions has {made_for}",
                wish.context
            );
            return Err(Error::request("ctx_size", problem));
        }
        if wish.context > config.max_position_embeddings {
            log::warn!(
                "--ctx-size {} is over the {} tokens the model was made for",
                wish.context,
                config.max_position_embeddings
            );
        }
        if !(2..=MAX_CONTEXT).contains(&wish.context) {
            return Err(Error::request(
                "ctx_size",
                format!("is {}, expected 2 to {MAX_CONTEXT}", wish.context),
            ));
        }
        let mut wanted = DecoderOptions {
            max_running: wish.sequences,
            num_pages: wish.in_full(wish.context).pages,
            least_model_len: wish.least_context(),
            max_model_len: wish.context,
            max_batched_tokens: options
                .batch_size
                .unwrap_or(default_batch)
                .clamp(1, wish.context),
            kv_format: options.kv_format,
            tuned,
            coop,
        };
        wanted.max_batched_tokens =
            wanted
                .max_batched_tokens
                .min(most_tokens(self.max_binding, config, &wanted)?);
        Ok((wish, wanted))
    }

    /// Bytes of activations and metadata, and of what is allocated beside them to draw tokens and read
    /// them back.
    pub(super) fn scratch_bytes(
        &self,
        config: &Config,
        options: &DecoderOptions,
        several_slabs: bool,
    ) -> (u64, u64) {
        let plan = Scratch::plan(self.max_binding, config, options, several_slabs);
        (plan.bytes(), plan.bytes_beside())
    }
}

/// Teams of attention with which a step computes no split apart: on a CPU a merge, a dispatch more, costs
/// more than a thread that waits for another.
pub(super) fn wanted_teams(is_software: bool) -> usize {
    if is_software { 2 } else { 2048 }
}
