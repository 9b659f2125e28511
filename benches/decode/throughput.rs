//! What company costs: tokens a second of many requests over those of one.

use crate::clock::Clock;
use crate::quantile::quantile;
use crate::report::Report;
use crate::requests::{end, streams, tokens_of};
use nelumbo::Error;
use nelumbo::engine::EngineCore;
use serde_json::json;
use std::time::Instant;

/// Steps timed for a number of requests.
const STEPS: usize = 24;

pub fn throughput(engine: &mut EngineCore, report: &mut Report) -> Result<(), Error> {
    let clock = Clock::for_adapter(engine.decoder().gpu().is_software());
    report.line(&format!("\nthroughput: {STEPS} steps; {}", clock.name()));
    report.line("requests  step ms  tokens/s  times one |  step ms  tokens/s  times one  (wall, then the clock above)");
    let (mut one, mut one_by_clock) = (0.0, 0.0);
    for count in [1, 2, 4, 8, 16] {
        if count > engine.decoder().max_running() {
            continue;
        }
        let ids = streams(engine, count, 100 * count as u64)?;
        engine.step()?;
        let (mut wall, mut by_clock) = (Vec::new(), Vec::new());
        for _ in 0..STEPS {
            let (start, then) = (Instant::now(), clock.now());
            let events = engine.step()?;
            by_clock.push(clock.now() - then);
            wall.push(start.elapsed().as_secs_f64());
            assert_eq!(tokens_of(&events).count(), count);
        }
        end(engine, ids);
        let (wall, by_clock) = (quantile(&wall, 0.5), quantile(&by_clock, 0.5));
        let (rate, rate_by_clock) = (count as f64 / wall, count as f64 / by_clock);
        if count == 1 {
            (one, one_by_clock) = (rate, rate_by_clock);
        }
        report.line(&format!(
            "{count:>8} {:>8.1} {rate:>9.1} {:>10.2} | {:>8.1} {rate_by_clock:>9.1} {:>10.2}",
            wall * 1e3,
            rate / one,
            by_clock * 1e3,
            rate_by_clock / one_by_clock
        ));
        report.row(json!({
            "test": "throughput",
            "requests": count,
            "steps": STEPS,
            "step_wall_ms": wall * 1e3,
            "step_clock_ms": by_clock * 1e3,
            "clock": clock.name(),
            "tokens_s_wall": rate,
            "times_one_wall": rate / one,
            "times_one_clock": rate_by_clock / one_by_clock,
        }));
    }
    Ok(())
}
