//! The two ends of a request's events: the engine's thread tells, whoever asked listens.
//!
//! The thread never waits for a listener. What a slow one has not taken yet is kept, and cannot be more
//! than its own answer: an event for each token of `max_tokens`, and the end.

use super::ledger::lock;
use super::request::{Event, RequestId};
use super::stats::RequestStats;
use super::worker::Command;
use crate::error::{Error, Result};
use futures_core::Stream;
use std::cell::{Cell, OnceCell};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// An event, and with the last one what became of the request.
struct Letter {
    event: Result<Event>,
    stats: Option<Box<RequestStats>>,
}

/// Who waits for the next event without a thread of its own.
type Sleeper = Arc<Mutex<Option<Waker>>>;

/// The engine's end.
pub(super) struct Teller {
    /// Always there, but while it is dropped.
    letters: Option<Sender<Letter>>,
    sleeper: Sleeper,
}

/// The events of one request, as they come: by waiting for them ([`next_event`], or a `for` loop over
/// `&handle`), or as an async stream in whatever runtime ([`next`], or [`futures_core::Stream`]).
///
/// Dropping it cancels the request. An error is the last event, like a finish. The handle outlives
/// the engine: events that had come by then can still be read.
///
/// [`next_event`]: RequestHandle::next_event
/// [`next`]: RequestHandle::next
pub struct RequestHandle {
    id: RequestId,
    letters: Receiver<Letter>,
    sleeper: Sleeper,
    commands: Sender<Command>,
    tokenise: Duration,
    over: Cell<bool>,
    stats: OnceCell<RequestStats>,
}

/// The listener's end before the request has a name.
pub(super) struct Listener {
    letters: Receiver<Letter>,
    sleeper: Sleeper,
}

/// Both ends.
pub(super) fn line() -> (Teller, Listener) {
    let (sender, letters) = channel();
    let sleeper = Sleeper::default();
    let teller = Teller {
        letters: Some(sender),
        sleeper: sleeper.clone(),
    };
    (teller, Listener { letters, sleeper })
}

impl Listener {
    pub fn named(self, id: RequestId, commands: Sender<Command>) -> RequestHandle {
        RequestHandle {
            id,
            letters: self.letters,
            sleeper: self.sleeper,
            commands,
            tokenise: Duration::ZERO,
            over: Cell::new(false),
            stats: OnceCell::new(),
        }
    }
}

impl Teller {
    /// An event that is not the last.
    pub fn tell(&self, event: Event) {
        self.send(Ok(event), None);
    }

    /// The last event.
    pub fn end(self, event: Result<Event>, stats: Option<RequestStats>) {
        self.send(event, stats);
    }

    fn send(&self, event: Result<Event>, stats: Option<RequestStats>) {
        if let Some(letters) = &self.letters {
            let stats = stats.map(Box::new);
            let _ = letters.send(Letter { event, stats }); // a listener that left wants no news
        }
        self.wake();
    }

    fn wake(&self) {
        let sleeper = lock(&self.sleeper).take();
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }
}

impl Drop for Teller {
    /// Whoever sleeps learns that nothing follows, also when the thread panics.
    fn drop(&mut self) {
        self.letters = None;
        self.wake();
    }
}

impl RequestHandle {
    /// The request's name.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Remembers how long it took to turn the text into tokens, for [`RequestStats::tokenise`].
    #[must_use]
    pub fn tokenised_in(mut self, time: Duration) -> RequestHandle {
        self.tokenise = time;
        self
    }

    /// Waits for the next event; `None` after the last one.
    pub fn next_event(&self) -> Option<Result<Event>> {
        if self.over.get() {
            return None;
        }
        Some(match self.letters.recv() {
            Ok(letter) => self.open(letter),
            Err(_) => self.broken(),
        })
    }

    /// The next event, or pending when none comes within `time`.
    pub fn next_event_within(&self, time: Duration) -> Poll<Option<Result<Event>>> {
        if self.over.get() {
            return Poll::Ready(None);
        }
        match self.letters.recv_timeout(time) {
            Ok(letter) => Poll::Ready(Some(self.open(letter))),
            Err(RecvTimeoutError::Disconnected) => Poll::Ready(Some(self.broken())),
            Err(RecvTimeoutError::Timeout) => Poll::Pending,
        }
    }

    /// The next event, for async callers; `None` after the last one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        std::future::poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&self, cx: &mut Context) -> Poll<Option<Result<Event>>> {
        if self.over.get() {
            return Poll::Ready(None);
        }
        // first the name, then the look: what is sent in between wakes
        *lock(&self.sleeper) = Some(cx.waker().clone());
        match self.letters.try_recv() {
            Ok(letter) => Poll::Ready(Some(self.open(letter))),
            Err(TryRecvError::Disconnected) => Poll::Ready(Some(self.broken())),
            Err(TryRecvError::Empty) => Poll::Pending,
        }
    }

    /// Asks for an end; the finish event still comes, once the step under way is over. Does nothing
    /// when the request is over.
    pub fn cancel(&self) {
        // an engine that is gone needs no cancelling
        let _ = self.commands.send(Command::Cancel(self.id));
    }

    /// What became of the request, once its last event has been taken; `None` before that, and when
    /// the engine was lost.
    pub fn stats(&self) -> Option<RequestStats> {
        let stats = self.stats.get()?.clone();
        Some(RequestStats {
            tokenise: self.tokenise,
            ..stats
        })
    }

    fn open(&self, letter: Letter) -> Result<Event> {
        let Letter { event, stats } = letter;
        if !matches!(event, Ok(Event::Token { .. })) {
            self.over.set(true);
        }
        if let Some(stats) = stats {
            self.stats.get_or_init(|| *stats);
        }
        event
    }

    /// Nobody tells any more, and there was no end.
    fn broken(&self) -> Result<Event> {
        self.over.set(true);
        Err(Error::Device {
            message: "the engine's thread ended before the answer did, by a fault of its own"
                .to_owned(),
        })
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        if !self.over.get() {
            self.cancel();
        }
    }
}

impl Stream for RequestHandle {
    type Item = Result<Event>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<Self::Item>> {
        self.poll_event(cx)
    }
}

/// Waits for each event until there is none.
impl<'a> IntoIterator for &'a RequestHandle {
    type Item = Result<Event>;
    type IntoIter = Events<'a>;

    fn into_iter(self) -> Events<'a> {
        Events(self)
    }
}

/// The events of a handle from here on.
pub struct Events<'a>(&'a RequestHandle);

impl Iterator for Events<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        self.0.next_event()
    }
}
