//! The processor as a device: buffers in the host's memory, dispatches run by kernels' twins. It needs
//! no driver, and is used where it is asked for by name.
//!
//! The graphics library's no-op backend stands behind it: what fails, waits and gets lost does so as on
//! any other device. It computes nothing, and holds nothing but what is bound to nobody.

use super::adapter::{AdapterReport, Backend, DeviceType};
use super::caps::Caps;
use super::enumerate::Candidate;
use crate::error::{Error, Result};

/// Bytes of a buffer at most; what there is decides before.
const MAX_BUFFER_BYTES: u64 = 1 << 40;
/// Bytes that a kernel binds at most; devices use less, as everywhere.
const MAX_BINDING_BYTES: u64 = 1 << 31;

/// The processor, as lists of adapters show it. It has no index: its name is what it is chosen by.
pub(super) fn report() -> AdapterReport {
    AdapterReport {
        index: 0,
        name: processor_name(),
        backend: Backend::Cpu,
        device_type: DeviceType::Software,
        vendor: 0,
        driver: "nelumbo".to_owned(),
        driver_info: env!("CARGO_PKG_VERSION").to_owned(),
        caps: Caps::NONE,
        max_binding_bytes: MAX_BINDING_BYTES,
        max_buffer_bytes: MAX_BUFFER_BYTES,
        max_workgroup_bytes: 1 << 16,
        rejected: None,
    }
}

/// What a device on the processor is opened from.
///
/// # Errors
/// [`Error::Device`] where the graphics library has no such backend: a bug.
pub(super) fn candidate() -> Result<Candidate> {
    let limits = wgpu::Limits {
        max_storage_buffer_binding_size: MAX_BINDING_BYTES,
        max_buffer_size: MAX_BUFFER_BYTES,
        ..wgpu::Limits::unlimited()
    };
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::NOOP,
        backend_options: wgpu::BackendOptions {
            noop: wgpu::NoopBackendOptions {
                enable: true,
                limits: Some(limits),
                features: Some(wgpu::Features::empty()),
                ..wgpu::NoopBackendOptions::default()
            },
            ..wgpu::BackendOptions::default()
        },
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::NOOP));
    let adapter = found.into_iter().next().ok_or_else(|| Error::Device {
        message: "the graphics library was built without its no-op backend".to_owned(),
    })?;
    Ok(Candidate {
        adapter,
        report: report(),
    })
}

/// As the system names it, else what it is.
fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    named_in(&text).unwrap_or_else(|| format!("{} processor", std::env::consts::ARCH))
}

/// The first processor's name in the text of `/proc/cpuinfo`.
fn named_in(text: &str) -> Option<String> {
    let names = text.lines().filter_map(|line| line.split_once(':'));
    let mut names = names.filter(|(key, _)| key.trim() == "model name");
    let name = names.next()?.1.split_whitespace().collect::<Vec<_>>();
    (!name.is_empty()).then(|| name.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_has_a_name() {
        let text =
            "processor\t: 0\nmodel\t\t: 85\nmodel name\t: Some(R)  CPU @ 2.00GHz\nflags\t: a";
        assert_eq!(named_in(text).unwrap(), "Some(R) CPU @ 2.00GHz");
        assert_eq!(named_in("processor : 0\nFeatures : fp"), None);
        assert_eq!(named_in("model name :  "), None);
        assert!(!processor_name().is_empty());
    }
}
