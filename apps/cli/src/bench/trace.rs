//! `nelumbo bench --profile -o trace`: every dispatch of a prompt and of a step after it, as trace viewers
//! of browsers read them.
//!
//! One row: the run, in it its steps, in them their dispatches. The run of the step after the prompt begins
//! where the prompt's has ended; how much time lay between them was not measured. Where a device had
//! dispatches overlap, the later one is shown from the end of the earlier one on, and `measured_us` tells how
//! long it took by itself.

use nelumbo::engine::trace_events::{document as file, named, span};
use nelumbo::gpu::{DType, ProfileEvent};
use serde_json::{Map, Value, json};

use super::machine::Machine;
use super::profile::Profiled;

/// The row that everything is in.
const ROW: u64 = 1;

/// The whole file.
pub fn document(runs: &[Profiled], machine: &Machine) -> Value {
    let mut events = vec![
        named("process_name", ROW, "nelumbo bench --profile"),
        named("thread_name", ROW, &machine.adapter_name),
    ];
    let mut end = 0;
    for run in runs {
        end = push(&mut events, run, end);
    }
    let kept: usize = runs.iter().map(|run| run.profile.events().len()).sum();
    let all: u64 = runs.iter().map(Profiled::dispatches).sum();
    let other = json!({ "machine": machine, "dropped_dispatches": all - kept as u64 });
    file(events, other)
}

/// A dispatch where it is shown, in nanoseconds.
struct Placed<'a> {
    event: &'a ProfileEvent,
    begin: u64,
    end: u64,
}

/// Dispatches one after another from `start` on; the first of them begins there.
fn placed<'a>(events: &'a [ProfileEvent], start: u64) -> Vec<Placed<'a>> {
    let ns = |time: std::time::Duration| time.as_nanos() as u64;
    let first = events.first().map_or(0, |event| ns(event.begin));
    let mut cursor = start;
    let place = |event: &'a ProfileEvent| {
        let ProfileEvent { begin, time, .. } = event;
        let own = start + ns(*begin).saturating_sub(first);
        let begin = own.max(cursor);
        let end = (own + ns(*time)).max(begin);
        cursor = end;
        Placed { event, begin, end }
    };
    events.iter().map(place).collect()
}

/// Adds a run that begins at `start`; returns where it ends.
fn push(events: &mut Vec<Value>, run: &Profiled, start: u64) -> u64 {
    let placed = placed(run.profile.events(), start);
    let end = placed.last().map_or(start, |last| last.end);
    let args = json!({
        "tokens": run.tokens,
        "depth": run.depth,
        "dispatches": run.dispatches(),
        "clock": run.profile.clock().name(),
        "wall_us": run.watched.as_nanos() as f64 / 1e3,
        "unwatched_us": run.wall.as_nanos() as f64 / 1e3,
    });
    events.push(span(run.what, "run", ROW, time(start, end), args));
    for step in placed.chunk_by(|a, b| a.event.step == b.event.step) {
        let (first, last) = (&step[0], &step[step.len() - 1]);
        let index = first.event.step;
        let done = index * run.step_tokens;
        let args = json!({
            "step": index,
            "position": run.depth + done,
            "tokens": run.step_tokens.min(run.tokens.saturating_sub(done)),
            "dispatches": step.len(),
        });
        let name = format!("{} step", run.what);
        events.push(span(&name, "step", ROW, time(first.begin, last.end), args));
        events.extend(step.iter().map(dispatch));
    }
    end
}

fn dispatch(placed: &Placed) -> Value {
    let Placed { event, begin, end } = placed;
    let kernel = event.variant.kernel.name;
    let tensors: Map<String, Value> = event
        .tensors
        .iter()
        .map(|(name, dtype, shape)| {
            let dtype = match dtype {
                DType::F32 => "f32",
                DType::U32 => "u32",
                DType::F16 => "f16",
                DType::I8 => "i8",
            };
            (name.clone(), Value::from(format!("{dtype} {shape:?}")))
        })
        .collect();
    let args = json!({
        "kernel": kernel,
        "variant": event.variant.to_string(),
        "workgroups": event.workgroups,
        "bound_bytes": event.bytes,
        "tensors": tensors,
        "measured_us": event.time.as_nanos() as f64 / 1e3,
    });
    span(kernel, "dispatch", ROW, time(*begin, *end), args)
}

/// Begin and duration in microseconds.
fn time(begin: u64, end: u64) -> (f64, f64) {
    (begin as f64 / 1e3, (end - begin) as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nelumbo::kernels::ALL;

    use super::*;

    fn event(begin: u64, time: u64) -> ProfileEvent {
        ProfileEvent {
            variant: (ALL[0].variants)()[0],
            step: 0,
            begin: Duration::from_nanos(begin),
            time: Duration::from_nanos(time),
            workgroups: [3, 1, 1],
            bytes: 64,
            tensors: vec![("x".to_owned(), DType::F32, vec![4, 4])],
        }
    }

    #[test]
    fn dispatches_that_overlap_are_shown_one_after_another() {
        let events = [
            event(100, 50),
            event(120, 60),
            event(130, 10),
            event(300, 5),
        ];
        let shown = placed(&events, 1000);
        let times: Vec<(u64, u64)> = shown.iter().map(|p| (p.begin, p.end)).collect();
        assert_eq!(
            times,
            [(1000, 1050), (1050, 1080), (1080, 1080), (1200, 1205)]
        );
        let value = dispatch(&shown[1]);
        assert_eq!((&value["ts"], &value["dur"]), (&json!(1.05), &json!(0.03)));
        assert_eq!(value["args"]["measured_us"], json!(0.06));
        assert_eq!(value["args"]["tensors"], json!({ "x": "f32 [4, 4]" }));
        assert_eq!(value["name"], ALL[0].kernel.name);
    }
}
