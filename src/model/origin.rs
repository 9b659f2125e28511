//! What a decoder was made of. A device that is lost takes weights, cache and pipelines with it; from
//! this the same decoder is made again on a new one.

use super::Config;
use super::decoder::{Decoder, DecoderOptions};
use super::load::fill_and_warm_up;
use super::self_check::Safety;
use super::tensors::{Names, TensorMap};
use super::weights::ModelWeights;
use crate::error::{Error, Result};
use crate::formats::Checkpoint;
use crate::gpu::{AdapterReport, Gpu, OpenOptions};
use crate::kernels;
use crate::quant::Format;
use std::sync::Arc;

/// The weights, as files that stay open, and what was chosen about them.
pub struct Origin {
    /// As the files have it.
    pub config: Config,
    /// How the files name their tensors.
    pub names: Names,
    /// The files.
    pub checkpoint: Checkpoint,
    /// How weights are kept in memory.
    pub weights: &'static Format,
    /// Weights that are NaN or infinite are refused instead of warned of.
    pub strict_weights: bool,
    /// Rows of the vocabulary that get logits: those beyond the tokenizer's are padding, and cannot be
    /// drawn.
    pub vocab_size: usize,
}

impl Origin {
    /// Weights, cache and scratch on `gpu`, its kernels compiled. `progress` is told bytes done and in
    /// all.
    ///
    /// # Errors
    /// As [`Model::load`](crate::Model::load).
    pub fn decoder(
        self: &Arc<Self>,
        gpu: &Arc<Gpu>,
        sizes: DecoderOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Decoder> {
        let map = TensorMap::new(&self.config, &self.names, &self.checkpoint)?;
        let whole = ModelWeights::allocate(gpu, &map, self.weights)?;
        let mut weights = whole.clone();
        weights.truncate_vocab(self.vocab_size);
        let config = Config {
            vocab_size: self.vocab_size,
            ..self.config.clone()
        };
        let mut decoder = Decoder::new(gpu, config, weights, sizes, self)?;
        fill_and_warm_up(&mut decoder, || {
            whole.fill(gpu, &map, self.strict_weights, progress)
        })?;
        Ok(decoder)
    }
}

/// How to make a decoder again, without the device that it is on.
pub struct Recipe {
    pub(super) origin: Arc<Origin>,
    pub(super) sizes: DecoderOptions,
    pub(super) open: OpenOptions,
    pub(super) report: AdapterReport,
    pub(super) safety: Arc<Safety>,
}

impl Recipe {
    /// The decoder on a new device of the same adapter, with the same sizes and the same bits.
    ///
    /// # Errors
    /// [`Error::NoAdapter`] when the adapter does not come back or another came in its place; and as
    /// [`Origin::decoder`].
    pub fn make(&self) -> Result<Decoder> {
        let gpu = kernels::open(&self.open)?;
        same_adapter(&self.report, gpu.report())?;
        let mut decoder = self.origin.decoder(&gpu, self.sizes, &mut |_, _| ())?;
        decoder.keep_safe(Arc::clone(&self.safety));
        Ok(decoder)
    }
}

/// Answers that were begun on one adapter are not gone on with on another, which may round differently.
fn same_adapter(was: &AdapterReport, is: &AdapterReport) -> Result<()> {
    let told = |r: &AdapterReport| format!("{} ({}, {})", r.name, r.backend.name(), r.driver_info);
    if told(was) == told(is) {
        return Ok(());
    }
    Err(Error::NoAdapter {
        tried: format!("{} was lost, and {} is there now", told(was), told(is)),
        advice: "start again to use it".to_owned(),
    })
}
