//! An engine on a thread of its own. It alone talks to the device; everybody else holds an
//! [`Engine`] and reads events from handles.

use super::EngineCore;
use super::embed::Pooling;
use super::handle::{Listener, RequestHandle};
use super::ledger::Board;
use super::options::EngineOptions;
use super::page_map::PageUse;
use super::request::Request;
use super::stats::Stats;
use super::trace::Trace;
use super::worker::{Command, EmbedJob, Worker};
use crate::error::{Error, Result};
use crate::model::{Model, Texts};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The way to an engine. It can be shared between threads.
///
/// What is asked of it is looked at between two steps, so submitting waits for the step that is under
/// way; [`Engine::stats`] and [`Engine::take_trace`] do not.
///
/// Dropping it ends the engine as [`Engine::shutdown`] does, and waits for that too: a driver clears up
/// at the end of a thread that called it, and a program that ends meanwhile would have it do so in two
/// threads at a time.
pub struct Engine {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    board: Arc<Board>,
    texts: Option<Arc<Texts>>,
}

impl Engine {
    /// Starts an engine for a model that was loaded.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Device`] for a model whose logits are no numbers.
    pub fn start(model: Model, options: EngineOptions) -> Result<Engine> {
        let Model { decoder, texts } = model;
        let make = |options: &EngineOptions| Ok((EngineCore::with_options(decoder, options)?, ()));
        let (mut engine, ()) = Engine::start_with(options, make)?;
        engine.texts = Some(Arc::new(texts));
        Ok(engine)
    }

    /// Starts an engine that `make` makes on the new thread, for those who load there, or without
    /// texts. Returns what `make` tells beside the engine.
    ///
    /// # Errors
    /// What `make` returns.
    pub fn start_with<T: Send + 'static>(
        options: EngineOptions,
        make: impl FnOnce(&EngineOptions) -> Result<(EngineCore, T)> + Send + 'static,
    ) -> Result<(Engine, T)> {
        let (commands, inbox) = channel();
        let (ready, made) = channel();
        let board = Arc::new(Board::new(options.trace_steps));
        let of_thread = board.clone();
        let thread = std::thread::Builder::new()
            .name("nelumbo-engine".to_owned())
            .spawn(move || match make(&options) {
                Ok((core, told)) => {
                    let worker = Worker::new(core, inbox, of_thread);
                    if ready.send(Ok(told)).is_ok() {
                        worker.run();
                    }
                }
                Err(error) => drop(ready.send(Err(error))), // nobody waits: nobody to tell
            })
            .map_err(|e| device(format!("no thread for the engine: {e}")))?;
        let gone = || Err(device("the engine's thread ended while loading"));
        match made.recv().unwrap_or_else(|_| gone()) {
            Ok(told) => {
                let engine = Engine {
                    commands,
                    thread: Some(thread),
                    board,
                    texts: None,
                };
                Ok((engine, told))
            }
            Err(error) => {
                let _ = thread.join(); // as when an engine is dropped
                Err(error)
            }
        }
    }

    /// The text side of the model.
    ///
    /// # Panics
    /// When the engine was started by [`Engine::start_with`]: its caller has them, if there are any.
    pub fn texts(&self) -> &Arc<Texts> {
        let texts = self.texts.as_ref();
        texts.expect("an engine started by start_with has no texts of its own")
    }

    /// Submits a request and returns its events.
    ///
    /// # Errors
    /// Those of [`EngineCore::submit`], and [`Error::Device`] when the engine's thread has ended.
    pub fn submit(&self, request: Request) -> Result<RequestHandle> {
        let mut handles = self.submit_several(request, 1)?;
        Ok(handles.pop().expect("one answer, one handle"))
    }

    /// Submits a request for `count` answers to one prompt, which is computed once. Each has events of
    /// its own, and draws with the next seed.
    ///
    /// # Errors
    /// Those of [`EngineCore::submit_several`], and [`Error::Device`] when the engine's thread has
    /// ended.
    pub fn submit_several(&self, request: Request, count: usize) -> Result<Vec<RequestHandle>> {
        let at = Instant::now();
        let asked = self.ask(|reply| Command::Submit {
            request: Box::new(request),
            count,
            at,
            reply,
        })??;
        let named = |(id, listener): (_, Listener)| listener.named(id, self.commands.clone());
        Ok(asked.into_iter().map(named).collect())
    }

    /// The vector of a text: `[hidden_size]`, of length 1; see [`EngineCore::embed`]. It is computed in
    /// short steps between those of requests, one text after another, and waited for.
    ///
    /// # Errors
    /// Those of [`EngineCore::embed`], and [`Error::Device`] when the engine's thread has ended.
    pub fn embed(&self, tokens: &[u32], pooling: Pooling) -> Result<Vec<f32>> {
        let tokens = tokens.to_vec();
        self.ask(|reply| {
            Command::Embed(EmbedJob {
                tokens,
                pooling,
                reply,
            })
        })?
    }

    /// What the engine has done so far, as of its last step. Cheap, and waits for nothing.
    pub fn stats(&self) -> Stats {
        self.board.stats()
    }

    /// What each page of the cache is used for, between two steps. Waits for the one under way.
    ///
    /// # Errors
    /// [`Error::Device`] when the engine's thread has ended.
    pub fn pages(&self) -> Result<Vec<PageUse>> {
        self.look(EngineCore::page_map)
    }

    /// Lets `work` look at the engine on its thread, between two steps.
    ///
    /// # Errors
    /// [`Error::Device`] when the engine's thread has ended, also by a panic of `work`.
    pub fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&EngineCore) -> T + Send + 'static,
    ) -> Result<T> {
        self.ask(|reply| {
            // an asker who left wants no reply
            Command::Look(Box::new(move |core| drop(reply.send(work(core)))))
        })
    }

    /// The steps that were recorded since this was last asked, at most
    /// [`EngineOptions::trace_steps`] of them.
    pub fn take_trace(&self) -> Trace {
        self.board.take_trace()
    }

    /// Ends the engine after the step that is under way: each request that is not over gets a finish
    /// event, as cancelled; the thread ends, and with it the decoder goes.
    ///
    /// # Errors
    /// [`Error::Device`] when the thread had panicked.
    pub fn shutdown(mut self) -> Result<()> {
        self.end(Command::End)
    }

    /// Lets what is running and waiting come to its end, for `at_most` so long, and ends the engine
    /// then as [`Engine::shutdown`] does.
    ///
    /// # Errors
    /// [`Error::Device`] when the thread had panicked.
    pub fn drain(mut self, at_most: Duration) -> Result<()> {
        // what is too far away for a clock is never
        let now = Instant::now();
        let until = now.checked_add(at_most);
        let until = until.unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)));
        self.end(Command::Drain(until))
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T> {
        let (reply, answer) = channel();
        let gone = || device("the engine's thread has ended");
        let sent = self.commands.send(command(reply));
        sent.map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }

    fn end(&mut self, how: Command) -> Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let _ = self.commands.send(how); // a thread that is gone needs no telling
        let ended = thread.join();
        ended.map_err(|_| device("the engine's thread had panicked"))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // a panic of the thread was printed by its hook; there is nothing to add while dropping
        let _ = self.end(Command::End);
    }
}

fn device(message: impl Into<String>) -> Error {
    Error::Device {
        message: message.into(),
    }
}
