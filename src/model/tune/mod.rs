//! The choices that suit this adapter and this model, by measurement: before anything is allocated,
//! within a few seconds, once for each adapter, driver and shape where a folder is there.
//!
//! | file | holds |
//! |---|---|
//! | `search` | what is tried and which one wins, as values |
//! | `bench` | what is measured, on a device of its own |
//! | `walk` | candidate by candidate, until they or the time are at an end |
//! | `kept` | the result as text, and what it depends on |
//!
//! Numerics (activations and lanes) may come out differently, and are then fixed for as long as the
//! model is loaded; whatever else is chosen computes the same bits, which is checked before it is
//! adopted.

mod bench;
pub mod kept;
pub mod search;
pub mod walk;

use super::load::LoadOptions;
use super::{Config, Numerics};
use crate::error::{Error, Result};
use crate::gpu::Gpu;
use crate::kernels::{Activations, Tuning};
pub use bench::Shape;
pub(super) use bench::{layer, matrix};
use search::{Pins, Progress, Search, changes};
use std::sync::Arc;
use std::time::Instant;
pub use walk::Straggler;

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
/// where they ask for measurement. What still runs when the time is over, a driver's compilation, is
/// waited for when the second value is dropped.
///
/// # Errors
/// [`Error::Request`] for lanes that do not exist, or activations that the weights cannot be
/// multiplied with. A measurement that fails is a warning, and the default is taken.
pub fn choose(
    gpu: &Arc<Gpu>,
    config: &Config,
    options: &LoadOptions,
) -> Result<(Tuned, Straggler)> {
    let base = unmeasured(gpu, options)?;
    let pins = pins_of(options);
    let source = match pins.activations || pins.lanes {
        true => Source::Pinned,
        false => Source::Default,
    };
    let default = Tuned {
        tuning: base,
        source,
        ms: 0.0,
    };
    // there is no clock for it on wasm32, and twins know no other way
    if !options.autotune || gpu.is_host() || cfg!(target_family = "wasm") {
        return Ok((default, Straggler::none()));
    }
    let shape = shape_of(config, options);
    let start = Instant::now();
    let ms = || start.elapsed().as_secs_f64() * 1e3;
    let (caps, format) = (gpu.caps(), shape.format);
    let possible = move |t: &Tuning| t.is_possible(format) && t.missing(caps).is_none();
    let file = kept::file(gpu, &shape, base, pins);
    let text = file.as_ref().and_then(|file| file.read());
    let kept = text
        .and_then(|text| kept::from_text(&text))
        .filter(|kept| possible(&kept.best) && keeps(&kept.best, &base, pins));
    let progress = kept.unwrap_or_else(|| Progress::from(base));
    let changes = changes(gpu.is_software(), pins);
    if kept.is_some_and(|kept| kept.next >= changes.len()) {
        log::info!("tuning: {} (cached)", progress.best.describe());
        let tuned = Tuned {
            tuning: progress.best,
            source: Source::Cached,
            ms: ms(),
        };
        return Ok((tuned, Straggler::none()));
    }
    let search = Search::new(progress, changes, Arc::new(possible));
    let (found, straggler) = walk::measure(gpu, shape, search, start);
    let tuned = match found {
        Ok(progress) => {
            if let Some(file) = file {
                file.write(kept::to_text(&progress).as_bytes());
            }
            let tuning = progress.best;
            log::info!("tuning: {} ({:.0} ms)", tuning.describe(), ms());
            Tuned {
                tuning,
                source: Source::Measured,
                ms: ms(),
            }
        }
        Err(error) => {
            log::warn!("tuning: not measured: {error}");
            Tuned {
                ms: ms(),
                ..default
            }
        }
    };
    Ok((tuned, straggler))
}

/// What an earlier run measured for a model of `config`, as far as it came.
///
/// # Errors
/// As [`choose`].
pub fn recall(gpu: &Gpu, config: &Config, options: &LoadOptions) -> Result<Option<Tuning>> {
    let (base, pins) = (unmeasured(gpu, options)?, pins_of(options));
    let shape = shape_of(config, options);
    let text = kept::file(gpu, &shape, base, pins).and_then(|file| file.read());
    let kept = text.and_then(|text| kept::from_text(&text));
    let best = kept.map(|kept| kept.best).filter(|best| {
        best.is_possible(shape.format)
            && best.missing(gpu.caps()).is_none()
            && keeps(best, &base, pins)
    });
    Ok(best)
}

fn pins_of(options: &LoadOptions) -> Pins {
    Pins {
        // the fast mode reads no others than f32
        activations: options.activations.is_some() || options.numerics == Numerics::Fast,
        lanes: options.lanes.is_some(),
    }
}

fn shape_of(config: &Config, options: &LoadOptions) -> Shape {
    Shape {
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        vocab: config.vocab_size,
        layers: config.num_layers,
        format: options.weights,
    }
}

/// The default with what `options` pin.
///
/// # Errors
/// As [`choose`].
pub fn unmeasured(gpu: &Gpu, options: &LoadOptions) -> Result<Tuning> {
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
