//! A model from a path: files, configuration, tokenizer, weights on the device.

use super::budget::{self, Costs, MemoryLimit, PoolSize, Wish};
use super::decoder::{Decoder, DecoderOptions};
use super::origin::Origin;
use super::room::{Bounds, DEFAULT_RUNNING};
use super::self_check;
use super::tensors::{Names, TensorMap};
use super::texts::Texts;
use super::tune::{self, Tuned};
use super::warm::warm_up;
use super::{Config, Numerics, family};
use crate::error::{Error, Result};
use crate::formats::checkpoint::Checkpoint;
use crate::formats::{self, ModelFiles};
use crate::gpu::{Gpu, OpenOptions};
use crate::kernels::{self, Activations};
use crate::kv::{KvFormat, PAGE_SIZE};
use crate::quant::{FORMATS, Format};
use std::path::Path;
use std::sync::Arc;

/// Tokens of a step when nothing is asked for where twins compute: so many that unpacking a weight is
/// the smaller part, ...
const HOST_BATCHED_TOKENS: std::ops::RangeInclusive<usize> = 4..=16;
/// ... and no more operations than two cores do in about two seconds: nothing ends a step before its
/// time.
const HOST_STEP_OPERATIONS: usize = 20_000_000_000;

/// Everything about a model on a device that can be chosen.
#[derive(Clone)]
pub struct LoadOptions {
    /// Which adapter, and the switches for tests.
    pub open: OpenOptions,
    /// How weights are kept in memory.
    pub weights: &'static Format,
    /// How keys and values are kept.
    pub kv_format: KvFormat,
    /// The longest sequence, in tokens; `None` takes the model's, up to 8192 and to what memory holds.
    pub ctx_size: Option<usize>,
    /// Tokens a step may compute.
    pub batch_size: Option<usize>,
    /// Requests that may be computed at a time, up to 64; they share the cache, which has room for all
    /// of them at their longest where there is memory for it.
    pub max_running: usize,
    /// Tokens that the cache has room for, whoever they belong to, in place of that.
    pub pool_tokens: Option<usize>,
    /// What everything on the device may take, weights, cache and activations. `None` takes what is
    /// wanted, and at most most of what the device has, as far as it tells.
    pub gpu_memory: Option<MemoryLimit>,
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
    /// Checks the kernels that this model needs against their twins on the CPU, once for each adapter,
    /// driver and shape where `open` names a folder, and works around those that are wrong. Off where
    /// nobody asks for it, as measurement is: it compiles and takes a second or two.
    pub self_check: bool,
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
            pool_tokens: None,
            gpu_memory: None,
            activations: None,
            lanes: None,
            numerics: Numerics::default(),
            autotune: false,
            self_check: false,
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
        Model::load_as(path, progress, |_, _| Ok(options.clone()))
    }

    /// The same, with options that depend on what the files say.
    pub(super) fn load_as(
        path: &Path,
        progress: &mut dyn FnMut(u64, u64),
        options: impl FnOnce(&Config, &Texts) -> Result<LoadOptions>,
    ) -> Result<Model> {
        let files = formats::open(path)?;
        let family = family(&files)?;
        let config = (family.config)(&files)?;
        let mut texts = Texts::load(&files)?;
        fit_vocab(&files, &mut texts, config.vocab_size)?;
        let options = &options(&config, &texts)?;
        let names = (family.names)(&files);
        let map = TensorMap::new(&config, &names, files.checkpoint())?;
        let gpu = kernels::open(&OpenOptions {
            coop: options.numerics == Numerics::Fast,
            ..options.open.clone()
        })?;
        let (tuned, _straggler) = tune::choose(&gpu, &config, options)?;
        let weights = weights_bytes(&map, options);
        let sizes = sizes(&gpu, &config, options, tuned, weights)?;
        let origin = Arc::new(Origin {
            config,
            names,
            checkpoint: files.checkpoint().clone(),
            weights: options.weights,
            strict_weights: options.strict_weights,
            vocab_size: texts.tokenizer.vocab_size(),
        });
        let mut decoder = origin.decoder(&gpu, sizes, progress)?;
        if options.self_check {
            self_check::secure(&mut decoder)?;
        }
        Ok(Model { decoder, texts })
    }
}

/// Sees to it that the model knows every token of the tokenizer, and the tokens that end an answer. It may
/// know more: rows are often padded to a round number. Special tokens that it does not know are left out:
/// there are tokenizers that serve several models, one of which sees images.
pub(super) fn fit_vocab(files: &ModelFiles, texts: &mut Texts, vocab_size: usize) -> Result<()> {
    let (path, field) = match files {
        ModelFiles::Gguf(gguf) => (
            gguf.metadata.path(),
            "vocab_size (rows of token_embd.weight)",
        ),
        ModelFiles::HuggingFace(dir) => (dir.config_path.as_path(), "vocab_size"),
    };
    let tokens = texts.tokenizer.vocab_size();
    if tokens > vocab_size && texts.tokenizer.truncate(vocab_size) {
        log::info!(
            "{}: {field}: is {vocab_size}; the tokenizer's {} special tokens beyond are left out",
            path.display(),
            tokens - vocab_size
        );
    } else if tokens > vocab_size {
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
    if gpu.is_host() {
        return fill(); // nothing is compiled
    }
    if gpu.is_parallel() {
        gpu.zero(decoder.weights().tensors())?; // two threads will be at them
    }
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
    let map = TensorMap::new(config, names, checkpoint)?;
    let weights = weights_bytes(&map, options);
    let sizes = sizes(gpu, config, options, tuned, weights)?;
    let origin = Arc::new(Origin {
        config: config.clone(),
        names: *names,
        checkpoint: checkpoint.clone(),
        weights: options.weights,
        strict_weights: options.strict_weights,
        vocab_size: config.vocab_size,
    });
    let mut decoder = origin.decoder(gpu, sizes, &mut |_, _| ())?;
    if options.self_check {
        self_check::secure(&mut decoder)?;
    }
    Ok(decoder)
}

/// Bytes that the weights take, norms included.
fn weights_bytes(map: &TensorMap, options: &LoadOptions) -> u64 {
    map.packed_bytes(options.weights) + map.vector_bytes()
}

/// Tokens of a step on the host.
fn host_batch(config: &Config) -> usize {
    let of_token = 2 * config.num_layers * config.layer_params();
    let (least, most) = HOST_BATCHED_TOKENS.into_inner();
    (HOST_STEP_OPERATIONS / of_token.max(1)).clamp(least, most)
}

/// What the options mean for this model, which has `weights` bytes of them, on this adapter.
fn sizes(
    gpu: &Gpu,
    config: &Config,
    options: &LoadOptions,
    tuned: Tuned,
    weights: u64,
) -> Result<DecoderOptions> {
    let bounds = Bounds::of(gpu);
    let coop = options.numerics.coop(gpu, &tuned.tuning)?;
    let of_host = gpu.is_host().then(|| host_batch(config));
    let options = &LoadOptions {
        batch_size: options.batch_size.or(of_host),
        ..options.clone()
    };
    let (wish, wanted) = bounds.wanted(config, options, tuned, coop)?;
    wanted.groups(config, bounds.max_binding)?;
    let costs = Costs {
        weights,
        cache: &|size| wanted.with_pool(size).cache_bytes(config),
        scratch: &|size| {
            let options = wanted.with_pool(size);
            let groups = options.groups(config, bounds.max_binding);
            let several_slabs =
                groups.is_ok_and(|groups| groups.iter().any(|g| g.geometry.num_slabs() > 1));
            let (scratch, beside) = bounds.scratch_bytes(config, &options, several_slabs);
            scratch + beside
        },
    };
    let limit = memory_limit(gpu, options.gpu_memory)?;
    let found = budget::choose(&wish, &costs, limit)?;
    tell_context(config, &wish, found);
    Ok(wanted.with_pool(found))
}

/// What everything on the device may take, in bytes; `None` where nothing is asked for and nobody knows
/// what there is.
pub(super) fn memory_limit(gpu: &Gpu, asked: Option<MemoryLimit>) -> Result<Option<u64>> {
    let limit = asked.unwrap_or(Bounds::of(gpu).default_limit());
    match (limit.of(gpu.memory_bytes()), asked) {
        (None, Some(MemoryLimit::Percent(share))) => {
            let problem = format!(
                "is {share}%, but {} does not tell how much memory it has: name a size, such as 6GiB",
                gpu.report().name
            );
            Err(Error::request("--gpu-memory", problem))
        }
        (limit, _) => Ok(limit),
    }
}

/// Says why the context is as long as it is, where somebody may have expected more.
fn tell_context(config: &Config, wish: &Wish, found: PoolSize) {
    let (made_for, holds) = (config.max_position_embeddings, found.context);
    if holds < wish.context {
        log::warn!(
            "a context holds {holds} tokens here instead of {}: there is no memory for more; \
             --gpu-memory tells how much may be used",
            wish.context
        );
    } else if !wish.is_asked && holds < made_for {
        log::warn!(
            "max_position_embeddings is {made_for}, but a context holds {holds} tokens here; --ctx-size asks for more"
        );
    }
    let whole = wish.in_full(holds).pages;
    if found.pages < whole {
        log::info!(
            "the cache holds {} tokens; {} would be {} contexts",
            found.pages * PAGE_SIZE,
            whole * PAGE_SIZE,
            wish.sequences
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::synthetic;

    #[test]
    fn steps_on_the_host_take_seconds_at_most() {
        let of = |num_layers, hidden_size, intermediate_size| {
            host_batch(&Config {
                num_layers,
                hidden_size,
                intermediate_size,
                num_heads: hidden_size / 64,
                num_kv_heads: hidden_size / 256,
                head_dim: 64,
                ..synthetic::tiny()
            })
        };
        assert_eq!(of(30, 576, 1536), 16);
        assert_eq!(of(16, 2048, 8192), 10);
        assert_eq!(of(32, 4096, 14336), 4);
    }
}
