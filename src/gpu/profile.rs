//! Where a step's time goes, by kernel.
//!
//! Where the device has timestamps, each dispatch gets a pass of its own that is stamped at its
//! begin and end. Elsewhere each dispatch is submitted alone and waited for: those times are wall
//! clock and hold a submit each (tens of microseconds), so they compare kernels with each other, and
//! a step that is not profiled is faster than their sum. [`Profile::clock`] says which it was.

use crate::error::Result;
use crate::gpu::device::Gpu;
use crate::gpu::kernel::Variant;
use crate::gpu::tensor::{DType, Tensor};
use crate::gpu::transfer::Readback;
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

/// Dispatches that fit one set of timestamps, two each.
const STAMPED_DISPATCHES: usize = wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

/// What a profile's times were taken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileClock {
    /// The device's own, at begin and end of each dispatch.
    Timestamps,
    /// The host's, around a submit and a wait for each dispatch.
    Submits,
}

impl ProfileClock {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            ProfileClock::Timestamps => "timestamps of the device",
            ProfileClock::Submits => "wall clock, each dispatch submitted alone",
        }
    }
}

/// Dispatches of one variant.
#[derive(Clone, Copy, Debug)]
pub struct ProfileRow {
    /// Which.
    pub variant: Variant,
    /// How many.
    pub count: u64,
    /// Their time in all.
    pub time: Duration,
}

/// Dispatches and time by variant.
#[derive(Clone, Debug)]
pub struct Profile {
    clock: ProfileClock,
    rows: HashMap<Variant, (u64, Duration)>,
}

impl Profile {
    fn new(clock: ProfileClock) -> Profile {
        Profile {
            clock,
            rows: HashMap::new(),
        }
    }

    /// What the times were taken by.
    pub fn clock(&self) -> ProfileClock {
        self.clock
    }

    /// The most expensive variant first; equals by name.
    pub fn rows(&self) -> Vec<ProfileRow> {
        let mut rows: Vec<ProfileRow> = self
            .rows
            .iter()
            .map(|(&variant, &(count, time))| ProfileRow {
                variant,
                count,
                time,
            })
            .collect();
        rows.sort_by_cached_key(|r| (std::cmp::Reverse(r.time), r.variant.to_string()));
        rows
    }

    /// Time of all rows.
    pub fn total(&self) -> Duration {
        self.rows.values().map(|(_, time)| *time).sum()
    }

    fn add(&mut self, variant: Variant, time: Duration) {
        let row = self.rows.entry(variant).or_default();
        row.0 += 1;
        row.1 += time;
    }

    /// The rows as a text.
    pub(crate) fn table(&self) -> String {
        let total = self.total().as_secs_f64().max(f64::MIN_POSITIVE);
        let mut text = format!(
            "{}\n{:>8} {:>10} {:>9} {:>6}  variant\n",
            self.clock.name(),
            "count",
            "total ms",
            "mean us",
            "share"
        );
        for ProfileRow {
            variant,
            count,
            time,
        } in self.rows()
        {
            let seconds = time.as_secs_f64();
            // writing to a String cannot fail
            let _ = writeln!(
                text,
                "{count:>8} {:>10.1} {:>9.1} {:>5.1}%  {variant}",
                seconds * 1e3,
                seconds * 1e6 / count as f64,
                100.0 * seconds / total
            );
        }
        text
    }
}

/// A profile that is being made.
pub(crate) struct Profiler {
    profile: Profile,
    stamps: Option<Stamps>,
}

/// Timestamps of the dispatches since the last submit.
struct Stamps {
    set: wgpu::QuerySet,
    resolved: Tensor,
    readback: Readback,
    /// Nanoseconds of a tick.
    period: f64,
    open: Vec<Variant>,
}

impl Profiler {
    pub fn asked_for_by_environment() -> bool {
        std::env::var_os("NELUMBO_PROFILE").is_some_and(|v| v == "1")
    }

    pub fn new(gpu: &Gpu) -> Result<Profiler> {
        let has = gpu
            .device
            .features()
            .contains(wgpu::Features::TIMESTAMP_QUERY);
        let stamps = has.then(|| Stamps::new(gpu)).transpose()?;
        let clock = match stamps {
            Some(_) => ProfileClock::Timestamps,
            None => ProfileClock::Submits,
        };
        Ok(Profiler {
            profile: Profile::new(clock),
            stamps,
        })
    }

    /// Whether dispatches have to be submitted one by one.
    pub fn alone(&self) -> bool {
        self.stamps.is_none()
    }

    pub fn add(&mut self, variant: Variant, time: Duration) {
        self.profile.add(variant, time);
    }

    /// What a pass for one dispatch of `variant` is stamped with.
    pub fn stamp(&mut self, variant: &Variant) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let stamps = self.stamps.as_mut()?;
        let first = 2 * stamps.open.len() as u32;
        stamps.open.push(*variant);
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
            let resolved = &stamps.resolved.buffer.raw;
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
        for (variant, pair) in open.into_iter().zip(ticks.chunks_exact(2)) {
            // a device that was reset in between may count from anew
            let nanoseconds = pair[1].saturating_sub(pair[0]) as f64 * stamps.period;
            self.profile
                .add(variant, Duration::from_nanos(nanoseconds as u64));
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
            open: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::kernel::Kernel;

    #[test]
    fn the_most_expensive_comes_first() {
        static KERNEL: Kernel = Kernel {
            name: "k",
            parts: &[],
            params: &[],
        };
        let (a, b) = (
            Variant::new(&KERNEL).set("A", 1),
            Variant::new(&KERNEL).set("B", 1),
        );
        let mut profile = Profile::new(ProfileClock::Submits);
        for (variant, ms) in [(a, 1), (b, 5), (a, 1)] {
            profile.add(variant, Duration::from_millis(ms));
        }
        let table = profile.table();
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].contains("submitted alone"), "{table}");
        assert!(
            lines[2].ends_with("k B=1") && lines[2].contains("71.4%"),
            "{table}"
        );
        assert!(
            lines[3].ends_with("k A=1") && lines[3].trim_start().starts_with('2'),
            "{table}"
        );
        assert_eq!(profile.total(), Duration::from_millis(7));
    }
}
