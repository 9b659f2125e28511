//! The loop of the engine's thread: commands between steps, never within one.

use super::EngineCore;
use super::embed::{Embedding, Pooling};
use super::handle::{Listener, Teller, line};
use super::ledger::{Board, Ledger};
use super::request::{Event, Request, RequestId};
use crate::error::{Error, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Instant;

/// Commands between two steps at most, so that those who ask without end hold up nobody's answer.
const MOST_COMMANDS: usize = 1024;

/// What the thread is asked for.
pub(super) enum Command {
    /// So many answers to one prompt; since when they are waited for.
    Submit {
        request: Box<Request>,
        count: usize,
        at: Instant,
        reply: Sender<Result<Vec<(RequestId, Listener)>>>,
    },
    Cancel(RequestId),
    /// A vector, computed step by step beside the requests.
    Embed(EmbedJob),
    /// A look at the engine between two steps.
    Look(Box<dyn FnOnce(&EngineCore) + Send>),
    /// Goes on until nothing is in flight, or until then.
    Drain(Instant),
    /// Ends after the step that is under way. Sent when the engine goes: handles that outlive it hold
    /// the channel open.
    End,
}

/// A text that somebody waits for the vector of.
pub(super) struct EmbedJob {
    pub tokens: Vec<u32>,
    pub pooling: Pooling,
    pub reply: Sender<Result<Vec<f32>>>,
}

/// What lives on the thread.
pub(super) struct Worker {
    core: EngineCore,
    inbox: Receiver<Command>,
    tellers: HashMap<RequestId, Teller>,
    /// Whose turn it is to be embedded.
    jobs: VecDeque<EmbedJob>,
    /// The one that is, and for whom.
    embedding: Option<(Embedding, Sender<Result<Vec<f32>>>)>,
    ledger: Ledger,
    /// All times of the ledger are since then.
    start: Instant,
    /// No step begins after that.
    end: Option<Instant>,
}

impl Worker {
    pub fn new(core: EngineCore, inbox: Receiver<Command>, board: Arc<Board>) -> Worker {
        let mut ledger = Ledger::new(board);
        ledger.balance(&core.scheduler);
        Worker {
            core,
            inbox,
            tellers: HashMap::new(),
            jobs: VecDeque::new(),
            embedding: None,
            ledger,
            start: Instant::now(),
            end: None,
        }
    }

    /// Steps while there is work, waits for commands while there is none. What is in flight when it
    /// ends is cancelled.
    pub fn run(mut self) {
        while self.take_commands() {
            self.step();
            self.embed();
        }
        let left: Vec<RequestId> = self.tellers.keys().copied().collect();
        left.into_iter().for_each(|id| self.cancel(id));
        // whoever waits for a vector sees the channel go
        if let Some((work, _)) = self.embedding.take() {
            self.core.end_embedding(work);
        }
        self.ledger.balance(&self.core.scheduler);
    }

    /// Whether to go on.
    fn take_commands(&mut self) -> bool {
        let mut taken = 0;
        loop {
            if self.end.is_some_and(|end| Instant::now() >= end) {
                return false;
            }
            if taken >= MOST_COMMANDS && self.is_busy() {
                return true;
            }
            let command = match self.inbox.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) if self.is_busy() => return true,
                Err(TryRecvError::Empty) if self.end.is_some() => return false,
                Err(TryRecvError::Empty) => match self.inbox.recv() {
                    Ok(command) => command,
                    Err(_) => return false,
                },
            };
            self.obey(command);
            taken += 1;
        }
    }

    fn is_busy(&self) -> bool {
        !self.core.is_idle() || self.embedding.is_some() || !self.jobs.is_empty()
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit {
                request,
                count,
                at,
                reply,
            } => {
                let accepted = self.submit(*request, count, at);
                // an asker who left before the answer has dropped no handle that would cancel
                if let Err(unread) = reply.send(accepted)
                    && let Ok(asked) = unread.0
                {
                    asked.into_iter().for_each(|(id, _)| self.cancel(id));
                }
            }
            Command::Cancel(id) => self.cancel(id),
            Command::Embed(job) => self.jobs.push_back(job),
            Command::Look(work) => work(&self.core),
            Command::Drain(until) => self.end = Some(self.end.map_or(until, |end| end.min(until))),
            Command::End => self.end = Some(self.start),
        }
    }

    fn submit(
        &mut self,
        request: Request,
        count: usize,
        at: Instant,
    ) -> Result<Vec<(RequestId, Listener)>> {
        let prompt_tokens = request.tokens.len();
        let ids = self.core.submit_several(request, count)?;
        let at = at.saturating_duration_since(self.start);
        self.ledger.submitted(&ids, prompt_tokens, at);
        self.ledger.balance(&self.core.scheduler);
        let listen = |id| {
            let (teller, listener) = line();
            self.tellers.insert(id, teller);
            (id, listener)
        };
        Ok(ids.into_iter().map(listen).collect())
    }

    fn cancel(&mut self, id: RequestId) {
        self.ledger.count(id, self.core.counts(id));
        if let Some(event) = self.core.cancel(id) {
            self.ledger.balance(&self.core.scheduler);
            self.tell(event);
        }
    }

    fn step(&mut self) {
        let (ledger, start) = (&mut self.ledger, self.start);
        let step = self
            .core
            .step_watched(&mut |moment| ledger.see(&moment, start.elapsed()));
        // whoever has read an event finds it in the figures
        self.ledger.speculated(self.core.speculation());
        self.ledger.balance(&self.core.scheduler);
        match step {
            Ok(events) => events.into_iter().for_each(|event| self.tell(event)),
            Err(error) => self.fail(error),
        }
    }

    /// One step of the text whose turn it is, so that requests have theirs in between.
    fn embed(&mut self) {
        if self.embedding.is_none()
            && let Some(job) = self.jobs.pop_front()
        {
            match self.core.begin_embedding(job.tokens, job.pooling) {
                Ok(work) => self.embedding = Some((work, job.reply)),
                Err(error) => drop(job.reply.send(Err(error))), // an asker who left wants no news
            }
        }
        let Some((work, _)) = &mut self.embedding else {
            return;
        };
        let result = self.core.go_on_embedding(work).transpose();
        if let Some(Err(Error::DeviceLost { reason })) = &result {
            let goes_on = work.survives_loss();
            // no request was in that step: none has lost the device by it
            let recovered = self.core.recover(reason, &[]);
            self.ledger.balance(&self.core.scheduler);
            match recovered {
                Ok(events) => {
                    events.into_iter().for_each(|event| self.tell(event));
                    if goes_on {
                        return;
                    }
                }
                Err(error) => self.fail(error),
            }
        }
        if let Some(result) = result
            && let Some((work, reply)) = self.embedding.take()
        {
            self.core.end_embedding(work);
            self.ledger.balance(&self.core.scheduler);
            drop(reply.send(result)); // as above
        }
    }

    fn tell(&mut self, event: Event) {
        let now = self.start.elapsed();
        match event {
            Event::Token { id, .. } => {
                self.ledger.token(id, now);
                if let Some(teller) = self.tellers.get(&id) {
                    teller.tell(event);
                }
            }
            Event::Finished { id, reason } => {
                let stats = self.ledger.finished(id, Some(reason), now);
                if let Some(teller) = self.tellers.remove(&id) {
                    teller.end(Ok(event), stats);
                }
            }
            Event::Failed { id, failure } => {
                let stats = self.ledger.finished(id, None, now);
                if let Some(teller) = self.tellers.remove(&id) {
                    teller.end(Err(failure.into()), stats);
                }
            }
        }
    }

    /// Everything in flight is over by an error, and everybody is told.
    fn fail(&mut self, error: Error) {
        self.ledger.failed();
        let now = self.start.elapsed();
        let message = error.to_string();
        let mut first = Some(error);
        for (id, teller) in self.tellers.drain() {
            let error = first.take().unwrap_or_else(|| Error::Device {
                message: message.clone(),
            });
            teller.end(Err(error), self.ledger.finished(id, None, now));
        }
    }
}
