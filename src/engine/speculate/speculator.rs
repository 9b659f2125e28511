//! What is verified in a step: proposals, cut to what pays.

use super::ngram::NGram;
use super::options::{Speculate, SpeculateOptions};
use super::{MOST_DRAFTED, Proposal, Proposer, Text};
use crate::engine::request::RequestId;
use crate::error::Result;

/// What came of speculation so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Proposed tokens that were verified.
    pub proposed: u64,
    /// Of these, those that the model would have said.
    pub accepted: u64,
    /// Steps of sequences that drew a token: of a sequence alone, passes of the model. Without speculation
    /// there are as many as tokens; so what was accepted is what was saved.
    pub target_passes: u64,
    /// Seconds that it took to propose.
    pub propose_seconds: f64,
    /// Seconds of steps that verified something.
    pub verify_seconds: f64,
}

/// Decides what to verify, and learns from it.
///
/// For each step: [`Speculator::propose`], [`Speculator::took`] with the seconds that took, and when the step
/// is over, [`Speculator::learn`] where something was verified, [`Speculator::plain`] where nothing was.
pub struct Speculator {
    options: SpeculateOptions,
    ngram: Option<NGram>,
    draft: Option<Box<dyn Proposer + Send>>,
    totals: Totals,
}

impl Speculator {
    /// As `options` say, with a draft model where there is one.
    pub fn new(options: SpeculateOptions, draft: Option<Box<dyn Proposer + Send>>) -> Speculator {
        let finds = matches!(options.mode, Speculate::NGram | Speculate::Auto);
        let drafts = matches!(options.mode, Speculate::Draft | Speculate::Auto);
        Speculator {
            options,
            ngram: finds.then(NGram::default),
            draft: draft.filter(|_| drafts),
            totals: Totals::default(),
        }
    }

    /// What to verify of each of `texts`: nothing, or the first tokens of a proposal. `texts` are all that
    /// decode in the step, those included that nothing can be proposed for (`most` is 0 then); the step
    /// may have `max_rows` rows, one for each of them included.
    ///
    /// # Errors
    /// What the draft model's device reports.
    pub fn propose(&mut self, texts: &[Text<'_>], max_rows: usize) -> Result<Vec<Proposal>> {
        let most = self
            .options
            .fixed
            .unwrap_or(self.options.most)
            .min(MOST_DRAFTED);
        let asked: Vec<Text<'_>> = texts
            .iter()
            .map(|text| Text {
                most: text.most.min(most),
                ..*text
            })
            .collect();
        let mut proposals = match &mut self.ngram {
            Some(ngram) => ngram.propose(&asked)?,
            None => vec![Proposal::default(); texts.len()],
        };
        let mut left = max_rows.saturating_sub(texts.len());
        for (proposal, text) in proposals.iter_mut().zip(&asked) {
            proposal.tokens.truncate(text.most.min(left));
            proposal.choices.truncate(proposal.tokens.len());
            left -= proposal.tokens.len();
        }
        Ok(proposals)
    }

    /// The last call of [`Speculator::propose`] took so many seconds.
    pub fn took(&mut self, seconds: f64) {
        self.totals.propose_seconds += seconds;
    }

    /// A step of `rows` rows verified proposals: whose, what, and how many tokens of it were accepted. It
    /// took `seconds`; `None` where prompts were in it too, so that its time tells nothing.
    pub fn learn(
        &mut self,
        outcomes: &[(RequestId, &Proposal, usize)],
        rows: usize,
        seconds: Option<f64>,
    ) {
        let proposed: usize = outcomes.iter().map(|(_, p, _)| p.tokens.len()).sum();
        self.totals.proposed += proposed as u64;
        self.totals.accepted += outcomes.iter().map(|o| o.2 as u64).sum::<u64>();
        self.totals.target_passes += (rows - proposed) as u64;
        self.totals.verify_seconds += seconds.unwrap_or(0.0);
    }

    /// A step with a row for each of `rows` sequences verified nothing; it took `seconds`, `None` as in
    /// [`Speculator::learn`].
    pub fn plain(&mut self, rows: usize, seconds: Option<f64>) {
        let _ = seconds;
        self.totals.target_passes += rows as u64;
    }

    /// A text is over: `tokens` are all that it came to.
    pub fn end(&mut self, id: RequestId, tokens: &[u32], cache_salt: &[u8]) {
        if let Some(ngram) = &mut self.ngram {
            ngram.end(id, tokens, cache_salt);
        }
        if let Some(draft) = &mut self.draft {
            draft.end(id, tokens, cache_salt);
        }
    }

    /// What came of it so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }
}
