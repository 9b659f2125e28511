//! `nelumbo ls`: the models in the cache.

use std::fs;
use std::path::Path;

use nelumbo::formats::Gguf;
use serde::Serialize;

use super::cache::{Cache, State, with_suffix};
use super::progress::human_bytes;
use super::registry::{Entry, Registry};
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

/// Prints a table, or one JSON array.
pub fn ls(json: bool, global: &GlobalArgs) -> Result<(), Failure> {
    let cache = Cache::locate(global.cache_dir.as_deref())?;
    let registry = Registry::load()?;
    let mut rows = Vec::new();
    for entry in registry.entries() {
        rows.extend(row(entry, &cache)?);
    }
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

fn row(entry: &Entry, cache: &Cache) -> Result<Option<Row>, Failure> {
    let (state, size) = cache.state(entry)?;
    if state == State::Missing {
        return Ok(None);
    }
    let path = cache.file(entry);
    // The note of where the file came from; before that, where it would come from.
    let source = fs::read_to_string(with_suffix(&path, ".source"))
        .unwrap_or_else(|_| entry.sources[0].to_string());
    Ok(Some(Row {
        name: format!("{}:{}", entry.name, entry.tag),
        source,
        format: entry.format.clone(),
        quant: quant(entry, &path, state),
        size,
        path: path.display().to_string(),
        state,
    }))
}

/// What the file calls itself, which for mixtures says more than the encoding of most tensors; what
/// the table says while there is no whole file, or none that tells.
fn quant(entry: &Entry, path: &Path, state: State) -> String {
    let told = (state == State::Ready && entry.format == "gguf")
        .then(|| Gguf::open(path).and_then(|gguf| gguf.quantisation()));
    match told {
        Some(Ok(Some(name))) => name.to_owned(),
        _ => entry.quant.clone(),
    }
}
