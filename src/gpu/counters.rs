//! How often the device was asked for something.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often something was done since the device was opened. A decode step moves `submits` and
/// `writes` by one, and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Buffers created.
    pub buffers: u64,
    /// Bytes of all buffers created.
    pub buffer_bytes: u64,
    /// Bind groups created.
    pub bind_groups: u64,
    /// Compute pipelines created.
    pub pipelines: u64,
    /// Command buffers submitted.
    pub submits: u64,
    /// Tensors that were written to between dispatches: a step writes its words at once.
    pub writes: u64,
}

#[derive(Default)]
pub(crate) struct CounterCells {
    pub buffers: AtomicU64,
    pub buffer_bytes: AtomicU64,
    pub bind_groups: AtomicU64,
    pub pipelines: AtomicU64,
    pub submits: AtomicU64,
    pub writes: AtomicU64,
}

impl CounterCells {
    pub fn read(&self) -> Counters {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Counters {
            buffers: read(&self.buffers),
            buffer_bytes: read(&self.buffer_bytes),
            bind_groups: read(&self.bind_groups),
            pipelines: read(&self.pipelines),
            submits: read(&self.submits),
            writes: read(&self.writes),
        }
    }
}
