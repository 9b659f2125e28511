//! Kernels held against their own cases, without a model.

use crate::error::Result;
use crate::gpu::{Gpu, Recorder};
use crate::kernels::case::Case;
use std::sync::Arc;

/// How the cases of a kernel went on an adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaseReport {
    /// Those that ran.
    pub ran: usize,
    /// Those that need what the adapter does not have.
    pub skipped: usize,
    /// Those that ran and were wrong.
    pub failed: usize,
    /// What is wrong, each with the name of its case: the first few.
    pub problems: Vec<String>,
}

/// Problems that are kept.
const MOST_PROBLEMS: usize = 8;

/// Runs `cases` on `gpu`.
///
/// # Errors
/// What the device reports.
pub fn check_cases(gpu: &Arc<Gpu>, cases: &[Case]) -> Result<CaseReport> {
    let mut recorder = Recorder::new(gpu)?;
    let mut report = CaseReport::default();
    for case in cases {
        if case.missing(gpu.caps()).is_some() {
            report.skipped += 1;
            continue;
        }
        let problems = case.run_with(&mut recorder)?;
        report.ran += 1;
        report.failed += usize::from(!problems.is_empty());
        let room = MOST_PROBLEMS - report.problems.len();
        report.problems.extend(problems.into_iter().take(room));
    }
    Ok(report)
}
