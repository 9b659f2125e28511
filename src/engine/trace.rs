//! The record of an engine's steps, in the form that trace viewers of browsers read.

use super::plan::Chunk;
use super::request::RequestId;
use super::stats::PageCounts;
use super::trace_events::{counter, document, instant, named, span};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRecord {
    /// Its number, from 0.
    pub index: u64,
    /// When it had been planned, since the engine started.
    pub begin: Duration,
    /// From there until its tokens were read back.
    pub duration: Duration,
    /// What it computed.
    pub chunks: Vec<Chunk>,
    /// Whose pages were taken for it.
    pub preempted: Vec<RequestId>,
    /// Requests that ran, those of the step included.
    pub running: usize,
    /// Requests that waited.
    pub waiting: usize,
    /// Pages, as planned.
    pub pages: PageCounts,
}

/// The last steps of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// In order.
    pub steps: Vec<StepRecord>,
    /// Steps before them that were not kept.
    pub dropped: u64,
}

/// The row of the steps themselves; a request's row has its id, and ids begin at 1.
const STEPS_ROW: u64 = 0;
/// Of all events.
const CATEGORY: &str = "engine";

impl Trace {
    /// The object form of the Chrome trace format: a row of steps, a row for each request with what was
    /// computed of it, and counters for pages and the queue. Times are in microseconds since the engine
    /// started.
    pub fn to_json(&self) -> Value {
        let mut events = vec![
            named("process_name", STEPS_ROW, "nelumbo"),
            named("thread_name", STEPS_ROW, "steps"),
        ];
        let ids: BTreeSet<RequestId> = self.chunks().map(|chunk| chunk.id).collect();
        let rows = ids.iter().map(|id| (id.0, format!("request {}", id.0)));
        events.extend(rows.map(|(row, name)| named("thread_name", row, &name)));
        self.steps.iter().for_each(|step| step.push(&mut events));
        document(events, json!({ "dropped_steps": self.dropped }))
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.steps.iter().flat_map(|step| &step.chunks)
    }
}

impl StepRecord {
    /// Tokens that it computed.
    pub fn num_tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len).sum()
    }

    fn push(&self, events: &mut Vec<Value>) {
        let time = (micros(self.begin), micros(self.duration));
        let decodes = self.chunks.iter().filter(|c| is_decode(c)).count();
        let args = json!({
            "step": self.index,
            "tokens": self.num_tokens(),
            "batch": self.chunks.len(),
            "decodes": decodes,
            "prefills": self.chunks.len() - decodes,
        });
        events.push(span("step", CATEGORY, STEPS_ROW, time, args));
        for chunk in &self.chunks {
            let name = if is_decode(chunk) {
                "decode"
            } else {
                "prefill"
            };
            let args = json!({ "step": self.index, "start": chunk.start, "tokens": chunk.len,
                               "draws": chunk.draws, "proposed": chunk.proposed });
            events.push(span(name, CATEGORY, chunk.id.0, time, args));
        }
        for id in &self.preempted {
            let args = json!({ "step": self.index });
            events.push(instant("preempted", CATEGORY, id.0, time.0, args));
        }
        let PageCounts { used, free, cached } = self.pages;
        let pages = json!({ "used": used, "cached": cached, "free": free });
        events.push(counter("pages", time.0, pages));
        let queue = json!({ "running": self.running, "waiting": self.waiting });
        events.push(counter("requests", time.0, queue));
    }
}

/// The last token and what is proposed after it, and another drawn after each. The last token of a prompt whose others were in the
/// cache looks the same.
fn is_decode(chunk: &Chunk) -> bool {
    chunk.len == 1 + chunk.proposed && chunk.start > 0 && chunk.draws == chunk.len
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// The steps that are kept while an engine runs.
#[derive(Debug, Default)]
pub(super) struct Recording {
    most: usize,
    steps: VecDeque<StepRecord>,
    dropped: u64,
}

impl Recording {
    pub fn new(most: usize) -> Recording {
        Recording {
            most,
            ..Recording::default()
        }
    }

    pub fn push(&mut self, step: StepRecord) {
        if self.most == 0 {
            return;
        }
        if self.steps.len() == self.most {
            self.steps.pop_front();
            self.dropped += 1;
        }
        self.steps.push_back(step);
    }

    /// What was recorded since it was last taken.
    pub fn take(&mut self) -> Trace {
        Trace {
            steps: std::mem::take(&mut self.steps).into(),
            dropped: std::mem::take(&mut self.dropped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(index: u64) -> StepRecord {
        let chunk = |id, start, len, draws| Chunk {
            id: RequestId(id),
            start,
            len,
            draws,
            proposed: 0,
        };
        StepRecord {
            index,
            begin: Duration::from_micros(1500),
            duration: Duration::from_millis(2),
            chunks: vec![chunk(4, 20, 1, 1), chunk(5, 0, 30, 0)],
            preempted: vec![RequestId(6)],
            running: 2,
            waiting: 1,
            pages: PageCounts {
                used: 4,
                free: 3,
                cached: 1,
            },
        }
    }

    #[test]
    fn a_step_is_a_row_of_its_own_and_a_part_of_each_request() {
        let trace = Trace {
            steps: vec![step(9)],
            dropped: 9,
        };
        let text = trace.to_json().to_string();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["otherData"]["dropped_steps"], 9);
        let events = json["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
        let names: Vec<&str> = of("M")
            .iter()
            .map(|e| e["args"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["nelumbo", "steps", "request 4", "request 5"]);
        let spans = of("X");
        assert_eq!(spans.len(), 3);
        for span in &spans {
            assert_eq!(
                (&span["ts"], &span["dur"]),
                (&1500.0.into(), &2000.0.into())
            );
        }
        assert_eq!(
            spans[0]["args"],
            json!({ "step": 9, "tokens": 31, "batch": 2, "decodes": 1, "prefills": 1 })
        );
        let rows: Vec<(&Value, &Value)> = spans.iter().map(|e| (&e["name"], &e["tid"])).collect();
        assert_eq!(
            rows[1..],
            [
                (&"decode".into(), &4.into()),
                (&"prefill".into(), &5.into())
            ]
        );
        assert_eq!(of("i")[0]["tid"], 6);
        assert_eq!(
            of("C")[0]["args"],
            json!({ "used": 4, "cached": 1, "free": 3 })
        );
    }

    #[test]
    fn only_the_last_steps_are_kept() {
        let mut recording = Recording::new(2);
        (0..5).for_each(|index| recording.push(step(index)));
        let trace = recording.take();
        let kept: Vec<u64> = trace.steps.iter().map(|s| s.index).collect();
        assert_eq!((kept, trace.dropped), (vec![3, 4], 3));
        assert_eq!(recording.take(), Trace::default());
        let mut none = Recording::new(0);
        none.push(step(0));
        assert_eq!(none.take(), Trace::default());
    }
}
