//! `nelumbo devices`: every adapter, with what matters about it.

use nelumbo::Error;
use nelumbo::gpu::adapter;
use nelumbo::gpu::{AdapterReport, Backend, Selection};
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::models::human_bytes;
use crate::output::{print_line, table};

/// Prints a table, or one JSON array, of the adapters, or of the processor where it is asked for. Ends
/// with an error when there is no adapter at all.
pub fn devices(json: bool, backend: Option<Backend>) -> Result<(), Failure> {
    let mut reports = adapter::list_for(&Selection {
        backend,
        ..Selection::default()
    });
    reports.retain(|report| backend.is_none_or(|backend| report.backend == backend));
    if json {
        let rows: Vec<Value> = reports.iter().map(row_json).collect();
        print_line(&format!("{:#}", Value::from(rows)))?;
    } else if !reports.is_empty() {
        let header = [
            "#", "NAME", "API", "TYPE", "DRIVER", "BINDING", "CAPS", "USABLE",
        ]
        .map(str::to_owned);
        print_line(&table(
            std::iter::once(header).chain(reports.iter().map(row)),
        ))?;
    }
    if reports.is_empty() {
        Err(none(backend).into())
    } else {
        Ok(())
    }
}

/// That there is no adapter, of this backend or at all.
pub fn none(backend: Option<Backend>) -> Error {
    let tried: Vec<&str> = match backend {
        Some(backend) => vec![backend.name()],
        None => Backend::NATIVE.map(Backend::name).to_vec(),
    };
    Error::NoAdapter {
        tried: format!("asked {}", tried.join(", ")),
        advice: "install your GPU's Vulkan driver, or a software one (Debian and Ubuntu: \
                 apt install libvulkan1 mesa-vulkan-drivers); --backend cpu works without any driver, slower"
            .to_owned(),
    }
}

fn row(report: &AdapterReport) -> [String; 8] {
    [
        match report.backend {
            Backend::Cpu => "-".to_owned(), // its name is what it is chosen by
            _ => report.index.to_string(),
        },
        report.name.clone(),
        report.backend.name().to_owned(),
        report.device_type.name().to_owned(),
        report.driver_text(),
        human_bytes(report.max_binding_bytes),
        report.caps.to_string(),
        report.rejected.clone().unwrap_or_else(|| "yes".to_owned()),
    ]
}

fn row_json(report: &AdapterReport) -> Value {
    json!({
        "index": (report.backend != Backend::Cpu).then_some(report.index),
        "name": report.name,
        "vendor": report.vendor_text(),
        "backend": report.backend.name(),
        "type": report.device_type.name(),
        "driver": report.driver_text(),
        "caps": report.caps.names(),
        "subgroup_min_size": report.caps.subgroup,
        "coop_size": report.caps.coop.map(|coop| coop.size),
        "limits": {
            "max_binding_bytes": report.max_binding_bytes,
            "max_buffer_bytes": report.max_buffer_bytes,
            "max_workgroup_bytes": report.max_workgroup_bytes,
        },
        "rejected": report.rejected,
    })
}
#[cfg(test)]
mod tests {
    use nelumbo::gpu::{Caps, DeviceType};

    use super::*;

    #[test]
    fn a_rejected_adapter_shows_why() {
        let report = AdapterReport {
            index: 3,
            name: "Card".to_owned(),
            backend: Backend::Gl,
            device_type: DeviceType::Virtual,
            vendor: 0x10de,
            driver: String::new(),
            driver_info: "4.6".to_owned(),
            caps: Caps::NONE,
            max_binding_bytes: 128_000_000,
            max_buffer_bytes: 256_000_000,
            max_workgroup_bytes: 16_384,
            rejected: Some("no compute shaders".to_owned()),
        };
        let expected = [
            "3",
            "Card",
            "gl",
            "virtual",
            "4.6",
            "128.0 MB",
            "none",
            "no compute shaders",
        ];
        assert_eq!(row(&report), expected);
        let json = row_json(&report);
        assert_eq!(
            (&json["vendor"], &json["rejected"]),
            (&json!("0x10de"), &json!("no compute shaders"))
        );
        assert_eq!(json["limits"]["max_binding_bytes"], 128_000_000);
    }

    #[test]
    fn no_adapter_names_what_was_asked() {
        let text = none(Some(Backend::Metal)).to_string();
        assert!(
            text.contains("asked metal") && text.contains("mesa-vulkan-drivers"),
            "{text}"
        );
        assert!(text.contains("--backend cpu"), "{text}");
    }

    #[test]
    fn the_processor_has_no_index() {
        let [cpu] = &adapter::list_for(&Selection {
            backend: Some(Backend::Cpu),
            ..Selection::default()
        })[..] else {
            panic!("one processor");
        };
        assert_eq!(row(cpu)[0], "-");
        assert_eq!(row(cpu)[2..4], ["cpu", "software"]);
        let json = row_json(cpu);
        assert_eq!(
            (&json["index"], &json["backend"]),
            (&Value::Null, &json!("cpu"))
        );
    }
}
