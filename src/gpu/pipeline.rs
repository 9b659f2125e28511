//! Compiled variants, made once each and kept as long as the device.

use crate::error::{Error, Result};
use crate::gpu::cache_file::Store;
use crate::gpu::device::Gpu;
use crate::gpu::kernel::{Target, Variant};
use crate::gpu::reflect::{self, Access, Binding, Reflection};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Every parameter block is bound as a window of this size at a dynamic offset.
pub(crate) const PARAMS_BYTES: u64 = 256;

/// The most tensors a kernel may bind: WebGPU's default limit.
pub const MAX_BINDINGS: usize = 8;

/// A variant, ready to be dispatched.
pub struct Pipeline {
    pub(crate) id: u64,
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) tensors_layout: wgpu::BindGroupLayout,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) params_bytes: u32,
}

/// All pipelines of a device, and the layout they share for parameters.
pub(crate) struct PipelineCache {
    params_layout: wgpu::BindGroupLayout,
    store: Option<Store>,
    /// Pipelines there were when the store was written.
    saved: AtomicU64,
    next_id: AtomicU64,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    pipelines: HashMap<Variant, Arc<Pipeline>>,
    time: Duration,
}

impl PipelineCache {
    /// An empty one; what the driver remembers from earlier runs is in `store`.
    pub fn new(device: &wgpu::Device, store: Option<Store>) -> PipelineCache {
        let params_layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("params"),
            entries: &[wgpu::BindGroupLayoutEntry {
                binding: 0,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Uniform,
                    has_dynamic_offset: true,
                    min_binding_size: None,
                },
                count: None,
            }],
        });
        PipelineCache {
            params_layout,
            store,
            saved: AtomicU64::new(0),
            next_id: AtomicU64::new(1),
            made: Mutex::default(),
        }
    }

    /// The group of a params ring, shared by every kernel.
    pub fn params_group(&self, device: &wgpu::Device, ring: &wgpu::Buffer) -> wgpu::BindGroup {
        device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("params"),
            layout: &self.params_layout,
            entries: &[wgpu::BindGroupEntry {
                binding: 0,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: ring,
                    offset: 0,
                    size: wgpu::BufferSize::new(PARAMS_BYTES),
                }),
            }],
        })
    }

    /// The variants behind these pipelines.
    pub fn variants(&self, ids: &HashSet<u64>) -> Vec<Variant> {
        let made = self.made();
        let all = made.pipelines.iter().filter(|(_, p)| ids.contains(&p.id));
        all.map(|(variant, _)| *variant).collect()
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, gpu: &Gpu, variant: &Variant) -> Result<Arc<Pipeline>> {
        if let Some(pipeline) = self.made().pipelines.get(variant) {
            return Ok(pipeline.clone());
        }
        let start = Instant::now();
        let pipeline = self.make(gpu, variant)?;
        self.made().time += start.elapsed();
        Ok(pipeline)
    }

    /// Compiles without holding the lock. Where another thread was faster, its pipeline is kept.
    fn make(&self, gpu: &Gpu, variant: &Variant) -> Result<Arc<Pipeline>> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let built = Arc::new(self.build(gpu, variant, id)?);
        let mut made = self.made();
        if let Some(earlier) = made.pipelines.get(variant) {
            return Ok(earlier.clone());
        }
        made.pipelines.insert(*variant, built.clone());
        gpu.counters.pipelines.fetch_add(1, Ordering::Relaxed);
        Ok(built)
    }

    /// Those of `variants` that are not made yet, each once.
    fn missing(&self, variants: &[Variant]) -> Vec<Variant> {
        let made = self.made();
        let mut seen = HashSet::new();
        let news = |v: &&Variant| !made.pipelines.contains_key(*v) && seen.insert(**v);
        variants.iter().filter(news).copied().collect()
    }

    fn build(&self, gpu: &Gpu, variant: &Variant, id: u64) -> Result<Pipeline> {
        let source = variant.compose_of(Target::Native, |part| gpu.options().source(part));
        if let Some(folder) = std::env::var_os("NELUMBO_DUMP_WGSL") {
            dump(std::path::Path::new(&folder), variant, &source);
        }
        let Reflection {
            bindings,
            params_bytes,
            ..
        } = reflect::reflect(&source, variant.kernel.name)
            .map_err(|e| shader_error(variant, e.line, e.message))?;
        assert!(
            bindings.len() <= MAX_BINDINGS,
            "{variant}: {} bindings",
            bindings.len()
        );
        assert!(
            u64::from(params_bytes) <= PARAMS_BYTES,
            "{variant}: {params_bytes} bytes of params"
        );

        let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let tensors_layout = tensors_layout(&gpu.device, &bindings);
        let layout = gpu
            .device
            .create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(variant.kernel.name),
                bind_group_layouts: &[Some(&tensors_layout), Some(&self.params_layout)],
                immediate_size: 0,
            });
        let constants: Vec<(&str, f64)> = variant
            .overrides()
            .map(|(name, value)| (name, f64::from(value)))
            .collect();
        let module = module(gpu, variant, source);
        let raw = gpu
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(variant.kernel.name),
                layout: Some(&layout),
                module: &module,
                entry_point: Some(variant.kernel.name),
                compilation_options: wgpu::PipelineCompilationOptions {
                    constants: &constants,
                    // Kernels write what they read. Zeroing would be done by one invocation, and
                    // costs a GL driver most of a minute to compile for a long array.
                    zero_initialize_workgroup_memory: false,
                },
                cache: self.store.as_ref().map(|store| &store.raw),
            });
        if let Some(error) = pollster::block_on(scope.pop()) {
            let line = complaint_line(&module);
            return Err(shader_error(variant, line, error.to_string()));
        }
        gpu.check()?;
        Ok(Pipeline {
            id,
            raw,
            tensors_layout,
            bindings,
            params_bytes,
        })
    }
}

impl Gpu {
    /// Makes the pipelines of `variants` that are not there yet, as many at a time as there are
    /// cores, where the backend allows it.
    ///
    /// # Errors
    /// [`Error::Shader`] naming kernel and parts.
    pub fn prepare(&self, variants: &[Variant]) -> Result<()> {
        if self.is_host() {
            return Ok(()); // there is nobody to compile for
        }
        let start = Instant::now();
        let missing = self.pipelines.missing(variants);
        let threads = if self.is_parallel() { cores() } else { 1 };
        let done = for_all(threads, &missing, |variant| {
            self.pipelines.make(self, variant).map(|_| ())
        });
        self.pipelines.made().time += start.elapsed();
        done
    }

    /// Keeps what the driver compiled for the next run, where a folder was given for it. What
    /// prevents it is logged, and loses nothing but time.
    pub fn save_pipelines(&self) {
        let Some(store) = &self.pipelines.store else {
            return;
        };
        let made = self.counters.pipelines.load(Ordering::Relaxed);
        if self.pipelines.saved.swap(made, Ordering::Relaxed) != made && self.check().is_ok() {
            store.save();
        }
    }

    /// Bytes of compiled pipelines that an earlier run left for this adapter; `None` where none are
    /// kept, since no folder was given or the backend cannot.
    pub fn recalled_bytes(&self) -> Option<usize> {
        self.pipelines.store.as_ref().map(|store| store.recalled)
    }

    /// Time spent on compilation so far.
    pub fn compile_time(&self) -> Duration {
        self.pipelines.made().time
    }

    /// Does `work` on the account of compilation: drivers compile at the first dispatch, where there is
    /// one.
    pub fn count_as_compilation<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.is_host() {
            return work();
        }
        let before = self.compile_time();
        let start = Instant::now();
        let result = work();
        self.pipelines.made().time = before + start.elapsed();
        result
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `make` for every variant, on up to `threads` threads, this one among them. After the first
/// failure no other is begun.
fn for_all(
    threads: usize,
    variants: &[Variant],
    make: impl Fn(&Variant) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let work = || {
        while let Some(variant) = variants.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = make(variant) {
                next.store(variants.len(), Ordering::Relaxed);
                let mut slot = failed.lock().unwrap_or_else(PoisonError::into_inner);
                slot.get_or_insert(error);
            }
        }
    };
    #[cfg(not(target_family = "wasm"))]
    std::thread::scope(|scope| {
        for _ in 1..threads.min(variants.len()) {
            let builder = std::thread::Builder::new().name("nelumbo-compile".to_owned());
            // without a thread there is less haste: the work is done by those that are there
            if builder.spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    #[cfg(target_family = "wasm")]
    {
        let _ = threads;
        work();
    }
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), Err)
}

fn tensors_layout(device: &wgpu::Device, bindings: &[Binding]) -> wgpu::BindGroupLayout {
    let entries: Vec<wgpu::BindGroupLayoutEntry> = bindings
        .iter()
        .map(|b| wgpu::BindGroupLayoutEntry {
            binding: b.index,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage {
                    read_only: b.access == Access::Read,
                },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: None,
        entries: &entries,
    })
}

fn module(gpu: &Gpu, variant: &Variant, source: String) -> wgpu::ShaderModule {
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(variant.kernel.name),
        source: wgpu::ShaderSource::Wgsl(source.into()),
    };
    if gpu.checked() {
        return gpu.device.create_shader_module(descriptor);
    }
    #[expect(
        unsafe_code,
        reason = "unchecked shaders are an option the caller asked for"
    )]
    // SAFETY: the source is ours and embedded; the same variant passes the kernel tests with checks
    // on, so no index leaves its binding and every loop ends.
    unsafe {
        gpu.device
            .create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
    }
}

/// The line of the composed text that the validator complains of, where it is about one.
fn complaint_line(module: &wgpu::ShaderModule) -> Option<usize> {
    let info = pollster::block_on(module.get_compilation_info());
    let place = info.messages.iter().find_map(|message| message.location);
    place.map(|place| place.line_number as usize)
}

fn shader_error(variant: &Variant, line: Option<usize>, message: String) -> Error {
    let place = line.map(|line| variant.locate(Target::Native, line));
    let message = match place {
        Some((part, line)) => format!("shaders/{part}:{line}: {message}"),
        None => message,
    };
    Error::Shader {
        shader: variant.to_string(),
        message,
    }
}

/// Writes the composed text where `NELUMBO_DUMP_WGSL` says; a failure only loses the dump.
fn dump(folder: &std::path::Path, variant: &Variant, source: &str) {
    let name: String = variant
        .to_string()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    if let Err(error) = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(folder.join(name + ".wgsl"), source))
    {
        log::warn!("{}: {error}", folder.display());
    }
}
