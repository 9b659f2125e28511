//! When the device is lost: driver reset, update, hot unplug.
//!
//! Everything on it is gone, and nothing in it is needed: the weights' files are open still, and whoever
//! ran is computed again from the tokens that are known. Bits do not depend on how a text is cut into
//! steps, so each answer goes on as if nothing had been.

use super::EngineCore;
use super::plan::Chunk;
use super::request::Event;
use super::runner::Runner;
use crate::error::{Error, Result};
use std::time::Duration;

/// Pauses before each further try to open the device: a driver that resets needs a moment.
#[cfg(not(target_family = "wasm"))]
const PAUSES: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(3),
];
/// Nobody can sleep there.
#[cfg(target_family = "wasm")]
const PAUSES: [Duration; 0] = [];

impl EngineCore {
    /// Makes device, pipelines, weights and cache anew and puts whoever ran back into the queue. The device
    /// was lost in a step of `chunks`; without any it was at work beside the queue. Returns the ends of
    /// those who lost it too often.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] when the device does not come back. Everything in flight is over then; the
    /// next step tries again.
    pub(super) fn recover(&mut self, reason: &str, chunks: &[Chunk]) -> Result<Vec<Event>> {
        log::warn!("the device was lost ({reason}); it is opened again");
        match self.reopen() {
            Ok(()) => {
                let events = self.scheduler.restart(chunks);
                let (running, waiting) = self.scheduler.queue_lens();
                log::warn!("the device is back; {} requests go on", running + waiting);
                Ok(events)
            }
            Err(error) => {
                self.scheduler.abandon();
                Err(Error::DeviceLost {
                    reason: format!("{reason}; it does not come back: {error}"),
                })
            }
        }
    }

    /// After a step that failed and everything in flight with it: a fault stays with its device, so that
    /// whoever comes next needs another one. What is wrong about that is told to them.
    pub(super) fn replace_faulty(&mut self) {
        if let Err(fault) = self.decoder().gpu().check() {
            log::warn!("the device is opened again after a fault: {fault}");
            if let Err(error) = self.reopen() {
                log::error!("it does not come back: {error}");
            }
        }
    }

    /// The same decoder on a new device; nothing of what was in the cache is there.
    fn reopen(&mut self) -> Result<()> {
        let recipe = self.runner.decoder().recipe();
        // others may hold the device, but nothing of what is on it
        self.runner.decoder().gpu().release();
        let pages = self.runner.decoder().kv().groups().to_vec();
        let make = || {
            let runner = Runner::warm(recipe.make()?)?;
            // what sequences own and may count on was promised when they came
            if runner.decoder().kv().groups() != pages {
                return Err(Error::OutOfMemory {
                    what: "the same KV cache as before".to_owned(),
                    bytes: self.runner.decoder().kv().size_bytes(),
                });
            }
            Ok(runner)
        };
        let mut made = make();
        for pause in PAUSES {
            let Err(error) = &made else { break };
            log::warn!("not yet: {error}");
            std::thread::sleep(pause);
            made = make();
        }
        self.runner = made?;
        match self.speculator.tells_choices() {
            true => self.runner.compile_rejection(),
            false => Ok(()),
        }
    }
}
