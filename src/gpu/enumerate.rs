//! Finding adapters: asks each backend, describes what it offers, says what no kernel can use.

use super::adapter::{AdapterReport, Backend, DeviceType, Selection};
use super::caps::{Caps, Coop};
use super::cpu;
use crate::error::Result;

/// An adapter and what is known of it.
pub(crate) struct Candidate {
    pub adapter: wgpu::Adapter,
    pub report: AdapterReport,
}

/// All adapters of this machine, in the order of their indices.
pub fn list() -> Vec<AdapterReport> {
    candidates(&Backend::NATIVE)
        .into_iter()
        .map(|c| c.report)
        .collect()
}

/// What `selection` is made from: the processor alone where it is asked for, else all adapters.
pub fn list_for(selection: &Selection) -> Vec<AdapterReport> {
    match selection.backend {
        Some(Backend::Cpu) => vec![cpu::report()],
        _ => list(),
    }
}

/// The adapters that `selection` may choose from. GL comes last in the order, so that leaving it
/// out changes no index: looking for it loads a second driver stack, which is worth it only where
/// it is asked for or could be the one way to the hardware.
///
/// # Errors
/// Those of opening the processor.
pub(crate) fn candidates_for(selection: &Selection) -> Result<Vec<Candidate>> {
    if selection.backend == Some(Backend::Cpu) {
        return Ok(vec![cpu::candidate()?]);
    }
    Ok(adapters_for(selection))
}

fn adapters_for(selection: &Selection) -> Vec<Candidate> {
    let (gl, others): (Vec<Backend>, Vec<Backend>) =
        Backend::NATIVE.iter().partition(|b| **b == Backend::Gl);
    if selection.device.is_some() || selection.backend == Some(Backend::Gl) {
        return candidates(&Backend::NATIVE);
    }
    let found = candidates(&others);
    let hardware = found
        .iter()
        .any(|c| c.report.device_type != DeviceType::Software);
    if hardware || (!found.is_empty() && !may_have_graphics_hardware()) {
        return found;
    }
    let first = found.len();
    found
        .into_iter()
        .chain(candidates_from(&gl, first))
        .collect()
}

/// Whether the system shows any graphics device; where it cannot be told, there may be one.
fn may_have_graphics_hardware() -> bool {
    let devices = ["/dev/dri", "/dev/nvidiactl", "/dev/dxg", "/dev/kgsl-3d0"];
    !cfg!(target_os = "linux")
        || devices
            .iter()
            .any(|path| std::path::Path::new(path).exists())
}

fn candidates(backends: &[Backend]) -> Vec<Candidate> {
    candidates_from(backends, 0)
}

/// Adapters of `backends`, numbered from `first` on.
fn candidates_from(backends: &[Backend], first: usize) -> Vec<Candidate> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: backends
            .iter()
            .fold(wgpu::Backends::empty(), |all, b| all | b.wgpu()),
        flags: wgpu::InstanceFlags::empty().with_env(), // validation layers only where asked for
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let mut found = Vec::new();
    for &backend in backends {
        for adapter in pollster::block_on(instance.enumerate_adapters(backend.wgpu())) {
            if Backend::of(&adapter.get_info()) == Some(backend) {
                let report = describe(&adapter, first + found.len(), backend);
                found.push(Candidate { adapter, report });
            }
        }
    }
    found
}

/// The features a device is asked for where the adapter has them.
pub(crate) fn wanted_features() -> wgpu::Features {
    wgpu::Features::SUBGROUP
        | wgpu::Features::SHADER_F16
        | wgpu::Features::SHADER_INT64
        | wgpu::Features::TIMESTAMP_QUERY
        | wgpu::Features::PIPELINE_CACHE
}

/// What cooperative matrices need of a device.
pub(crate) fn coop_features() -> wgpu::Features {
    wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
        | wgpu::Features::SHADER_F16
        | wgpu::Features::SUBGROUP
}

/// The configuration of cooperative matrices that kernels use there, if it is offered: the larger of
/// two sizes, square, f16 times f16 with f32 sums, in subgroups of which four make a workgroup.
fn coop(adapter: &wgpu::Adapter, info: &wgpu::AdapterInfo) -> Option<Coop> {
    let subgroup = info.subgroup_max_size;
    if !adapter.features().contains(coop_features())
        || !subgroup.is_power_of_two()
        || !(8..=64).contains(&subgroup)
    {
        return None;
    }
    let offered = adapter.cooperative_matrix_properties();
    let fits = |size: &u32| {
        offered.iter().any(|p| {
            [p.m_size, p.n_size, p.k_size] == [*size; 3]
                && p.ab_type == wgpu::CooperativeScalarType::F16
                && p.cr_type == wgpu::CooperativeScalarType::F32
        })
    };
    let size = [16, 8].into_iter().find(fits)?;
    Some(Coop { size, subgroup })
}

fn describe(adapter: &wgpu::Adapter, index: usize, backend: Backend) -> AdapterReport {
    let info = adapter.get_info();
    let features = adapter.features();
    let limits = adapter.limits();
    let has_subgroup = features.contains(wgpu::Features::SUBGROUP);
    AdapterReport {
        index,
        device_type: DeviceType::of(&info),
        caps: Caps {
            subgroup: has_subgroup.then_some(info.subgroup_min_size),
            f16: features.contains(wgpu::Features::SHADER_F16),
            dot4: backend != Backend::Gl,
            coop: coop(adapter, &info),
            int64: features.contains(wgpu::Features::SHADER_INT64),
        },
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        max_buffer_bytes: limits.max_buffer_size,
        max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
        rejected: rejection(adapter, &limits),
        name: info.name,
        backend,
        vendor: info.vendor,
        driver: info.driver,
        driver_info: info.driver_info,
    }
}

/// Why no kernel can run there, or nothing: the limits every kernel is written for.
fn rejection(adapter: &wgpu::Adapter, limits: &wgpu::Limits) -> Option<String> {
    let downlevel = adapter.get_downlevel_capabilities();
    if !downlevel
        .flags
        .contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
    {
        return Some("no compute shaders".to_owned());
    }
    let needed = [
        (
            "storage buffers per stage",
            u64::from(limits.max_storage_buffers_per_shader_stage),
            8,
        ),
        (
            "invocations per workgroup",
            u64::from(limits.max_compute_invocations_per_workgroup),
            256,
        ),
        (
            "workgroup memory",
            u64::from(limits.max_compute_workgroup_storage_size),
            16384,
        ),
        (
            "workgroups per dimension",
            u64::from(limits.max_compute_workgroups_per_dimension),
            65535,
        ),
        (
            "storage binding bytes",
            limits.max_storage_buffer_binding_size,
            1 << 24,
        ),
    ];
    let short = needed.iter().find(|(_, found, needed)| found < needed)?;
    Some(format!("{} is {}, needed {}", short.0, short.1, short.2))
}
