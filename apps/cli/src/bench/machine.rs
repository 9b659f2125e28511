//! What a result was measured on: the program, the system, the adapter.

use nelumbo::gpu::AdapterReport;
use nelumbo::kernels::peaks::Peaks;
use nelumbo::model::Tuned;
use serde::Serialize;

/// The program and the machine, as every row tells them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    pub build_commit: String,
    pub build_version: String,
    pub build_profile: String,
    pub wgpu_version: String,
    pub os: String,
    pub cpu_info: String,
    pub adapter_name: String,
    pub adapter_vendor: String,
    pub adapter_type: String,
    pub backend: String,
    pub driver: String,
    pub driver_info: String,
}

impl Machine {
    /// This program on this machine, with that adapter.
    pub fn of(report: &AdapterReport) -> Machine {
        Machine {
            build_commit: env!("NELUMBO_COMMIT").to_owned(),
            build_version: env!("CARGO_PKG_VERSION").to_owned(),
            build_profile: env!("NELUMBO_BUILD_PROFILE").to_owned(),
            wgpu_version: env!("NELUMBO_WGPU_VERSION").to_owned(),
            os: os(),
            cpu_info: cpu_info(),
            adapter_name: report.name.clone(),
            adapter_vendor: report.vendor_text(),
            adapter_type: report.device_type.name().to_owned(),
            backend: report.backend.name().to_owned(),
            driver: report.driver.clone(),
            driver_info: report.driver_info.clone(),
        }
    }

    /// Adapter, system and program, in three lines.
    pub fn about(&self) -> String {
        format!(
            "{} | {} | {} | {}\n{} | {}\nnelumbo {} ({}, {}) | wgpu {}",
            self.adapter_name,
            self.adapter_type,
            self.backend,
            format!("{} {}", self.driver, self.driver_info).trim(),
            self.os,
            self.cpu_info,
            self.build_version,
            self.build_commit,
            self.build_profile,
            self.wgpu_version,
        )
    }

    /// What the adapter did at best, in a line.
    pub fn peaks(peaks: &Peaks) -> String {
        format!(
            "peaks in this run: {:.2} GB/s read, {:.1} GFLOP/s f32, {:.1} GOP/s dot4, {:.1} us a dispatch",
            peaks.stream_bytes_s / 1e9,
            peaks.fma_flops / 1e9,
            peaks.dot4_ops / 1e9,
            peaks.dispatch_s * 1e6,
        )
    }

    /// The lines below a table.
    pub fn footer(&self, peaks: &Peaks, tuned: &Tuned, repetitions: u32) -> String {
        format!(
            "{}\n{}\nactivations {}, {} lanes; tuning {} ({})\n\
             each test: one run to warm up, then {repetitions}; forward pass and greedy draw on the device, \
             without tokenising and sampling",
            self.about(),
            Machine::peaks(peaks),
            tuned.tuning.activations.name(),
            tuned.tuning.lanes,
            tuned.source.name(),
            tuned.tuning.describe(),
        )
    }
}

/// System, its version where it is told, and architecture.
fn os() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let words = [std::env::consts::OS, release.trim(), std::env::consts::ARCH];
    words
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The name that the processor gives itself, where the system tells it, and the cores that this
/// program may use.
fn cpu_info() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {cores} cores")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use nelumbo::kernels::{Activations, Tuning};
    use nelumbo::model::tune::Source;

    /// A machine for this and other test modules.
    pub fn sample() -> Machine {
        let word = str::to_owned;
        Machine {
            build_commit: word("0123456789ab"),
            build_version: word("0.1.0"),
            build_profile: word("release"),
            wgpu_version: word("30.0.2"),
            os: word("linux x86_64"),
            cpu_info: word("A \"fast\" one, 2 cores"),
            adapter_name: word("Card"),
            adapter_vendor: word("0x10de"),
            adapter_type: word("discrete"),
            backend: word("vulkan"),
            driver: word("drv"),
            driver_info: word("1.2, three"),
        }
    }

    #[test]
    fn the_build_is_known() {
        for text in [env!("NELUMBO_COMMIT"), env!("NELUMBO_WGPU_VERSION")] {
            assert!(text == "unknown" || text.starts_with(|c: char| c.is_ascii_hexdigit()));
        }
        assert!(os().starts_with(std::env::consts::OS) && cpu_info().ends_with(" cores"));
    }

    #[test]
    fn the_footer_names_what_a_figure_depends_on() {
        let peaks = Peaks {
            stream_bytes_s: 12e9,
            fma_flops: 70e9,
            dot4_ops: 200e9,
            dispatch_s: 15e-6,
        };
        let tuned = Tuned {
            tuning: Tuning {
                activations: Activations::Q8,
                lanes: 4,
                workgroup: 64,
                tile_tokens: 8,
                subgroups: true,
                wide: false,
            },
            source: Source::Measured,
            ms: 1.0,
        };
        let footer = sample().footer(&peaks, &tuned, 3);
        for part in [
            "Card",
            "drv 1.2",
            "vulkan",
            "linux",
            "wgpu 30.0.2",
            "0123456789ab",
            "release",
            "12.00 GB/s",
            "warm up, then 3",
            "activations q8, 4 lanes; tuning measured (act=q8 lanes=4 wg=64",
        ] {
            assert!(footer.contains(part), "{part}: {footer}");
        }
    }
}
