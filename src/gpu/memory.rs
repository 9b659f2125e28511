//! How much memory a device has, as far as anybody tells.

use super::{Backend, DeviceType, Gpu};

impl Gpu {
    /// Bytes that buffers could take here: on a CPU what the host has left, on Vulkan the largest heap
    /// of the device's own, whoever uses it. `None` where nobody tells: then only trying helps.
    pub fn memory_bytes(&self) -> Option<u64> {
        match self.report().device_type {
            DeviceType::Software => free_host_memory(),
            DeviceType::Integrated => {
                let (heap, host) = (self.heap_bytes()?, free_host_memory());
                Some(host.map_or(heap, |host| heap.min(host)))
            }
            DeviceType::Discrete | DeviceType::Virtual => self.heap_bytes(),
        }
    }

    /// Bytes of the largest heap that Vulkan calls local to the device; `None` on other interfaces.
    #[cfg(any(target_os = "linux", target_os = "android", windows))]
    pub fn heap_bytes(&self) -> Option<u64> {
        /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
        const DEVICE_LOCAL: u32 = 1;
        if self.report().backend != Backend::Vulkan {
            return None;
        }
        #[expect(
            unsafe_code,
            reason = "the graphics library tells no sizes of heaps; only the interface below it does"
        )]
        // SAFETY: the handles live as long as the device, which `self` keeps, and nothing is done with
        // them but asking the physical device for its heaps, which changes nothing.
        let memory = unsafe {
            let device = self.device.as_hal::<wgpu::hal::api::Vulkan>()?;
            let instance = device.shared_instance().raw_instance();
            instance.get_physical_device_memory_properties(device.raw_physical_device())
        };
        let heaps = memory.memory_heaps_as_slice().iter();
        heaps
            .filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0)
            .map(|heap| heap.size)
            .max()
    }

    /// Bytes of the largest heap that Vulkan calls local to the device: there is no Vulkan here.
    #[cfg(not(any(target_os = "linux", target_os = "android", windows)))]
    pub fn heap_bytes(&self) -> Option<u64> {
        None
    }
}

/// Bytes that programs can still have on this machine, where the system tells.
pub fn free_host_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
