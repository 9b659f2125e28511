//! How to speculate.

use super::MOST_PROPOSED;

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

/// How a draft model's tokens are drawn, and accepted, where a request draws. Either way tokens are
/// distributed as the model has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftDraws {
    /// With the noise of seed and position that the model draws with: where the two are near each other they
    /// draw the same, and what the model draws is its own. So a seed gives the same text, whoever proposes how
    /// much of it. At least (1 - d) / (1 + d) of them are accepted, d being how far the distributions are apart
    /// (Daliri et al., "Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024).
    #[default]
    Alike,
    /// With noise of their own, and accepted by rejection sampling (Leviathan et al., 2023): 1 - d of them.
    /// What is drawn then depends on where proposals begin and end, so a seed gives the same text only with a
    /// fixed number of tokens ([`SpeculateOptions::fixed`]).
    Apart,
}

/// How to speculate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeculateOptions {
    /// Who proposes.
    pub mode: Speculate,
    /// Tokens that are proposed for a sequence in a step, at most; [`MOST_PROPOSED`] is the bound in any case.
    pub most: usize,
    /// So many are verified where they are proposed, whatever it brings: for tests and measurements.
    pub fixed: Option<usize>,
    /// How a draft model draws.
    pub draws: DraftDraws,
}

impl Default for SpeculateOptions {
    /// As many as pay, of whoever there is.
    fn default() -> SpeculateOptions {
        SpeculateOptions {
            mode: Speculate::Auto,
            most: MOST_PROPOSED,
            fixed: None,
            draws: DraftDraws::Alike,
        }
    }
}
