//! What there is to know of an adapter, and which one is used.

mod choice;

use crate::gpu::Caps;
use std::fmt;

pub use super::enumerate::{list, list_for};
pub use choice::{Selection, choose};

/// A graphics API, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// Vulkan: Linux, Windows, Android.
    Vulkan,
    /// Metal: Apple systems.
    Metal,
    /// Direct3D 12: Windows.
    Dx12,
    /// OpenGL ES 3.1 and its relatives: the last resort.
    Gl,
    /// WebGPU of a browser.
    WebGpu,
    /// No graphics API: the host computes. Taken only where it is asked for.
    Cpu,
}

impl Backend {
    /// Every graphics API that a native build looks for adapters through, in order of preference.
    pub const NATIVE: [Backend; 4] = [Backend::Vulkan, Backend::Metal, Backend::Dx12, Backend::Gl];

    /// Everything that can be asked for by name.
    pub const NAMED: [Backend; 5] = [
        Backend::Vulkan,
        Backend::Metal,
        Backend::Dx12,
        Backend::Gl,
        Backend::Cpu,
    ];

    /// The word used by `--backend` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Vulkan => "vulkan",
            Backend::Metal => "metal",
            Backend::Dx12 => "dx12",
            Backend::Gl => "gl",
            Backend::WebGpu => "webgpu",
            Backend::Cpu => "cpu",
        }
    }

    /// The inverse of [`Backend::name`].
    pub fn from_name(name: &str) -> Option<Backend> {
        Backend::NAMED.into_iter().find(|b| b.name() == name)
    }

    pub(super) fn wgpu(self) -> wgpu::Backends {
        match self {
            Backend::Vulkan => wgpu::Backends::VULKAN,
            Backend::Metal => wgpu::Backends::METAL,
            Backend::Dx12 => wgpu::Backends::DX12,
            Backend::Gl => wgpu::Backends::GL,
            Backend::WebGpu => wgpu::Backends::BROWSER_WEBGPU,
            Backend::Cpu => wgpu::Backends::NOOP,
        }
    }

    pub(super) fn of(info: &wgpu::AdapterInfo) -> Option<Backend> {
        match info.backend {
            wgpu::Backend::Vulkan => Some(Backend::Vulkan),
            wgpu::Backend::Metal => Some(Backend::Metal),
            wgpu::Backend::Dx12 => Some(Backend::Dx12),
            wgpu::Backend::Gl => Some(Backend::Gl),
            wgpu::Backend::BrowserWebGpu => Some(Backend::WebGpu),
            wgpu::Backend::Noop => Some(Backend::Cpu),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What kind of device an adapter is, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceType {
    /// With memory of its own.
    Discrete,
    /// Shares the host's memory.
    Integrated,
    /// Passed through to a virtual machine, or of an unknown kind (GL does not tell).
    Virtual,
    /// Runs on the CPU.
    Software,
}

impl DeviceType {
    /// The word used in reports.
    pub fn name(self) -> &'static str {
        match self {
            DeviceType::Discrete => "discrete",
            DeviceType::Integrated => "integrated",
            DeviceType::Virtual => "virtual",
            DeviceType::Software => "software",
        }
    }

    pub(super) fn of(info: &wgpu::AdapterInfo) -> DeviceType {
        // GL reports some software rasterisers as "other": their names are what tells.
        let name = info.name.to_ascii_lowercase();
        if [
            "llvmpipe",
            "lavapipe",
            "swiftshader",
            "softpipe",
            "basic render",
        ]
        .iter()
        .any(|s| name.contains(s))
        {
            return DeviceType::Software;
        }
        match info.device_type {
            wgpu::DeviceType::DiscreteGpu => DeviceType::Discrete,
            wgpu::DeviceType::IntegratedGpu => DeviceType::Integrated,
            wgpu::DeviceType::Cpu => DeviceType::Software,
            wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => DeviceType::Virtual,
        }
    }
}

/// One adapter as `nelumbo devices` shows it.
#[derive(Clone, Debug)]
pub struct AdapterReport {
    /// Position in the list of all adapters; the argument of `--device`.
    pub index: usize,
    /// As the driver names it.
    pub name: String,
    /// The API through which it was found.
    pub backend: Backend,
    /// Discrete, integrated, virtual or software.
    pub device_type: DeviceType,
    /// PCI vendor id, 0 where unknown.
    pub vendor: u32,
    /// Driver name, possibly empty.
    pub driver: String,
    /// Driver version text, possibly empty.
    pub driver_info: String,
    /// Everything it can do, before `NELUMBO_CAPS`.
    pub caps: Caps,
    /// Largest storage binding in bytes.
    pub max_binding_bytes: u64,
    /// Largest buffer in bytes.
    pub max_buffer_bytes: u64,
    /// Workgroup memory in bytes.
    pub max_workgroup_bytes: u32,
    /// Why it cannot be used at all, if it cannot.
    pub rejected: Option<String>,
}

impl AdapterReport {
    /// Name and version of the driver, as reports have them; either may be unknown.
    pub fn driver_text(&self) -> String {
        format!("{} {}", self.driver, self.driver_info)
            .trim()
            .to_owned()
    }

    /// The PCI vendor, as reports have it.
    pub fn vendor_text(&self) -> String {
        format!("{:#06x}", self.vendor)
    }
}
