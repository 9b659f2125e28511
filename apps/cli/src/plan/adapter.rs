//! The machine that is planned for: this one's adapter, its host, or one that only flags describe.

use std::sync::Arc;
use std::time::Instant;

use nelumbo::gpu::options::switch;
use nelumbo::gpu::{Gpu, OpenOptions, PipelineFolder, Selection, free_host_memory};
use nelumbo::kernels;
use nelumbo::model::plan::MemorySource;
use nelumbo::model::roofline::{ModelShape, Roofline};
use nelumbo::model::warm::shader_hash;
use nelumbo::model::{Bounds, MemoryLimit};
use nelumbo::quant::FORMATS;
use nelumbo::{Error, LoadOptions};

use super::args::SubjectArgs;
use crate::args::{GlobalArgs, Switch};
use crate::exit::{Failure, say};
use crate::models::cache;
use crate::options;

/// What bindings are cut to on every adapter; some have less.
const USUAL_BINDING: u64 = 128 << 20;

/// What a plan depends on beside the model.
pub struct Machine {
    /// The adapter's, where there is one.
    pub name: Option<String>,
    pub bounds: Bounds,
    pub memory: Option<(u64, MemorySource)>,
    gpu: Option<Arc<Gpu>>,
}

impl Machine {
    /// The one that `args` mean. An adapter that is not there is no error unless it was pinned.
    pub fn find(args: &SubjectArgs, global: &GlobalArgs) -> Result<Machine, Failure> {
        let pinned = args.device.is_some() || args.backend.backend.is_some();
        let told = matches!(args.gpu_memory, Some(MemoryLimit::Bytes(_)));
        let gpu = match args.bandwidth.is_some() && told && !pinned {
            true => None, // nothing about this machine matters
            false => match kernels::open(&open_options(args, global)?) {
                Ok(gpu) => Some(gpu),
                Err(Error::NoAdapter { .. }) if !pinned => {
                    if !global.quiet {
                        say(
                            "note: there is no adapter here; speeds are left out unless --bandwidth is given",
                        );
                    }
                    None
                }
                Err(error) => return Err(error.into()),
            },
        };
        let imagined = gpu.is_none() && args.bandwidth.is_some();
        let bounds = gpu.as_deref().map_or(
            Bounds {
                max_binding: USUAL_BINDING,
                is_software: !imagined,
            },
            Bounds::of,
        );
        let (there, source) = match &gpu {
            Some(gpu) if !gpu.is_software() => (gpu.memory_bytes(), MemorySource::Adapter),
            _ => (free_host_memory(), MemorySource::Host),
        };
        let memory = match args.gpu_memory {
            Some(MemoryLimit::Bytes(bytes)) => Some((bytes, MemorySource::Given)),
            Some(share) => Some((
                share.of(there).ok_or_else(|| {
                    let problem = "--gpu-memory: nobody tells how much memory there is: name a size, such as 6GiB";
                    Failure::Usage(problem.to_owned())
                })?,
                source,
            )),
            None => bounds
                .default_limit()
                .of(there)
                .map(|bytes| (bytes, source)),
        };
        Ok(Machine {
            name: gpu.as_ref().map(|gpu| gpu.report().name.clone()),
            bounds,
            memory,
            gpu,
        })
    }

    /// What the adapter does, kept by an earlier run or measured now; `None` with a warning where that
    /// fails: a plan is one without speeds.
    pub fn roofline(&self, args: &SubjectArgs, shape: &ModelShape) -> Option<Roofline> {
        let gpu = self.gpu.as_ref()?;
        // forms that no kernel reads are near to one that some does
        let weights = shape.weights.format().unwrap_or(FORMATS[0]);
        let options = LoadOptions {
            open: gpu.options().clone(),
            weights,
            kv_format: shape.kv.format().unwrap_or_default(),
            autotune: args.autotune == Switch::On,
            ..LoadOptions::default()
        };
        if args.measure == Switch::Off {
            let kept = Roofline::kept(gpu, weights, options.kv_format);
            return kept.map(|(roofline, _)| roofline);
        }
        let start = Instant::now();
        let mut clock = || start.elapsed().as_secs_f64();
        Roofline::kept_or_measured(gpu, &shape.config, &options, &mut clock)
            .inspect_err(|error| log::warn!("speeds are left out: {error}"))
            .ok()
    }
}

fn open_options(args: &SubjectArgs, global: &GlobalArgs) -> Result<OpenOptions, Failure> {
    let kept = switch("NELUMBO_PIPELINE_CACHE")?.unwrap_or(true);
    let pipelines = cache::pipelines(global).filter(|_| kept);
    Ok(OpenOptions {
        selection: Selection {
            backend: options::backend(&args.backend),
            device: args.device.map(|index| index as usize),
            allow_software: false,
        },
        pipelines: pipelines.map(|folder| PipelineFolder {
            folder,
            shaders: shader_hash(),
        }),
        ..OpenOptions::from_env()?
    })
}
