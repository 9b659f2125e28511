//! An open device: allocation under error scopes, faults as errors, counters for tests.

use crate::error::{Error, Result};
use crate::gpu::Caps;
use crate::gpu::adapter::{self, AdapterReport, Backend, DeviceType};
use crate::gpu::cache_file::Store;
use crate::gpu::counters::{CounterCells, Counters};
use crate::gpu::enumerate;
use crate::gpu::fault::Fault;
use crate::gpu::host::Interpreter;
use crate::gpu::host_memory::HostBuffer;
use crate::gpu::kept_file::Kept;
use crate::gpu::kernel::Variant;
use crate::gpu::options::OpenOptions;
use crate::gpu::pipeline::{Pipeline, PipelineCache};
use crate::gpu::tensor::{Buffer, DType, Memory, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Windows of a buffer that a kernel binds are at most this large, whatever the adapter offers:
/// several drivers are slow or wrong beyond it.
const MAX_BINDING_BYTES: u64 = 128 << 20;

/// With less, small models no longer have room for a row of logits.
const LEAST_BINDING_BYTES: u64 = 1 << 20;

/// An open device with its queue and pipelines. Cheap to share behind an [`Arc`].
pub struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) counters: CounterCells,
    pub(crate) pipelines: PipelineCache,
    /// Bytes written to tensors since the last submit that waited for them.
    pub(crate) staged_bytes: AtomicU64,
    fault: Fault,
    report: AdapterReport,
    caps: Caps,
    max_binding_bytes: u64,
    pub(crate) kept: Option<Kept>,
    options: OpenOptions,
}

impl Gpu {
    /// Opens the adapter that `options` select.
    ///
    /// # Errors
    /// [`Error::NoAdapter`] when none fits, [`Error::Device`] when the driver refuses it, or when the
    /// host is to compute and the options do not say by what.
    pub fn open(options: &OpenOptions) -> Result<Arc<Gpu>> {
        let candidates = enumerate::candidates_for(&options.selection)?;
        let reports: Vec<AdapterReport> = candidates.iter().map(|c| c.report.clone()).collect();
        let index = adapter::choose(&reports, &options.selection)?;
        let candidate = candidates
            .into_iter()
            .nth(index)
            .expect("choose returns an index of the list");
        Gpu::open_candidate(candidate, options)
    }

    fn open_candidate(candidate: enumerate::Candidate, options: &OpenOptions) -> Result<Arc<Gpu>> {
        let enumerate::Candidate { adapter, report } = candidate;
        let is_host = report.backend == Backend::Cpu;
        if is_host && options.host.is_none() {
            return Err(Error::Device {
                message: "the processor was opened without kernels".to_owned(),
            });
        }
        let mut caps = report.caps;
        if let Some(allowed) = &options.caps {
            caps = caps
                .restrict(allowed)
                .map_err(|problem| Error::request("NELUMBO_CAPS", problem))?;
        }
        caps.coop = caps.coop.filter(|_| options.coop);
        let mut features = adapter.features() & enumerate::wanted_features();
        if caps.coop.is_some() {
            features |= enumerate::coop_features();
        }
        let limits = adapter.limits();
        let device_limit = limits
            .max_storage_buffer_binding_size
            .min(limits.max_buffer_size);
        let max_binding_bytes = options
            .max_binding
            .unwrap_or(MAX_BINDING_BYTES)
            .min(MAX_BINDING_BYTES)
            .min(device_limit)
            & !255;
        if let Some(asked) = options
            .max_binding
            .filter(|asked| *asked < LEAST_BINDING_BYTES)
        {
            let problem = format!("is {asked} bytes, at least {LEAST_BINDING_BYTES} are needed");
            return Err(Error::request("NELUMBO_MAX_BINDING", problem));
        }
        if max_binding_bytes < LEAST_BINDING_BYTES {
            return Err(Error::AdapterLimit {
                adapter: report.name,
                limit: "the largest storage binding".to_owned(),
                found: device_limit,
                needed: LEAST_BINDING_BYTES,
            });
        }
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("nelumbo"),
            required_features: features,
            required_limits: limits,
            experimental_features: experimental(caps.coop.is_some()),
            // a model is a few large buffers that stay: large blocks would only leave more unused
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            trace: wgpu::Trace::Off,
        }))
        .map_err(|e| Error::Device {
            message: format!("{}: {e}", report.name),
        })?;
        let fault = Fault::watch(&device);
        let folder = options.folder().filter(|_| !is_host); // nothing is compiled there
        let folder = folder.as_ref();
        let info = adapter.get_info();
        let store = folder.and_then(|folder| Store::open(&device, &info, folder));
        let kept = folder.map(|folder| Kept::new(&info, folder));
        Ok(Arc::new(Gpu {
            pipelines: PipelineCache::new(&device, store),
            staged_bytes: AtomicU64::new(0),
            counters: CounterCells::default(),
            device,
            queue,
            fault,
            report,
            caps,
            max_binding_bytes,
            kept,
            options: options.clone(),
        }))
    }

    /// Another device on the same adapter, opened the same way, that keeps nothing of what it
    /// compiles: for work after which a device may be lost.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn scratch(&self) -> Result<Arc<Gpu>> {
        Gpu::open(&OpenOptions {
            pipelines: None,
            ..self.options.clone()
        })
    }

    /// How it was opened.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// The adapter behind this device.
    pub fn report(&self) -> &AdapterReport {
        &self.report
    }

    /// What kernels may use: the adapter's capabilities after `NELUMBO_CAPS`.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Whether kernels run on the CPU, which likes other shapes of the same work.
    pub fn is_software(&self) -> bool {
        self.report.device_type == DeviceType::Software
    }

    /// Whether there is no driver at all, and the host runs every dispatch.
    pub fn is_host(&self) -> bool {
        self.report.backend == Backend::Cpu
    }

    /// Who runs dispatches in the device's place; `None` where the device does.
    pub(crate) fn host_interpreter(&self) -> Option<Box<dyn Interpreter>> {
        let make = self.options.host.filter(|_| self.is_host())?;
        Some(make())
    }

    /// The largest window a kernel may bind, in bytes; a multiple of 256.
    pub fn max_binding_bytes(&self) -> u64 {
        self.max_binding_bytes
    }

    /// Whether shaders carry bounds checks.
    pub fn checked(&self) -> bool {
        self.options.checked
    }

    /// Whether several threads may use the device at once and gain by it. GL has one context, which
    /// every call locks, and a compilation holds it for long.
    pub fn is_parallel(&self) -> bool {
        cfg!(not(target_family = "wasm")) && self.report.backend != Backend::Gl
    }

    /// Bytes of device memory that live buffers take, as the allocator counts them; `None` where the
    /// backend does not tell. The blocks that it takes them from may be larger:
    /// [`Gpu::reserved_bytes`].
    pub fn allocated_bytes(&self) -> Option<u64> {
        let report = self.device.generate_allocator_report()?;
        Some(report.total_allocated_bytes)
    }

    /// Bytes of all blocks of device memory, the unused rest of each included.
    pub fn reserved_bytes(&self) -> Option<u64> {
        let report = self.device.generate_allocator_report()?;
        Some(report.total_reserved_bytes)
    }

    /// A snapshot of the counters.
    pub fn counters(&self) -> Counters {
        self.counters.read()
    }

    /// A zeroed tensor with a buffer of its own.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming `label`; [`Error::DoesNotFit`] when it is over the binding limit.
    pub fn tensor(&self, label: &str, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let bytes = Tensor::bytes_for(dtype, dims);
        if bytes > self.max_binding_bytes {
            return Err(Error::DoesNotFit {
                what: label.to_owned(),
                needed_bytes: bytes,
                available_bytes: self.max_binding_bytes,
                advice: "it is over the largest storage binding of this adapter; a smaller --batch-size or --ctx-size helps".to_owned(),
            });
        }
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_DST
            | wgpu::BufferUsages::COPY_SRC;
        Ok(Tensor::whole(
            self.buffer(label, bytes, usage)?,
            dtype,
            dims,
        ))
    }

    /// A buffer of `bytes`, rounded up to 4, under error scopes.
    pub(crate) fn buffer(
        &self,
        label: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<Arc<Buffer>> {
        let size = bytes.next_multiple_of(4).max(4);
        let refused = || Error::OutOfMemory {
            what: label.to_owned(),
            bytes: size,
        };
        if size > self.device.limits().max_buffer_size {
            return Err(refused());
        }
        let memory = match self.is_host() {
            // what only parameters are bound by is never looked at
            true if !usage.contains(wgpu::BufferUsages::UNIFORM) => {
                self.check()?;
                Memory::Host(HostBuffer::new(size).ok_or_else(refused)?)
            }
            _ => Memory::Device(self.device_buffer(label, size, usage)?),
        };
        self.counters.buffers.fetch_add(1, Ordering::Relaxed);
        self.counters
            .buffer_bytes
            .fetch_add(size, Ordering::Relaxed);
        Ok(Buffer::new(memory))
    }

    fn device_buffer(
        &self,
        label: &str,
        size: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer> {
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let raw = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        });
        let invalid = pollster::block_on(validation.pop());
        let exhausted = pollster::block_on(memory.pop());
        self.check()?;
        if exhausted.is_some() {
            return Err(Error::OutOfMemory {
                what: label.to_owned(),
                bytes: size,
            });
        }
        if let Some(error) = invalid {
            return Err(Error::Device {
                message: format!("{label}: {error}"),
            });
        }
        Ok(raw)
    }

    /// The compiled pipeline of `variant`, made at its first use.
    ///
    /// # Errors
    /// [`Error::Shader`] naming kernel and parts.
    pub fn pipeline(&self, variant: &Variant) -> Result<Arc<Pipeline>> {
        self.pipelines.get(self, variant)
    }

    /// Reports the first fault the device has told of, if any. Every wait ends with it.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::OutOfMemory`] or [`Error::Device`]; the same one each time.
    pub fn check(&self) -> Result<()> {
        self.fault.check(|| {
            let _ = self.device.poll(wgpu::PollType::Poll); // what it tells goes to the fault as well
        })
    }

    /// Waits until everything submitted so far is done. The one place that blocks on the device.
    ///
    /// # Errors
    /// What [`Gpu::check`] tells, or [`Error::Device`] after the time limit.
    pub fn wait(&self) -> Result<()> {
        let timeout = Duration::from_secs(if self.is_software() { 300 } else { 30 });
        let polled = self.device.poll(wgpu::PollType::Wait {
            submission_index: None,
            timeout: Some(timeout),
        });
        self.check()?;
        match polled {
            Ok(_) => Ok(()),
            Err(wgpu::PollError::Timeout) => Err(Error::Device {
                message: format!("no answer within {} s", timeout.as_secs()),
            }),
            Err(other) => Err(Error::Device {
                message: other.to_string(),
            }),
        }
    }

    /// Destroys the device as a driver reset would; for tests of device loss.
    pub fn destroy(&self) {
        self.device.destroy();
    }

    /// Gives back whatever is on a device that is of no use any more, whoever still holds it.
    pub fn release(&self) {
        self.device.destroy();
        // memory goes back when the device is looked at; what it reports then is known
        for _ in 0..2 {
            let _ = self.device.poll(wgpu::PollType::Poll);
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.save_pipelines(); // what was compiled after the warm-up, if anything
    }
}

/// Leave to use features that the graphics library calls experimental, where they are asked for.
fn experimental(asked: bool) -> wgpu::ExperimentalFeatures {
    if !asked {
        return wgpu::ExperimentalFeatures::disabled();
    }
    #[expect(
        unsafe_code,
        reason = "the fast mode was asked for, and cooperative matrices are experimental"
    )]
    // SAFETY: the one such feature that is requested is cooperative matrices. Our kernels use them in
    // uniform control flow, on workgroup memory of which every matrix lies inside.
    unsafe {
        wgpu::ExperimentalFeatures::enabled()
    }
}
