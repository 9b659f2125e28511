//! How requests end: taken back, done, failed; one by one, or all at once. Whoever loses the device does
//! not end but for the rule in [`Scheduler::restart`].

use super::plan::Chunk;
use super::request::{Event, Failure, FinishReason, RequestId};
use super::scheduler::{MAX_LOSSES, Scheduler};
use super::sequence::Sequence;
use crate::kv::Tables;
use crate::planted::{Fault, planted};

impl Scheduler {
    /// Ends a request, wherever it is. Does nothing when it is over already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        if self.sequences.contains_key(&id) {
            return self.leave(id, FinishReason::Cancelled);
        }
        // an answer that has not begun
        let root = self
            .sequences
            .values_mut()
            .find(|s| s.siblings.contains(&id))?;
        root.siblings.retain(|sibling| *sibling != id);
        Some(Event::Finished {
            id,
            reason: FinishReason::Cancelled,
        })
    }

    /// Ends a sequence that computed no numbers, and what it left in the cache with it.
    pub(super) fn fail(&mut self, id: RequestId) -> Event {
        let sequence = self.sequences.get_mut(&id).expect("it draws");
        let pages = std::mem::take(&mut sequence.pages);
        self.pages
            .forget(&pages, &mut sequence.chain, &sequence.tokens);
        self.pages.release(&pages);
        self.leave(id, FinishReason::Stop);
        let failure = Failure::NotNumbers;
        Event::Failed { id, failure }
    }

    /// Gives up on everything in flight after a failed step: pages go back, and what is in them is
    /// not found again, since nobody knows how far the step came.
    pub fn abandon(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some((&id, sequence)) = self.sequences.first_key_value() {
            let siblings = sequence.siblings.clone();
            for id in siblings.into_iter().chain([id]) {
                events.extend(self.cancel(id));
            }
        }
        self.pages.forget_all();
        events
    }

    /// The device is lost and with it everything in the cache: whoever ran is computed again, from the
    /// tokens that are known. `chunks` are those of the step that it was lost in. Returns the ends of whom
    /// it was lost by too often: nobody's, as long as it may have been somebody else in the step.
    pub fn restart(&mut self, chunks: &[Chunk]) -> Vec<Event> {
        let mut events = Vec::new();
        for (rank, id) in std::mem::take(&mut self.running) {
            let sequence = self.sequences.get_mut(&id).expect("it ran");
            self.pages.release(&std::mem::take(&mut sequence.pages));
            sequence.num_computed = 0;
            if chunks.iter().any(|chunk| chunk.id == id) {
                sequence.counts.losses += 1;
                sequence.lost_at = sequence.tokens.len();
            }
            let is_alone = matches!(chunks, [chunk] if chunk.id == id);
            if is_alone && sequence.counts.losses > MAX_LOSSES {
                let failure = Failure::DeviceLost;
                let ended = [id].into_iter().chain(sequence.siblings.drain(..));
                events.extend(ended.map(|id| Event::Failed { id, failure }));
                let ended = self.sequences.remove(&id);
                if let Some(over) = &mut self.over {
                    over.extend(ended);
                }
            } else {
                self.waiting.insert(rank, id);
            }
        }
        self.pages.forget_all();
        events
    }

    /// Takes a sequence out. Where answers wait for its prompt, the first of them takes its place.
    pub(super) fn leave(&mut self, id: RequestId, reason: FinishReason) -> Option<Event> {
        let mut sequence = self.sequences.remove(&id)?;
        let rank = sequence.rank();
        let list = if self.running.contains_key(&rank) {
            &mut self.running
        } else {
            &mut self.waiting
        };
        list.remove(&rank);
        if let [heir, others @ ..] = &sequence.siblings[..] {
            let seed = sequence.seed_of(*heir);
            let mut heir = Sequence {
                id: *heir,
                siblings: others.to_vec(),
                ..sequence
            };
            heir.request.sampling.seed = seed;
            list.insert(rank, heir.id);
            self.sequences.insert(heir.id, heir);
        } else {
            let pages = std::mem::take(&mut sequence.pages);
            self.release(&pages, reason);
            if let Some(over) = &mut self.over {
                over.push(sequence);
            }
        }
        Some(Event::Finished { id, reason })
    }

    /// The pages of somebody who is over.
    fn release(&mut self, pages: &Tables, reason: FinishReason) {
        let cancelled = reason == FinishReason::Cancelled;
        if cancelled && planted(Fault::ForgetRelease) {
            return;
        }
        self.pages.release(pages);
        if cancelled && planted(Fault::ReleaseTwice) {
            let last = |table: &Vec<_>| table[table.len().saturating_sub(1)..].to_vec();
            let last: Tables = pages.iter().map(last).collect();
            self.pages.release(&last);
        }
    }
}
