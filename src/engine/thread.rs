//! An engine on a thread of its own. It alone talks to the device; everybody else holds an
//! [`Engine`] and reads events from a channel.

use super::EngineCore;
use super::request::{Event, Request, RequestId};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

enum Command {
    Submit(
        Box<Request>,
        Sender<Result<Event>>,
        Sender<Result<RequestId>>,
    ),
    Cancel(RequestId),
    /// Sent when the handle goes: generations that outlive it hold the channel open.
    End,
}

/// The way to an engine. Dropping it ends the thread after the step it is in.
pub struct Engine {
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

/// The events of one request. Dropping it cancels the request.
pub struct RequestHandle {
    id: RequestId,
    events: Receiver<Result<Event>>,
    commands: Sender<Command>,
}

impl Engine {
    /// Starts the thread; `make` runs on it, since a device stays where it was opened. Returns what
    /// `make` tells beside the engine.
    ///
    /// # Errors
    /// What `make` returns.
    pub fn spawn<T: Send + 'static>(
        make: impl FnOnce() -> Result<(EngineCore, T)> + Send + 'static,
    ) -> Result<(Engine, T)> {
        let (commands, inbox) = channel();
        let (ready, made) = channel();
        let thread = std::thread::Builder::new()
            .name("nelumbo-engine".to_owned())
            .spawn(move || match make() {
                Ok((engine, told)) => {
                    if ready.send(Ok(told)).is_ok() {
                        run(engine, &inbox);
                    }
                }
                Err(error) => drop(ready.send(Err(error))), // nobody waits: nobody to tell
            })
            .map_err(|e| Error::Device {
                message: format!("no thread for the engine: {e}"),
            })?;
        let gone = || Error::Device {
            message: "the engine's thread ended while loading".to_owned(),
        };
        let told = match made.recv().unwrap_or_else(|_| Err(gone())) {
            Ok(told) => told,
            Err(error) => {
                // A driver clears up at the end of each thread that called it. A caller who ends the
                // program at once would have it clear up in two threads at a time.
                let _ = thread.join();
                return Err(error);
            }
        };
        Ok((
            Engine {
                commands: Some(commands),
                thread: Some(thread),
            },
            told,
        ))
    }

    /// Submits a request and returns its events.
    ///
    /// # Errors
    /// Those of [`EngineCore::submit`].
    pub fn submit(&self, request: Request) -> Result<RequestHandle> {
        let commands = self
            .commands
            .clone()
            .expect("the sender lives as long as the handle");
        let (sender, events) = channel();
        let (reply, accepted) = channel();
        let gone = || Error::Device {
            message: "the engine's thread has ended".to_owned(),
        };
        commands
            .send(Command::Submit(Box::new(request), sender, reply))
            .map_err(|_| gone())?;
        let id = accepted.recv().map_err(|_| gone())??;
        Ok(RequestHandle {
            id,
            events,
            commands,
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            let _ = commands.send(Command::End); // a thread that is gone needs no telling
        }
        if let Some(thread) = self.thread.take() {
            // a panic of the thread was printed by its hook; there is nothing to add while dropping
            drop(thread);
        }
    }
}

impl RequestHandle {
    /// The request's name.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` after the last one.
    pub fn next_event(&self) -> Option<Result<Event>> {
        self.events.recv().ok()
    }

    /// The next event, or pending when none comes within `time`.
    pub fn next_event_within(&self, time: Duration) -> Poll<Option<Result<Event>>> {
        match self.events.recv_timeout(time) {
            Ok(event) => Poll::Ready(Some(event)),
            Err(RecvTimeoutError::Disconnected) => Poll::Ready(None),
            Err(RecvTimeoutError::Timeout) => Poll::Pending,
        }
    }

    /// Asks for an end; the finish event still comes.
    pub fn cancel(&self) {
        // an engine that is gone needs no cancelling
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Steps while there is work, waits for commands while there is none.
fn run(mut engine: EngineCore, inbox: &Receiver<Command>) {
    let mut listeners: HashMap<RequestId, Sender<Result<Event>>> = HashMap::new();
    loop {
        if engine.is_idle() {
            match inbox.recv() {
                Ok(Command::End) | Err(_) => return,
                Ok(command) => obey(command, &mut engine, &mut listeners),
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(Command::End) | Err(TryRecvError::Disconnected) => return,
                Ok(command) => obey(command, &mut engine, &mut listeners),
                Err(TryRecvError::Empty) => break,
            }
        }
        match engine.step() {
            Ok(events) => events
                .into_iter()
                .for_each(|event| tell(event, &mut listeners)),
            Err(error) => {
                let message = error.to_string();
                let mut first = Some(error);
                for (_, listener) in listeners.drain() {
                    let error = first.take().unwrap_or_else(|| Error::Device {
                        message: message.clone(),
                    });
                    let _ = listener.send(Err(error)); // a listener that left wants no news
                }
            }
        }
    }
}

fn obey(
    command: Command,
    engine: &mut EngineCore,
    listeners: &mut HashMap<RequestId, Sender<Result<Event>>>,
) {
    match command {
        Command::Submit(request, listener, reply) => {
            let accepted = engine.submit(*request);
            if let Ok(id) = accepted {
                listeners.insert(id, listener);
                if reply.send(Ok(id)).is_err() {
                    engine.cancel(id); // the asker left before it was answered
                    listeners.remove(&id);
                }
            } else {
                let _ = reply.send(accepted); // as above, with nothing to undo
            }
        }
        Command::Cancel(id) => {
            if let Some(event) = engine.cancel(id) {
                tell(event, listeners);
            }
        }
        Command::End => {} // for whoever reads commands, not for the engine
    }
}

fn tell(event: Event, listeners: &mut HashMap<RequestId, Sender<Result<Event>>>) {
    let (id, last) = match &event {
        Event::Token { id, .. } => (*id, false),
        Event::Finished { id, .. } | Event::Failed { id, .. } => (*id, true),
    };
    let told = match event {
        Event::Failed { failure, .. } => Err(failure.into()),
        event => Ok(event),
    };
    if let Some(listener) = listeners.get(&id) {
        let _ = listener.send(told); // a listener that left has sent a cancel as well
    }
    if last {
        listeners.remove(&id);
    }
}
