//! A model from a path: files, configuration, tokenizer, weights on the device.

use super::decoder::{Decoder, DecoderOptions};
use super::origin::Origin;
use super::tensors::{Names, TensorMap};
use super::texts::Texts;
use super::tune::{self, Tuned};
use super::warm::warm_up;
use super::{Config, Numerics, family};
use crate::error::{Error, Result};
use crate::formats::checkpoint::Checkpoint;
use crate::formats::{self, ModelFiles};
use crate::gpu::{Gpu, OpenOptions};
use crate::kernels::Activations;
use crate::kv::{KvCache, KvFormat, pages_for};
use crate::quant::{FORMATS, Format};
use std::path::Path;
use std::sync::Arc;

/// The context when none is asked for and the model allows more.
const DEFAULT_CONTEXT: usize = 8192;
/// The longest context that can be asked for: no model comes near, and every index fits a u32.
const MAX_CONTEXT: usize = 1 << 24;
/// Tokens of a step when nothing is asked for.
const DEFAULT_BATCHED_TOKENS: usize = 512;
/// Requests at a time when nothing is asked for.
const DEFAULT_RUNNING: usize = 16;
/// Tokens of a step on a CPU, where a longer one only makes the first sign of life later.
const SOFTWARE_BATCHED_TOKENS: usize = 128;

/// Everything about a model on a device that can be chosen.
#[derive(Clone)]
pub struct LoadOptions {
    /// Which adapter, and the switches for tests.
    pub open: OpenOptions,
    /// How weights are kept in memory.
    pub weights: &'static Format,
    /// How keys and values are kept.
    pub kv_format: KvFormat,
    /// The longest sequence, in tokens; `None` takes the model's, up to 8192.
    pub ctx_size: Option<usize>,
    /// Tokens a step may compute.
    pub batch_size: Option<usize>,
    /// Requests that may be computed at a time; they share the cache.
    pub max_running: usize,
    /// How activations are passed from kernel to kernel; `None` takes the faster way on this adapter
    /// where `autotune` measures it, else f32. Part of the numerics.
    pub activations: Option<Activations>,
    /// Lanes of a matmul row; `None` takes what suits the adapter. Part of the numerics.
    pub lanes: Option<u32>,
    /// Which rules results keep.
    pub numerics: Numerics,
    /// Measures what suits the adapter and the model's shape, in up to 3 s, and keeps the result where
    /// `open` names a folder. Otherwise everything is as [`crate::kernels::Tuning::for_gpu`] has it.
    pub autotune: bool,
    /// Weights that are NaN or infinite are refused instead of warned of.
    pub strict_weights: bool,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            open: OpenOptions::default(),
            weights: FORMATS[0],
            kv_format: KvFormat::default(),
            ctx_size: None,
            batch_size: None,
            max_running: DEFAULT_RUNNING,
            activations: None,
            lanes: None,
            numerics: Numerics::default(),
            autotune: false,
            strict_weights: false,
        }
    }
}

/// A model ready to run, and its text side.
pub struct Model {
    /// The device side.
    pub decoder: Decoder,
    /// The text side.
    pub texts: Texts,
}

impl Model {
    /// Loads the model at `path`: a GGUF file or a Hugging Face directory. `progress` is told bytes
    /// done and in all.
    ///
    /// # Errors
    /// Names the file and the field, the adapter, or what does not fit.
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Model> {
        let files = formats::open(path)?;
        let family = family(&files)?;
        let config = (family.config)(&files)?;
        let texts = Texts::load(&files)?;
        check_vocab(&files, &texts, config.vocab_size)?;
        let names = (family.names)(&files);
        let map = TensorMap::new(&config, &names, files.checkpoint())?;
        let gpu = Gpu::open(&OpenOptions {
            coop: options.numerics == Numerics::Fast,
            ..options.open.clone()
        })?;
        let (tuned, _straggler) = tune::choose(&gpu, &config, options)?;
        let sizes = sizes(&gpu, &config, options, tuned)?;
        check_memory(&gpu, &config, &sizes, map.packed_bytes(options.weights))?;
        let origin = Arc::new(Origin {
            config,
            names,
            checkpoint: files.checkpoint().clone(),
            weights: options.weights,
            strict_weights: options.strict_weights,
            vocab_size: texts.tokenizer.vocab_size(),
        });
        let decoder = origin.decoder(&gpu, sizes, progress)?;
        Ok(Model { decoder, texts })
    }
}

/// That the model knows every token of the tokenizer, and the tokens that end an answer. It may know
/// more: rows are often padded to a round number.
fn check_vocab(files: &ModelFiles, texts: &Texts, vocab_size: usize) -> Result<()> {
    let (path, field) = match files {
        ModelFiles::Gguf(gguf) => (
            gguf.metadata.path(),
            "vocab_size (rows of token_embd.weight)",
        ),
        ModelFiles::HuggingFace(dir) => (dir.config_path.as_path(), "vocab_size"),
    };
    let tokens = texts.tokenizer.vocab_size();
    if tokens > vocab_size {
        let problem = format!("is {vocab_size}, but the tokenizer has {tokens} tokens");
        return Err(Error::field(path, field, problem));
    }
    if let Some(&end) = texts.end_tokens.iter().find(|&&t| t as usize >= vocab_size) {
        let problem = format!("is {end}, outside of the vocabulary of {vocab_size}");
        return Err(Error::field(path, "eos_token_id", problem));
    }
    Ok(())
}

/// Fills the weights here while kernels are compiled beside it, where the backend likes company;
/// otherwise one after the other.
pub(super) fn fill_and_warm_up(
    decoder: &mut Decoder,
    fill: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let gpu = decoder.gpu().clone();
    let mut warm =
        || gpu.count_as_compilation(|| warm_up(decoder, |decoder, step| decoder.record(&step)));
    #[cfg(not(target_family = "wasm"))]
    if gpu.is_parallel() {
        return std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("nelumbo-warm-up".to_owned());
            let thread = builder
                .spawn_scoped(scope, warm)
                .map_err(|e| Error::Device {
                    message: format!("no thread for compilation: {e}"),
                })?;
            let filled = fill();
            let warmed = thread.join();
            // what is wrong with the user's file comes before what may follow from it
            filled?;
            warmed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
    }
    fill()?;
    warm()
}

/// A decoder over a checkpoint in memory, without a text side: synthetic models.
///
/// # Errors
/// As [`Model::load`].
pub fn decoder_from_parts(
    gpu: &Arc<Gpu>,
    config: &Config,
    names: &Names,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<Decoder> {
    let (tuned, _straggler) = tune::choose(gpu, config, options)?;
    let sizes = sizes(gpu, config, options, tuned)?;
    let origin = Arc::new(Origin {
        config: config.clone(),
        names: *names,
        checkpoint: checkpoint.clone(),
        weights: options.weights,
        strict_weights: options.strict_weights,
        vocab_size: config.vocab_size,
    });
    origin.decoder(gpu, sizes, &mut |_, _| ())
}

/// What the options mean for this model on this adapter.
fn sizes(
    gpu: &Gpu,
    config: &Config,
    options: &LoadOptions,
    tuned: Tuned,
) -> Result<DecoderOptions> {
    let default_batch = if gpu.is_software() {
        SOFTWARE_BATCHED_TOKENS
    } else {
        DEFAULT_BATCHED_TOKENS
    };
    let max_model_len = options
        .ctx_size
        .unwrap_or(config.max_position_embeddings.min(DEFAULT_CONTEXT));
    if options.ctx_size.is_none() && max_model_len < config.max_position_embeddings {
        log::warn!(
            "max_position_embeddings is {}, but a context holds {max_model_len} tokens here; --ctx-size asks for more",
            config.max_position_embeddings
        );
    }
    if max_model_len > config.max_position_embeddings {
        log::warn!(
            "--ctx-size {max_model_len} is over the {} tokens the model was made for",
            config.max_position_embeddings
        );
    }
    if !(2..=MAX_CONTEXT).contains(&max_model_len) {
        return Err(Error::request(
            "ctx_size",
            format!("is {max_model_len}, expected 2 to {MAX_CONTEXT}"),
        ));
    }
    let coop = options.numerics.coop(gpu, &tuned.tuning)?;
    Ok(DecoderOptions {
        max_running: options.max_running.max(1),
        max_model_len,
        max_batched_tokens: options
            .batch_size
            .unwrap_or(default_batch)
            .clamp(1, max_model_len),
        kv_format: options.kv_format,
        tuned,
        coop,
    })
}

/// On a software adapter device memory is the host's, where asking for too much ends in a kill by the
/// system instead of an error: so what is free is looked at first. Hardware tells for itself.
fn check_memory(gpu: &Gpu, config: &Config, sizes: &DecoderOptions, weights: u64) -> Result<()> {
    let page = KvCache::page_bytes(
        config.num_layers,
        config.num_kv_heads,
        config.head_dim,
        sizes.kv_format,
    );
    let cache = page * pages_for(sizes.max_model_len) as u64;
    refuse_beyond(
        free_host_memory().filter(|_| gpu.is_software()),
        weights,
        cache,
    )
}

/// Refuses what takes more than what is free, where that is known.
fn refuse_beyond(free: Option<u64>, weights: u64, cache: u64) -> Result<()> {
    match free {
        Some(free) if weights.saturating_add(cache) > free => Err(Error::DoesNotFit {
            what: format!("the model ({weights} bytes of weights, {cache} of KV cache)"),
            needed_bytes: weights.saturating_add(cache),
            available_bytes: free,
            advice: "a smaller --ctx-size takes less".to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Bytes that programs can still have, where the system tells.
fn free_host_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m32_what_memory_cannot_hold_is_refused_with_both_numbers_and_the_flag_that_helps() {
        let text = |free, weights, cache| {
            let result = refuse_beyond(free, weights, cache);
            result.map_err(|error| error.to_string())
        };
        assert_eq!(text(Some(100), 60, 40), Ok(()));
        assert_eq!(text(None, u64::MAX, u64::MAX), Ok(()));
        let error = text(Some(100), 60, 41).unwrap_err();
        for part in [
            "60 bytes of weights",
            "41 of KV",
            "101",
            "100",
            "--ctx-size",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(text(Some(u64::MAX - 1), u64::MAX, u64::MAX).is_err());
    }
}
