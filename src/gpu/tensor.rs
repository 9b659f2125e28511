//! A tensor on the device: a window of a buffer, with a type and a shape.

use super::host_memory::HostBuffer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Windows start at multiples of this many bytes: the largest offset alignment WebGPU permits.
pub const WINDOW_ALIGN: u64 = 256;

/// What the elements of a tensor are, as kernels see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit floats.
    F32,
    /// 32-bit unsigned integers.
    U32,
    /// 16-bit floats, two to a word.
    F16,
    /// Signed 8-bit integers, four to a word.
    I8,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::F16 => 2,
            DType::I8 => 1,
        }
    }
}

/// A buffer with an identity that outlives it in caches: ids are never used again.
pub(crate) struct Buffer {
    memory: Memory,
    pub id: u64,
}

/// Where a buffer lies.
pub(crate) enum Memory {
    /// On the device.
    Device(wgpu::Buffer),
    /// With us.
    Host(HostBuffer),
}

impl Buffer {
    pub fn new(memory: Memory) -> Arc<Buffer> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Buffer {
            memory,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The device's.
    ///
    /// # Panics
    /// When it lies in the host's memory.
    pub fn raw(&self) -> &wgpu::Buffer {
        match &self.memory {
            Memory::Device(raw) => raw,
            Memory::Host(_) => panic!("buffer {} lies in the host's memory", self.id),
        }
    }

    /// Its memory, where that is the host's.
    pub fn host(&self) -> Option<&HostBuffer> {
        match &self.memory {
            Memory::Device(_) => None,
            Memory::Host(memory) => Some(memory),
        }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        match &self.memory {
            Memory::Device(raw) => raw.size(),
            Memory::Host(memory) => memory.bytes(),
        }
    }
}

/// A shaped window of a device buffer. Clones share the buffer.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    dtype: DType,
    dims: [usize; 4],
    rank: usize,
}

impl Tensor {
    pub(crate) fn whole(buffer: Arc<Buffer>, dtype: DType, dims: &[usize]) -> Tensor {
        let bytes = Tensor::bytes_for(dtype, dims).next_multiple_of(4).max(4);
        assert!(
            bytes <= buffer.size(),
            "{dims:?} of {dtype:?} in a buffer of {} bytes",
            buffer.size()
        );
        Tensor {
            buffer,
            offset: 0,
            bytes,
            dtype,
            dims: pad(dims),
            rank: dims.len(),
        }
    }

    /// Bytes of `dims` elements of `dtype`.
    pub fn bytes_for(dtype: DType, dims: &[usize]) -> u64 {
        dims.iter().fold(dtype.bytes(), |bytes, &d| {
            bytes
                .checked_mul(d as u64)
                .expect("a tensor's size fits in u64")
        })
    }

    /// The same buffer seen from `offset` bytes on, with another shape.
    ///
    /// # Panics
    /// When the window leaves this tensor or does not start on [`WINDOW_ALIGN`].
    pub fn window(&self, offset: u64, dtype: DType, dims: &[usize]) -> Tensor {
        let bytes = Tensor::bytes_for(dtype, dims).next_multiple_of(4).max(4);
        let start = self.offset + offset;
        assert!(
            start.is_multiple_of(WINDOW_ALIGN),
            "window at {start}, not a multiple of {WINDOW_ALIGN}"
        );
        assert!(
            offset + bytes <= self.bytes,
            "window {offset}+{bytes} of {} bytes",
            self.bytes
        );
        Tensor {
            buffer: self.buffer.clone(),
            offset: start,
            bytes,
            dtype,
            dims: pad(dims),
            rank: dims.len(),
        }
    }

    /// Everything of the buffer this tensor is a window of, as words.
    #[must_use]
    pub fn whole_buffer(&self) -> Tensor {
        let words = (self.buffer.size() / 4) as usize;
        Tensor::whole(self.buffer.clone(), DType::U32, &[words])
    }

    /// The shape.
    ///
    /// # Panics
    /// When the rank is not `N`.
    pub fn dims<const N: usize>(&self) -> [usize; N] {
        assert_eq!(self.rank, N, "tensor of shape {:?}", self.shape());
        std::array::from_fn(|i| self.dims[i])
    }

    /// The shape, whatever its rank.
    pub fn shape(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// Its memory and the bytes that it takes there, where that is the host's.
    pub(crate) fn in_host(&self) -> Option<(&HostBuffer, std::ops::Range<u64>)> {
        let memory = self.buffer.host()?;
        Some((memory, self.offset..self.offset + self.bytes))
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of the window.
    pub fn size_bytes(&self) -> u64 {
        self.bytes
    }
}

fn pad(dims: &[usize]) -> [usize; 4] {
    assert!(dims.len() <= 4, "rank {} is over 4", dims.len());
    let mut padded = [1; 4];
    padded[..dims.len()].copy_from_slice(dims);
    padded
}
