//! Compiled variants, made once each and kept as long as the device.

use crate::error::{Error, Result};
use crate::gpu::device::Gpu;
use crate::gpu::kernel::{Target, Variant};
use crate::gpu::reflect::{self, Access, Binding, Reflection};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
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
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    pipelines: HashMap<Variant, Arc<Pipeline>>,
    time: Duration,
}

impl PipelineCache {
    pub fn new(device: &wgpu::Device) -> PipelineCache {
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
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let all = made.pipelines.iter().filter(|(_, p)| ids.contains(&p.id));
        all.map(|(variant, _)| *variant).collect()
    }

    fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, gpu: &Gpu, variant: &Variant) -> Result<Arc<Pipeline>> {
        let mut made = self.made();
        if let Some(pipeline) = made.pipelines.get(variant) {
            return Ok(pipeline.clone());
        }
        let start = Instant::now();
        let id = made.pipelines.len() as u64 + 1;
        let pipeline = Arc::new(self.build(gpu, variant, id)?);
        made.time += start.elapsed();
        made.pipelines.insert(*variant, pipeline.clone());
        gpu.counters.pipelines.fetch_add(1, Ordering::Relaxed);
        Ok(pipeline)
    }

    fn build(&self, gpu: &Gpu, variant: &Variant, id: u64) -> Result<Pipeline> {
        let source = variant.compose(Target::Native);
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
        let raw = gpu
            .device
            .create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(variant.kernel.name),
                layout: Some(&layout),
                module: &module(gpu, variant, source),
                entry_point: Some(variant.kernel.name),
                compilation_options: wgpu::PipelineCompilationOptions {
                    constants: &constants,
                    // Kernels write what they read. Zeroing would be done by one invocation, and
                    // costs a GL driver most of a minute to compile for a long array.
                    zero_initialize_workgroup_memory: false,
                },
                cache: None,
            });
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(shader_error(variant, None, error.to_string()));
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
    /// Time spent on compilation so far.
    pub fn compile_time(&self) -> Duration {
        self.pipelines.made().time
    }

    /// Does `work` on the account of compilation: drivers compile at the first dispatch.
    pub fn count_as_compilation<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = self.compile_time();
        let start = Instant::now();
        let result = work();
        self.pipelines.made().time = before + start.elapsed();
        result
    }
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
