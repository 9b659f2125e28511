//! All requests and their pages. A value: no clock, no device, no channel, no randomness.
//!
//! There is no prefill phase and no decode phase. A sequence knows `tokens.len()` tokens, of which
//! `num_computed` are in the KV cache; a step moves the second number towards the first, as far as
//! the token budget goes, and samples where it gets there. What a step computes is decided in
//! [`plan`](super::plan); here requests come and are committed, and in [`ends`](super::ends) they go.

pub use super::plan::{Chunk, StepPlan};
use super::request::{Event, Request, RequestId, TokenLogprob};
pub use super::sequence::{Counts, Rank, Sequence};
use super::verification::Proposals;
use crate::error::{Error, Result};
use crate::kv::prefix::{Chain, PrefixKey};
use crate::kv::{Pages, pages_for};
use crate::planted::{Fault, planted};
use std::collections::BTreeMap;

/// Device losses that a request survives in company; after them it is computed alone, and the next one is
/// its end.
pub const MAX_LOSSES: usize = 2;

/// Bounds that hold for as long as the engine lives.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens a step may compute, at least `max_running`.
    pub max_batched_tokens: usize,
    /// Sequences that may run at a time, each with a row of logits.
    pub max_running: usize,
    /// Rows of logits that a step can have, at least `max_running`: those that no sequence needs verify
    /// proposed tokens.
    pub max_rows: usize,
    /// The longest sequence, prompt and answer.
    pub max_model_len: usize,
    /// Requests that may wait.
    pub max_waiting: usize,
}

/// A token drawn by a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// See [`Event::Token`].
    pub top_logprobs: Vec<TokenLogprob>,
}

impl Sampled {
    fn event(self, id: RequestId) -> Event {
        let Sampled {
            token,
            top_logprobs,
        } = self;
        Event::Token {
            id,
            token,
            top_logprobs,
        }
    }
}

/// All requests, and the pages they own.
pub struct Scheduler {
    pub(super) limits: Limits,
    /// Tokens of a step for the time being.
    pub(super) step_tokens: usize,
    pub(super) pages: Pages,
    /// What keys and values depend on beside tokens; see [`PrefixKey::root`].
    model: Vec<u8>,
    /// Everyone who is not over; each is in one of the two lists.
    pub(super) sequences: BTreeMap<RequestId, Sequence>,
    pub(super) waiting: BTreeMap<Rank, RequestId>,
    pub(super) running: BTreeMap<Rank, RequestId>,
    pub(super) next_id: u64,
    /// What may follow the known tokens of those who decode, for the next step.
    pub(super) proposals: Proposals,
    /// Of the last step, how many of the proposed tokens were right, by chunk that had some.
    accepted: Vec<usize>,
    /// Whoever is over since somebody asked last; nobody, where nobody asks.
    pub(super) over: Option<Vec<Sequence>>,
}

impl Scheduler {
    /// Nothing to do yet. `model` names what keys and values depend on beside tokens.
    ///
    /// # Panics
    /// When a step could not compute a token for everyone who runs, or is longer than `pages` are given out
    /// for.
    pub fn new(limits: Limits, pages: Pages, model: &[u8]) -> Scheduler {
        let Limits {
            max_batched_tokens,
            max_running,
            max_rows,
            ..
        } = limits;
        assert!(
            (1..=max_batched_tokens).contains(&max_running),
            "{max_running} sequences, {max_batched_tokens} tokens a step"
        );
        assert!(
            max_rows >= max_running,
            "{max_rows} rows of logits, {max_running} sequences"
        );
        let chunk = pages.chunk();
        assert!(
            max_batched_tokens <= chunk,
            "{max_batched_tokens} tokens a step, pages for {chunk}"
        );
        Scheduler {
            limits,
            step_tokens: max_batched_tokens,
            pages,
            model: model.to_owned(),
            sequences: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            next_id: 1,
            proposals: BTreeMap::new(),
            accepted: Vec::new(),
            over: None,
        }
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The longest sequence that can ever be served, prompt and answer.
    pub fn servable_len(&self) -> usize {
        self.limits.max_model_len.min(self.pages.longest(0))
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// As [`Scheduler::submit_several`].
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        self.submit_several(request, 1).map(|ids| ids[0])
    }

    /// Takes a request for `count` answers to one prompt into the queue: the prompt is computed once,
    /// and each answer, a request of its own from there on, draws with the next seed.
    ///
    /// # Errors
    /// [`Error::RequestTooLong`] when it could never fit; [`Error::Request`] for an empty prompt, no
    /// token to generate, more answers than can run, or a full queue.
    pub fn submit_several(&mut self, request: Request, count: usize) -> Result<Vec<RequestId>> {
        if request.tokens.is_empty() {
            return Err(Error::request("prompt", "is empty: it has no token"));
        }
        if request.max_tokens == 0 {
            return Err(Error::request("max_tokens", "is 0, expected at least 1"));
        }
        if !(1..=self.limits.max_running).contains(&count) {
            let problem = format!("is {count}, expected 1 to {}", self.limits.max_running);
            return Err(Error::request("n", problem));
        }
        // the prompt and one token of an answer
        if request.tokens.len() + 1 > self.servable_len() {
            return Err(Error::RequestTooLong {
                tokens: request.tokens.len(),
                limit: self.servable_len(),
            });
        }
        if self.waiting.len() >= self.limits.max_waiting {
            let problem = format!("is full with {} requests", self.waiting.len());
            return Err(Error::request("queue", problem));
        }
        let ids: Vec<RequestId> = (self.next_id..).take(count).map(RequestId).collect();
        self.next_id += count as u64;
        let root = self.root(&request.cache_salt);
        let sequence = Sequence {
            id: ids[0],
            tokens: request.tokens.clone(),
            request,
            num_computed: 0,
            pages: Vec::new(),
            siblings: ids[1..].to_vec(),
            counts: Counts::default(),
            chain: Chain::new(root),
            arrival: ids[0].0,
            admitted: false,
            lost_at: 0,
        };
        self.waiting.insert(sequence.rank(), sequence.id);
        self.sequences.insert(sequence.id, sequence);
        Ok(ids)
    }

    /// Where the prefixes of a tenant begin.
    pub(super) fn root(&self, salt: &[u8]) -> PrefixKey {
        PrefixKey::root(&self.model, salt)
    }

    /// Of the last step, how many of the proposed tokens were right, in the order of
    /// [`StepPlan::verified`].
    pub fn accepted(&self) -> &[usize] {
        &self.accepted
    }

    /// Those who are over since the last call, without pages. They are kept from the first call on.
    pub(super) fn take_over(&mut self) -> Vec<Sequence> {
        self.over.replace(Vec::new()).unwrap_or_default()
    }

    /// Whether every request is over.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Requests that run, and that wait; answers that have not begun do not count.
    pub fn queue_lens(&self) -> (usize, usize) {
        (self.running.len(), self.waiting.len())
    }

    /// The sequence of a chunk.
    ///
    /// # Panics
    /// When it is over.
    pub fn sequence(&self, id: RequestId) -> &Sequence {
        &self.sequences[&id]
    }

    /// What became of a request so far; `None` once it is over, or before it begins.
    pub fn counts(&self, id: RequestId) -> Option<Counts> {
        self.sequences.get(&id).map(|s| s.counts)
    }

    /// Those who run, in order.
    pub fn running(&self) -> impl Iterator<Item = &Sequence> {
        self.running.values().map(|id| &self.sequences[id])
    }

    /// Those who wait, in order.
    pub fn waiting(&self) -> impl Iterator<Item = &Sequence> {
        self.waiting.values().map(|id| &self.sequences[id])
    }

    /// Takes a step's result: the tokens that were drawn, in the order of the chunks that draw and of their rows, `None`
    /// where there was nothing to draw from.
    ///
    /// # Panics
    /// When they are more or fewer, or when the plan is not the last one.
    pub fn commit_step(&mut self, plan: &StepPlan, sampled: Vec<Option<Sampled>>) -> Vec<Event> {
        let mut events = Vec::with_capacity(sampled.len());
        let mut sampled = sampled.into_iter();
        let mut verified = plan.verified.iter();
        self.accepted.clear();
        for chunk in &plan.chunks {
            let sequence = self
                .sequences
                .get_mut(&chunk.id)
                .expect("nobody left since");
            assert_eq!(
                sequence.num_computed, chunk.start,
                "a step is committed once, in order"
            );
            let drawn: Vec<_> = sampled.by_ref().take(chunk.draws).collect();
            assert_eq!(drawn.len(), chunk.draws, "a token for everyone who draws");
            let mut drawn = drawn.into_iter();
            let proposal =
                (chunk.proposed > 0).then(|| &verified.next().expect("one for each").proposal);
            let accepted = proposal.map_or(0, |p| sequence.accept(p, drawn.as_slice()));
            self.accepted.extend(proposal.map(|_| accepted));
            let rejected = chunk.proposed - accepted;
            let rejected = rejected * usize::from(!planted(Fault::ForgetRollback));
            sequence.counts.passes += usize::from(chunk.draws > 0);
            sequence.num_computed += chunk.len - rejected;
            if sequence.num_computed >= sequence.lost_at {
                sequence.lost_at = 0; // it was not to blame, nor is it when it is preempted
            }
            let (tokens, tables) = (&sequence.tokens, &mut sequence.pages);
            let computed = sequence.num_computed;
            self.pages
                .publish(&mut sequence.chain, tokens, computed, tables);
            self.pages.pass(tables, computed);
            if let Some(proposal) = proposal {
                self.pages.shrink(tables, computed + 1);
                let id = chunk.id;
                events.extend(
                    drawn
                        .by_ref()
                        .take(accepted)
                        .flatten()
                        .map(|drawn| drawn.event(id)),
                );
                let mut next = drawn.next().expect("a row after the last");
                if planted(Fault::KeepRejected) && rejected > 0 {
                    let proposed = proposal.tokens[accepted];
                    next.as_mut().expect("numbers").token = proposed;
                }
                self.append(id, next, &mut events);
                continue;
            }
            match chunk.draws {
                0 => {}
                1 => self.append(chunk.id, drawn.next().expect("one"), &mut events),
                _ => {
                    for (id, drawn) in self.begin_siblings(chunk.id).into_iter().zip(drawn) {
                        self.append(id, drawn, &mut events);
                    }
                }
            }
        }
        assert!(sampled.next().is_none(), "no token is drawn for nobody");
        events
    }

    /// The answers that were waiting for their prompt begin: its pages are theirs as well. Returns all.
    fn begin_siblings(&mut self, id: RequestId) -> Vec<RequestId> {
        let first = self
            .sequences
            .get_mut(&id)
            .expect("it was computed just now");
        let mut ids = std::mem::take(&mut first.siblings);
        if planted(Fault::ForgetSibling) {
            ids.pop();
        }
        // what it was promised beyond them stays its own
        let mut shared = first.clone();
        for table in &mut shared.pages {
            table.truncate(pages_for(shared.num_computed));
        }
        for &id in &ids {
            self.pages.share(&shared.pages);
            let mut sibling = Sequence {
                id,
                arrival: id.0,
                ..shared.clone()
            };
            sibling.request.sampling.seed = shared.seed_of(id);
            self.running.insert(sibling.rank(), id);
            self.sequences.insert(id, sibling);
        }
        ids.insert(0, id);
        ids
    }

    fn append(&mut self, id: RequestId, drawn: Option<Sampled>, events: &mut Vec<Event>) {
        let Some(drawn) = drawn else {
            events.push(self.fail(id));
            return;
        };
        let servable_len = self.servable_len();
        let sequence = self.sequences.get_mut(&id).expect("it draws");
        sequence.tokens.push(drawn.token);
        events.push(drawn.event(id));
        if let Some(reason) = sequence.over(servable_len) {
            events.extend(self.leave(id, reason));
        }
    }

    /// The pages, for those who evaluate texts beside the queue.
    pub fn pages(&mut self) -> &mut Pages {
        &mut self.pages
    }
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests tell what they tried")]
#[path = "tests/simulation.rs"]
mod simulation;

#[cfg(test)]
#[path = "tests/frequencies.rs"]
mod frequencies;

#[cfg(test)]
#[path = "tests/turns.rs"]
mod turns;
