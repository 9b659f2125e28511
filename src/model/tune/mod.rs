//! The choices that suit this adapter and this model, by measurement: before anything is allocated,
//! within a few seconds, once for each adapter, driver and shape where a folder is there.
//!
//! | file | holds |
//! |---|---|
//! | `search` | what is tried and which one wins, as values |
//! | `bench` | what is measured, on a device of its own |
//! | `kept` | the result as text, and what it depends on |
//!
//! Numerics (activations and lanes) may come out differently, and are then fixed for as long as the
//! model is loaded; whatever else is chosen computes the same bits, which is checked before it is
//! adopted.

mod bench;
mod kept;
pub mod search;

use super::Config;
use super::load::LoadOptions;
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernels::{Activations, Tuning};
use bench::{Bench, Dropped, Shape};
use search::{Budget, Pins, Search, changes};

/// Seconds that all of it may take.
const LIMIT_S: f64 = 3.0;

/// Where a tuning comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Measured in this run.
    Measured,
    /// Measured by an earlier one.
    Cached,
    /// What suits the kind of adapter, unmeasured.
    Default,
    /// The same, with choices of the user's in it.
    Pinned,
}

impl Source {
    /// The word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Source::Measured => "measured",
            Source::Cached => "cached",
            Source::Default => "default",
            Source::Pinned => "pinned",
        }
    }
}

/// A tuning, with where it comes from and what that took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuned {
    /// The choices.
    pub tuning: Tuning,
    /// Where they come from.
    pub source: Source,
    /// Milliseconds that finding them took.
    pub ms: f64,
}

/// The tuning for a model of `config` on `gpu`: what `options` pin, and of the rest what is faster
/// where they ask for measurement.
///
/// # Errors
/// [`Error::Request`] for lanes that do not exist, or activations that the weights cannot be
/// multiplied with. A measurement that fails is a warning, and the default is taken.
pub fn choose(gpu: &Gpu, config: &Config, options: &LoadOptions) -> Result<Tuned> {
    let base = unmeasured(gpu, options)?;
    let pins = Pins {
        activations: options.activations.is_some(),
        lanes: options.lanes.is_some(),
    };
    let source = match pins.activations || pins.lanes {
        true => Source::Pinned,
        false => Source::Default,
    };
    let default = Tuned {
        tuning: base,
        source,
        ms: 0.0,
    };
    // there is no clock for it on wasm32
    if !options.autotune || cfg!(target_family = "wasm") {
        return Ok(default);
    }
    let shape = Shape {
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        vocab: config.vocab_size,
        layers: config.num_layers,
        format: options.weights,
    };
    let start = std::time::Instant::now();
    let ms = || start.elapsed().as_secs_f64() * 1e3;
    let possible = |t: &Tuning| t.is_possible(shape.format) && t.missing(gpu.caps()).is_none();
    let file = kept::file(gpu, &shape, base, pins);
    let text = file.as_ref().and_then(|file| file.read());
    let kept = text.and_then(|text| kept::from_text(&text));
    if let Some(tuning) = kept.filter(|t| possible(t) && keeps(t, &base, pins)) {
        log::info!("tuning: {} (cached)", tuning.describe());
        return Ok(Tuned {
            tuning,
            source: Source::Cached,
            ms: ms(),
        });
    }
    let clock = || start.elapsed().as_secs_f64();
    let changes = changes(gpu.is_software(), pins);
    let mut search = Search::new(base, changes, &possible);
    match measure(gpu, &shape, &mut search, &clock) {
        Ok(()) => {
            let tuning = search.best();
            if let Some(file) = file {
                file.write(kept::to_text(&tuning).as_bytes());
            }
            log::info!("tuning: {} ({:.0} ms)", tuning.describe(), ms());
            Ok(Tuned {
                tuning,
                source: Source::Measured,
                ms: ms(),
            })
        }
        Err(error) => {
            log::warn!("tuning: not measured: {error}");
            Ok(Tuned {
                ms: ms(),
                ..default
            })
        }
    }
}

/// The default with what `options` pin.
fn unmeasured(gpu: &Gpu, options: &LoadOptions) -> Result<Tuning> {
    let tuning = match options.lanes {
        Some(lanes) if lanes.is_power_of_two() && lanes <= 32 => Tuning::with_lanes(gpu, lanes),
        Some(lanes) => {
            return Err(Error::request(
                "lanes",
                format!("is {lanes}, expected 1, 2, 4, 8, 16 or 32"),
            ));
        }
        None => Tuning::for_gpu(gpu),
    };
    let tuning = Tuning {
        activations: options.activations.unwrap_or(Activations::F32),
        ..tuning
    };
    if !tuning.reads(options.weights) {
        let problem = format!(
            "are {}, which weights in {} cannot be multiplied with; f32 would do",
            tuning.activations.name(),
            options.weights.name
        );
        return Err(Error::request("activations", problem));
    }
    Ok(tuning)
}

/// Whether `tuning` has what is pinned in `base`.
fn keeps(tuning: &Tuning, base: &Tuning, pins: Pins) -> bool {
    (!pins.activations || tuning.activations == base.activations)
        && (!pins.lanes || tuning.lanes == base.lanes)
}

/// Walks through the candidates until they or the time are at an end. A candidate that does not
/// compile, or computes other bits, is left out by name; a device that it took along is replaced.
fn measure(gpu: &Gpu, shape: &Shape, search: &mut Search, clock: &dyn Fn() -> f64) -> Result<()> {
    let mut budget = Budget::new(LIMIT_S);
    let base = search.best();
    let late = || clock() > LIMIT_S;
    let open = |base: &Tuning| -> Result<Option<Bench>> {
        let mut bench = Bench::new(gpu.scratch()?, shape, clock, &late)?;
        match bench.check(base) {
            Ok(()) => Ok(Some(bench)),
            Err(Dropped::Late) => Ok(None),
            Err(Dropped::Failed(error)) => Err(error),
            Err(Dropped::Differs(how)) => Err(Error::Device {
                message: format!("{}: results differ {how}", base.describe()),
            }),
        }
    };
    let Some(mut bench) = open(&base)? else {
        return Ok(());
    };
    log::debug!(
        "tuning: {} ready after {:.0} ms",
        base.describe(),
        clock() * 1e3
    );
    loop {
        let start = clock();
        if !budget.allows_another(start) {
            return Ok(());
        }
        let Some(candidate) = search.next_candidate() else {
            return Ok(());
        };
        let best = search.best();
        let compared = bench
            .check(&candidate)
            .and_then(|()| bench.compare(&best, &candidate));
        let took = clock() - start;
        budget.spent(took);
        match compared {
            Ok([before, seconds]) => {
                let adopted = search.judge(candidate, before, seconds);
                log::info!(
                    "tuning: {}: {:.3} ms, {} ({:.3} ms for {}; {:.0} ms of tuning)",
                    candidate.describe(),
                    seconds * 1e3,
                    if adopted { "adopted" } else { "left" },
                    before * 1e3,
                    best.describe(),
                    took * 1e3,
                );
            }
            Err(Dropped::Late) => {
                log::info!("tuning: {}: no time left", candidate.describe());
                return Ok(());
            }
            Err(Dropped::Differs(how)) => {
                log::warn!(
                    "tuning: {}: left out: results differ {how}",
                    candidate.describe()
                );
            }
            Err(Dropped::Failed(error)) => {
                log::warn!("tuning: {}: left out: {error}", candidate.describe());
                if !bench.is_sound() {
                    match open(&base)? {
                        Some(again) => bench = again,
                        None => return Ok(()),
                    }
                }
            }
        }
    }
}
