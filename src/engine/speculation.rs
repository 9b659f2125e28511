//! What an engine does around a step for those who propose: asks them before, tells them after.

use super::EngineCore;
use super::plan::StepPlan;
use super::request::RequestId;
use super::sequence::Sequence;
use super::speculate::{Proposal, Text, Totals};
use crate::error::Error;
use std::time::Instant;

impl EngineCore {
    /// What came of speculation so far.
    pub fn speculation(&self) -> Totals {
        self.speculator.totals()
    }

    /// Asks for proposals for whoever decodes in the next step.
    pub(super) fn propose(&mut self) {
        let scheduler = &self.scheduler;
        let decodes = scheduler.running().filter(|sequence| sequence.gap() == 1);
        let texts = decodes.map(|sequence| Text {
            id: sequence.id,
            tokens: &sequence.tokens,
            cache_salt: &sequence.request.cache_salt,
            sampling: &sequence.request.sampling,
            most: scheduler.proposable(sequence),
        });
        let texts: Vec<Text> = texts.collect();
        if texts.iter().all(|text| text.most == 0) {
            return;
        }
        let start = now();
        let max_rows = self.runner.decoder().most_verified_rows();
        let proposals = self.speculator.propose(&texts, max_rows);
        let ids: Vec<RequestId> = texts.iter().map(|text| text.id).collect();
        self.speculator.took(seconds_since(start).unwrap_or(0.0));
        // nobody needs a draft to go on, and a device that was lost is opened again when it is asked next
        let is_lost = matches!(&proposals, Err(Error::DeviceLost { .. }));
        let proposals = proposals.unwrap_or_else(|error| {
            let goes_on = is_lost && !self.draft_was_lost;
            let what = if goes_on { "now" } else { "any more" };
            log::warn!("the draft model does not propose {what}: {error}");
            if !goes_on {
                self.speculator.set_draft(None);
            }
            Vec::new()
        });
        self.draft_was_lost = is_lost;
        for (id, proposal) in ids.into_iter().zip(proposals) {
            if !proposal.tokens.is_empty() {
                self.scheduler.propose(id, proposal);
            }
        }
    }

    /// Tells those who propose what became of it: `plan` was committed after `seconds` on the device.
    pub(super) fn learn(&mut self, plan: &StepPlan, seconds: Option<f64>) {
        let rows = plan.chunks.iter().map(|chunk| chunk.draws).sum();
        // what a step with prompts takes tells nothing about rows
        let is_plain = plan
            .chunks
            .iter()
            .all(|chunk| chunk.len == 1 + chunk.proposed);
        let seconds = seconds.filter(|_| is_plain);
        if plan.verified.is_empty() {
            self.speculator.plain(rows, seconds);
            return;
        }
        let proposed = plan.chunks.iter().filter(|chunk| chunk.proposed > 0);
        let accepted = self.scheduler.accepted().iter();
        let outcomes: Vec<(RequestId, &Proposal, usize)> = proposed
            .zip(&plan.verified)
            .zip(accepted)
            .map(|((chunk, verified), &accepted)| (chunk.id, &verified.proposal, accepted))
            .collect();
        self.speculator.learn(&outcomes, rows, seconds);
    }

    /// Whoever is over since the last call is forgotten by those who propose.
    pub(super) fn settle(&mut self, mut told: impl FnMut(&Sequence)) {
        for sequence in self.scheduler.take_over() {
            told(&sequence);
            let salt = &sequence.request.cache_salt;
            self.speculator.end(sequence.id, &sequence.tokens, salt);
        }
    }
}

/// A browser has another clock; there nothing is measured.
pub(super) fn now() -> Option<Instant> {
    (!cfg!(target_family = "wasm")).then(Instant::now)
}

pub(super) fn seconds_since(start: Option<Instant>) -> Option<f64> {
    start.map(|start| start.elapsed().as_secs_f64())
}
