//! Which tokens the next step computes. A value: no clock, no device, no channel, no randomness.
//!
//! There is no prefill phase and no decode phase. A sequence knows `tokens.len()` tokens, of which
//! `num_computed` are in the KV cache; a step moves the second number towards the first, as far as
//! the token budget goes, and samples where it gets there. One sequence runs at a time; the others
//! wait in the order in which they came.

use super::request::{Event, FinishReason, Request, RequestId, TokenLogprob};
use crate::error::{Error, Result};
use crate::kv::{PAGE_SIZE, PageId, PagePool};
use std::collections::VecDeque;

/// Bounds that hold for as long as the engine lives.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens a step may compute.
    pub max_batched_tokens: usize,
    /// The longest sequence, prompt and answer.
    pub max_model_len: usize,
    /// Requests that may wait.
    pub max_waiting: usize,
}

/// A request on its way.
#[derive(Debug)]
pub struct Sequence {
    /// Its name.
    pub id: RequestId,
    /// What was asked.
    pub request: Request,
    /// Prompt, then generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens whose keys and values are in the cache.
    pub num_computed: usize,
    /// Pages of the cache, in order.
    pub pages: Vec<PageId>,
}

impl Sequence {
    /// Tokens generated so far.
    pub fn num_generated(&self) -> usize {
        self.tokens.len() - self.request.tokens.len()
    }
}

/// Tokens `start .. start + len` of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whose.
    pub id: RequestId,
    /// The first token's position.
    pub start: usize,
    /// How many, at least 1.
    pub len: usize,
    /// Whether the chunk ends at the last known token, so that the next one is sampled.
    pub samples: bool,
}

/// What a step computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// In the order of the batch.
    pub chunks: Vec<Chunk>,
}

impl StepPlan {
    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

/// A token drawn by a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// See [`Event::Token`].
    pub top_logprobs: Vec<TokenLogprob>,
}

/// All requests, and the pages they own.
pub struct Scheduler {
    limits: Limits,
    pool: PagePool,
    waiting: VecDeque<Sequence>,
    running: Option<Sequence>,
    next_id: u64,
}

impl Scheduler {
    /// Nothing to do yet.
    pub fn new(limits: Limits, pool: PagePool) -> Scheduler {
        assert!(
            limits.max_batched_tokens > 0,
            "a step computes at least one token"
        );
        Scheduler {
            limits,
            pool,
            waiting: VecDeque::new(),
            running: None,
            next_id: 1,
        }
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The longest sequence that can ever be served, prompt and answer.
    pub fn servable_len(&self) -> usize {
        self.limits
            .max_model_len
            .min(self.pool.geometry().num_pages * PAGE_SIZE)
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// [`Error::RequestTooLong`] when it could never fit; [`Error::Request`] for an empty prompt, no
    /// token to generate, or a full queue.
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        if request.tokens.is_empty() {
            return Err(Error::request("prompt", "is empty: it has no token"));
        }
        if request.max_tokens == 0 {
            return Err(Error::request("max_tokens", "is 0, expected at least 1"));
        }
        // the prompt and one token of an answer
        if request.tokens.len() + 1 > self.servable_len() {
            return Err(Error::RequestTooLong {
                tokens: request.tokens.len(),
                limit: self.servable_len(),
            });
        }
        if self.waiting.len() >= self.limits.max_waiting {
            return Err(Error::request(
                "queue",
                format!("is full with {} requests", self.waiting.len()),
            ));
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let tokens = request.tokens.clone();
        self.waiting.push_back(Sequence {
            id,
            request,
            tokens,
            num_computed: 0,
            pages: Vec::new(),
        });
        Ok(id)
    }

    /// Ends a request, wherever it is. Does nothing when it is over already.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        if self.running.as_ref().is_some_and(|s| s.id == id) {
            return self.finish(FinishReason::Cancelled);
        }
        let at = self.waiting.iter().position(|s| s.id == id)?;
        self.waiting.remove(at);
        Some(Event::Finished {
            id,
            reason: FinishReason::Cancelled,
        })
    }

    /// Whether any request is not over.
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// The sequence of a chunk.
    ///
    /// # Panics
    /// When it is not running: plans are for running sequences only.
    pub fn sequence(&self, id: RequestId) -> &Sequence {
        self.running
            .as_ref()
            .filter(|s| s.id == id)
            .expect("a planned sequence runs")
    }

    /// The next step: as much of the running sequence as the budget allows, with pages for it.
    pub fn plan_step(&mut self) -> StepPlan {
        if self.running.is_none() {
            self.running = self.waiting.pop_front();
        }
        let Some(sequence) = &mut self.running else {
            return StepPlan::default();
        };
        let known = sequence.tokens.len();
        let len = (known - sequence.num_computed).min(self.limits.max_batched_tokens);
        let end = sequence.num_computed + len;
        let missing = end.div_ceil(PAGE_SIZE) - sequence.pages.len();
        let grown = self.pool.extend(&mut sequence.pages, missing);
        assert!(
            grown,
            "one admitted sequence always fits: {end} tokens, {} pages",
            self.pool.geometry().num_pages
        );
        let chunk = Chunk {
            id: sequence.id,
            start: sequence.num_computed,
            len,
            samples: end == known,
        };
        StepPlan {
            chunks: vec![chunk],
        }
    }

    /// Takes a step's result: one sampled token for each chunk that samples, in order.
    pub fn commit_step(&mut self, plan: &StepPlan, sampled: Vec<Sampled>) -> Vec<Event> {
        let mut events = Vec::new();
        let mut sampled = sampled.into_iter();
        for chunk in &plan.chunks {
            let sequence = self
                .running
                .as_mut()
                .filter(|s| s.id == chunk.id)
                .expect("a planned sequence runs");
            assert_eq!(
                sequence.num_computed, chunk.start,
                "a step is committed once, in order"
            );
            sequence.num_computed += chunk.len;
            if !chunk.samples {
                continue;
            }
            let Sampled {
                token,
                top_logprobs,
            } = sampled.next().expect("a token for each chunk that samples");
            sequence.tokens.push(token);
            events.push(Event::Token {
                id: chunk.id,
                token,
                top_logprobs,
            });
            if let Some(reason) = self.over(token) {
                events.extend(self.finish(reason));
            }
        }
        assert!(sampled.next().is_none(), "no token is sampled for nobody");
        events
    }

    /// Gives up on everything in flight after a failed step: pages go back, nothing is computed.
    pub fn abandon(&mut self) -> Vec<Event> {
        let mut events: Vec<Event> = self.finish(FinishReason::Cancelled).into_iter().collect();
        let waiting = std::mem::take(&mut self.waiting);
        events.extend(waiting.into_iter().map(|s| Event::Finished {
            id: s.id,
            reason: FinishReason::Cancelled,
        }));
        events
    }

    /// Why the running sequence is over after `token`, if it is.
    fn over(&self, token: u32) -> Option<FinishReason> {
        let sequence = self.running.as_ref()?;
        if sequence.request.end_tokens.contains(&token) {
            return Some(FinishReason::Stop);
        }
        let full = sequence.tokens.len() >= self.servable_len();
        (full || sequence.num_generated() >= sequence.request.max_tokens)
            .then_some(FinishReason::Length)
    }

    fn finish(&mut self, reason: FinishReason) -> Option<Event> {
        let sequence = self.running.take()?;
        for &page in sequence.pages.iter().rev() {
            self.pool.release(page);
        }
        Some(Event::Finished {
            id: sequence.id,
            reason,
        })
    }

    /// Asserts what must hold between steps; see the numbered invariants in ARCHITECTURE.md.
    pub fn check(&self) {
        self.pool.check();
        let owned = self.running.as_ref().map_or(0, |s| s.pages.len());
        assert_eq!(
            self.pool.num_free() + owned,
            self.pool.geometry().num_pages,
            "free and owned pages are all pages"
        );
        if let Some(s) = &self.running {
            assert!(
                s.num_computed <= s.pages.len() * PAGE_SIZE,
                "{} tokens in {} pages",
                s.num_computed,
                s.pages.len()
            );
            assert!(
                s.num_computed <= s.tokens.len(),
                "{} computed of {}",
                s.num_computed,
                s.tokens.len()
            );
        }
        assert!(
            self.waiting.iter().all(|s| s.pages.is_empty()),
            "who waits owns nothing"
        );
    }

    /// The pool, for those who evaluate texts beside the queue.
    pub fn pool(&mut self) -> &mut PagePool {
        &mut self.pool
    }
}
