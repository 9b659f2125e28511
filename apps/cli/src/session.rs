//! A loaded model behind `nelumbo run` and `nelumbo chat`: the engine on its thread, the tokenizer on ours.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::{Duration, Instant};

use nelumbo::engine::{Engine, EngineCore, EngineOptions, Event, Request, RequestHandle, Sampling};
use nelumbo::gpu::options::switch;
use nelumbo::gpu::{Backend, Gpu, OpenOptions, PipelineFolder};
use nelumbo::kernels::Activations;
use nelumbo::kv::KvFormat;
use nelumbo::model::warm::shader_hash;
use nelumbo::model::{Beside, Numerics as Mode, SamplingDefaults, Texts};
use nelumbo::quant::Format;
use nelumbo::text::{Message, Tokenizer};
use nelumbo::{LoadOptions, Model};

use crate::args::{ActivationType, CacheType, NumericsMode, WeightType};
use crate::date;
use crate::exit::{Failure, say};
use crate::generate::{Stream, Vocabulary, follow};
use crate::models::Progress;
use crate::options::{self, DeviceOptions, RunOptions};
use crate::output::{
    Answer, Device, Memory, Numerics, SafeMode, Speculation, Timings, Tuning, Usage,
};
use crate::prompt_bar::PromptBar;
use crate::run::Answers;
use crate::speculation;
use crate::stopwatch::Stopwatch;

/// How long a wait for an event lasts before Ctrl-C is looked for.
const GLANCE: Duration = Duration::from_millis(50);

/// What is under way where a device fails before the first answer.
const LOADING: &str = "loading the model";

/// A model that is ready to answer.
pub struct Session {
    engine: Engine,
    texts: Texts,
    gpu: Arc<Gpu>,
    memory: Memory,
    numerics: Numerics,
    tuning: Tuning,
    safe_mode: Vec<SafeMode>,
    /// The longest sequence, prompt and answer, in tokens.
    context_limit: usize,
    load_time: Duration,
    quiet: bool,
}

/// Loads the model at `path` onto the adapter that the options ask for.
/// Compiled pipelines are kept in the folder `pipelines`.
pub fn open(
    path: &Path,
    options: &RunOptions,
    pipelines: Option<PathBuf>,
    quiet: bool,
) -> Result<Session, Failure> {
    let start = Instant::now();
    let load = LoadOptions {
        max_running: options.parallel,
        ..load_options(
            &options.device,
            options.ctx_size,
            options.batch_size,
            pipelines,
        )?
    };
    let path = path.to_owned();
    let draft = options.speculation.draft.clone();
    let draws = options.speculation.options.draws;
    let engine_options = EngineOptions {
        speculate: options.speculation.options,
        ..EngineOptions::default()
    };
    let (engine, (texts, gpu, memory, context_limit, numerics, tuning, safe_mode)) =
        Engine::start_with(engine_options, move |options| {
            let mut bar = None;
            let mut progress = |done: u64, all: u64| {
                let bar = bar.get_or_insert_with(|| Progress::on_terminal("loading", all, quiet));
                bar.at(done);
            };
            let model = Model::load(&path, &load, &mut progress);
            let Model { decoder, texts } = model.map_err(|error| error.during(LOADING))?;
            let gpu = Arc::clone(decoder.gpu());
            let mut engine = EngineCore::with_options(decoder, options)
                .map_err(|error| error.during(LOADING))?;
            let other_bytes = engine.other_bytes();
            let decoder = engine.decoder();
            let mut memory = Memory {
                weights_bytes: decoder.weights().size_bytes(),
                kv_bytes: decoder.kv().size_bytes(),
                scratch_bytes: decoder.scratch_bytes(),
                other_bytes,
            };
            let (numerics, tuning) = (Numerics::of(decoder), Tuning::of(decoder.tuned()));
            let context_limit = engine.servable_len();
            let safe_mode = SafeMode::of(decoder);
            if let Some(draft) = draft {
                let target = Beside {
                    path: &path,
                    texts: &texts,
                    decoder,
                    options: &load,
                    taken_bytes: memory.total(),
                };
                let draft = speculation::load_draft(&draft, target, draws, quiet);
                let mut draft = draft.map_err(|error| error.during(LOADING))?;
                memory.other_bytes += draft.size_bytes();
                let set = engine.set_draft(Box::new(draft));
                set.map_err(|error| error.during(LOADING))?;
            }
            let about = (
                texts,
                gpu,
                memory,
                context_limit,
                numerics,
                tuning,
                safe_mode,
            );
            Ok((engine, about))
        })?;
    let selection = &options.device.selection;
    let pinned = selection.device.is_some()
        || selection.allow_software
        || selection.backend == Some(Backend::Cpu);
    if gpu.is_software() && !pinned && !quiet {
        say(&format!(
            "note: no GPU found; running on the CPU with {}",
            gpu.report().name
        ));
    }
    let load_time = start.elapsed();
    Ok(Session {
        engine,
        texts,
        gpu,
        memory,
        numerics,
        tuning,
        safe_mode,
        context_limit,
        load_time,
        quiet,
    })
}

/// Where results are kept, unless that is switched off.
pub fn pipeline_folder(folder: Option<PathBuf>) -> Result<Option<PipelineFolder>, Failure> {
    let kept = switch("NELUMBO_PIPELINE_CACHE")?.unwrap_or(true);
    Ok(folder.filter(|_| kept).map(|folder| PipelineFolder {
        folder,
        shaders: shader_hash(),
    }))
}

/// The library's form of the flags about device and memory, for one sequence at a time; compiled
/// pipelines are kept in the folder `pipelines`.
pub fn load_options(
    device: &DeviceOptions,
    ctx_size: Option<usize>,
    batch_size: Option<usize>,
    pipelines: Option<PathBuf>,
) -> Result<LoadOptions, Failure> {
    let pipelines = pipeline_folder(pipelines)?;
    let weights = match device.weights {
        WeightType::Q8 => "q8",
        WeightType::F16 => "f16",
    };
    Ok(LoadOptions {
        open: OpenOptions {
            selection: device.selection.clone(),
            pipelines,
            ..OpenOptions::from_env()?
        },
        weights: Format::from_name(weights)
            .expect("the library has every format that the flag offers"),
        kv_format: match device.cache_type {
            CacheType::F16 => KvFormat::F16,
            CacheType::F32 => KvFormat::F32,
        },
        activations: match device.activations {
            ActivationType::Auto => None,
            ActivationType::Q8 => Some(Activations::Q8),
            ActivationType::F32 => Some(Activations::F32),
        },
        numerics: match device.numerics {
            NumericsMode::Canonical => Mode::Canonical,
            NumericsMode::Fast => Mode::Fast,
        },
        autotune: device.autotune,
        self_check: device.self_check,
        strict_weights: device.strict_weights,
        ctx_size,
        batch_size,
        max_running: 1,
        gpu_memory: device.gpu_memory,
        ..LoadOptions::default()
    })
}

/// Token ids of the prompt: as it is, or as the user's turn of a chat.
pub fn encode(texts: &Texts, prompt: &str, options: &RunOptions) -> Result<Vec<u32>, Failure> {
    if options.raw {
        return Ok(texts.tokenizer.encode_raw(prompt)?);
    }
    let system = options.system.iter();
    let messages: Vec<Message> = system
        .map(|text| Message::new("system", text))
        .chain([Message::new("user", prompt)])
        .collect();
    Ok(texts.encode_chat(&messages, &date::today())?)
}

impl Session {
    /// How the model's authors would have tokens drawn.
    pub fn advice(&self) -> &SamplingDefaults {
        &self.texts.sampling
    }

    /// The longest sequence, prompt and answer, in tokens.
    pub fn context_limit(&self) -> usize {
        self.context_limit
    }

    /// The adapter that the model is on.
    pub fn device(&self) -> Device {
        Device::of(&self.gpu)
    }
}

impl Answers for Session {
    fn answer(
        &mut self,
        prompt: &str,
        options: &RunOptions,
        piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stop: &AtomicBool,
    ) -> Result<Answer, Failure> {
        let encode = || encode(&self.texts, prompt, options);
        self.generate(&encode, options, self.quiet, piece, stop)
    }
}

impl Session {
    /// Answers the last of `messages`, which the template turns into a prompt.
    pub fn reply(
        &self,
        messages: &[Message],
        options: &RunOptions,
        piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stop: &AtomicBool,
    ) -> Result<Answer, Failure> {
        let encode = || Ok(self.texts.encode_chat(messages, &date::today())?);
        // a conversation has a sign of life of its own
        self.generate(&encode, options, true, piece, stop)
    }

    fn generate(
        &self,
        encode: &dyn Fn() -> Result<Vec<u32>, Failure>,
        options: &RunOptions,
        quiet: bool,
        piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stop: &AtomicBool,
    ) -> Result<Answer, Failure> {
        let compiled = || self.gpu.compile_time();
        let stopwatch = Stopwatch::start(&compiled);
        let prompt_token_ids = encode()?;
        let request = Request {
            tokens: prompt_token_ids.clone(),
            sampling: sampling(&options.sampling),
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            end_tokens: if options.ignore_eos {
                Vec::new()
            } else {
                self.texts.end_tokens.clone()
            },
            logprobs: options.logprobs.unwrap_or(0),
            ..Request::default()
        };
        let (tokenise, _) = stopwatch.read();
        let handle = self.engine.submit(request)?.tokenised_in(tokenise);
        let before = self.engine.stats();
        let mut stream = Events {
            handle,
            bar: PromptBar::new(prompt_token_ids.len(), quiet),
            done: &|| {
                let now = self.engine.stats();
                now.computed_tokens + now.cached_tokens
                    - (before.computed_tokens + before.cached_tokens)
            },
        };
        let vocabulary = Words(&self.texts.tokenizer);
        let generated = follow(
            &mut stream,
            &vocabulary,
            &options.stop,
            &stopwatch,
            piece,
            stop,
        )?;
        let (prompt_tokens, completion_tokens) =
            (prompt_token_ids.len(), generated.token_ids.len());
        let stats = stream.handle.stats().unwrap_or_default();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(Answer {
            usage: Usage {
                prompt_tokens,
                cached_tokens: stats.counts.cached_tokens,
                completion_tokens,
                total_tokens: prompt_tokens + completion_tokens,
            },
            timings: Timings {
                load_ms: ms(self.load_time),
                compile_ms: ms(self.gpu.compile_time()),
                ttft_ms: ms(generated.ttft),
                tokenize_ms: ms(stats.tokenise),
                queue_ms: ms(stats.queue),
                prefill_ms: ms(stats.prefill),
                sample_ms: ms(stats.sample),
                prefill_tok_s: generated.prefill_tok_s(prompt_tokens - stats.counts.cached_tokens),
                decode_tok_s: generated.decode_tok_s(),
            },
            prompt_token_ids,
            token_ids: generated.token_ids,
            text: generated.text,
            finish_reason: generated.finish_reason.name().to_owned(),
            top_logprobs: generated.top_logprobs,
            device: self.device(),
            memory: self.memory,
            numerics: self.numerics.clone(),
            tuning: self.tuning.clone(),
            safe_mode: self.safe_mode.clone(),
            speculation: Speculation {
                proposed: stats.counts.proposed,
                accepted: stats.counts.accepted,
                target_passes: stats.counts.passes,
            },
            context_limit: self.context_limit,
        })
    }
}

fn sampling(from: &options::Sampling) -> Sampling {
    Sampling {
        temperature: from.temperature,
        top_k: from.top_k,
        top_p: from.top_p,
        min_p: from.min_p,
        repeat_penalty: from.repeat_penalty,
        repeat_last_n: from.repeat_last_n.unwrap_or(usize::MAX),
        presence_penalty: from.presence_penalty,
        frequency_penalty: from.frequency_penalty,
        logit_bias: from.logit_bias.clone(),
        seed: from.seed,
    }
}

struct Words<'a>(&'a Tokenizer);

impl Vocabulary for Words<'_> {
    fn bytes(&self, id: u32) -> &[u8] {
        self.0.token_bytes(id)
    }

    fn name(&self, id: u32) -> String {
        self.0.token_text(id)
    }
}

struct Events<'a> {
    handle: RequestHandle,
    bar: PromptBar,
    /// Tokens of the prompt that are done.
    done: &'a dyn Fn() -> u64,
}

impl Stream for Events<'_> {
    fn next(&mut self) -> Poll<Option<nelumbo::Result<Event>>> {
        let next = self.handle.next_event_within(GLANCE);
        match &next {
            Poll::Pending => self.bar.at((self.done)()),
            Poll::Ready(_) => self.bar.end(),
        }
        next
    }

    fn cancel(&self) {
        self.handle.cancel();
    }
}
