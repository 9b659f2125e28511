//! What is printed: lines as they come, or rows at the end.

use crate::commit;
use nelumbo::engine::EngineCore;
use serde_json::{Value, json};
use std::path::Path;

/// Where rows go.
pub struct Report {
    as_json: bool,
    rows: Vec<Value>,
    /// Model, adapter and program, for each row.
    about: Value,
}

impl Report {
    /// Of nothing so far.
    pub fn new(as_json: bool) -> Report {
        Report {
            as_json,
            rows: Vec::new(),
            about: Value::Null,
        }
    }

    /// What follows is about this model.
    pub fn begin(&mut self, model: &str, engine: &EngineCore) {
        let (decoder, gpu) = (engine.decoder(), engine.decoder().gpu());
        let adapter = gpu.report();
        let commit = commit::head(Path::new(env!("CARGO_MANIFEST_DIR"))).commit;
        let (tuning, most) = (decoder.tuning().describe(), decoder.max_batched_tokens());
        let checked = if gpu.checked() {
            "checked"
        } else {
            "unchecked"
        };
        self.line(&format!(
            "{} ({}, {} {}), commit {commit}",
            adapter.name, adapter.backend, adapter.driver, adapter.driver_info
        ));
        self.line(&format!(
            "{model}: {tuning}, {checked}, up to {most} tokens a step"
        ));
        self.about = json!({
            "model": model,
            "tuning": tuning,
            "max_batched_tokens": most,
            "checked": gpu.checked(),
            "adapter": adapter.name,
            "backend": adapter.backend.name(),
            "driver": adapter.driver_text(),
            "commit": commit,
        });
    }

    pub fn line(&self, text: &str) {
        if !self.as_json {
            println!("{text}");
        }
    }

    pub fn row(&mut self, mut row: Value) {
        if let (Value::Object(row), Value::Object(about)) = (&mut row, &self.about) {
            row.extend(about.clone());
        }
        self.rows.push(row);
    }

    pub fn end(self) {
        if self.as_json {
            println!("{:#}", Value::from(self.rows));
        }
    }
}
