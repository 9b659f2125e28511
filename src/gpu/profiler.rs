//! How a [`Profile`] is made: timestamps around dispatches, and their way to the host.

use crate::error::Result;
use crate::gpu::device::Gpu;
use crate::gpu::kernel::Variant;
use crate::gpu::profile::{Profile, ProfileClock, ProfileEvent};
use crate::gpu::recorder::Recorder;
use crate::gpu::tensor::{DType, Tensor};
use crate::gpu::transfer::Readback;
use std::time::{Duration, Instant};

/// Dispatches that fit one set of timestamps, two each.
const STAMPED_DISPATCHES: usize = wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

/// A profile that is being made.
pub(crate) struct Profiler {
    profile: Profile,
    stamps: Option<Stamps>,
    /// Whether single dispatches are kept.
    detailed: bool,
    /// When it began, where there are no timestamps.
    start: Instant,
    /// Steps that were marked.
    steps: usize,
    /// The dispatch that comes next.
    next: Option<ProfileEvent>,
}

/// Timestamps of the dispatches since the last submit.
struct Stamps {
    set: wgpu::QuerySet,
    resolved: Tensor,
    readback: Readback,
    /// Nanoseconds of a tick.
    period: f64,
    /// Ticks at the first dispatch of all.
    first: Option<u64>,
    open: Vec<ProfileEvent>,
}

impl Profiler {
    pub fn asked_for_by_environment() -> bool {
        std::env::var_os("NELUMBO_PROFILE").is_some_and(|v| v == "1")
    }

    /// Keeps the time of each dispatch if `detailed`, else sums alone.
    pub fn new(gpu: &Gpu, detailed: bool) -> Result<Profiler> {
        let has = gpu
            .device
            .features()
            .contains(wgpu::Features::TIMESTAMP_QUERY);
        let stamps = has.then(|| Stamps::new(gpu)).transpose()?;
        let clock = match stamps {
            Some(_) => ProfileClock::Timestamps,
            None if gpu.is_host() => ProfileClock::Host,
            None => ProfileClock::Submits,
        };
        Ok(Profiler {
            profile: Profile::new(clock),
            stamps,
            detailed,
            start: Instant::now(),
            steps: 0,
            next: None,
        })
    }

    /// Whether dispatches have to be submitted one by one.
    pub fn alone(&self) -> bool {
        self.stamps.is_none()
    }

    /// What the next dispatch is.
    pub fn announce(&mut self, variant: &Variant, tensors: &[(&str, &Tensor)], grid: [u32; 3]) {
        let mut event = ProfileEvent {
            variant: *variant,
            step: self.steps.saturating_sub(1),
            begin: Duration::ZERO,
            time: Duration::ZERO,
            workgroups: grid,
            bytes: 0,
            tensors: Vec::new(),
        };
        if self.detailed {
            event.bytes = tensors.iter().map(|(_, tensor)| tensor.size_bytes()).sum();
            event.tensors = tensors
                .iter()
                .map(|&(name, tensor)| (name.to_owned(), tensor.dtype(), tensor.shape().to_vec()))
                .collect();
        }
        self.next = Some(event);
    }

    /// The dispatch announced has run alone since `begin`, and is over.
    pub fn add(&mut self, begin: Instant) {
        if let Some(mut event) = self.next.take() {
            event.begin = begin.duration_since(self.start);
            event.time = begin.elapsed();
            self.profile.add(event, self.detailed);
        }
    }

    /// What a pass for the dispatch announced is stamped with.
    pub fn stamp(&mut self) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let stamps = self.stamps.as_mut()?;
        let first = 2 * stamps.open.len() as u32;
        stamps.open.push(self.next.take()?);
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &stamps.set,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        })
    }

    /// Whether the next dispatch needs a submit first.
    pub fn is_full(&self) -> bool {
        let open = self.stamps.as_ref().map_or(0, |s| s.open.len());
        open == STAMPED_DISPATCHES
    }

    /// Records that the timestamps come to the host.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        if let Some(stamps) = self.stamps.as_ref().filter(|s| !s.open.is_empty()) {
            let resolved = stamps.resolved.buffer.raw();
            encoder.resolve_query_set(&stamps.set, 0..2 * stamps.open.len() as u32, resolved, 0);
            stamps.readback.copy(encoder, &stamps.resolved);
        }
    }

    /// Waits for what was resolved, and adds it up.
    pub fn collect(&mut self, gpu: &Gpu) -> Result<()> {
        let Some(stamps) = self.stamps.as_mut().filter(|s| !s.open.is_empty()) else {
            return Ok(());
        };
        let open = std::mem::take(&mut stamps.open);
        let ticks: Vec<u64> = stamps.readback.wait(gpu, bytemuck::pod_collect_to_vec)?;
        let first = *stamps.first.get_or_insert(ticks[0]);
        // a device that was reset in between may count from anew
        let after = |from: u64, to: u64| {
            Duration::from_nanos((to.saturating_sub(from) as f64 * stamps.period) as u64)
        };
        for (mut event, pair) in open.into_iter().zip(ticks.chunks_exact(2)) {
            event.begin = after(first, pair[0]);
            event.time = after(pair[0], pair[1]);
            self.profile.add(event, self.detailed);
        }
        Ok(())
    }

    pub fn finish(self) -> Profile {
        self.profile
    }

    pub fn table(&self) -> String {
        self.profile.table()
    }
}

impl Stamps {
    fn new(gpu: &Gpu) -> Result<Stamps> {
        let count = 2 * STAMPED_DISPATCHES;
        let set = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("profile"),
            ty: wgpu::QueryType::Timestamp,
            count: count as u32,
        });
        let bytes = 8 * count as u64;
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = gpu.buffer("timestamps", bytes, usage)?;
        Ok(Stamps {
            set,
            resolved: Tensor::whole(resolved, DType::U32, &[2 * count]),
            readback: Readback::new(gpu, bytes)?,
            period: f64::from(gpu.queue.get_timestamp_period()),
            first: None,
            open: Vec::new(),
        })
    }
}

impl Recorder {
    /// From here on takes the time of every dispatch, until [`Recorder::take_profile`]. Submits what
    /// is recorded.
    ///
    /// # Errors
    /// As [`Recorder::submit`]; [`crate::Error::OutOfMemory`].
    pub fn start_profile(&mut self) -> Result<()> {
        self.submit()?;
        self.profiler = Some(Profiler::new(self.gpu(), true)?);
        Ok(())
    }

    /// A step begins: profiles tell of each dispatch in which it was.
    pub fn mark_step(&mut self) {
        if let Some(profiler) = &mut self.profiler {
            profiler.steps += 1;
        }
    }

    /// Submits what is recorded, and ends the profile that was started, if one was.
    ///
    /// # Errors
    /// As [`Recorder::submit`].
    pub fn take_profile(&mut self) -> Result<Option<Profile>> {
        self.submit()?;
        Ok(self.profiler.take().map(Profiler::finish))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(profiler) = &self.profiler {
            log::warn!("time by kernel: {}", profiler.table());
        }
    }
}
