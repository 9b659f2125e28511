//! What one run was asked for, as plain data: checked, and with nothing of clap in it.

use std::hash::{BuildHasher, Hasher, RandomState};

use nelumbo::gpu::{Backend, Selection};
use nelumbo::model::{MemoryLimit, SamplingDefaults};

use crate::args::{
    ActivationType, BackendArgs, BackendName, CacheType, DeviceArgs, Format, NumericsMode, RunArgs,
    SamplingArgs, Switch, WeightType,
};
use crate::exit::{Failure, say};
use crate::prompt::utf8;
use crate::speculation::Speculation;
use crate::values::Bias;

/// The options of one run, apart from the model and the prompt.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The text goes to the model as it is; special tokens in it count.
    pub raw: bool,
    pub system: Option<String>,
    pub stop: Vec<String>,
    /// `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// `None`: what the model allows and the memory holds.
    pub ctx_size: Option<usize>,
    /// Tokens of one step at most.
    pub batch_size: Option<usize>,
    /// Contexts that the cache has room for.
    pub parallel: usize,
    pub ignore_eos: bool,
    pub sampling: Sampling,
    /// Candidates to report for each token.
    pub logprobs: Option<usize>,
    pub format: Format,
    /// Who guesses the next tokens.
    pub speculation: Speculation,
    pub device: DeviceOptions,
}

/// Where a model runs, and in which types.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    pub selection: Selection,
    pub weights: WeightType,
    /// Weights that are no numbers are refused.
    pub strict_weights: bool,
    pub activations: ActivationType,
    pub numerics: NumericsMode,
    /// What suits the adapter is measured.
    pub autotune: bool,
    /// Kernels are compared with the CPU before they are used.
    pub self_check: bool,
    /// Of keys and of values.
    pub cache_type: CacheType,
    /// For everything on the device; `None`: most of what it has.
    pub gpu_memory: Option<MemoryLimit>,
}

impl DeviceOptions {
    pub fn new(args: &DeviceArgs) -> DeviceOptions {
        DeviceOptions {
            selection: selection(args),
            weights: args.held.weights,
            strict_weights: args.strict_weights,
            activations: args.held.activations,
            numerics: args.held.numerics,
            autotune: args.held.autotune == Switch::On,
            self_check: args.self_check == Switch::On,
            cache_type: args.held.cache_type_k,
            gpu_memory: args.held.gpu_memory,
        }
    }
}

/// How the next token is chosen.
#[derive(Debug, Clone)]
pub struct Sampling {
    /// 0 takes the likeliest.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: usize,
    pub top_p: f32,
    pub min_p: f32,
    pub repeat_penalty: f32,
    /// Tokens that penalties look back; `None` for the whole context.
    pub repeat_last_n: Option<usize>,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
}

impl RunOptions {
    /// Checks what no single flag can check, and draws the seed if there is none.
    pub fn new(args: &RunArgs) -> Result<RunOptions, Failure> {
        refuse_contradictions(args)?;
        let talk = &args.talk;
        let system = talk
            .system
            .as_deref()
            .map(|text| utf8(text, "--system"))
            .transpose()?;
        let mut stop = Vec::new();
        for text in &talk.reverse_prompt {
            let text = utf8(text, "--reverse-prompt")?;
            if text.is_empty() {
                return Err(Failure::Usage(
                    "--reverse-prompt is empty: it would stop before the first token".to_owned(),
                ));
            }
            stop.push(text.to_owned());
        }
        nelumbo::text::check_stops(&stop)?;
        Ok(RunOptions {
            raw: args.prompt.raw,
            system: system.map(str::to_owned),
            stop,
            max_tokens: args.length.predict.0.map(|n| n as usize),
            ctx_size: args.length.ctx_size.map(|n| n as usize),
            batch_size: args.length.batch_size.map(|n| n as usize),
            parallel: args.length.parallel as usize,
            ignore_eos: args.length.ignore_eos,
            sampling: sampling(args),
            logprobs: args.output.logprobs.map(|k| k as usize),
            format: args.output.format,
            speculation: Speculation::new(&args.speculate)?,
            device: DeviceOptions::new(&args.device),
        })
    }
}

/// Where neither the user nor the model says otherwise.
const USUAL: Sampling = Sampling {
    temperature: 0.8,
    top_k: 40,
    top_p: 0.95,
    min_p: 0.05,
    repeat_penalty: 1.0,
    repeat_last_n: Some(64),
    presence_penalty: 0.0,
    frequency_penalty: 0.0,
    logit_bias: Vec::new(),
    seed: 0,
};

/// What is drawn by: what the user asked for, else what the model's authors advise, else the usual.
pub fn suit(sampling: &mut Sampling, asked: &SamplingDefaults, advice: &SamplingDefaults) {
    let temperature = asked.temperature.or(advice.temperature);
    sampling.temperature = temperature.unwrap_or(USUAL.temperature);
    sampling.top_k = asked.top_k.or(advice.top_k).unwrap_or(USUAL.top_k);
    sampling.top_p = asked.top_p.or(advice.top_p).unwrap_or(USUAL.top_p);
    sampling.min_p = asked.min_p.or(advice.min_p).unwrap_or(USUAL.min_p);
    let penalty = asked.repeat_penalty.or(advice.repeat_penalty);
    sampling.repeat_penalty = penalty.unwrap_or(USUAL.repeat_penalty);
}

/// What the user has a wish about.
pub fn asked_for(args: &SamplingArgs) -> SamplingDefaults {
    SamplingDefaults {
        temperature: args.temp,
        top_k: args.top_k.map(|k| k as usize),
        top_p: args.top_p,
        min_p: args.min_p,
        repeat_penalty: args.repeat_penalty,
    }
}

fn sampling(args: &RunArgs) -> Sampling {
    let args = &args.sampling;
    let biases = args.logit_bias.iter();
    let mut sampling = Sampling {
        repeat_last_n: usize::try_from(args.repeat_last_n).ok(),
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        logit_bias: biases
            .map(|&Bias { token_id, bias }| (token_id, bias))
            .collect(),
        seed: args.seed.0.unwrap_or_else(draw_seed),
        ..USUAL
    };
    suit(
        &mut sampling,
        &asked_for(args),
        &SamplingDefaults::default(),
    );
    sampling
}

/// A seed nobody asked for: every `RandomState` starts from keys of the operating system's randomness.
pub fn draw_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The adapters that may be used.
fn selection(args: &DeviceArgs) -> Selection {
    Selection {
        backend: backend(&args.backend),
        device: args.device.map(|index| index as usize),
        allow_software: args.allow_software,
    }
}

/// The pinned backend by the library's name for it.
pub fn backend(args: &BackendArgs) -> Option<Backend> {
    args.backend.map(|name| match name {
        BackendName::Vulkan => Backend::Vulkan,
        BackendName::Metal => Backend::Metal,
        BackendName::Dx12 => Backend::Dx12,
        BackendName::Gl => Backend::Gl,
        BackendName::Cpu => Backend::Cpu,
    })
}

/// Flags that cannot be honoured together, or not yet: named, never ignored.
fn refuse_contradictions(args: &RunArgs) -> Result<(), Failure> {
    refuse_device(&args.device)?;
    let problem = if args.prompt.raw && args.talk.system.is_some() {
        "--raw and --system: without the chat template there is no place for a system message"
    } else if args.output.logprobs.is_some() && args.output.format == Format::Text {
        "--logprobs needs --format json: the text has no room for them"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(problem.to_owned()))
}

/// The same of the flags about device and memory.
pub fn refuse_device(args: &DeviceArgs) -> Result<(), Failure> {
    let problem = if args.held.cache_type_k != args.held.cache_type_v {
        "--cache-type-k and --cache-type-v: keys and values have the same type so far"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(problem.to_owned()))
}

/// Flags that are accepted from habit: told once what they mean here.
pub fn explain(args: &DeviceArgs) {
    if args.gpu_layers.is_some() {
        say("note: --gpu-layers (-ngl) has no effect: every layer runs on the device");
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::argv::normalise;
    use crate::models::Resolved;

    fn parse(line: &str) -> Result<RunArgs, clap::Error> {
        let argv = normalise(
            format!("nelumbo run m {line}")
                .split_whitespace()
                .map(Into::into),
        );
        match Cli::try_parse_from(argv)?.command {
            Command::Run(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    fn options(line: &str) -> RunOptions {
        RunOptions::new(&parse(line).unwrap()).unwrap()
    }

    #[test]
    fn every_flag_arrives() {
        let o = options(
            "--raw -p x -n 5 --temp 0 --top-k 3 --top-p 0.5 --min-p 0.1 --repeat-penalty 1.1 \
             --repeat-last-n -1 --presence-penalty -0.5 --frequency-penalty 0.25 --logit-bias 5+1 \
             --logit-bias 6=-2 -s 9 --ignore-eos --stop A -r B --logprobs 20 --format json \
             --weights f16 --strict-weights --numerics fast --autotune off -ctk f32 -ctv f32 -c 512 -b 16 -np 3 --gpu-memory 1.5GiB --backend gl -dev 1 --allow-software -ngl 99",
        );
        assert!(o.raw && o.ignore_eos && o.device.selection.allow_software);
        assert!(!o.device.autotune && options("").device.autotune);
        assert_eq!(
            (o.max_tokens, o.ctx_size, o.batch_size),
            (Some(5), Some(512), Some(16))
        );
        assert_eq!(
            (o.logprobs, o.format, o.stop),
            (Some(20), Format::Json, vec!["A".to_owned(), "B".to_owned()])
        );
        assert_eq!((o.parallel, options("").parallel), (3, 1));
        assert_eq!(
            (o.device.gpu_memory, options("").device.gpu_memory),
            (Some(MemoryLimit::Bytes(3 << 29)), None)
        );
        assert!(o.device.strict_weights && !options("").device.strict_weights);
        assert_eq!(o.device.numerics, NumericsMode::Fast);
        assert_eq!(options("").device.numerics, NumericsMode::Canonical);
        assert_eq!(
            (o.device.weights, o.device.cache_type),
            (WeightType::F16, CacheType::F32)
        );
        assert_eq!(
            (o.device.selection.backend, o.device.selection.device),
            (Some(Backend::Gl), Some(1))
        );
        let s = o.sampling;
        assert_eq!(
            (s.temperature, s.top_k, s.top_p, s.min_p),
            (0.0, 3, 0.5, 0.1)
        );
        assert_eq!((s.repeat_penalty, s.repeat_last_n), (1.1, None));
        assert_eq!((s.presence_penalty, s.frequency_penalty), (-0.5, 0.25));
        assert_eq!((s.logit_bias, s.seed), (vec![(5, 1.0), (6, -2.0)], 9));
    }

    #[test]
    fn the_user_comes_before_the_table_and_that_before_the_models_advice() {
        let advice = SamplingDefaults {
            temperature: Some(0.6),
            top_k: Some(7),
            repeat_penalty: Some(1.1),
            ..SamplingDefaults::default()
        };
        let suited = |line: &str, table: Option<f32>| {
            let args = parse(line).unwrap();
            let mut sampling = sampling(&args);
            let model = Resolved {
                path: PathBuf::new(),
                temperature: table,
            };
            let asked = asked_for(&args.sampling);
            suit(&mut sampling, &asked, &model.advice(&advice));
            (
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                sampling.repeat_penalty,
            )
        };
        assert_eq!(suited("", None), (0.6, 7, 0.95, 1.1));
        assert_eq!(suited("", Some(0.2)), (0.2, 7, 0.95, 1.1));
        let line = "--temp 0.8 --top-k 40 --repeat-penalty 1";
        assert_eq!(suited(line, Some(0.2)), (0.8, 40, 0.95, 1.0));
        let s = options("").sampling;
        assert_eq!(
            (s.temperature, s.top_k, s.top_p, s.min_p, s.repeat_penalty),
            (0.8, 40, 0.95, 0.05, 1.0)
        );
    }

    #[test]
    fn aliases_are_the_same_flags() {
        for line in ["-n 7", "--predict 7", "--n-predict 7", "--max-tokens 7"] {
            assert_eq!(options(line).max_tokens, Some(7), "{line}");
        }
        for line in ["-c 7", "--ctx-size 7", "--max-model-len 7", "--num-ctx 7"] {
            assert_eq!(options(line).ctx_size, Some(7), "{line}");
        }
        assert_eq!(options("--temperature 0.5").sampling.temperature, 0.5);
        assert_eq!(options("-sys short").system.as_deref(), Some("short"));
        assert_eq!(
            options("--cache-type-k f32 -ctv f32").device.cache_type,
            CacheType::F32
        );
        assert_eq!(options("--repeat-last-n 0").sampling.repeat_last_n, Some(0));
        assert_ne!(options("").sampling.seed, options("").sampling.seed);
    }

    #[test]
    fn values_out_of_range_are_usage_errors_that_name_the_flag() {
        for line in [
            "--ctx-size 0",
            "--ctx-size 1000000000000",
            "--ctx-size 12GBx",
            "--batch-size 0",
            "--parallel 0",
            "--parallel 65",
            "--gpu-memory 6",
            "--gpu-memory -6",
            "--gpu-memory 120%",
            "--predict 0",
            "--temp -1",
            "--temp nan",
            "--top-k -1",
            "--top-p 1.5",
            "--min-p -0.1",
            "--repeat-penalty 0",
            "--presence-penalty 3",
            "--logit-bias 5",
            "--seed -2",
            "--logprobs 129",
            "--logprobs 1000",
            "--weights q4",
            "--numerics exact",
            "--autotune maybe",
            "--cache-type-k q8",
            "--backend cuda",
            "--device -1",
            "--repeat-last-n -2",
        ] {
            let error = parse(line).expect_err(line);
            let flag = line.split(' ').next().unwrap();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(flag), "{line}: {error}");
        }
    }

    #[test]
    fn stop_texts_have_limits() {
        let many = "--stop a ".repeat(nelumbo::text::MAX_STOPS + 1);
        let failure = RunOptions::new(&parse(&many).unwrap()).unwrap_err();
        assert_eq!(failure.code(), 2, "{failure}");
        assert!(RunOptions::new(&parse(&many[9..]).unwrap()).is_ok());
    }

    #[test]
    fn contradictions_name_both_flags() {
        for (line, names) in [
            ("--raw --system x", ["--raw", "--system"]),
            ("--logprobs 5", ["--logprobs", "--format json"]),
            ("-ctk f32", ["--cache-type-k", "--cache-type-v"]),
        ] {
            let message = RunOptions::new(&parse(line).unwrap())
                .unwrap_err()
                .to_string();
            assert!(names.iter().all(|name| message.contains(name)), "{message}");
        }
    }
}
