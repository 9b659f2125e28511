//! Which proposed tokens a step verifies: what there is room for beside everything that somebody needs.

use super::plan::StepPlan;
use super::request::RequestId;
use super::scheduler::Scheduler;
use super::sequence::Sequence;
use super::speculate::{MOST_PROPOSED, Proposal};
use crate::kernels::{penalties, sample};
use crate::model::step::PROPOSAL_WORDS;
use std::collections::BTreeMap;

/// What may follow the known tokens of those who decode.
pub(super) type Proposals = BTreeMap<RequestId, Proposal>;

/// What a chunk verifies.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// What is proposed to follow the known tokens, as much of it as there is room for.
    pub proposal: Proposal,
    /// Known tokens as far as somebody looks back, one at least, and the proposed ones.
    pub text: Vec<u32>,
}

impl Scheduler {
    /// Proposes what follows the known tokens of `id`, to be verified in the next step as far as there is room
    /// beside what everybody needs.
    pub fn propose(&mut self, id: RequestId, proposal: Proposal) {
        self.proposals.insert(id, proposal);
    }

    /// Tokens that may be proposed for `sequence` in the next step: none but where it decodes alone, and as
    /// many as it can take before it is over, less the one that it draws itself.
    pub fn proposable(&self, sequence: &Sequence) -> usize {
        // whoever lost the device goes on in the shortest steps that there are
        let was_lost = sequence.counts.losses > 0;
        if sequence.gap() != 1 || sequence.width() != 1 || was_lost {
            return 0;
        }
        let left = sequence.request.max_tokens - sequence.num_generated();
        let room = self.servable_len() - sequence.tokens.len();
        left.min(room).saturating_sub(1).min(MOST_PROPOSED)
    }

    /// Proposed tokens go with those who decode, as far as there are pages, rows and tokens that nobody needs.
    /// Nobody loses anything by them: no page is taken from others, and of the tokens of a step prompts have
    /// half of what is left.
    pub(super) fn plan_verification(
        &mut self,
        plan: &mut StepPlan,
        budget: &mut usize,
        mut proposals: Proposals,
    ) {
        let seats = self.running().chain(self.waiting()).map(Sequence::width);
        let needed = seats.sum::<usize>().min(self.limits.max_running);
        let mut rows = self.limits.max_rows - needed;
        let prompts = plan.chunks.len() < self.running.len() || !self.waiting.is_empty();
        let mut tokens = if prompts { *budget / 2 } else { *budget };
        let mut words = PROPOSAL_WORDS;
        for chunk in &mut plan.chunks {
            let Some(mut proposal) = proposals.remove(&chunk.id) else {
                continue;
            };
            let sequence = &self.sequences[&chunk.id];
            let words_each = words_of_row(sequence, &proposal);
            let most = self.proposable(sequence).min(rows).min(tokens);
            let most = most.min(words / words_each).min(proposal.tokens.len());
            let sequence = self.sequences.get_mut(&chunk.id).expect("it decodes");
            let (known, tables) = (sequence.tokens.len(), &mut sequence.pages);
            // pages that somebody waits for are not for proposals, not even for the length of a step
            let end = known + most;
            let fits = self.waiting.is_empty()
                && (self.pages)
                    .reserve(tables, chunk.start, end, &mut plan.copies)
                    .is_ok();
            let most = match fits {
                true => most,
                false => most.min(self.pages.room(tables) - known),
            };
            if most == 0 {
                continue;
            }
            proposal.truncate(most);
            let text = &sequence.tokens[known - looked_back(sequence)..];
            let text = [text, &proposal.tokens].concat();
            plan.verified.push(Verified { proposal, text });
            chunk.len += most;
            chunk.draws += most;
            chunk.proposed = most;
            rows -= most;
            tokens -= most;
            *budget -= most;
            words -= most * words_each;
        }
    }
}

/// Tokens at the end of a sequence that a row looks at: those of the penalties, and the last.
fn looked_back(sequence: &Sequence) -> usize {
    let sampling = &sequence.request.sampling;
    let window = if sampling.has_penalties() {
        sampling.repeat_last_n
    } else {
        0
    };
    window.clamp(1, sequence.tokens.len())
}

/// Words of a step's metadata that a row with a proposed token takes, at most.
fn words_of_row(sequence: &Sequence, proposal: &Proposal) -> usize {
    let looked_at =
        looked_back(sequence) + MOST_PROPOSED + sequence.request.sampling.logit_bias.len();
    let choices = proposal.choices.iter().map(Vec::len).max().unwrap_or(0);
    penalties::words(looked_at) + sample::ROW_WORDS + 2 * choices
}
