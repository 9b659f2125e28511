//! What the doctor found, as plain data: what `--json` prints. The text for people is in `text`.

use std::collections::BTreeMap;
use std::path::Path;

use nelumbo::gpu::{AdapterReport, Gpu};
use nelumbo::kernels::peaks::Peaks;
use nelumbo::model::self_check::{Checked, Wrong};
use serde::Serialize;
use serde_json::{Value, json};

use super::notes::Note;

/// Everything, as `--json` prints it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Of this program.
    pub version: String,
    pub system: String,
    pub cores: usize,
    /// What the self-check was made for: a model's file, or `a common shape`.
    pub shape: String,
    /// Index of the adapter that is used when nothing is asked for.
    pub default: Option<usize>,
    pub hints: Vec<String>,
    /// What is kept between runs; `null` where nothing is.
    pub kept: Option<KeptFiles>,
    pub adapters: Vec<Adapter>,
}

/// One adapter.
#[derive(Debug, Serialize)]
pub struct Adapter {
    pub index: usize,
    pub name: String,
    pub backend: String,
    /// `discrete`, `integrated`, `virtual` or `software`.
    #[serde(rename = "type")]
    pub kind: String,
    pub driver: String,
    /// PCI vendor.
    pub vendor: String,
    pub caps: Vec<&'static str>,
    /// Invocations of the smallest subgroup; `null` without subgroups.
    pub subgroup: Option<u32>,
    pub usable: bool,
    #[serde(rename = "default")]
    pub is_default: bool,
    /// Why it is used or not.
    pub reason: String,
    pub limits: Option<Limits>,
    pub notes: Vec<Note>,
    /// `null` where nothing is kept: on the processor.
    pub kept: Option<Kept>,
    /// What an earlier run measured; `null` where none has.
    pub speed: Option<Speed>,
    /// How kernels would divide their work.
    pub tuning: Option<String>,
    #[serde(rename = "self_check")]
    pub check: Option<Check>,
}

/// Limits that decide what fits.
#[derive(Debug, Serialize)]
pub struct Limits {
    /// The largest window that kernels bind, and what the adapter would allow.
    pub binding_bytes: u64,
    pub max_binding_bytes: u64,
    pub max_buffer_bytes: u64,
    pub max_workgroup_bytes: u32,
    /// `null` where nobody tells.
    pub memory_bytes: Option<u64>,
}

impl Limits {
    pub fn of(report: &AdapterReport, gpu: &Gpu) -> Limits {
        Limits {
            binding_bytes: gpu.max_binding_bytes(),
            max_binding_bytes: report.max_binding_bytes,
            max_buffer_bytes: report.max_buffer_bytes,
            max_workgroup_bytes: report.max_workgroup_bytes,
            memory_bytes: gpu.memory_bytes(),
        }
    }
}

/// What the adapter does at best.
#[derive(Debug, Serialize)]
pub struct Speed {
    pub stream_bytes_s: f64,
    pub fma_flops: f64,
    pub dot4_ops: f64,
    pub dispatch_us: f64,
}

impl Speed {
    pub fn of(peaks: Peaks) -> Speed {
        Speed {
            stream_bytes_s: peaks.stream_bytes_s,
            fma_flops: peaks.fma_flops,
            dot4_ops: peaks.dot4_ops,
            dispatch_us: peaks.dispatch_s * 1e6,
        }
    }
}

/// What earlier runs left of an adapter, for this shape.
#[derive(Debug, Serialize)]
pub struct Kept {
    /// Compiled kernels; `null` where the driver gives none away, or none are to be kept.
    pub pipelines_bytes: Option<u64>,
    pub tuning: bool,
    pub self_check: bool,
}

/// What became of the self-check.
#[derive(Debug, Serialize)]
pub struct Check {
    pub verdict: Verdict,
    /// An earlier run found everything right.
    pub cached: bool,
    pub cases: usize,
    pub variants: usize,
    /// Without compilation.
    pub ms: f64,
    pub compile_ms: f64,
    pub wrong: Vec<Problem>,
    /// Why there is no result.
    pub error: Option<String>,
}

/// Whether an adapter computes the right thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Right,
    Wrong,
    /// It could not be opened, or went away.
    Unavailable,
}

/// The first case that a kernel gets wrong.
#[derive(Debug, Serialize)]
pub struct Problem {
    pub kernel: &'static str,
    pub variants: Vec<String>,
    pub case: String,
    pub problem: String,
}

impl Problem {
    fn of(wrong: &Wrong) -> Problem {
        Problem {
            kernel: wrong.kernel,
            variants: wrong.variants.iter().map(ToString::to_string).collect(),
            case: wrong.case.clone(),
            problem: wrong.problem.clone(),
        }
    }
}

impl Check {
    pub fn of(checked: &Checked) -> Check {
        let mut wrong: Vec<Problem> = Vec::new();
        for one in &checked.wrong {
            if wrong.iter().all(|known| known.kernel != one.kernel) {
                wrong.push(Problem::of(one));
            }
        }
        Check {
            verdict: match checked.is_right() {
                true => Verdict::Right,
                false => Verdict::Wrong,
            },
            cached: checked.cached,
            cases: checked.cases,
            variants: checked.variants.len(),
            ms: checked.time.as_secs_f64() * 1e3,
            compile_ms: checked.compile_time.as_secs_f64() * 1e3,
            wrong,
            error: None,
        }
    }

    pub fn unavailable(error: String) -> Check {
        Check {
            verdict: Verdict::Unavailable,
            cached: false,
            cases: 0,
            variants: 0,
            ms: 0.0,
            compile_ms: 0.0,
            wrong: Vec::new(),
            error: Some(error),
        }
    }
}

/// Files of a folder by kind.
#[derive(Debug, Serialize)]
pub struct KeptFiles {
    pub folder: String,
    /// `pipelines`, `tuning`, `selfcheck` ...: how many, and their bytes.
    pub files: BTreeMap<String, Files>,
}

/// Files of one kind.
#[derive(Debug, Default, Serialize)]
pub struct Files {
    pub count: usize,
    pub bytes: u64,
}

impl KeptFiles {
    pub fn new(folder: &Path) -> KeptFiles {
        KeptFiles {
            folder: folder.display().to_string(),
            files: BTreeMap::new(),
        }
    }

    pub fn add(&mut self, kind: &str, bytes: u64) {
        let files = self.files.entry(kind.to_owned()).or_default();
        files.count += 1;
        files.bytes += bytes;
    }
}

impl Adapter {
    /// What the list of adapters tells.
    pub fn of(report: &AdapterReport, notes: Vec<Note>) -> Adapter {
        Adapter {
            index: report.index,
            name: report.name.clone(),
            backend: report.backend.name().to_owned(),
            kind: report.device_type.name().to_owned(),
            driver: report.driver_text(),
            vendor: report.vendor_text(),
            caps: report.caps.names(),
            subgroup: report.caps.subgroup,
            usable: report.rejected.is_none(),
            is_default: false,
            reason: String::new(),
            limits: None,
            notes,
            kept: None,
            speed: None,
            tuning: None,
            check: None,
        }
    }
}

impl Report {
    /// Adapters that compute wrongly, by name.
    pub fn wrong(&self) -> Vec<String> {
        let is_wrong = |a: &&Adapter| {
            let check = a.check.as_ref();
            check.is_some_and(|check| check.verdict == Verdict::Wrong)
        };
        let wrong = self.adapters.iter().filter(is_wrong);
        wrong
            .map(|a| format!("[{}] {} ({})", a.index, a.name, a.backend))
            .collect()
    }

    pub fn json(&self) -> Value {
        json!(self)
    }
}
