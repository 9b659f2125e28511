//! `nelumbo ls`: the models on this machine.

use serde::Serialize;

use super::cache::{Cache, State};
use super::local::{self, Local};
use super::progress::human_bytes;
use super::registry::Registry;
use crate::args::GlobalArgs;
use crate::exit::Failure;
use crate::output::{print_line, table};

/// One local model.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    source: String,
    format: String,
    quant: String,
    /// Bytes on disk.
    size: u64,
    path: String,
    state: State,
}

impl From<Local> for Row {
    fn from(local: Local) -> Row {
        Row {
            name: local.name,
            source: local.source,
            format: local.format,
            quant: local.quant,
            size: local.size,
            path: local.path.display().to_string(),
            state: local.state,
        }
    }
}

/// Prints a table, or one JSON array. What other tools keep in the hub's cache and nothing here can
/// open is left out.
pub fn ls(json: bool, global: &GlobalArgs) -> Result<(), Failure> {
    let cache = Cache::locate(global.cache_dir.as_deref()).ok();
    let registry = Registry::load()?;
    let rows: Vec<Row> = local::all(cache.as_ref(), &registry)?
        .into_iter()
        .filter(|local| local.state != State::Unsupported)
        .map(Row::from)
        .collect();
    if json {
        return print_line(&serde_json::to_string_pretty(&rows).expect("rows are plain data"));
    }
    if rows.is_empty() {
        crate::exit::say(&format!(
            "no local models; `nelumbo pull NAME` gets one of: {}",
            registry.names()
        ));
        return Ok(());
    }
    let header = ["NAME", "SOURCE", "FORMAT", "QUANT", "SIZE", "STATE", "PATH"].map(str::to_owned);
    let body = rows.into_iter().map(|row| {
        let state = format!("{:?}", row.state).to_lowercase();
        [
            row.name,
            row.source,
            row.format,
            row.quant,
            human_bytes(row.size),
            state,
            row.path,
        ]
    });
    print_line(&table(std::iter::once(header).chain(body)))
}
