//! What is known about drivers: a table as data, and which of its rows fit an adapter.

use nelumbo::gpu::{AdapterReport, Backend};
use serde::{Deserialize, Serialize};

/// The table built into the program.
const EMBEDDED: &str = include_str!("../../../../driver-notes.toml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    note: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    backend: Option<String>,
    adapter: Option<String>,
    driver: Option<String>,
    from: Option<String>,
    below: Option<String>,
    level: Level,
    text: String,
    source: String,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Worth knowing.
    Info,
    /// Right, and slower than it could be.
    Slow,
    /// Known to compute wrongly.
    Wrong,
}

/// A note that fits an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    pub level: Level,
    pub text: String,
    /// How it is known.
    pub source: String,
}

/// What there is to say about an adapter.
pub fn of(report: &AdapterReport) -> Vec<Note> {
    let rows = table(EMBEDDED).into_iter();
    let rows = rows.filter(|row| row.fits(report));
    rows.map(|row| Note {
        level: row.level,
        text: row.text,
        source: row.source,
    })
    .collect()
}

fn table(text: &str) -> Vec<Row> {
    let table: Table = toml::from_str(text).expect("the built-in table is right");
    table.note
}

impl Row {
    fn fits(&self, report: &AdapterReport) -> bool {
        let holds = |text: &str, part: &Option<String>| {
            let part = part.as_deref().map(str::to_lowercase);
            part.is_none_or(|part| text.to_lowercase().contains(&part))
        };
        let driver = report.driver_text();
        let backend = self.backend.as_deref();
        backend.is_none_or(|name| Backend::from_name(name) == Some(report.backend))
            && holds(&report.name, &self.adapter)
            && holds(&driver, &self.driver)
            && self.is_version(&driver)
    }

    /// A driver that does not tell its version fits no range.
    fn is_version(&self, driver: &str) -> bool {
        if self.from.is_none() && self.below.is_none() {
            return true;
        }
        let Some(found) = version(driver, self.driver.as_deref().unwrap_or("")) else {
            return false;
        };
        let bound = |text: &Option<String>| text.as_deref().and_then(|text| version(text, ""));
        bound(&self.from).is_none_or(|from| found >= from)
            && bound(&self.below).is_none_or(|below| found < below)
    }
}

/// The first numbers between dots behind `word`.
fn version(text: &str, word: &str) -> Option<Vec<u32>> {
    let text = text.to_lowercase();
    let at = text.find(&word.to_lowercase())? + word.len();
    let words = text[at..].split(|c: char| !c.is_ascii_digit() && c != '.');
    let dotted = words.filter(|w| w.contains('.') && w.starts_with(|c: char| c.is_ascii_digit()));
    let numbers = |word: &str| word.split('.').map(|n| n.parse().ok()).collect();
    dotted.map(|w| numbers(w.trim_end_matches('.'))).next()?
}

#[cfg(test)]
mod tests {
    use nelumbo::gpu::{Caps, DeviceType};

    use super::*;

    fn adapter(name: &str, backend: Backend, driver: &str, info: &str) -> AdapterReport {
        AdapterReport {
            index: 0,
            name: name.to_owned(),
            backend,
            device_type: DeviceType::Discrete,
            vendor: 0,
            driver: driver.to_owned(),
            driver_info: info.to_owned(),
            caps: Caps::NONE,
            max_binding_bytes: 0,
            max_buffer_bytes: 0,
            max_workgroup_bytes: 0,
            rejected: None,
        }
    }

    #[test]
    fn versions_are_numbers_in_order() {
        let of = |text| version(text, "mesa");
        assert_eq!(
            of("llvmpipe Mesa 22.3.6 (LLVM 15.0.6)"),
            Some(vec![22, 3, 6])
        );
        assert_eq!(of("LLVM 15.0.6, Mesa 9.10"), Some(vec![9, 10]));
        assert_eq!(of("Mesa"), None);
        assert_eq!(version("535.183.01", ""), Some(vec![535, 183, 1]));
        assert_eq!(version("no 1 number", ""), None);
        assert!(version("9.10", "") > version("9.9", ""));
    }

    #[test]
    fn a_range_begins_with_its_first_and_ends_before_its_last_version() {
        let row = |rest: &str| {
            let text = format!(
                "[[note]]\nlevel = \"wrong\"\ntext = \"t\"\nsource = \"s\"\ndriver = \"Mesa\"\n{rest}"
            );
            table(&text).remove(0)
        };
        let fits = |rest: &str, version: &str| {
            let adapter = adapter("card", Backend::Vulkan, "radv", &format!("Mesa {version}"));
            row(rest).fits(&adapter)
        };
        let between = "from = \"23.1\"\nbelow = \"23.2.1\"";
        assert!(fits(between, "23.1") && fits(between, "23.2.0") && fits(between, "23.1.9"));
        assert!(!fits(between, "23.0.4") && !fits(between, "23.2.1") && !fits(between, "24.0"));
        assert!(!fits(between, "unknown") && fits("", "unknown"));
        let other = "backend = \"gl\"";
        assert!(!fits(other, "23.1.0"));
    }

    #[test]
    fn the_table_is_right_and_speaks_of_this_adapter_only() {
        for row in table(EMBEDDED) {
            assert!(!row.text.is_empty() && !row.source.is_empty());
            if let Some(name) = &row.backend {
                assert!(Backend::from_name(name).is_some(), "{name}");
            }
            for bound in [&row.from, &row.below].into_iter().flatten() {
                assert!(version(bound, "").is_some(), "{bound}");
            }
        }
        let mesa = |backend, version: &str| {
            of(&adapter(
                "llvmpipe (LLVM 15)",
                backend,
                "llvmpipe",
                &format!("Mesa {version}"),
            ))
        };
        let speaks = |notes: &[Note], word: &str| notes.iter().any(|n| n.text.contains(word));
        assert!(speaks(&mesa(Backend::Vulkan, "22.3.6"), "cooperative"));
        assert!(!speaks(&mesa(Backend::Vulkan, "26.2.0"), "cooperative"));
        assert!(speaks(&mesa(Backend::Gl, "22.3.6"), "Vulkan driver"));
        assert!(!speaks(&mesa(Backend::Vulkan, "22.3.6"), "SwiftShader"));
        assert_eq!(of(&adapter("Card", Backend::Vulkan, "driver", "1.2.3")), []);
    }
}
