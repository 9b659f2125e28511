//! What trace files are made of: the objects of the Chrome trace format, as `chrome://tracing` and
//! Perfetto read them. Times are in microseconds; the process is always 1, a row is a thread of it.

use serde_json::{Value, json};

/// The process that all events belong to.
const PROCESS: u64 = 1;

/// A name for a row (`thread_name`), or for all of them (`process_name`).
pub fn named(what: &str, row: u64, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": PROCESS, "tid": row, "args": { "name": name } })
}

/// Something that lasts `dur` microseconds from `ts` on. Two spans of a row lie apart, or one in the other.
pub fn span(name: &str, category: &str, row: u64, (ts, dur): (f64, f64), args: Value) -> Value {
    json!({ "name": name, "cat": category, "ph": "X", "pid": PROCESS, "tid": row, "ts": ts,
            "dur": dur, "args": args })
}

/// Something that happens to a row at `ts`.
pub fn instant(name: &str, category: &str, row: u64, ts: f64, args: Value) -> Value {
    json!({ "name": name, "cat": category, "ph": "i", "s": "t", "pid": PROCESS, "tid": row,
            "ts": ts, "args": args })
}

/// Figures that hold from `ts` on.
pub fn counter(name: &str, ts: f64, figures: Value) -> Value {
    json!({ "name": name, "ph": "C", "pid": PROCESS, "ts": ts, "args": figures })
}

/// The whole file, in the object form; `other` is shown as metadata.
pub fn document(events: Vec<Value>, other: Value) -> Value {
    json!({ "traceEvents": events, "displayTimeUnit": "ms", "otherData": other })
}
