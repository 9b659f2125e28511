//! A step of the engine: plan, compute, commit. Everything else about it is at the edges.

use super::batch::Batch;
use super::ledger::Moment;
use super::options::EngineOptions;
use super::pace::Load;
use super::pacer::Pacer;
use super::request::{Event, Request, RequestId};
use super::runner::Runner;
use super::scheduler::{Limits, Scheduler};
use super::sequence::Counts;
use super::speculate::{Proposer, Speculate, SpeculateOptions, Speculator};
use super::speculation::{now, seconds_since};
use crate::error::{Error, Result};
use crate::kv::Pages;
use crate::model::Decoder;
use std::time::Duration;

/// A decoder, the requests for it, and the pages they own.
pub struct EngineCore {
    pub(super) scheduler: Scheduler,
    pub(super) runner: Runner,
    pub(super) pacer: Pacer,
    pub(super) speculator: Speculator,
    /// Whether the draft model's device was lost when it was asked last.
    pub(super) draft_was_lost: bool,
}

/// What pays is not found out where there is no clock.
fn speculate(options: &EngineOptions) -> SpeculateOptions {
    let told = now().is_some() || options.speculate.fixed.is_some();
    SpeculateOptions {
        mode: if told {
            options.speculate.mode
        } else {
            Speculate::Off
        },
        ..options.speculate
    }
}

impl EngineCore {
    /// An engine with nothing to do, its kernels compiled.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub fn new(decoder: Decoder) -> Result<EngineCore> {
        EngineCore::with_options(decoder, &EngineOptions::default())
    }

    /// The same, to work as `options` say.
    ///
    /// # Errors
    /// As [`EngineCore::new`].
    pub fn with_options(decoder: Decoder, options: &EngineOptions) -> Result<EngineCore> {
        EngineCore::around(decoder, options, Runner::warm)
    }

    /// The same, whether or not the model computes numbers: for those who want to know why not.
    ///
    /// # Errors
    /// As [`EngineCore::new`].
    pub fn unchecked(decoder: Decoder) -> Result<EngineCore> {
        EngineCore::around(decoder, &EngineOptions::default(), Runner::compiled)
    }

    fn around(
        decoder: Decoder,
        options: &EngineOptions,
        runner: fn(Decoder) -> Result<Runner>,
    ) -> Result<EngineCore> {
        let limits = Limits {
            max_batched_tokens: decoder.max_batched_tokens(),
            max_model_len: decoder.max_model_len(),
            max_running: decoder.max_running(),
            max_rows: decoder.max_head_rows(),
            max_waiting: options.max_waiting,
        };
        // pages live and die with the engine, and so with one model and one adapter: tokens and tenants
        // are all that tells them apart
        let (groups, chunk) = (decoder.kv().groups(), limits.max_batched_tokens);
        let (pages, model) = (Pages::grouped(groups, chunk, true), b"");
        let mut scheduler = Scheduler::new(limits, pages, model);
        scheduler.take_over(); // from now on
        let mut core = EngineCore {
            scheduler,
            speculator: Speculator::new(speculate(options), None),
            draft_was_lost: false,
            pacer: Pacer::new(!decoder.gpu().is_software()),
            runner: runner(decoder)?,
        };
        core.set_max_itl(options.max_itl);
        Ok(core)
    }

    /// The decoder, for its sizes and its device.
    pub fn decoder(&self) -> &Decoder {
        self.runner.decoder()
    }

    /// How long somebody who decodes should wait for the next token at most, while others' prompts are
    /// computed: their steps become so short, by what steps took so far. `None`, as in the beginning:
    /// steps are as long as they may be.
    pub fn set_max_itl(&mut self, limit: Option<Duration>) {
        self.pacer
            .set_max_itl(limit.map(|limit| limit.as_secs_f64()));
    }

    /// Bytes on the device beside the decoder's weights, cache and scratch.
    pub fn other_bytes(&mut self) -> u64 {
        self.runner.size_bytes()
    }

    /// The longest sequence that can be served, prompt and answer, in tokens.
    pub fn servable_len(&self) -> usize {
        self.scheduler.servable_len()
    }

    /// Takes a request into the queue.
    ///
    /// # Errors
    /// [`crate::Error::Request`] and [`crate::Error::RequestTooLong`].
    pub fn submit(&mut self, request: Request) -> Result<RequestId> {
        self.submit_several(request, 1).map(|ids| ids[0])
    }

    /// Takes a request for `count` answers to one prompt into the queue. The prompt is computed once; each
    /// answer is a request of its own from there on, and draws with the next seed.
    ///
    /// # Errors
    /// As [`EngineCore::submit`], and for more answers than can run at a time.
    pub fn submit_several(&mut self, request: Request, count: usize) -> Result<Vec<RequestId>> {
        let vocab_size = self.decoder().config().vocab_size;
        request.sampling.check(vocab_size)?;
        if let Some(&token) = request.tokens.iter().find(|&&t| t as usize >= vocab_size) {
            let problem = format!("token {token} is outside of the vocabulary of {vocab_size}");
            return Err(Error::request("prompt", problem));
        }
        self.scheduler.submit_several(request, count)
    }

    /// From now on `proposer` proposes too, as far as [`EngineOptions::speculate`] has it. What it takes to
    /// verify its proposals is compiled.
    ///
    /// # Errors
    /// What the device reports.
    pub fn set_draft(&mut self, proposer: Box<dyn Proposer + Send>) -> Result<()> {
        if proposer.tells_choices() {
            self.runner.compile_rejection()?;
        }
        self.speculator.set_draft(Some(proposer));
        Ok(())
    }

    /// Ends a request, wherever it is; nothing follows for it but the event returned.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        let event = self.scheduler.cancel(id);
        self.settle(|_| ());
        event
    }

    /// What became of a request so far; `None` once it is over.
    pub fn counts(&self, id: RequestId) -> Option<Counts> {
        self.scheduler.counts(id)
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// One step: some tokens computed, a new token for each request that it came to the end of, and as many
    /// more as were proposed and right.
    ///
    /// # Errors
    /// What the device reports. Every request in flight is over then, and its pages are free; a device with
    /// a fault is replaced, so that the next step does not find the same one. A device
    /// that is lost is none of that, as long as it comes back: whoever ran is computed again.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        self.step_watched(&mut |_| ())
    }

    /// A step that somebody takes the time of.
    pub(super) fn step_watched(&mut self, watch: &mut dyn FnMut(Moment)) -> Result<Vec<Event>> {
        self.propose();
        let config = self.runner.decoder().config();
        let prompt_tokens = self.pacer.bound(&mut self.scheduler, config);
        let plan = self.scheduler.plan_step(prompt_tokens);
        watch(Moment::Planned(&plan, &self.scheduler));
        if plan.is_empty() {
            return Ok(Vec::new());
        }
        let load = Load::of(&plan.chunks);
        let mut batch = Batch::from_plan(&plan, &self.scheduler);
        batch.expected_seconds = self.pacer.expected(&load);
        let start = now();
        match self.runner.execute(&batch) {
            Ok(sampled) => {
                watch(Moment::Computed);
                let seconds = seconds_since(start);
                // what a proposed token takes is not what one of a prompt does
                if let Some(seconds) = seconds.filter(|_| plan.verified.is_empty()) {
                    self.pacer.learn(&load, seconds);
                }
                let events = self.scheduler.commit_step(&plan, sampled);
                self.learn(&plan, seconds);
                self.settle(|over| watch(Moment::Over(over)));
                Ok(events)
            }
            Err(Error::DeviceLost { reason }) => {
                watch(Moment::Lost(&plan, &self.scheduler));
                self.recover(&reason, &plan.chunks)
            }
            Err(error) => {
                self.scheduler.abandon();
                self.replace_faulty();
                Err(error)
            }
        }
    }

    /// Asserts the invariants that hold between steps.
    pub fn check(&self) {
        self.scheduler.check();
    }
}
