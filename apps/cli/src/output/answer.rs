//! One finished answer with all that is told about it. Plain data only.

use nelumbo::gpu::Gpu;
use nelumbo::model::{Decoder, Tuned};
use serde::Serialize;

/// One finished answer: the JSON object of `--format json`, field by field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    pub prompt_token_ids: Vec<u32>,
    pub token_ids: Vec<u32>,
    pub text: String,
    /// `stop`, `length` or `cancelled`.
    pub finish_reason: String,
    /// For each generated token the likeliest ones, from the logits before temperature.
    pub top_logprobs: Vec<Vec<TopLogprob>>,
    pub usage: Usage,
    pub timings: Timings,
    pub device: Device,
    pub memory: Memory,
    pub numerics: Numerics,
    pub tuning: Tuning,
    /// Kernels that this adapter computes wrongly, and what is done instead; empty where all are right.
    pub safe_mode: Vec<SafeMode>,
    /// What came of guesses.
    pub speculation: Speculation,
    /// For the line of numbers only.
    #[serde(skip)]
    pub context_limit: usize,
}

/// One candidate at one step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopLogprob {
    pub id: u32,
    /// The token's text; bytes that are no text are replaced.
    pub token: String,
    pub logprob: f32,
}

/// Tokens counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    /// Those of the prompt that were in the cache already.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    pub total_tokens: usize,
}

impl Usage {
    /// What the speed of the prompt counts: `38`, or `12 + 460 cached`.
    fn computed(&self) -> String {
        let computed = self.prompt_tokens - self.cached_tokens;
        match self.cached_tokens {
            0 => computed.to_string(),
            cached => format!("{computed} + {cached} cached"),
        }
    }
}

/// Milliseconds, and tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timings {
    pub load_ms: f64,
    pub compile_ms: f64,
    pub ttft_ms: f64,
    /// The four parts of `ttft_ms`.
    pub tokenize_ms: f64,
    pub queue_ms: f64,
    pub prefill_ms: f64,
    pub sample_ms: f64,
    pub prefill_tok_s: f64,
    pub decode_tok_s: f64,
}

/// The adapter that did the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    pub adapter: String,
    pub backend: String,
    pub driver: String,
    pub caps: Vec<String>,
}

impl Device {
    /// The adapter behind an open device.
    pub fn of(gpu: &Gpu) -> Device {
        let report = gpu.report();
        Device {
            adapter: report.name.clone(),
            backend: report.backend.name().to_owned(),
            driver: report.driver_text(),
            caps: gpu.caps().names().into_iter().map(str::to_owned).collect(),
        }
    }
}

/// Tokens that were guessed, and passes of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Speculation {
    /// Guesses that the model verified.
    pub proposed: usize,
    /// Those that it took.
    pub accepted: usize,
    /// Steps that brought a token or more.
    pub target_passes: usize,
}

impl Speculation {
    /// A part of the line of numbers, where there is anything to tell.
    fn told(&self) -> String {
        match self.proposed {
            0 => String::new(),
            proposed => format!(" | guessed {} of {proposed}", self.accepted),
        }
    }
}

/// Bytes on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    pub weights_bytes: u64,
    pub kv_bytes: u64,
    pub scratch_bytes: u64,
    /// Parameters, token ids, what results are read back from, and a draft model with all that it takes.
    pub other_bytes: u64,
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights_bytes + self.kv_bytes + self.scratch_bytes + self.other_bytes
    }
}

/// What the bits of an answer depend on, beside the adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Numerics {
    /// `canonical` or `fast`.
    pub mode: String,
    pub weights: String,
    pub activations: String,
    pub kv: String,
    pub lanes: u32,
}

impl Numerics {
    /// Of a loaded model.
    pub fn of(decoder: &Decoder) -> Numerics {
        let tuning = decoder.tuning();
        Numerics {
            mode: decoder.numerics().name().to_owned(),
            weights: decoder.weights().head().format.name.to_owned(),
            activations: tuning.activations.name().to_owned(),
            kv: decoder.kv().format().name().to_owned(),
            lanes: tuning.lanes,
        }
    }
}

/// How kernels divide their work, and who says so: no bit depends on it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tuning {
    /// `measured`, `cached`, `default` or `pinned`.
    pub source: String,
    /// Milliseconds that finding it took.
    pub ms: f64,
    pub workgroup: u32,
    pub tile_tokens: u32,
    pub subgroups: bool,
    pub wide: bool,
}

impl Tuning {
    /// For programs to read.
    pub fn of(tuned: &Tuned) -> Tuning {
        Tuning {
            source: tuned.source.name().to_owned(),
            ms: tuned.ms,
            workgroup: tuned.tuning.workgroup,
            tile_tokens: tuned.tuning.tile_tokens,
            subgroups: tuned.tuning.subgroups,
            wide: tuned.tuning.wide,
        }
    }
}

/// A kernel that the self-check found wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SafeMode {
    pub kernel: String,
    /// The first case that it gets wrong: shape and choices.
    pub case: String,
    pub problem: String,
    /// `other-way`, `canonical` or `host`.
    pub instead: String,
}

impl SafeMode {
    /// Of a loaded model.
    pub fn of(decoder: &Decoder) -> Vec<SafeMode> {
        let findings = decoder.safety().findings.iter();
        findings
            .map(|finding| SafeMode {
                kernel: finding.wrong.kernel.to_owned(),
                case: finding.wrong.case.clone(),
                problem: finding.wrong.problem.clone(),
                instead: finding.instead.name().to_owned(),
            })
            .collect()
    }
}

/// Guesses are told after the answer's speed: `decode 25.1 tok/s (120) | guessed 40 of 64 | context`.
///
/// `ttft 0.31 s | prefill 120.4 tok/s (38) | decode 25.1 tok/s (120) | context 158/2048 | llvmpipe (vulkan)`
pub fn stats_line(answer: &Answer) -> String {
    let Answer {
        usage,
        timings,
        device,
        speculation,
        ..
    } = answer;
    format!(
        "ttft {:.2} s | prefill {:.1} tok/s ({}) | decode {:.1} tok/s ({}){} | context {}/{} | {} ({})",
        timings.ttft_ms / 1000.0,
        timings.prefill_tok_s,
        usage.computed(),
        timings.decode_tok_s,
        usage.completion_tokens,
        speculation.told(),
        usage.total_tokens,
        answer.context_limit,
        device.adapter,
        device.backend,
    )
}
