//! Candidate by candidate, until they or the time are at an end.

use super::bench::{Bench, Dropped, Shape};
use super::search::{Budget, Progress, Search};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// All of it is over by then.
const LIMIT: Duration = Duration::from_secs(3);

/// A measurement that nobody waits for any longer. Dropping it does.
pub struct Straggler(Option<JoinHandle<()>>);

impl Straggler {
    pub(super) fn none() -> Straggler {
        Straggler(None)
    }
}

impl Drop for Straggler {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // what became of it has been told, or is of no interest any more
            let _ = thread.join();
        }
    }
}

/// What the measuring thread tells.
enum News {
    /// How far it has come if nothing more is heard of it.
    Until(Progress),
    /// The end.
    Over(Result<Progress>),
}

/// Walks on until `search` or the time is at an end; `start` is when the time began. A compilation
/// cannot be interrupted: so it is done on a thread that is left behind when it takes too long.
pub fn measure(
    gpu: &Arc<Gpu>,
    shape: Shape,
    search: Search,
    start: Instant,
) -> (Result<Progress>, Straggler) {
    let (tell, told) = channel();
    let gpu = gpu.clone();
    let mut progress = lost(&search, false);
    let work = move || {
        let over = walk(&gpu, &shape, search, start, &tell);
        let _ = tell.send(News::Over(over)); // unless nobody listens any longer
    };
    let builder = std::thread::Builder::new().name("nelumbo-tune".to_owned());
    let thread = match builder.spawn(work) {
        Ok(thread) => Straggler(Some(thread)),
        Err(error) => {
            let message = format!("no thread: {error}");
            return (Err(Error::Device { message }), Straggler::none());
        }
    };
    loop {
        match told.recv_timeout(LIMIT.saturating_sub(start.elapsed())) {
            Ok(News::Until(so_far)) => progress = so_far,
            Ok(News::Over(over)) => return (over, thread),
            Err(_) => {
                log::info!("tuning: the time is over");
                return (Ok(progress), thread);
            }
        }
    }
}

/// How far `search` has come if it gets no further, before a candidate or within one.
fn lost(search: &Search, begun: bool) -> Progress {
    let mut search = search.clone();
    search.out_of_time(begun);
    search.progress()
}

/// A candidate that does not compile, or computes other bits, is left out by name; a device that it
/// took along is replaced.
fn walk(
    gpu: &Gpu,
    shape: &Shape,
    mut search: Search,
    start: Instant,
    tell: &Sender<News>,
) -> Result<Progress> {
    let clock = || start.elapsed().as_secs_f64();
    let late = || start.elapsed() > LIMIT;
    let mut budget = Budget::new(LIMIT.as_secs_f64());
    let open = |best| -> Result<Option<Bench>> {
        let mut bench = Bench::new(gpu.scratch()?, shape, &clock, &late)?;
        log::debug!("tuning: scratch device ready at {:.0} ms", clock() * 1e3);
        match bench.check(&best) {
            Ok(()) => Ok(Some(bench)),
            Err(Dropped::Late) => Ok(None),
            Err(Dropped::Failed(error)) => Err(error),
            Err(Dropped::Differs(how)) => Err(Error::Device {
                message: format!("{}: results differ {how}", best.describe()),
            }),
        }
    };
    let Some(mut bench) = open(search.best())? else {
        return Ok(lost(&search, false));
    };
    budget.spent(clock());
    loop {
        let begin = clock();
        if !search.is_over() && !budget.allows_another(begin) {
            log::info!("tuning: no time for more in this run");
            return Ok(lost(&search, false));
        }
        let Some(candidate) = search.next_candidate() else {
            return Ok(search.progress());
        };
        let best = search.best();
        let _ = tell.send(News::Until(lost(&search, true))); // as above
        let compared = bench
            .check(&candidate)
            .and_then(|()| bench.compare(&best, &candidate));
        let took = clock() - begin;
        budget.spent(took);
        let name = candidate.describe();
        match compared {
            Ok([before, seconds]) => {
                let adopted = search.judge(candidate, before, seconds);
                log::info!(
                    "tuning: {name}: {:.3} ms, {} ({:.3} ms for {}; took {:.0} ms)",
                    seconds * 1e3,
                    if adopted { "adopted" } else { "left" },
                    before * 1e3,
                    best.describe(),
                    took * 1e3,
                );
            }
            Err(Dropped::Late) => return Ok(lost(&search, true)),
            Err(Dropped::Differs(how)) => {
                log::warn!("tuning: {name}: left out: results differ {how}");
            }
            Err(Dropped::Failed(error)) => {
                log::warn!("tuning: {name}: left out: {error}");
                if !bench.is_sound() {
                    match open(best)? {
                        Some(again) => bench = again,
                        None => return Ok(lost(&search, false)),
                    }
                }
            }
        }
    }
}
