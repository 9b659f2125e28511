//! Which adapter is used.
//!
//! Order of preference: discrete, integrated, virtual, software; among equals Vulkan, Metal, DX12,
//! GL. A pinned backend or device never falls back. A software adapter is chosen on its own only
//! where no hardware adapter exists.

use super::{AdapterReport, Backend, DeviceType};
use crate::error::{Error, Result};

/// What the user asked for. The default asks for nothing: the best adapter is taken.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only this backend; never another.
    pub backend: Option<Backend>,
    /// Only the adapter with this index in the list of all adapters; never another.
    pub device: Option<usize>,
    /// A software adapter may be taken although there is a hardware adapter.
    pub allow_software: bool,
}

/// The index of the adapter to use among `reports`, by `selection`.
///
/// # Errors
/// [`Error::NoAdapter`] with what was seen, why it does not fit, and what to do.
pub fn choose(reports: &[AdapterReport], selection: &Selection) -> Result<usize> {
    if let Some(index) = selection.device {
        let report = reports.get(index).ok_or_else(|| {
            no_adapter(
                reports,
                format!("--device {index} is not in the list"),
                "`nelumbo devices` lists the adapters",
            )
        })?;
        if selection.backend.is_some_and(|b| b != report.backend) {
            let why = format!("--device {index} is a {} adapter", report.backend);
            return Err(no_adapter(
                reports,
                why,
                "drop --backend or choose another --device",
            ));
        }
        return match &report.rejected {
            Some(why) => Err(no_adapter(
                reports,
                format!("--device {index}: {why}"),
                "choose another --device",
            )),
            None => Ok(index),
        };
    }
    let usable = |r: &&AdapterReport| {
        r.rejected.is_none() && selection.backend.is_none_or(|b| b == r.backend)
    };
    let best = reports
        .iter()
        .filter(usable)
        .min_by_key(|r| (r.device_type, r.backend, r.index));
    let Some(best) = best else {
        let asked = selection
            .backend
            .map_or(String::new(), |b| format!("--backend {b}: "));
        let advice = if selection.backend.is_some_and(|b| b != Backend::Vulkan) {
            "This system offers none through it: drop --backend, or name another one; \
             `--backend cpu` works without any driver, slower."
        } else {
            "Install a Vulkan driver for the GPU. Without a GPU, Mesa's software driver works: \
             `apt-get install mesa-vulkan-drivers libvulkan1` (Debian, Ubuntu); `--backend cpu` works \
             without any driver, slower. `nelumbo devices` lists what is seen."
        };
        return Err(no_adapter(reports, format!("{asked}none found"), advice));
    };
    let hardware = reports
        .iter()
        .find(|r| r.device_type != DeviceType::Software);
    match hardware {
        Some(gpu) if best.device_type == DeviceType::Software && !selection.allow_software => {
            let why = match &gpu.rejected {
                Some(why) => format!("{} cannot be used ({why}), only software is left", gpu.name),
                None => format!(
                    "only a software adapter matches, while {} ({}) is there",
                    gpu.name, gpu.backend
                ),
            };
            Err(no_adapter(
                reports,
                why,
                "Give --device, or --allow-software to run on the CPU all the same.",
            ))
        }
        _ => Ok(best.index),
    }
}

fn no_adapter(reports: &[AdapterReport], why: String, advice: &str) -> Error {
    let seen: Vec<String> = reports
        .iter()
        .map(|r| {
            format!(
                "[{}] {} ({}, {})",
                r.index,
                r.name,
                r.backend,
                r.device_type.name()
            )
        })
        .collect();
    let seen = if seen.is_empty() {
        "no adapter seen through Vulkan, Metal, DX12 or GL".to_owned()
    } else {
        format!("seen: {}", seen.join("; "))
    };
    Error::NoAdapter {
        tried: format!("{why}; {seen}"),
        advice: advice.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::list_for;
    use super::*;
    use crate::gpu::Caps;

    fn report(index: usize, backend: Backend, device_type: DeviceType) -> AdapterReport {
        AdapterReport {
            index,
            name: format!("adapter {index}"),
            backend,
            device_type,
            vendor: 0,
            driver: String::new(),
            driver_info: String::new(),
            caps: Caps::NONE,
            max_binding_bytes: 1 << 27,
            max_buffer_bytes: 1 << 30,
            max_workgroup_bytes: 16384,
            rejected: None,
        }
    }

    fn pick(reports: &[AdapterReport], selection: Selection) -> Result<usize> {
        choose(reports, &selection)
    }

    #[test]
    fn the_type_of_device_comes_before_the_api() {
        use Backend::*;
        use DeviceType::*;
        let reports = [
            report(0, Vulkan, Software),
            report(1, Vulkan, Integrated),
            report(2, Dx12, Discrete),
            report(3, Gl, Discrete),
        ];
        assert_eq!(pick(&reports, Selection::default()).unwrap(), 2);
        assert_eq!(pick(&reports[..2], Selection::default()).unwrap(), 1);
        assert_eq!(pick(&reports[..1], Selection::default()).unwrap(), 0);
    }

    #[test]
    fn a_pinned_backend_or_device_never_falls_back() {
        let reports = [
            report(0, Backend::Vulkan, DeviceType::Discrete),
            report(1, Backend::Gl, DeviceType::Discrete),
        ];
        let on = |backend, device| Selection {
            backend,
            device,
            allow_software: false,
        };
        assert_eq!(pick(&reports, on(Some(Backend::Gl), None)).unwrap(), 1);
        assert!(matches!(
            pick(&reports, on(Some(Backend::Metal), None)),
            Err(Error::NoAdapter { .. })
        ));
        assert!(matches!(
            pick(&reports, on(None, Some(7))),
            Err(Error::NoAdapter { .. })
        ));
        assert!(matches!(
            pick(&reports, on(Some(Backend::Vulkan), Some(1))),
            Err(Error::NoAdapter { .. })
        ));
        assert_eq!(pick(&reports, on(None, Some(1))).unwrap(), 1);
    }

    #[test]
    fn software_is_taken_only_where_there_is_no_hardware_or_on_request() {
        let mut reports = [
            report(0, Backend::Vulkan, DeviceType::Software),
            report(1, Backend::Gl, DeviceType::Discrete),
        ];
        let vulkan = Selection {
            backend: Some(Backend::Vulkan),
            ..Selection::default()
        };
        let error = pick(&reports, vulkan.clone()).unwrap_err().to_string();
        assert!(
            error.contains("adapter 1") && error.contains("--allow-software"),
            "{error}"
        );
        assert_eq!(
            pick(
                &reports,
                Selection {
                    allow_software: true,
                    ..vulkan
                }
            )
            .unwrap(),
            0
        );
        assert_eq!(
            pick(
                &reports,
                Selection {
                    device: Some(0),
                    ..Selection::default()
                }
            )
            .unwrap(),
            0
        );
        reports[1].rejected = Some("no compute shaders".to_owned());
        let error = pick(&reports, Selection::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("no compute shaders"), "{error}");
    }

    #[test]
    fn nothing_at_all_says_how_to_get_a_software_driver_or_to_do_without() {
        let error = pick(&[], Selection::default()).unwrap_err().to_string();
        assert!(error.contains("mesa-vulkan-drivers"), "{error}");
        assert!(error.contains("`--backend cpu`"), "{error}");
    }

    #[test]
    fn the_processor_is_taken_where_it_is_asked_for_alone() {
        for backend in Backend::NAMED {
            assert_eq!(Backend::from_name(backend.name()), Some(backend));
        }
        let asked = Selection {
            backend: Some(Backend::Cpu),
            ..Selection::default()
        };
        let [cpu] = &list_for(&asked)[..] else {
            panic!("one processor");
        };
        assert_eq!(cpu.backend, Backend::Cpu);
        assert_eq!(pick(std::slice::from_ref(cpu), asked.clone()).unwrap(), 0);
        let other = Selection {
            device: Some(1),
            ..asked
        };
        let error = pick(std::slice::from_ref(cpu), other).unwrap_err();
        assert!(error.to_string().contains("--device 1"), "{error}");
    }
}
