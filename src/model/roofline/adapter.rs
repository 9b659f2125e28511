//! What an adapter does, from an earlier run or measured now.

use super::{Roofline, Subject};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kernels::peaks::Peaks;
use crate::model::{Config, LoadOptions, tune};
use std::sync::Arc;

/// Seconds of a single measurement.
const SPAN: f64 = 0.01;

impl Roofline {
    /// What an earlier run has kept for weights and a cache as `options` ask for, else what is measured
    /// now, and kept: first, where `options` ask for it, how kernels divide the work of models of
    /// `config` best, as loading does. `clock` tells seconds.
    ///
    /// # Errors
    /// What the device reports, and as [`tune::choose`].
    pub fn kept_or_measured(
        gpu: &Arc<Gpu>,
        config: &Config,
        options: &LoadOptions,
        clock: &mut dyn FnMut() -> f64,
    ) -> Result<Roofline> {
        if let Some((roofline, tuning)) = Roofline::kept(gpu, options.weights, options.kv_format) {
            log::info!("roofline: kept, measured with {tuning}");
            return Ok(roofline);
        }
        let (tuned, _straggler) = tune::choose(gpu, config, options)?;
        let subject = Subject {
            tuning: tuned.tuning,
            weights: options.weights,
            kv: options.kv_format,
        };
        let peaks = match Peaks::kept(gpu) {
            Some(peaks) => peaks,
            None => Peaks::measure(gpu, clock, SPAN)?,
        };
        peaks.keep(gpu);
        let roofline = Roofline::measure(gpu, subject, peaks, clock, SPAN)?;
        roofline.keep(gpu, subject);
        gpu.save_pipelines();
        Ok(roofline)
    }
}
