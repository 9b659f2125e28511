//! Speculative decoding: a cheap proposer guesses the next tokens, and the model verifies them in one step,
//! as more rows of the same sequence. Leviathan et al., "Fast Inference from Transformers via Speculative
//! Decoding" (arXiv 2211.17192).
//!
//! Nothing that is drawn changes by it. A row of the step draws the token that the model draws there, by seed
//! and position; the first that is not the proposed one ends what is accepted, and is itself the next token.
//! Only where a proposer tells what it chose among ([`Proposal::choices`]) is the draw another one, of the
//! same distribution: see [`sample`](crate::kernels::sample).
//!
//! Who proposes is a [`Proposer`]; how much of it is verified is decided by the [`Speculator`], from what was
//! accepted so far and what steps took.

pub mod account;
pub mod cost;
pub mod draft;
pub mod drafting;
pub mod gain;
pub mod ngram;
pub mod odds;
pub mod options;
pub mod recent;
mod speculator;
pub mod suffix;

pub use draft::DraftModel;
pub use options::{DraftDraws, Speculate, SpeculateOptions};
pub use speculator::{Speculator, Totals};

use super::request::{RequestId, Sampling};
use crate::error::Result;
use crate::kernels::sample::Drafted;

/// Tokens that are proposed for a sequence in a step, at most.
pub const MOST_PROPOSED: usize = 16;

/// A text that goes on.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Whose.
    pub id: RequestId,
    /// Prompt and answer so far.
    pub tokens: &'a [u32],
    /// Whose it is: nothing of one tenant's texts is proposed to another.
    pub cache_salt: &'a [u8],
    /// How its tokens are drawn.
    pub sampling: &'a Sampling,
    /// Proposed tokens that are of use, at most. Where there are none, no [`Proposer`] is asked.
    pub most: usize,
}

/// What may follow a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// The tokens, likeliest to be right first come first: each counts only where those before it are right.
    pub tokens: Vec<u32>,
    /// What each was drawn from: tokens with their probabilities, which sum to 1. Empty where tokens were not
    /// drawn but found; else as many as tokens.
    pub choices: Vec<Vec<(u32, f32)>>,
    /// What kind of guess it is, below [`CLASSES`] as a proposer tells it: guesses of a kind are about as often
    /// right.
    pub class: usize,
}

impl Proposal {
    /// The token at `at` with what it was drawn from, if it was.
    pub fn drafted(&self, at: usize) -> Option<Drafted> {
        let choices = self.choices.get(at)?.clone();
        let token = self.tokens[at];
        Some(Drafted { token, choices })
    }

    /// No more than the first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.choices.truncate(len);
    }
}

/// Kinds of guesses that a proposer tells apart.
pub const CLASSES: usize = 8;

/// Guesses what follows.
pub trait Proposer {
    /// A proposal for each of `texts`, empty where there is none.
    ///
    /// # Errors
    /// What the device reports, where there is one.
    fn propose(&mut self, texts: &[Text<'_>]) -> Result<Vec<Proposal>>;

    /// A text is over: `tokens` are all that it came to.
    fn end(&mut self, id: RequestId, tokens: &[u32], cache_salt: &[u8]);

    /// Whether proposing costs nothing beside the step.
    fn is_free(&self) -> bool;

    /// Whether its proposals tell what tokens were drawn from ([`Proposal::choices`]), so that they are accepted
    /// by rejection sampling.
    fn tells_choices(&self) -> bool {
        false
    }
}
