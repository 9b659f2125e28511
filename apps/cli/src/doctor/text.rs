//! What the doctor found, for people: names on the left, texts beside them.

use super::report::{Adapter, Check, Kept, Limits, Report, Speed, Verdict};
use crate::models::human_bytes;

/// Columns that text is broken at.
const WIDTH: usize = 96;
/// Columns of names on the left.
const NAMES: usize = 16;

impl Speed {
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

impl Check {
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

impl Adapter {
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
            line(
                "speed",
                &self.speed.as_ref().map_or_else(
                    || "not measured yet: nelumbo bench does".to_owned(),
                    Speed::text,
                ),
            );
        }
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
