//! Results of simulations as tables and as JSON.

use nelumbo::engine::simulate::{Figures, Outcome, Quantiles};
use serde_json::{Map, Value, json};

use super::promise::Promise;
use super::sweep::Run;
use crate::bench::format;

/// How one run went.
pub struct Simulated {
    pub run: Run,
    /// `pages`, `contiguous, the whole context` or `contiguous, lengths foreseen`.
    pub memory: &'static str,
    pub outcome: Outcome,
    pub figures: Figures,
}

/// Speeds, a line a run, and times: the median, and what 95 and 99 of 100 do not exceed.
pub fn speeds(runs: &[&Simulated], promise: Option<&Promise>) -> String {
    let mut columns = vec!["chunk", "pool", "parallel", "batch"];
    if promise.is_some() {
        columns.push("goodput/s");
    }
    columns.extend(["requests/s", "out tok/s", "ttft ms", "itl ms", "e2e s"]);
    columns.extend(["preempted", "largest chunk"]);
    let cells = runs.iter().map(|run| {
        let Simulated {
            run,
            outcome,
            figures,
            ..
        } = run;
        let mut cells = run.settings().map(|(_, value)| value).to_vec();
        if promise.is_some() {
            cells.push(format!("{:.3}", figures.goodput));
        }
        cells.push(format!("{:.3}", figures.request_throughput));
        cells.push(format!("{:.1}", figures.output_throughput));
        let times = |q: &Quantiles, scale: f64, digits: usize| {
            let times = [q.p50, q.p95, q.p99].map(|value| format!("{:.digits$}", value * scale));
            times.join(" / ")
        };
        cells.push(times(&figures.ttft, 1e3, 0));
        cells.push(times(&figures.itl, 1e3, 1));
        cells.push(times(&figures.e2e, 1.0, 2));
        cells.push(outcome.preemptions.to_string());
        cells.push(outcome.largest_chunk.to_string());
        cells
    });
    let columns: Vec<String> = columns.into_iter().map(str::to_owned).collect();
    format::table(&columns, &[], &cells.collect::<Vec<_>>())
}

/// What pages are worth, a line for each way to give memory out.
pub fn memories(runs: &[&Simulated]) -> String {
    let columns = [
        "memory",
        "at once, mean",
        "most",
        "waste %",
        "requests/s",
        "out tok/s",
        "ttft p95 ms",
    ];
    let cells = runs.iter().map(|run| {
        let Simulated {
            memory,
            outcome,
            figures,
            ..
        } = run;
        let mean = outcome.memory.mean_running();
        vec![
            (*memory).to_owned(),
            mean.map_or("-".to_owned(), |mean| format!("{mean:.1}")),
            outcome.memory.most_running.to_string(),
            format!("{:.1}", 100.0 * outcome.memory.waste()),
            format!("{:.3}", figures.request_throughput),
            format!("{:.1}", figures.output_throughput),
            format!("{:.0}", 1e3 * figures.ttft.p95),
        ]
    });
    format::table(
        &columns.map(str::to_owned),
        &[0],
        &cells.collect::<Vec<_>>(),
    )
}

impl Simulated {
    /// As plain data, by the names that load generators use.
    pub fn json(&self, promise: Option<&Promise>) -> Value {
        let Simulated {
            run,
            memory,
            outcome,
            figures,
        } = self;
        let mut object = json!({
            "memory": memory,
            "chunk": run.chunk.name(),
            "pool_tokens": run.pool,
            "max_parallel": run.parallel,
            "batch_size": run.batch,
            "duration": figures.duration,
            "completed": figures.completed,
            "refused": outcome.refused,
            "request_throughput": figures.request_throughput,
            "output_throughput": figures.output_throughput,
            "total_token_throughput": figures.total_throughput,
            "request_goodput": promise.map(|_| figures.goodput),
            "steps": outcome.steps,
            "busy_seconds": outcome.busy_seconds,
            "preemptions": outcome.preemptions,
            "prompt_tokens": outcome.prompt_tokens,
            "computed_tokens": outcome.computed_tokens,
            "largest_chunk": outcome.largest_chunk,
            "mean_running_while_others_wait": outcome.memory.mean_running(),
            "most_running": outcome.memory.most_running,
            "waste": outcome.memory.waste(),
        });
        let times = [
            ("ttft", &figures.ttft),
            ("tpot", &figures.tpot),
            ("itl", &figures.itl),
            ("e2el", &figures.e2e),
        ];
        if let Value::Object(object) = &mut object {
            times
                .into_iter()
                .for_each(|(name, q)| push_times(object, name, q));
        }
        object
    }
}

fn push_times(object: &mut Map<String, Value>, name: &str, times: &Quantiles) {
    let Quantiles {
        mean,
        p50,
        p95,
        p99,
    } = times;
    let all = [
        ("mean", mean),
        ("median", p50),
        ("p50", p50),
        ("p95", p95),
        ("p99", p99),
    ];
    for (which, seconds) in all {
        object.insert(format!("{which}_{name}_ms"), json!(1e3 * seconds));
    }
}
