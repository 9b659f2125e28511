//! `nelumbo doctor`: which adapters there are, which one is used and why, what is known about their
//! drivers, what is kept, and whether each computes the right thing.

mod notes;
mod report;
mod text;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use nelumbo::formats;
use nelumbo::gpu::{AdapterReport, Backend, DeviceType, Gpu, OpenOptions, Selection, adapter};
use nelumbo::kernels::{self, check::CheckShape, peaks::Peaks};
use nelumbo::model::{self, Config, Texts, self_check, tune};
use nelumbo::{Error, LoadOptions};

use crate::args::{BackendArgs, GlobalArgs, Switch};
use crate::exit::Failure;
use crate::models::{self, cache};
use crate::options;
use crate::output::print_line;
use crate::session::pipeline_folder;
use report::{Adapter, Check, Kept, KeptFiles, Limits, Report, Speed};

/// What `nelumbo doctor` takes.
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Exit codes: 0 all is well, 4 no adapter can be used, 7 an adapter computes wrongly.\n\n\
                        Examples:\n  \
                        nelumbo doctor\n  \
                        nelumbo doctor smollm2-135m        with the shapes of that model\n  \
                        nelumbo doctor --json | jq '.adapters[].self_check.verdict'"
)]
pub struct DoctorArgs {
    /// A local model, whose shapes are checked; only its header is read [default: a common shape]
    #[arg(value_name = "MODEL")]
    pub model: Option<OsString>,
    /// One JSON object, as -o json
    #[arg(long)]
    pub json: bool,
    /// Text for people, or one JSON object
    #[arg(short, long, value_enum, default_value_t = Form::Text, env = "NELUMBO_OUTPUT")]
    pub output: Form,
    /// Run kernels on each adapter and compare; off only tells what there is
    #[arg(long, value_enum, default_value_t = Switch::On, env = "NELUMBO_SELF_CHECK")]
    pub self_check: Switch,
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// How it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Text,
    Json,
}

/// A model of the billion class, whose widths many have.
const COMMON: &str = "a common shape";

/// What is checked.
struct Subject {
    name: String,
    config: Config,
}

/// Looks, and tells.
pub fn doctor(args: &DoctorArgs, global: &GlobalArgs) -> Result<(), Failure> {
    let subject = match &args.model {
        Some(reference) => of_model(&models::resolve_local(reference, global)?.path)?,
        None => Subject {
            name: COMMON.to_owned(),
            config: common(),
        },
    };
    let folder = cache::pipelines(global);
    let backend = options::backend(&args.backend);
    let selection = Selection {
        backend,
        ..Selection::default()
    };
    let all = adapter::list_for(&selection);
    let chosen = adapter::choose(&all, &selection);
    let default = chosen.as_ref().ok().copied();
    let mut adapters = Vec::new();
    for found in all
        .iter()
        .filter(|r| backend.is_none_or(|b| b == r.backend))
    {
        let mut one = Adapter::of(found, notes::of(found));
        one.is_default = default == Some(found.index);
        one.reason = reason(found, default.and_then(|i| all.get(i)));
        if found.rejected.is_none() {
            look(&mut one, found, &subject, args, folder.as_deref())?;
        }
        adapters.push(one);
    }
    let report = Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        shape: subject.name,
        default,
        hints: hints(&all, &chosen),
        kept: kept_files(folder.as_deref()),
        adapters,
    };
    let text = match args.json || args.output == Form::Json {
        true => format!("{:#}", report.json()),
        false => report.text(),
    };
    print_line(&text)?;
    let wrong = report.wrong();
    if !wrong.is_empty() {
        let names = wrong.join(", ");
        return Err(Failure::Wrong(format!("{names}: the self-check failed")));
    }
    chosen.map(|_| ()).map_err(Failure::Engine)
}

/// The shape that a model's header tells.
fn of_model(path: &Path) -> Result<Subject, Failure> {
    let files = formats::open(path)?;
    let config = (model::family(&files)?.config)(&files)?;
    let vocab_size = Texts::load(&files)?.tokenizer.vocab_size();
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(Subject {
        name: name.to_string_lossy().into_owned(),
        // rows beyond the tokenizer's are padding
        config: Config {
            vocab_size: vocab_size.min(config.vocab_size),
            ..config
        },
    })
}

fn common() -> Config {
    Config {
        num_layers: 16,
        hidden_size: 2048,
        num_heads: 32,
        num_kv_heads: 8,
        head_dim: 64,
        intermediate_size: 8192,
        vocab_size: 128_256,
        ..model::synthetic::tiny()
    }
}

/// Why an adapter is used or not, `best` being the one that is.
fn reason(report: &AdapterReport, best: Option<&AdapterReport>) -> String {
    if let Some(why) = &report.rejected {
        return format!("cannot be used: {why}");
    }
    if report.backend == Backend::Cpu {
        return "used where --backend cpu asks for it, and never on its own".to_owned();
    }
    let Some(best) = best else {
        return "not used on its own: --device or --allow-software asks for it".to_owned();
    };
    if best.index == report.index {
        return match best.device_type {
            DeviceType::Software => "used by default: there is no GPU".to_owned(),
            kind => format!("used by default: {}, through {}", kind.name(), best.backend),
        };
    }
    let choose = format!("--device {} asks for it", report.index);
    if report.device_type != best.device_type {
        let (own, other) = (report.device_type.name(), best.device_type.name());
        return format!("not used: {other} comes before {own}; {choose}");
    }
    if report.backend != best.backend {
        let (own, other) = (report.backend, best.backend);
        return format!("not used: {other} comes before {own}; {choose}");
    }
    format!("not used: one like it comes first; {choose}")
}

/// Opens the adapter, sees what is kept of it, and runs the kernels.
fn look(
    one: &mut Adapter,
    report: &AdapterReport,
    subject: &Subject,
    args: &DoctorArgs,
    folder: Option<&Path>,
) -> Result<(), Failure> {
    let open = OpenOptions {
        selection: Selection {
            device: Some(report.index).filter(|_| report.backend != Backend::Cpu),
            backend: Some(report.backend),
            ..Selection::default()
        },
        pipelines: pipeline_folder(folder.map(Path::to_owned))?,
        ..OpenOptions::from_env()?
    };
    let gpu = match kernels::open(&open) {
        Ok(gpu) => gpu,
        Err(error) => {
            one.check = Some(Check::unavailable(error.to_string()));
            return Ok(());
        }
    };
    let load = LoadOptions {
        autotune: true,
        max_running: 1,
        ..LoadOptions::default()
    };
    let kept = tune::recall(&gpu, &subject.config, &load)?;
    let tuning = match kept {
        Some(tuning) => tuning,
        None => tune::unmeasured(&gpu, &load)?,
    };
    let shape = self_check::shape_of(&subject.config, load.weights, load.kv_format, tuning);
    one.limits = Some(Limits::of(report, &gpu));
    // nothing is compiled, tuned or checked on the processor
    one.kept = (!gpu.is_host()).then(|| Kept {
        pipelines_bytes: gpu.recalled_bytes().map(|n| n as u64),
        tuning: kept.is_some(),
        self_check: self_check::is_kept(&gpu, &shape),
    });
    one.tuning = Some(tuning.describe());
    one.speed = Peaks::kept(&gpu).map(Speed::of);
    // the processor computes what others are held against
    if args.self_check == Switch::On && !gpu.is_host() {
        one.check = Some(check(&gpu, &shape)?);
    }
    gpu.save_pipelines();
    Ok(())
}

/// What a device cannot do says nothing of another: it is told, and the next one is looked at.
fn check(gpu: &Arc<Gpu>, shape: &CheckShape) -> Result<Check, Failure> {
    match self_check::check(gpu, shape) {
        Ok(checked) => Ok(Check::of(&checked)),
        Err(
            error @ (Error::Device { .. } | Error::DeviceLost { .. } | Error::OutOfMemory { .. }),
        ) => Ok(Check::unavailable(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// What would help.
fn hints(all: &[AdapterReport], chosen: &Result<usize, Error>) -> Vec<String> {
    let mut hints = Vec::new();
    let hardware = |r: &&AdapterReport| r.device_type != DeviceType::Software;
    let usable = |r: &&AdapterReport| r.rejected.is_none();
    if all.iter().any(|r| r.backend == Backend::Cpu) {
        return hints; // nobody asked what adapters there are
    }
    if all.is_empty() {
        hints.push(
            "No adapter is seen at all. Install the Vulkan driver of the GPU; without a GPU Mesa's \
             software driver works: apt-get install mesa-vulkan-drivers libvulkan1 (Debian, Ubuntu). \
             --backend cpu needs no driver, and is slower."
                .to_owned(),
        );
    } else if !all.iter().any(|r| hardware(&r)) {
        hints.push(
            "No GPU is seen, only software. If there is one, its Vulkan driver is missing: \
             mesa-vulkan-drivers for AMD and Intel, the vendor's own for NVIDIA; in a container the \
             device has to be passed through."
                .to_owned(),
        );
    } else if !all.iter().filter(hardware).any(|r| usable(&r)) {
        hints.push("A GPU is seen, but cannot be used: a newer driver may help.".to_owned());
    }
    let through_gl = |r: &AdapterReport| r.backend == Backend::Gl && r.rejected.is_none();
    if let Ok(index) = chosen
        && through_gl(&all[*index])
    {
        hints.push("It is reached through OpenGL alone: a Vulkan driver is faster.".to_owned());
    }
    hints
}

/// Files in the folder of what is kept, by what they are.
fn kept_files(folder: Option<&Path>) -> Option<KeptFiles> {
    let folder = folder?;
    let mut kept = KeptFiles::new(folder);
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        let kind = path.extension().and_then(|e| e.to_str());
        if let (Some(kind), Ok(about)) = (kind, entry.metadata()) {
            kept.add(kind, about.len());
        }
    }
    Some(kept)
}
