//! A small model beside a large one, to draft for it: the same tokens, and what memory is left.

use super::load::memory_limit;
use super::{Config, Decoder, LoadOptions, MemoryLimit, Model, Texts};
use crate::error::{Error, Result};
use crate::gpu::DeviceType;
use crate::text::same_tokens;
use std::path::Path;

/// A loaded model that another is to draft for.
#[derive(Clone, Copy)]
pub struct Beside<'a> {
    /// Its file or directory.
    pub path: &'a Path,
    /// Its text side.
    pub texts: &'a Texts,
    /// Its device side.
    pub decoder: &'a Decoder,
    /// How it was loaded.
    pub options: &'a LoadOptions,
    /// Bytes on the device that are taken, by it and whatever belongs to it.
    pub taken_bytes: u64,
}

impl Model {
    /// Loads the model at `path` to draft for another: on the same adapter, held as that one is, and with a
    /// cache for as many sequences of its length, or for what is left of the memory that both may take, one
    /// sequence at least. A draft that was made for a shorter context has that one. `progress` is told bytes
    /// done and in all.
    ///
    /// # Errors
    /// [`Error::Request`] for the first token that is another one, before anything is loaded;
    /// [`Error::DoesNotFit`] where too little is left; and as [`Model::load`].
    pub fn load_draft(
        path: &Path,
        target: Beside<'_>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model> {
        let options = |config: &Config, texts: &Texts| {
            let tokenizers = (&target.texts.tokenizer, &texts.tokenizer);
            same_tokens((target.path, tokenizers.0), (path, tokenizers.1))?;
            draft_options(config, &target)
        };
        Model::load_as(path, progress, options).map_err(|error| beside(error, target.taken_bytes))
    }
}

fn draft_options(config: &Config, target: &Beside<'_>) -> Result<LoadOptions> {
    let Beside {
        decoder, options, ..
    } = target;
    let gpu = decoder.gpu();
    let limit = memory_limit(gpu, options.gpu_memory)?;
    let is_whole = matches!(
        (options.gpu_memory, gpu.report().device_type),
        (Some(MemoryLimit::Bytes(_)), _) | (_, DeviceType::Discrete | DeviceType::Virtual)
    );
    // what the host has left does not count what is in use already: all but an empty cache
    let taken = match is_whole {
        true => target.taken_bytes,
        false => decoder.kv().size_bytes(),
    };
    let context = decoder.max_model_len();
    Ok(LoadOptions {
        ctx_size: Some(context.min(config.max_position_embeddings).max(2)),
        max_running: decoder.max_running(),
        gpu_memory: limit.map(|limit| MemoryLimit::Bytes(limit.saturating_sub(taken))),
        ..(*options).clone()
    })
}

/// What does not fit, told as the smaller of two.
fn beside(error: Error, taken: u64) -> Error {
    match error {
        Error::DoesNotFit {
            what,
            needed_bytes,
            available_bytes,
            ..
        } => Error::DoesNotFit {
            what: format!("to draft, beside a model that takes {taken} bytes, {what}"),
            needed_bytes,
            available_bytes,
            advice:
                "a shorter --ctx-size, fewer sequences at a time or a larger --gpu-memory leaves \
                     room for it; without --draft-model it is not needed"
                    .to_owned(),
        },
        other => other,
    }
}
