//! Who waited for what and for how long. The times come from outside, as durations since the engine
//! started: nothing here reads a clock.

use super::plan::{Chunk, StepPlan};
use super::request::{FinishReason, RequestId};
use super::scheduler::Scheduler;
use super::sequence::{Counts, Sequence};
use super::speculate;
use super::stats::{Finished, PageCounts, RequestStats, Stats, Window};
use super::trace::{Recording, StepRecord, Trace};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where a step is.
pub enum Moment<'a> {
    /// It is known what it will compute; nothing, where the plan is empty.
    Planned(&'a StepPlan, &'a Scheduler),
    /// Its tokens were drawn and read back.
    Computed,
    /// A request is over, with its last token or without.
    Over(&'a Sequence),
    /// The device was lost in it; whoever ran is about to be computed again.
    Lost(&'a StepPlan, &'a Scheduler),
}

/// What everybody may look at while a step is under way.
pub(super) struct Board {
    totals: Mutex<Totals>,
    recording: Mutex<Recording>,
}

#[derive(Clone, Default)]
struct Totals {
    /// All but the spreads.
    stats: Stats,
    step_ms: Window,
    batch_size: Window,
    step_tokens: Window,
}

/// A thread that panicked holding one of these left whole numbers behind.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    pub fn new(trace_steps: usize) -> Board {
        Board {
            totals: Mutex::default(),
            recording: Mutex::new(Recording::new(trace_steps)),
        }
    }

    pub fn stats(&self) -> Stats {
        let totals = lock(&self.totals).clone();
        Stats {
            step_ms: totals.step_ms.spread(),
            batch_size: totals.batch_size.spread(),
            step_tokens: totals.step_tokens.spread(),
            ..totals.stats
        }
    }

    pub fn take_trace(&self) -> Trace {
        lock(&self.recording).take()
    }
}

/// The books of an engine: an account for each request that is not over, and the totals.
pub(super) struct Ledger {
    board: Arc<Board>,
    accounts: HashMap<RequestId, Account>,
    step: Option<StepRecord>,
    /// When the last step had been computed.
    computed: Duration,
}

#[derive(Default)]
struct Account {
    prompt_tokens: usize,
    submitted: Duration,
    /// When the first step with tokens of the prompt had been planned.
    begun: Option<Duration>,
    /// When the step had been computed that drew the first token.
    drawn: Option<Duration>,
    counts: Counts,
    told: Vec<Duration>,
}

impl Ledger {
    pub fn new(board: Arc<Board>) -> Ledger {
        Ledger {
            board,
            accounts: HashMap::new(),
            step: None,
            computed: Duration::ZERO,
        }
    }

    /// Requests with a prompt of so many tokens were handed in.
    pub fn submitted(&mut self, ids: &[RequestId], prompt_tokens: usize, at: Duration) {
        for &id in ids {
            let account = Account {
                prompt_tokens,
                submitted: at,
                ..Account::default()
            };
            self.accounts.insert(id, account);
        }
    }

    /// A step goes on.
    pub fn see(&mut self, moment: &Moment, now: Duration) {
        match moment {
            Moment::Planned(plan, scheduler) => self.planned(plan, scheduler, now),
            Moment::Computed => self.computed(now),
            Moment::Over(sequence) => self.count(sequence.id, Some(sequence.counts)),
            Moment::Lost(plan, scheduler) => self.lost(plan, scheduler),
        }
    }

    fn planned(&mut self, plan: &StepPlan, scheduler: &Scheduler, now: Duration) {
        let board = self.board.clone();
        let stats = &mut lock(&board.totals).stats;
        stats.preemptions += plan.preempted.len() as u64;
        for &id in &plan.preempted {
            self.count(id, scheduler.counts(id));
        }
        if plan.is_empty() {
            return;
        }
        for chunk in &plan.chunks {
            let sequence = scheduler.sequence(chunk.id);
            if self.begin(chunk, sequence.counts, now) {
                stats.cached_tokens += sequence.counts.cached_tokens as u64;
            }
            for &sibling in &sequence.siblings {
                let of_sibling = Chunk {
                    id: sibling,
                    ..*chunk
                };
                self.begin(&of_sibling, sequence.counts, now);
            }
        }
        let (running, waiting) = scheduler.queue_lens();
        self.step = Some(StepRecord {
            index: stats.steps,
            begin: now,
            duration: Duration::ZERO,
            chunks: plan.chunks.clone(),
            preempted: plan.preempted.clone(),
            running,
            waiting,
            pages: page_counts(scheduler),
        });
    }

    /// Whether it is the first chunk of its request.
    fn begin(&mut self, chunk: &Chunk, counts: Counts, now: Duration) -> bool {
        let Some(account) = self.accounts.get_mut(&chunk.id) else {
            return false;
        };
        account.counts = counts;
        let is_first = account.begun.is_none();
        account.begun.get_or_insert(now);
        is_first
    }

    /// What became of a request so far.
    pub fn count(&mut self, id: RequestId, counts: Option<Counts>) {
        if let (Some(account), Some(counts)) = (self.accounts.get_mut(&id), counts) {
            account.counts = counts;
        }
    }

    fn computed(&mut self, now: Duration) {
        self.computed = now;
        let Some(mut step) = self.step.take() else {
            return;
        };
        step.duration = now.saturating_sub(step.begin);
        let mut totals = lock(&self.board.totals);
        totals.stats.steps += 1;
        totals.stats.computed_tokens += step.num_tokens() as u64;
        totals.step_ms.push(step.duration.as_secs_f64() * 1e3);
        totals.batch_size.push(step.chunks.len() as f64);
        totals.step_tokens.push(step.num_tokens() as f64);
        drop(totals);
        lock(&self.board.recording).push(step);
    }

    fn lost(&mut self, plan: &StepPlan, scheduler: &Scheduler) {
        self.failed();
        for chunk in &plan.chunks {
            let sequence = scheduler.sequence(chunk.id);
            let mut counts = sequence.counts;
            counts.losses += 1;
            for &id in [&sequence.id].into_iter().chain(&sequence.siblings) {
                self.count(id, Some(counts));
            }
        }
    }

    /// A step failed, whatever it was at.
    pub fn failed(&mut self) {
        let lost = self.step.take().is_some();
        lock(&self.board.totals).stats.losses += u64::from(lost);
    }

    /// A token is handed over.
    pub fn token(&mut self, id: RequestId, now: Duration) {
        lock(&self.board.totals).stats.generated_tokens += 1;
        if let Some(account) = self.accounts.get_mut(&id) {
            account.drawn.get_or_insert(self.computed);
            account.told.push(now);
        }
    }

    /// A request is over: by an error, where there is no reason. What it was like; `None` for one that
    /// is not in the books.
    pub fn finished(
        &mut self,
        id: RequestId,
        reason: Option<FinishReason>,
        now: Duration,
    ) -> Option<RequestStats> {
        let account = self.accounts.remove(&id)?;
        let mut totals = lock(&self.board.totals);
        let Finished {
            stop,
            length,
            cancelled,
            failed,
        } = &mut totals.stats.finished;
        *match reason {
            Some(FinishReason::Stop) => stop,
            Some(FinishReason::Length) => length,
            Some(FinishReason::Cancelled) => cancelled,
            None => failed,
        } += 1;
        Some(account.close(now))
    }

    /// What came of speculation so far.
    pub fn speculated(&mut self, totals: speculate::Totals) {
        lock(&self.board.totals).stats.speculation = totals;
    }

    /// Where the queue and the pages stand between two steps.
    pub fn balance(&mut self, scheduler: &Scheduler) {
        let stats = &mut lock(&self.board.totals).stats;
        (stats.running, stats.waiting) = scheduler.queue_lens();
        stats.pages = page_counts(scheduler);
    }
}

impl Account {
    fn close(self, now: Duration) -> RequestStats {
        // what did not begin before the end took until the end
        let begun = self.begun.unwrap_or(now);
        let drawn = self.drawn.unwrap_or(now);
        let first = self.told.first().copied().unwrap_or(now);
        let since = |time: Duration| time.saturating_sub(self.submitted);
        RequestStats {
            prompt_tokens: self.prompt_tokens,
            counts: self.counts,
            tokenise: Duration::ZERO,
            queue: since(begun),
            prefill: drawn.saturating_sub(begun),
            sample: first.saturating_sub(drawn),
            token_times: self.told.iter().map(|&time| since(time)).collect(),
            total: since(now),
        }
    }
}

fn page_counts(scheduler: &Scheduler) -> PageCounts {
    let pages = &scheduler.pages;
    PageCounts {
        used: pages.num_used(),
        free: pages.num_free(),
        cached: pages.num_idle(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::Request;
    use crate::engine::scheduler::{Limits, MAX_LOSSES};
    use crate::kv::{PageGeometry, Pages};

    #[test]
    fn a_lost_step_is_in_the_books_at_once_and_in_those_of_all_its_answers() {
        let (board, now) = (Arc::new(Board::new(0)), Duration::ZERO);
        let mut ledger = Ledger::new(board.clone());
        let limits = Limits {
            max_batched_tokens: 16,
            max_running: 4,
            max_rows: 4,
            max_model_len: 100,
            max_waiting: 4,
        };
        let pages = Pages::new(PageGeometry::new(8, 16), false);
        let mut scheduler = Scheduler::new(limits, pages, b"");
        let request = Request {
            tokens: vec![1; 9],
            ..Request::default()
        };
        let ids = scheduler.submit_several(request, 2).unwrap();
        ledger.submitted(&ids, 9, now);
        let mut ended = Vec::new();
        for losses in 0..=MAX_LOSSES {
            assert!(ended.is_empty());
            let plan = scheduler.plan_step(usize::MAX);
            ledger.see(&Moment::Planned(&plan, &scheduler), now);
            ledger.see(&Moment::Lost(&plan, &scheduler), now);
            ended = scheduler.restart(&plan.chunks);
            assert_eq!(board.stats().losses, losses as u64 + 1);
        }
        assert_eq!(ended.len(), 2);
        for id in ids {
            let stats = ledger.finished(id, None, now).unwrap();
            assert_eq!(stats.counts.losses, MAX_LOSSES + 1);
        }
        assert_eq!((board.stats().finished.failed, board.stats().steps), (2, 0));
    }
}
