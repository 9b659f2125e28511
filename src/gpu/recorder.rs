//! Dispatches in order, then one submit.
//!
//! A recorder lives as long as the model that uses it: its parameter ring and its bind groups are
//! made once, so that a step that records the same dispatches again creates nothing.

use crate::error::{Error, Result};
use crate::gpu::device::Gpu;
use crate::gpu::groups::Groups;
use crate::gpu::host::{Call, Interpreter, Place};
use crate::gpu::kernel::{Params, Variant};
use crate::gpu::pipeline::PARAMS_BYTES;
use crate::gpu::profiler::Profiler;
use crate::gpu::tensor::{Buffer, Tensor};
use crate::gpu::transfer::Readback;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Dispatches that fit one submit; [`Recorder::dispatch`] asserts it.
const RING_SLOTS: usize = 4096;

/// The most workgroups of one dimension; larger grids are folded by [`grid`].
const MAX_GROUPS: u32 = 65_535;

/// `count` workgroups as a grid. Kernels read their number as `id.y * num_workgroups.x + id.x`, and
/// check it against their own count, since the last row may be partly beyond it.
pub fn grid(count: usize) -> [u32; 3] {
    let count = u32::try_from(count).expect("a grid has under 2^32 workgroups");
    let rows = count.div_ceil(MAX_GROUPS).max(1);
    [count.div_ceil(rows), rows, 1]
}

/// What becomes of a dispatch.
enum Mode {
    /// It is recorded.
    Record,
    /// Its variant is noted; nothing is made or recorded.
    Note(Vec<Variant>),
    /// It runs at once, alone and with one workgroup, unless its pipeline has run before.
    Rehearse,
}

/// Records dispatches into one command buffer at a time.
pub struct Recorder {
    gpu: Arc<Gpu>,
    ring: Arc<Buffer>,
    params_group: wgpu::BindGroup,
    params: Vec<u8>,
    groups: Groups,
    /// Pipelines that had work.
    used: HashSet<u64>,
    open: Option<(wgpu::CommandEncoder, Option<wgpu::ComputePass<'static>>)>,
    failed: Option<Error>,
    pub(super) profiler: Option<Profiler>,
    mode: Mode,
    pub(super) interpreter: Option<Box<dyn Interpreter>>,
    pub(super) place: Place,
}

impl Recorder {
    /// A recorder with nothing recorded.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(gpu: &Arc<Gpu>) -> Result<Recorder> {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let slots = if gpu.is_host() { 1 } else { RING_SLOTS }; // a host has them at hand
        let ring = gpu.buffer("params ring", slots as u64 * PARAMS_BYTES, usage)?;
        let profiler = Profiler::asked_for_by_environment()
            .then(|| Profiler::new(gpu, false))
            .transpose()?;
        Ok(Recorder {
            params_group: gpu.pipelines.params_group(&gpu.device, ring.raw()),
            gpu: gpu.clone(),
            ring,
            params: Vec::with_capacity(RING_SLOTS * PARAMS_BYTES as usize),
            groups: Groups::default(),
            used: HashSet::new(),
            open: None,
            failed: None,
            profiler,
            mode: Mode::Record,
            interpreter: gpu.host_interpreter(),
            place: Place::default(),
        })
    }

    /// The device that is recorded for.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Bytes that the recorder takes on the device.
    pub fn size_bytes(&self) -> u64 {
        self.ring.size()
    }

    /// From here on dispatches only leave a note of their variant, and nothing else has an effect.
    pub fn begin_notes(&mut self) {
        self.mode = Mode::Note(Vec::new());
    }

    /// The variants noted, each once, in order. Dispatches are recorded again.
    pub fn take_notes(&mut self) -> Vec<Variant> {
        match std::mem::replace(&mut self.mode, Mode::Record) {
            Mode::Note(variants) => variants,
            Mode::Record | Mode::Rehearse => Vec::new(),
        }
    }

    /// From here on each variant that has not run yet runs once, alone, with one workgroup of those
    /// it is asked for, and is waited for: some drivers compile only then. Of all others only the
    /// bind groups are made. In between, other threads get at the device.
    pub fn begin_rehearsal(&mut self) {
        self.mode = Mode::Rehearse;
    }

    /// Dispatches are recorded again.
    ///
    /// # Errors
    /// What went wrong meanwhile.
    pub fn end_rehearsal(&mut self) -> Result<()> {
        self.mode = Mode::Record;
        self.submit()
    }

    fn only_notes(&self) -> bool {
        matches!(self.mode, Mode::Note(_))
    }

    /// Writes `bytes` (a multiple of 4) to the start of `tensor` before anything of this submit runs.
    pub fn write(&mut self, tensor: &Tensor, bytes: &[u8]) {
        assert!(
            bytes.len() as u64 <= tensor.bytes,
            "{} bytes into {}",
            bytes.len(),
            tensor.bytes
        );
        if self.only_notes() {
            return;
        }
        match tensor.in_host() {
            Some((memory, range)) => memory.write(range.start, bytes),
            None => {
                let queue = &self.gpu.queue;
                queue.write_buffer(tensor.buffer.raw(), tensor.offset, bytes);
            }
        }
        self.gpu.counters.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Records one dispatch of `workgroups`. `tensors` are named as in the WGSL and in its order.
    /// What goes wrong is told by [`Recorder::submit`]. With no workgroups nothing is recorded, but
    /// pipeline and bind group are made ready: a later step that has work for them creates nothing.
    ///
    /// # Panics
    /// When names, order or count differ from the shader's, or a limit of the call is broken: that
    /// is a bug of the caller.
    pub fn dispatch<P: Params>(
        &mut self,
        variant: &Variant,
        tensors: &[(&str, &Tensor)],
        params: P,
        workgroups: [u32; 3],
    ) {
        if self.failed.is_some() {
            return;
        }
        if let Mode::Note(noted) = &mut self.mode {
            if !noted.contains(variant) {
                noted.push(*variant);
            }
            return;
        }
        let params = bytemuck::bytes_of(&params);
        let asked = matches!(self.mode, Mode::Record);
        if asked && self.interpreter.is_some() && workgroups.contains(&0) {
            return; // nothing to ask, and nobody knows whether the device will be wanted
        }
        if let Some(mut interpreter) = self.interpreter.take_if(|_| asked) {
            let (place, start) = (self.place, Instant::now());
            let done = interpreter.dispatch(&mut Call {
                rec: self,
                tensors,
                params,
                variant: *variant,
                workgroups,
                place,
            });
            self.interpreter = Some(interpreter);
            if let Err(error) = done {
                self.fail(error);
            }
            if let Some(profiler) = self.profiler.as_mut().filter(|_| self.gpu.is_host()) {
                profiler.announce(variant, tensors, workgroups);
                profiler.add(start);
            }
        } else if !self.gpu.is_host() {
            self.record(variant, tensors, params, workgroups);
        }
    }

    /// Keeps `error` for the next submit, unless something went wrong before.
    pub(super) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// Records a dispatch that nobody else takes care of; `params` are the bytes of its block.
    pub(super) fn record(
        &mut self,
        variant: &Variant,
        tensors: &[(&str, &Tensor)],
        params: &[u8],
        workgroups: [u32; 3],
    ) {
        let rehearsed = matches!(self.mode, Mode::Rehearse);
        let pipeline = match self.gpu.pipeline(variant) {
            Ok(pipeline) => pipeline,
            Err(error) => {
                self.failed = Some(error);
                return;
            }
        };
        let names: Vec<&str> = pipeline.bindings.iter().map(|b| b.name.as_str()).collect();
        assert!(
            tensors.iter().map(|t| t.0).eq(names.iter().copied()),
            "{variant}: {:?} for {names:?}",
            tensors.iter().map(|t| t.0).collect::<Vec<_>>()
        );
        assert!(
            workgroups.iter().all(|&n| n <= MAX_GROUPS),
            "{variant}: {workgroups:?} workgroups"
        );
        assert_eq!(
            params.len(),
            pipeline.params_bytes as usize,
            "{variant}: size of params"
        );

        let group = self.groups.get(&self.gpu, &pipeline, tensors);
        if workgroups.contains(&0) {
            return;
        }
        let first = self.used.insert(pipeline.id);
        if rehearsed && !first {
            return;
        }
        let workgroups = if rehearsed { [1, 1, 1] } else { workgroups };

        let offset = self.params.len() as u32;
        assert!(
            offset < (RING_SLOTS * PARAMS_BYTES as usize) as u32,
            "over {RING_SLOTS} dispatches in one submit"
        );
        self.params.extend_from_slice(params);
        self.params
            .resize(offset as usize + PARAMS_BYTES as usize, 0);

        let (encoder, pass) = self.open.get_or_insert_with(|| (open(&self.gpu), None));
        let mut profiler = self.profiler.as_mut();
        if let Some(profiler) = &mut profiler {
            profiler.announce(variant, tensors, workgroups);
        }
        let pass = pass.get_or_insert_with(|| {
            encoder
                .begin_compute_pass(&wgpu::ComputePassDescriptor {
                    label: None,
                    timestamp_writes: profiler.and_then(Profiler::stamp),
                })
                .forget_lifetime()
        });
        pass.set_pipeline(&pipeline.raw);
        pass.set_bind_group(0, group, &[]);
        pass.set_bind_group(1, &self.params_group, &[offset]);
        pass.dispatch_workgroups(workgroups[0], workgroups[1], workgroups[2]);
        if rehearsed {
            self.failed = self.submit().and_then(|()| self.gpu.wait()).err();
        } else if self.profiler.is_some() {
            self.end_profiled();
        }
    }

    /// Ends the pass that a dispatch has to itself; where there are no timestamps, submits and waits on its
    /// account, and where there is no room for more of them, submits.
    fn end_profiled(&mut self) {
        let Some(profiler) = &self.profiler else {
            return;
        };
        if profiler.alone() {
            let start = Instant::now();
            let done = self.submit().and_then(|()| self.gpu.wait());
            if let Some(profiler) = &mut self.profiler {
                profiler.add(start);
            }
            self.failed = done.err();
        } else if profiler.is_full() {
            self.failed = self.submit().err();
        } else if let Some((_, pass)) = &mut self.open {
            *pass = None;
        }
    }

    /// The variants recorded since the recorder was made.
    pub fn variants(&self) -> Vec<Variant> {
        self.gpu.pipelines.variants(&self.used)
    }

    /// Records a copy of `tensor` to the host, after everything recorded so far.
    pub fn read_back(&mut self, tensor: &Tensor, readback: &Readback) {
        assert!(!self.only_notes(), "a copy cannot be noted");
        if readback.copy_in_host(tensor) {
            return;
        }
        let (encoder, pass) = self.open.get_or_insert_with(|| (open(&self.gpu), None));
        *pass = None; // a copy stands outside of passes
        readback.copy(encoder, tensor);
    }

    /// Records a copy of the whole of `from` into `to`.
    pub fn copy(&mut self, from: &Tensor, to: &Tensor) {
        assert_eq!(
            from.bytes,
            to.bytes,
            "copy of {:?} to {:?}",
            from.shape(),
            to.shape()
        );
        assert!(!self.only_notes(), "a copy cannot be noted");
        if let (Some((memory, range)), Some((into, at))) = (from.in_host(), to.in_host()) {
            into.copy(memory, range, at.start);
            return;
        }
        let (encoder, pass) = self.open.get_or_insert_with(|| (open(&self.gpu), None));
        *pass = None;
        encoder.copy_buffer_to_buffer(
            from.buffer.raw(),
            from.offset,
            to.buffer.raw(),
            to.offset,
            from.bytes,
        );
    }

    /// Submits what was recorded, and starts anew. Does not wait.
    ///
    /// # Errors
    /// What went wrong while recording, or what the device reports.
    pub fn submit(&mut self) -> Result<()> {
        let open = self.open.take();
        if let Some(error) = self.failed.take() {
            self.params.clear();
            return Err(error);
        }
        if let Some((mut encoder, pass)) = open {
            drop(pass);
            if let Some(profiler) = &self.profiler {
                profiler.resolve(&mut encoder);
            }
            if !self.params.is_empty() {
                self.gpu
                    .queue
                    .write_buffer(self.ring.raw(), 0, &self.params);
                self.params.clear();
            }
            self.gpu.queue.submit([encoder.finish()]);
            self.gpu.counters.submits.fetch_add(1, Ordering::Relaxed);
            if let Some(profiler) = &mut self.profiler {
                profiler.collect(&self.gpu)?;
            }
        }
        self.gpu.check()
    }
}

fn open(gpu: &Gpu) -> wgpu::CommandEncoder {
    gpu.device
        .create_command_encoder(&wgpu::CommandEncoderDescriptor {
            label: Some("step"),
        })
}

#[cfg(test)]
mod tests {
    use super::grid;

    #[test]
    fn a_grid_covers_its_count_with_the_fewest_spare_groups() {
        for count in [1, 2, 65_535, 65_536, 131_071, 1 << 24] {
            let [x, y, z] = grid(count).map(|n| n as usize);
            assert!(x <= 65_535 && y <= 65_535 && z == 1, "{count}");
            assert!(x * y >= count && x * y - count < y, "{count}: {x} x {y}");
        }
        assert_eq!(grid(0), [0, 1, 1]);
    }
}
