//! What the doctor found, as plain data, and how it is told: text for people, JSON for programs.

use std::collections::BTreeMap;
use std::path::Path;

use nelumbo::gpu::{AdapterReport, Gpu};
use nelumbo::kernels::peaks::Peaks;
use nelumbo::model::self_check::{Checked, Wrong};
use serde::Serialize;
use serde_json::{Value, json};

use super::notes::Note;
use crate::models::human_bytes;

/// Columns that text is broken at.
const WIDTH: usize = 96;
/// Columns of names on the left.
const NAMES: usize = 16;

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

    fn text(&self) -> String {
        format!(
            "reads {:.1} GB/s, {:.0} GFLOP/s in f32, {:.0} GOP/s in 8 bits, {:.0} us a dispatch",
            self.stream_bytes_s / 1e9,
            self.fma_flops / 1e9,
            self.dot4_ops / 1e9,
            self.dispatch_us
        )
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

    fn text(&self) -> String {
        match (self.verdict, &self.error) {
            (Verdict::Unavailable, error) => {
                format!("not possible: {}", error.as_deref().unwrap_or("unknown"))
            }
            (Verdict::Right, _) if self.cached => "right, as an earlier run found".to_owned(),
            (verdict, _) => {
                let word = match verdict {
                    Verdict::Right => "right",
                    _ => "WRONG",
                };
                format!(
                    "{word}: {} cases of {} kernel variants in {:.1} s, and {:.1} s of compilation",
                    self.cases,
                    self.variants,
                    self.ms / 1e3,
                    self.compile_ms / 1e3
                )
            }
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
            driver: format!("{} {}", report.driver, report.driver_info)
                .trim()
                .to_owned(),
            vendor: format!("{:#06x}", report.vendor),
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

    fn text(&self) -> String {
        let mut lines = vec![format!("[{}] {}", self.index, self.name)];
        let mut line = |name: &str, text: &str| lines.extend(broken(name, text));
        line(
            "",
            &format!("{}, {}, {}", self.backend, self.kind, self.driver),
        );
        line("", &self.reason);
        let caps: Vec<String> = self.caps.iter().map(|cap| self.cap(cap)).collect();
        let can = match caps.is_empty() {
            true => "the baseline".to_owned(),
            false => caps.join(", "),
        };
        line("can", &can);
        if let Some(limits) = &self.limits {
            line("limits", &limits.text());
        }
        if let Some(kept) = &self.kept {
            line("kept", &kept.text());
        }
        line(
            "speed",
            &self.speed.as_ref().map_or_else(
                || "not measured yet: nelumbo bench does".to_owned(),
                Speed::text,
            ),
        );
        if let Some(tuning) = &self.tuning {
            line("tuning", tuning);
        }
        if let Some(check) = &self.check {
            line("self-check", &check.text());
            for problem in &check.wrong {
                line(
                    problem.kernel,
                    &format!("{}: {}", problem.case, problem.problem),
                );
            }
        }
        for note in &self.notes {
            line("note", &note.text);
        }
        lines.join("\n")
    }

    fn cap(&self, name: &str) -> String {
        match (name, self.subgroup) {
            ("subgroup", Some(size)) => format!("subgroups of {size}"),
            _ => name.to_owned(),
        }
    }
}

impl Limits {
    fn text(&self) -> String {
        let memory = self.memory_bytes.map_or_else(
            || "memory unknown".to_owned(),
            |bytes| format!("memory {}", human_bytes(bytes)),
        );
        format!(
            "binding {}, buffer {}, workgroup memory {}, {memory}",
            human_bytes(self.binding_bytes),
            human_bytes(self.max_buffer_bytes),
            human_bytes(u64::from(self.max_workgroup_bytes)),
        )
    }
}

impl Kept {
    fn text(&self) -> String {
        let pipelines = match self.pipelines_bytes {
            None => {
                "no compiled kernels (the driver gives none away, or it is switched off)".to_owned()
            }
            Some(0) => "no compiled kernels yet".to_owned(),
            Some(bytes) => format!("compiled kernels ({})", human_bytes(bytes)),
        };
        let yes = |is: bool, what: &str| {
            if is {
                what.to_owned()
            } else {
                format!("no {what} yet")
            }
        };
        let (tuning, check) = (
            yes(self.tuning, "tuning"),
            yes(self.self_check, "self-check"),
        );
        format!("{pipelines}, {tuning}, {check}")
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

    /// For people.
    pub fn text(&self) -> String {
        let mut parts = vec![format!(
            "nelumbo {} on {}, {} cores; checked with {}",
            self.version, self.system, self.cores, self.shape
        )];
        parts.extend(self.adapters.iter().map(Adapter::text));
        let mut end = Vec::new();
        match self
            .default
            .and_then(|i| self.adapters.iter().find(|a| a.index == i))
        {
            Some(a) => end.extend(broken(
                "default",
                &format!("[{}] {} ({})", a.index, a.name, a.backend),
            )),
            None => end.extend(broken("default", "none: nothing can be used as it is")),
        }
        if let Some(kept) = &self.kept {
            let files: Vec<String> = kept
                .files
                .iter()
                .map(|(kind, files)| {
                    format!("{} {kind} ({})", files.count, human_bytes(files.bytes))
                })
                .collect();
            let files = match files.is_empty() {
                true => "nothing yet".to_owned(),
                false => files.join(", "),
            };
            end.extend(broken("cache", &format!("{}: {files}", kept.folder)));
        }
        for hint in &self.hints {
            end.extend(broken("hint", hint));
        }
        parts.push(end.join("\n"));
        parts.join("\n\n")
    }
}

/// A name on the left and a text beside it, in as many lines as it takes.
fn broken(name: &str, text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let is_full = line.chars().count() + 1 + word.chars().count() > WIDTH - NAMES;
        if !line.is_empty() && is_full {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    let left = |i: usize| if i == 0 { name } else { "" };
    let lines = lines.into_iter().enumerate();
    lines
        .map(|(i, line)| {
            format!("    {:<width$}{line}", left(i), width = NAMES - 4)
                .trim_end()
                .to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_broken_between_words_and_nothing_is_lost() {
        let text = "word ".repeat(60);
        let lines = broken("note", &text);
        assert!(lines.len() > 1 && lines[0].starts_with("    note        word"));
        assert!(lines[1].starts_with("                word"));
        for line in &lines {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        let words: usize = lines.iter().map(|l| l.matches("word").count()).sum();
        assert_eq!(words, 60);
        assert_eq!(broken("x", &"y".repeat(200)).len(), 1);
    }
}
