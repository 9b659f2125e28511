//! Where a step's time goes, by kernel.
//!
//! Where the device has timestamps, each dispatch gets a pass of its own that is stamped at its
//! begin and end. Elsewhere each dispatch is submitted alone and waited for: those times are wall
//! clock and hold a submit each (tens of microseconds), so they compare kernels with each other, and
//! a step that is not profiled is faster than their sum. Where the host computes, its clock is right.
//! [`Profile::clock`] says which it was.

use crate::gpu::kernel::Variant;
use crate::gpu::tensor::DType;
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Duration;

/// What a profile's times were taken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileClock {
    /// The device's own, at begin and end of each dispatch.
    Timestamps,
    /// The host's, around a submit and a wait for each dispatch.
    Submits,
    /// The host's, which runs the dispatches itself.
    Host,
}

impl ProfileClock {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            ProfileClock::Timestamps => "timestamps of the device",
            ProfileClock::Submits => "wall clock, each dispatch submitted alone",
            ProfileClock::Host => "wall clock",
        }
    }
}

/// Dispatches that a profile keeps one by one at most; all are in its sums.
const MOST_EVENTS: usize = 1 << 18;

/// One dispatch.
#[derive(Clone, Debug)]
pub struct ProfileEvent {
    /// What ran.
    pub variant: Variant,
    /// In which of the steps that were marked, from 0.
    pub step: usize,
    /// When it began: by timestamps since the first dispatch, else since the profile was started. Dispatches
    /// that do not wait for each other may overlap.
    pub begin: Duration,
    /// How long it took.
    pub time: Duration,
    /// Its grid.
    pub workgroups: [u32; 3],
    /// Bytes of the windows that it was given, read or not.
    pub bytes: u64,
    /// The windows: name, type and shape.
    pub tensors: Vec<(String, DType, Vec<usize>)>,
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
    events: Vec<ProfileEvent>,
}

impl Profile {
    pub(crate) fn new(clock: ProfileClock) -> Profile {
        Profile {
            clock,
            rows: HashMap::new(),
            events: Vec::new(),
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

    /// Single dispatches in the order in which they were recorded, where the profile was started by
    /// [`Recorder::start_profile`](super::Recorder::start_profile): the first 262,144.
    pub fn events(&self) -> &[ProfileEvent] {
        &self.events
    }

    /// Counts a dispatch, and keeps it if `detailed`.
    pub(crate) fn add(&mut self, event: ProfileEvent, detailed: bool) {
        let row = self.rows.entry(event.variant).or_default();
        row.0 += 1;
        row.1 += event.time;
        if detailed && self.events.len() < MOST_EVENTS {
            self.events.push(event);
        }
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
            let event = ProfileEvent {
                variant,
                step: 0,
                begin: Duration::ZERO,
                time: Duration::from_millis(ms),
                workgroups: [1; 3],
                bytes: 4,
                tensors: Vec::new(),
            };
            profile.add(event, ms > 1);
        }
        let kept: Vec<Variant> = profile.events().iter().map(|e| e.variant).collect();
        assert_eq!(kept, [b]);
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
