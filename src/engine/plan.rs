//! Which tokens the next step computes: decodes first, then prompts, oldest first, then whoever waits.
//!
//! Pages are promised before they are needed: a sequence is admitted with pages for all its known
//! tokens and the one that it will draw, all or nothing, and takes one more each time it has filled
//! the last. Of layers that see a window it has what the window and a step need, takes more where it goes
//! on and gives back what it has passed. When there is none, the youngest gives up its own and is computed again later, from what
//! the prefix cache still has of it. The oldest never does, so every request comes to its end.

use super::request::RequestId;
use super::scheduler::Scheduler;
use super::sequence::{Rank, Sequence};
use super::verification::Verified;
use crate::kv::pages::{Lack, PageCopy, there};
use crate::kv::{GONE, PAGE_SIZE, PageId, PagePool, Pages, SPLIT_PAGES};
use crate::planted::{Fault, planted};

/// After so many preemptions others are preempted instead, where there are any.
pub const PROTECTED_AFTER: usize = 3;

/// Tokens `start .. start + len` of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whose.
    pub id: RequestId,
    /// The first token's position.
    pub start: usize,
    /// How many, at least 1.
    pub len: usize,
    /// How many tokens are drawn after the last one: none where more of the sequence follows, one for
    /// each sequence that goes on from here where the known tokens end, and one after each of those that
    /// are proposed.
    pub draws: usize,
    /// How many of its last tokens are not known, but proposed.
    pub proposed: usize,
}

/// What a step computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepPlan {
    /// In the order of the batch.
    pub chunks: Vec<Chunk>,
    /// One for each chunk with proposed tokens, in their order.
    pub verified: Vec<Verified>,
    /// Pages to be copied, in this order, before anything is written.
    pub copies: Vec<PageCopy>,
    /// Who lost their pages to others.
    pub preempted: Vec<RequestId>,
}

impl StepPlan {
    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Tokens of all chunks.
    pub fn num_tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len).sum()
    }
}

/// What became of somebody who runs when a step was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Secured {
    /// It is computed.
    Planned,
    /// It has pages, and its turn may come.
    Later,
    /// It gave up its own.
    Preempted,
}

impl Scheduler {
    /// The next step, with pages for it. While somebody decodes, prompts get at most `prompt_tokens` of
    /// it, so that nobody waits long for the next token; at least 1.
    pub fn plan_step(&mut self, prompt_tokens: usize) -> StepPlan {
        let mut plan = StepPlan::default();
        let proposals = std::mem::take(&mut self.proposals); // for this step, or for none
        if self.plan_suspect(&mut plan) {
            return plan;
        }
        let before = plan.preempted.len();
        self.make_way(&mut plan);
        let made_way = plan.preempted.len() - before;
        let mut budget = self.step_tokens;
        let prompts = self.plan_decodes(&mut plan, &mut budget);
        self.plan_verification(&mut plan, &mut budget, proposals);
        if !plan.is_empty() {
            let proposed: usize = plan.chunks.iter().map(|chunk| chunk.proposed).sum();
            budget = budget.min(prompt_tokens.saturating_sub(proposed).max(1));
        }
        for (rank, id) in prompts {
            if plan.preempted.is_empty() || self.running.contains_key(&rank) {
                let sequence = self.sequences.get_mut(&id).expect("a running sequence");
                push_chunk(&mut plan, sequence, &mut self.pages, &mut budget);
            }
        }
        // pages that somebody who runs was in need of are not for others
        if plan.preempted.len() == made_way || plan.is_empty() {
            self.admit(&mut plan, &mut budget);
        }
        plan
    }

    /// Whether somebody who runs is to be computed without company; then that is the step. Everybody else
    /// keeps pages and place meanwhile.
    fn plan_suspect(&mut self, plan: &mut StepPlan) -> bool {
        let suspect = self.running().find(|s| s.is_suspect());
        let Some((rank, id)) = suspect.map(|s| (s.rank(), s.id)) else {
            return false;
        };
        let mut budget = self.step_tokens;
        self.secure(rank, id, plan, &mut budget, |_| true) == Secured::Planned
    }

    /// Pages for what a step can compute of somebody who runs, those of others where it takes them; and the
    /// chunk itself, where it `is_due`. This runs for everybody in each step: a look-up each, as long as
    /// pages are there.
    fn secure(
        &mut self,
        rank: Rank,
        id: RequestId,
        plan: &mut StepPlan,
        budget: &mut usize,
        is_due: fn(&Sequence) -> bool,
    ) -> Secured {
        loop {
            let sequence = self.sequences.get_mut(&id).expect("a running sequence");
            let (start, known) = (sequence.num_computed, sequence.tokens.len());
            let end = known.min(start + self.limits.max_batched_tokens);
            let (tables, copies) = (&mut sequence.pages, &mut plan.copies);
            match self.pages.reserve(tables, start, end, copies) {
                Ok(()) if is_due(sequence) => {
                    push_chunk(plan, sequence, &mut self.pages, budget);
                    return Secured::Planned;
                }
                Ok(()) => return Secured::Later,
                Err(lack) => {
                    let victim = self.victim(rank, lack);
                    self.preempt(victim, plan);
                    if victim == id {
                        return Secured::Preempted;
                    }
                }
            }
        }
    }

    /// From now on a step has at most `tokens` tokens, whoever waits for it; as many as can run at least, and
    /// no more than it may have at all.
    pub fn bound_steps(&mut self, tokens: usize) {
        let limits = *self.limits();
        self.step_tokens = tokens.clamp(limits.max_running, limits.max_batched_tokens);
    }

    /// Whoever has been computed up to the last token gets another, oldest first. Returns the others.
    fn plan_decodes(&mut self, plan: &mut StepPlan, budget: &mut usize) -> Vec<(Rank, RequestId)> {
        let running = self.running.iter().map(|(&rank, &id)| (rank, id));
        let mut prompts = Vec::new();
        for (rank, id) in running.collect::<Vec<_>>() {
            if !plan.preempted.is_empty() && !self.running.contains_key(&rank) {
                continue; // preempted for somebody older
            }
            let secured = self.secure(rank, id, plan, budget, |s| s.gap() == 1);
            if secured == Secured::Later {
                prompts.push((rank, id));
            }
        }
        prompts
    }

    /// Who gives its pages up for `needy`: the youngest that is not older, and has not done so too
    /// often. The oldest of all does not, unless there is no page of others where it needs one: then it
    /// begins again elsewhere.
    fn victim(&self, needy: Rank, lack: Lack) -> RequestId {
        let (oldest, own) = (self.running.keys().next(), self.running[&needy]);
        let pool = self.pages.pools().nth(lack.group).expect("its group");
        let of_slab = |page| pool.geometry().slab_of(page);
        let helps = |id: &RequestId| {
            let mut pages = there(&self.sequences[id].pages[lack.group]);
            *id == own || pages.any(|page| lack.slab.is_none_or(|slab| of_slab(page) == slab))
        };
        let candidates = || {
            let younger = self.running.range(needy..).rev();
            let younger = younger.filter(move |(rank, _)| Some(*rank) != oldest);
            younger.map(|(_, &id)| id).filter(helps)
        };
        candidates()
            .find(|id| self.sequences[id].counts.preemptions < PROTECTED_AFTER)
            .or_else(|| candidates().next())
            .unwrap_or(own)
    }

    /// Takes a running sequence's pages and puts it back into the queue, where it came from.
    fn preempt(&mut self, id: RequestId, plan: &mut StepPlan) {
        let sequence = self.sequences.get_mut(&id).expect("a running sequence");
        self.running.remove(&sequence.rank());
        self.pages.release(&std::mem::take(&mut sequence.pages));
        if !planted(Fault::StaleComputed) {
            sequence.num_computed = 0;
        }
        sequence.counts.preemptions += 1;
        if planted(Fault::RequeueLast) {
            self.next_id += 1;
            sequence.arrival = self.next_id;
        }
        self.waiting.insert(sequence.rank(), id);
        plan.preempted.push(id);
    }

    /// Where the first in the queue has a higher priority than somebody who runs and no room, the last
    /// of those who run gives its own up, as long as that helps in the end.
    fn make_way(&mut self, plan: &mut StepPlan) {
        let Some((&first, &id)) = self.waiting.first_key_value() else {
            return;
        };
        let last = self.running.last_key_value();
        if last.is_none_or(|(last, _)| last.0 <= first.0)
            || self.has_room(id)
            || !self.could_have_room(id, first)
        {
            return;
        }
        while let Some((&last, &victim)) = self.running.last_key_value()
            && last.0 > first.0
        {
            self.preempt(victim, plan);
            if self.has_room(id) {
                return;
            }
        }
    }

    /// Whether `id` would have room if everybody of a lower priority had gone, by numbers of seats and
    /// pages: with several slabs it may still find none.
    fn could_have_room(&self, id: RequestId, rank: Rank) -> bool {
        let sequence = &self.sequences[&id];
        let pages = |pool: &PagePool| vec![0; pool.geometry().num_pages];
        let mut going: Vec<Vec<u32>> = self.pages.pools().map(pages).collect();
        let mut seats = sequence.width();
        for (other, id) in &self.running {
            let running = &self.sequences[id];
            if other.0 <= rank.0 {
                seats += running.width();
                continue;
            }
            for (going, table) in going.iter_mut().zip(&running.pages) {
                there(table).for_each(|page| going[page as usize] += 1);
            }
        }
        let mut chain = sequence.chain.clone();
        let found = self.pages.find(&mut chain, &sequence.tokens);
        let (computed, end) = (chain.num_pages * PAGE_SIZE, sequence.tokens.len() + 1);
        let could = |(group, pool): (usize, &PagePool)| {
            let stays = |page: PageId| pool.owners(page) > going[group][page as usize];
            // what it shares with somebody who stays, and what it does not see
            let table = found[group].iter();
            let given = table.filter(|&&page| page == GONE || stays(page)).count();
            let gone = (0..going[group].len()).filter(|&page| !stays(page as PageId));
            self.pages.wanted(group, computed, end) - given <= gone.count()
        };
        seats <= self.limits().max_running && self.pages.pools().enumerate().all(could)
    }

    fn has_room(&mut self, id: RequestId) -> bool {
        if !self.has_seats(id) || !self.take_pages(id) {
            return false;
        }
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence");
        self.pages.release(&std::mem::take(&mut sequence.pages));
        true
    }

    fn has_seats(&self, id: RequestId) -> bool {
        if self.running.len() >= self.limits().max_running {
            return false; // as in most steps while somebody waits
        }
        let others: usize = self.running().map(Sequence::width).sum();
        others + self.sequences[&id].width() <= self.limits().max_running
    }

    /// Admits from the front of the queue as long as there is room. Nobody overtakes. A suspect is the last
    /// that is admitted, and computed in the next step where this one has somebody else.
    fn admit(&mut self, plan: &mut StepPlan, budget: &mut usize) {
        if planted(Fault::DropWakeUp) && self.running.is_empty() && self.next_id > 8 {
            return;
        }
        while *budget > 0
            && let Some((&rank, &id)) = self.waiting.first_key_value()
            && self.has_seats(id)
            && self.take_pages(id)
        {
            self.waiting.remove(&rank);
            self.running.insert(rank, id);
            let sequence = self.sequences.get_mut(&id).expect("a waiting sequence");
            let computed = sequence.chain.num_pages * PAGE_SIZE;
            if !planted(Fault::StaleComputed) || sequence.num_computed == 0 {
                sequence.num_computed = computed;
            }
            if !std::mem::replace(&mut sequence.admitted, true) {
                sequence.counts.cached_tokens = computed;
            }
            let is_suspect = sequence.is_suspect();
            if !is_suspect || plan.is_empty() {
                push_chunk(plan, sequence, &mut self.pages, budget);
            }
            if is_suspect {
                break;
            }
        }
    }

    /// Pages for all known tokens of a sequence and one more: shared where they are found, its own
    /// where not. All of them, or none and `false`.
    fn take_pages(&mut self, id: RequestId) -> bool {
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence");
        assert!(sequence.pages.is_empty(), "who waits owns nothing");
        let drawn = usize::from(!planted(Fault::AdmitWithoutOutput));
        let (chain, mut known) = (&mut sequence.chain, &sequence.tokens[..]);
        loop {
            let mut tables = self.pages.find(chain, known);
            let found = chain.num_pages;
            self.pages.share(&tables);
            let end = sequence.tokens.len() + drawn;
            if self.pages.provide(&mut tables, found * PAGE_SIZE, end) {
                sequence.pages = tables;
                return true;
            }
            self.pages.release(&tables);
            if found == 0 || !self.pages.has_several_slabs() {
                return false; // where all lies in one slab, who shares less needs more
            }
            // a split that was begun in a slab without room is begun anew elsewhere; then half of them each
            // time, since who waits long tries that in every step
            let splits = found / SPLIT_PAGES;
            let was_begun = !found.is_multiple_of(SPLIT_PAGES);
            let whole = if was_begun { splits } else { splits / 2 } * SPLIT_PAGES;
            known = &sequence.tokens[..whole * PAGE_SIZE + 1];
        }
    }
}

/// As much of `sequence` as is left to compute and the budget allows.
fn push_chunk(plan: &mut StepPlan, sequence: &mut Sequence, pages: &mut Pages, budget: &mut usize) {
    let start = sequence.num_computed;
    let end = sequence.tokens.len().min(start + *budget);
    if end == start {
        return; // nothing of the budget is left
    }
    let is_last = end == sequence.tokens.len();
    let (len, draws) = (end - start, usize::from(is_last) * sequence.width());
    *budget -= len;
    plan.chunks.push(Chunk {
        id: sequence.id,
        start,
        len,
        draws,
        proposed: 0,
    });
    if planted(Fault::PublishEarly) {
        let (tokens, tables) = (&sequence.tokens, &sequence.pages);
        pages.publish(&mut sequence.chain, tokens, end, tables);
    }
}
