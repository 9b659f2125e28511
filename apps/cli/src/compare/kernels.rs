//! Every kernel's cases on every adapter, without a model.

use std::sync::Arc;

use nelumbo::engine::compare::{CaseReport, check_cases};
use nelumbo::gpu::{AdapterReport, Gpu, OpenOptions, Selection};
use nelumbo::kernels;
use serde_json::{Value, json};

use super::args::{CompareArgs, Output};
use super::outcome::{Outcome, Verdict};
use super::{adapters, guarded, note};
use crate::exit::Failure;
use crate::output::{print_line, table};

/// An adapter with its cases.
struct Row {
    outcome: Outcome,
    gpu: Option<Arc<Gpu>>,
    kernels: Vec<(&'static str, CaseReport)>,
}

impl Row {
    fn sum(&self, of: impl Fn(&CaseReport) -> usize) -> usize {
        self.kernels.iter().map(|(_, report)| of(report)).sum()
    }

    fn problems(&self) -> impl Iterator<Item = (&str, &String)> {
        let all = self.kernels.iter();
        all.flat_map(|(kernel, report)| report.problems.iter().map(|p| (*kernel, p)))
    }
}

/// Everything from the arguments to the last line on stderr.
pub fn compare(args: &CompareArgs, quiet: bool) -> Result<(), Failure> {
    let problem = match (&args.html, &args.reference) {
        (Some(_), _) => Some("--kernels and --html: there is nothing to plot"),
        (_, Some(_)) => Some("--kernels and MODEL: kernels are compared without a model"),
        _ => None,
    };
    if let Some(problem) = problem {
        return Err(Failure::Usage(problem.to_owned()));
    }
    let open = OpenOptions::from_env()?;
    let mut rows: Vec<Row> = Vec::new();
    for report in adapters(args)? {
        let mut row = Row {
            outcome: Outcome::of(&report),
            gpu: None,
            kernels: Vec::new(),
        };
        match &report.rejected {
            Some(why) => row.outcome.fail(Verdict::Unavailable, why.clone()),
            None => row.open(&report, &open),
        }
        rows.push(row);
    }
    for entry in kernels::ALL {
        let name = entry.kernel.name;
        note(quiet, &format!("cases of {name}"));
        // made once: their exact results take longer than most adapters
        let cases = (entry.cases)();
        for row in &mut rows {
            row.run(name, &cases);
        }
    }
    match args.output {
        Output::Md => print_line(&markdown(&rows))?,
        Output::Json => print_line(&json(&rows))?,
    }
    super::verdict(
        rows.iter()
            .map(|row| (row.outcome.verdict, row.outcome.label())),
    )
}

impl Row {
    fn open(&mut self, report: &AdapterReport, open: &OpenOptions) {
        let selection = Selection {
            backend: Some(report.backend),
            device: Some(report.index),
            ..Selection::default()
        };
        let options = OpenOptions {
            selection,
            coop: true,
            ..open.clone()
        };
        match guarded(|| kernels::open(&options)) {
            Ok(Ok(gpu)) => self.gpu = Some(gpu),
            Ok(Err(error)) => self.outcome.fail_by(&error),
            Err(why) => self.outcome.fail(Verdict::Wrong, why),
        }
    }

    /// An adapter that breaks gets no further cases.
    fn run(&mut self, kernel: &'static str, cases: &[kernels::case::Case]) {
        let Some(gpu) = &self.gpu else { return };
        match guarded(|| check_cases(gpu, cases)) {
            Ok(Ok(report)) => {
                if let Some(problem) = report.problems.first() {
                    self.outcome.fail(Verdict::Wrong, problem.clone());
                }
                self.kernels.push((kernel, report));
            }
            Ok(Err(error)) => {
                self.outcome.fail_by(&error);
                self.gpu = None;
            }
            Err(why) => {
                self.outcome.fail(Verdict::Wrong, why);
                self.gpu = None;
            }
        }
    }
}

fn markdown(rows: &[Row]) -> String {
    let header = [
        "#", "ADAPTER", "API", "VERDICT", "CASES", "WRONG", "SKIPPED",
    ];
    let cells = rows.iter().map(|row| {
        let o = &row.outcome;
        let counts = [
            row.sum(|r| r.ran),
            row.sum(|r| r.failed),
            row.sum(|r| r.skipped),
        ];
        let [ran, failed, skipped] = counts.map(|n| n.to_string());
        let verdict = o.verdict.name().to_owned();
        [
            o.index.to_string(),
            o.name.clone(),
            o.backend.clone(),
            verdict,
            ran,
            failed,
            skipped,
        ]
    });
    let mut text = table(std::iter::once(header.map(str::to_owned)).chain(cells));
    for row in rows {
        for (_, problem) in row.problems() {
            text += &format!("\n{}: {problem}\n", row.outcome.label());
        }
        if let (None, Some(reason)) = (row.problems().next(), &row.outcome.reason) {
            text += &format!("\n{}: {reason}\n", row.outcome.label());
        }
    }
    text
}

fn json(rows: &[Row]) -> String {
    let kernel = |(name, report): &(&str, CaseReport)| {
        json!({
            "kernel": name,
            "cases": report.ran,
            "skipped": report.skipped,
            "wrong": report.failed,
            "problems": report.problems,
        })
    };
    let adapter = |row: &Row| {
        let o = &row.outcome;
        let first = row.problems().next();
        json!({
            "index": o.index,
            "name": o.name,
            "backend": o.backend,
            "driver": o.driver,
            "type": o.device_type,
            "verdict": o.verdict,
            "reason": o.reason,
            "first_bad_op": first.map(|(kernel, problem)| json!({ "op": kernel, "kernel": kernel, "problem": problem })),
            "cases": row.sum(|r| r.ran),
            "skipped": row.sum(|r| r.skipped),
            "wrong": row.sum(|r| r.failed),
            "kernels": row.kernels.iter().map(kernel).collect::<Vec<Value>>(),
        })
    };
    let adapters: Vec<Value> = rows.iter().map(adapter).collect();
    format!("{:#}", json!({ "adapters": adapters }))
}
