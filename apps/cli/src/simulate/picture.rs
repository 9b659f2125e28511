//! `-o svg`: what a sweep does to goodput, or without one how many requests memory holds.

use super::report::Simulated;
use super::sweep::{Chunk, Run};
use crate::report::svg::{Axis, Series, bars, lines, standalone};

/// An axis of a sweep.
struct Along {
    /// As it is typed.
    name: &'static str,
    label: &'static str,
    /// A run's place on it.
    place: fn(&Run) -> f64,
}

const AXES: [Along; 4] = [
    Along {
        name: "chunk",
        label: "tokens of prompts in a step beside those who decode",
        place: |run| match run.chunk {
            Chunk::Tokens(tokens) => tokens as f64,
            Chunk::Whole | Chunk::Auto => run.batch as f64,
        },
    },
    Along {
        name: "pool",
        label: "tokens of memory",
        place: |run| run.pool as f64,
    },
    Along {
        name: "parallel",
        label: "requests that run at most",
        place: |run| run.parallel as f64,
    },
    Along {
        name: "batch",
        label: "tokens of a step at most",
        place: |run| run.batch as f64,
    },
];

impl Along {
    /// What else a run is.
    fn others(&self, run: &Run) -> String {
        let settings = run.settings().into_iter();
        let others = settings.filter(|(name, _)| *name != self.name);
        let words: Vec<String> = others
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        words.join(", ")
    }
}

/// The picture of runs along the first axis that has several values; `None` where there is none.
pub fn of_sweep(runs: &[Simulated], promised: bool) -> Option<String> {
    let first = runs.first()?;
    let several = |along: &&Along| {
        let at = (along.place)(&first.run);
        runs.iter().any(|run| (along.place)(&run.run) != at)
    };
    let along = AXES.iter().find(several)?;
    let value = |run: &Simulated| match promised {
        true => run.figures.goodput,
        false => run.figures.output_throughput,
    };
    let mut series: Vec<Series> = Vec::new();
    let mut push = |name: String, points: &[(f64, f64)]| match series
        .iter_mut()
        .find(|series| series.name == name)
    {
        Some(series) => series.points.extend(points),
        None => series.push(Series {
            name,
            points: points.to_vec(),
        }),
    };
    let places = || runs.iter().map(|run| (along.place)(&run.run));
    let (least, most) = (
        places().fold(f64::MAX, f64::min),
        places().fold(0.0, f64::max),
    );
    for run in runs {
        let others = along.others(&run.run);
        if run.run.chunk == Chunk::Auto && along.name == "chunk" {
            // it has no size of its own: a level to hold the others against
            let level = value(run);
            push(
                format!("--max-itl, {others}"),
                &[(least, level), (most, level)],
            );
        } else {
            push(others, &[((along.place)(&run.run), value(run))]);
        }
    }
    for series in &mut series {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let y = Axis {
        from_zero: true,
        ..Axis::linear(match promised {
            true => "requests a second that got what was promised",
            false => "tokens of answers a second",
        })
    };
    Some(standalone(&lines(Axis::log(along.label), y, &series)))
}

/// Requests that have memory at once, on average while others wait, for each way to give it out.
pub fn of_memories(runs: &[&Simulated]) -> String {
    let rows: Vec<(String, Result<f64, String>)> = runs
        .iter()
        .map(|run| {
            let mean = run.outcome.memory.mean_running();
            let none = || "nobody ever waited".to_owned();
            (run.memory.to_owned(), mean.ok_or_else(none))
        })
        .collect();
    standalone(&bars(&rows, "requests at once"))
}
