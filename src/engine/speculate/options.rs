//! How to speculate.

use super::MOST_DRAFTED;

/// Who proposes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// Nobody: a step computes one token of whoever decodes.
    Off,
    /// The texts themselves.
    NGram,
    /// A draft model.
    Draft,
    /// The texts, and the draft model, if there is one, where they have nothing good.
    #[default]
    Auto,
}

/// How to speculate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculateOptions {
    /// Who proposes.
    pub mode: Speculate,
    /// Tokens that are proposed for a sequence in a step, at most; [`MOST_DRAFTED`] is the bound in any case.
    pub most: usize,
    /// So many are verified where they are proposed, whatever it brings: for tests and measurements.
    pub fixed: Option<usize>,
}

impl Default for SpeculateOptions {
    /// As many as pay, of whoever there is.
    fn default() -> SpeculateOptions {
        SpeculateOptions {
            mode: Speculate::Auto,
            most: MOST_DRAFTED,
            fixed: None,
        }
    }
}
