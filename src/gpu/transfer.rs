//! Between host and device: uploads in bounded pieces, and small read-backs without allocation.

use crate::error::{Error, Result};
use crate::gpu::device::Gpu;
use crate::gpu::host_memory::Words;
use crate::gpu::tensor::{Buffer, Tensor};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// wgpu stages what is written until the next submit: bounding a piece bounds the host's memory.
const UPLOAD_PIECE_BYTES: usize = 16 << 20;

/// How often, and how long each time, a callback is waited for that another thread has taken.
const CALLBACK_TURNS: u32 = 10_000;
const CALLBACK_TURN: Duration = Duration::from_millis(1);

impl Gpu {
    /// Writes `bytes` at `offset` (both multiples of 4) into `tensor`, and waits whenever 16 MiB have
    /// gathered, over all calls, so that hardly more than that is staged.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// When the bytes leave the tensor.
    pub fn upload(&self, tensor: &Tensor, offset: u64, bytes: &[u8]) -> Result<()> {
        assert!(
            offset + bytes.len() as u64 <= tensor.bytes,
            "{offset}+{} into {} bytes",
            bytes.len(),
            tensor.bytes
        );
        let mut at = tensor.offset + offset;
        if let Some(memory) = tensor.buffer.host() {
            memory.write(at, bytes);
            return self.check();
        }
        for piece in bytes.chunks(UPLOAD_PIECE_BYTES) {
            self.queue.write_buffer(tensor.buffer.raw(), at, piece);
            at += piece.len() as u64;
            let new = piece.len() as u64;
            let staged = self.staged_bytes.fetch_add(new, Ordering::Relaxed) + new;
            if staged >= UPLOAD_PIECE_BYTES as u64 {
                self.flush_uploads()?;
            }
        }
        Ok(())
    }

    /// Zeroes `tensors` now. The graphics library does so when a buffer is first bound, and looks which
    /// parts were written by then before it looks for writes of other threads: those would be zeroed
    /// again. So this comes first where one thread uploads what another binds.
    ///
    /// # Errors
    /// What the device reports.
    pub fn zero<'a>(&self, tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<()> {
        let mut encoder = self
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        for tensor in tensors {
            if let Some((memory, range)) = tensor.in_host() {
                memory.clear(range);
                continue;
            }
            encoder.clear_buffer(
                tensor.buffer.raw(),
                tensor.offset,
                Some(tensor.bytes.next_multiple_of(4)),
            );
        }
        self.queue.submit([encoder.finish()]);
        self.check()
    }

    /// Submits what was uploaded and waits, so that the staging memory is free again.
    ///
    /// # Errors
    /// What the device reports.
    pub fn flush_uploads(&self) -> Result<()> {
        self.staged_bytes.store(0, Ordering::Relaxed);
        self.queue.submit([]);
        self.wait()
    }

    /// All bytes of a tensor, by way of a buffer made for it. For tests and reports, not for steps.
    ///
    /// # Errors
    /// What the device reports.
    pub fn download(&self, tensor: &Tensor) -> Result<Vec<u8>> {
        if let Some((memory, range)) = tensor.in_host() {
            self.wait()?;
            return Ok(bytemuck::cast_slice(&memory.view(range)).to_vec());
        }
        let readback = Readback::new(self, tensor.bytes)?;
        let mut encoder = self
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        readback.copy(&mut encoder, tensor);
        self.queue.submit([encoder.finish()]);
        readback.wait(self, <[u8]>::to_vec)
    }

    /// The words of `ranges` of a tensor, one range after another, in one go. Not for steps either.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// When a range leaves the tensor.
    pub fn download_words(&self, tensor: &Tensor, ranges: &[Range<usize>]) -> Result<Vec<u32>> {
        let words: usize = ranges.iter().map(Range::len).sum();
        if words == 0 {
            return Ok(Vec::new());
        }
        if tensor.in_host().is_some() {
            return Ok(self.words_of(tensor, ranges)?.to_vec());
        }
        let readback = Readback::new(self, 4 * words as u64)?;
        let mut encoder = self
            .device
            .create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut at = 0;
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            assert!(
                4 * range.end as u64 <= tensor.bytes,
                "words {range:?} of {} bytes",
                tensor.bytes
            );
            let bytes = 4 * range.len() as u64;
            encoder.copy_buffer_to_buffer(
                tensor.buffer.raw(),
                tensor.offset + 4 * range.start as u64,
                readback.buffer.raw(),
                at,
                bytes,
            );
            at += bytes;
        }
        self.queue.submit([encoder.finish()]);
        readback.wait(self, bytemuck::pod_collect_to_vec)
    }

    /// The same to look at: a single range in place where it lies in the host's memory.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// When a range leaves the tensor.
    pub fn words_of(&self, tensor: &Tensor, ranges: &[Range<usize>]) -> Result<Words> {
        let Some((memory, bytes)) = tensor.in_host() else {
            return Ok(Words::copied(self.download_words(tensor, ranges)?));
        };
        self.check()?;
        let all = memory.view(bytes);
        Ok(match ranges {
            [range] => all.part(range.clone()),
            _ => Words::copied(
                ranges
                    .iter()
                    .flat_map(|r| &all[r.clone()])
                    .copied()
                    .collect(),
            ),
        })
    }

    /// [`Gpu::download`] for elements of four bytes.
    ///
    /// # Errors
    /// What the device reports.
    pub fn download_as<T: bytemuck::Pod>(&self, tensor: &Tensor) -> Result<Vec<T>> {
        Ok(bytemuck::pod_collect_to_vec(&self.download(tensor)?))
    }
}

/// A host-visible buffer that results are copied to, kept for many steps.
pub struct Readback {
    buffer: Arc<Buffer>,
    capacity: u64,
}

impl Readback {
    /// Room for `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Readback> {
        let capacity = bytes.next_multiple_of(4);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        Ok(Readback {
            buffer: gpu.buffer("readback", capacity, usage)?,
            capacity,
        })
    }

    /// Bytes on the device.
    pub fn size_bytes(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn copy(&self, encoder: &mut wgpu::CommandEncoder, tensor: &Tensor) {
        self.check_room(tensor);
        encoder.copy_buffer_to_buffer(
            tensor.buffer.raw(),
            tensor.offset,
            self.buffer.raw(),
            0,
            tensor.bytes,
        );
    }

    /// Copies `tensor` at once, where both lie in the host's memory; says whether they do.
    pub(crate) fn copy_in_host(&self, tensor: &Tensor) -> bool {
        self.check_room(tensor);
        let (Some((from, range)), Some(to)) = (tensor.in_host(), self.buffer.host()) else {
            return false;
        };
        to.copy(from, range, 0);
        true
    }

    fn check_room(&self, tensor: &Tensor) {
        assert!(
            tensor.bytes <= self.capacity,
            "{} bytes into a read-back of {}",
            tensor.bytes,
            self.capacity
        );
    }

    /// Waits for the last copy into it, and shows the whole buffer to `read`.
    ///
    /// # Errors
    /// What the device reports, with what was under way; never stale data after a fault.
    pub fn wait<T>(&self, gpu: &Gpu, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        const PENDING: u8 = 0;
        const MAPPED: u8 = 1;
        const FAILED: u8 = 2;
        if let Some(memory) = self.buffer.host() {
            gpu.wait()
                .map_err(|error| error.during("reading results back"))?;
            let words = memory.view(0..memory.bytes());
            return Ok(read(bytemuck::cast_slice(&words)));
        }
        let state = Arc::new(AtomicU8::new(PENDING));
        let done = state.clone();
        self.buffer
            .raw()
            .map_async(wgpu::MapMode::Read, .., move |result| {
                done.store(
                    if result.is_ok() { MAPPED } else { FAILED },
                    Ordering::Release,
                );
            });
        // Where several threads wait on one device, another one may be about to run our callback
        // when our own wait is over already: a moment later it has.
        let mut turns = 0;
        loop {
            gpu.wait()
                .map_err(|error| error.during("reading results back"))?;
            match state.load(Ordering::Acquire) {
                MAPPED => break,
                PENDING if turns < CALLBACK_TURNS => std::thread::sleep(CALLBACK_TURN),
                _ => {
                    return Err(Error::Device {
                        message: "a result could not be read back".to_owned(),
                    });
                }
            }
            turns += 1;
        }
        let view = self
            .buffer
            .raw()
            .get_mapped_range(..)
            .map_err(|e| Error::Device {
                message: e.to_string(),
            })?;
        let value = read(&view);
        drop(view);
        self.buffer.raw().unmap();
        Ok(value)
    }
}
