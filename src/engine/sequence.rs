//! A request on its way through the scheduler.

use super::request::{FinishReason, Request, RequestId};
use super::scheduler::{MAX_LOSSES, Sampled};
use super::speculate::Proposal;
use crate::kv::Tables;
use crate::kv::prefix::Chain;
use crate::planted::{Fault, planted};
use std::cmp::Reverse;

/// Who goes first: the higher priority, then who came first.
pub type Rank = (Reverse<i32>, u64);

/// What became of a request, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of the prompt whose keys and values were there already when it was first admitted.
    pub cached_tokens: usize,
    /// How often its pages were taken for others, so that it was computed again.
    pub preemptions: usize,
    /// How often the device was lost in a step that computed some of it.
    pub losses: usize,
    /// Tokens that were proposed for it and verified.
    pub proposed: usize,
    /// How many of them were right.
    pub accepted: usize,
    /// Steps that drew for it: without proposals one for each token.
    pub passes: usize,
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Its name.
    pub id: RequestId,
    /// What was asked.
    pub request: Request,
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens whose keys and values are in the cache.
    pub num_computed: usize,
    /// Pages of the cache.
    pub pages: Tables,
    /// Further answers to the same prompt, which begin where it is computed.
    pub siblings: Vec<RequestId>,
    /// What became of it so far.
    pub counts: Counts,
    pub(super) chain: Chain,
    pub(super) arrival: u64,
    pub(super) admitted: bool,
    /// Known tokens when the device was last lost under it; 0 once they have been computed since.
    pub(super) lost_at: usize,
}

impl Sequence {
    /// Tokens generated so far.
    pub fn num_generated(&self) -> usize {
        self.tokens.len() - self.request.tokens.len()
    }

    /// Known tokens that are not computed, at least 1.
    pub fn gap(&self) -> usize {
        self.tokens.len() - self.num_computed
    }

    /// Its place among others.
    pub fn rank(&self) -> Rank {
        (Reverse(self.request.priority), self.arrival)
    }

    /// The seed of an answer to the same prompt: it goes with its id, whoever else is cancelled.
    pub(super) fn seed_of(&self, id: RequestId) -> u64 {
        self.request.sampling.seed.wrapping_add(id.0 - self.id.0)
    }

    /// The seeds of its own next token and of its siblings' first ones, in order.
    pub fn seeds(&self) -> impl Iterator<Item = u64> {
        let ids = [self.id].into_iter().chain(self.siblings.iter().copied());
        ids.map(|id| self.seed_of(id))
    }

    /// Sequences that it is or will be.
    pub(super) fn width(&self) -> usize {
        1 + self.siblings.len()
    }

    /// Whether the device would be lost by it alone, if it was lost by it before: up to where that was, no
    /// step that computes it computes anybody else, so that nobody else pays for it.
    pub fn is_suspect(&self) -> bool {
        self.counts.losses >= MAX_LOSSES && self.num_computed < self.lost_at
    }

    /// Takes the proposed tokens that the model drew as well, up to the first that it did not or that ends
    /// the answer; returns how many. The one drawn after them is not taken.
    pub(super) fn accept(&mut self, proposal: &Proposal, drawn: &[Option<Sampled>]) -> usize {
        let ends = &self.request.end_tokens;
        let agreed = |(proposed, drawn): &(&u32, &Option<Sampled>)| {
            let equal = drawn
                .as_ref()
                .is_some_and(|drawn| drawn.token == **proposed);
            equal && !ends.contains(proposed)
        };
        let pairs = proposal.tokens.iter().zip(drawn);
        let accepted = pairs.take_while(agreed).count() + usize::from(planted(Fault::AcceptMore));
        let accepted = accepted.min(proposal.tokens.len());
        self.tokens.extend(&proposal.tokens[..accepted]);
        self.counts.proposed += proposal.tokens.len();
        self.counts.accepted += accepted;
        accepted
    }

    /// Why it is over after its last token, if it is.
    pub(super) fn over(&self, servable_len: usize) -> Option<FinishReason> {
        let last = self.tokens.last()?;
        if self.request.end_tokens.contains(last) {
            return Some(FinishReason::Stop);
        }
        let full = self.tokens.len() >= servable_len;
        (full || self.num_generated() >= self.request.max_tokens).then_some(FinishReason::Length)
    }
}
