//! `nelumbo bench --profile`: where the time of a prompt and of one step goes, kernel by kernel.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nelumbo::engine::{EngineCore, Trial};
use nelumbo::gpu::Profile;
use serde_json::{Value, json};

use super::measure::some_tokens;
use crate::exit::Failure;

/// A run and what its dispatches took.
pub struct Profiled {
    /// `prefill` or `decode`.
    pub what: &'static str,
    pub tokens: usize,
    pub depth: usize,
    /// Tokens of a step at most.
    pub step_tokens: usize,
    /// Steps of a layer that were run: layers times steps.
    layer_steps: usize,
    /// The same run unwatched.
    pub wall: Duration,
    /// The run that was watched.
    pub watched: Duration,
    pub profile: Profile,
}

/// Profiles a prompt of `tokens` tokens and the step after it, each after one run to warm up and one
/// unwatched.
pub fn profile(engine: &mut EngineCore, tokens: usize) -> Result<[Profiled; 2], Failure> {
    let prompt = some_tokens(engine, tokens + 1);
    let layers = engine.decoder().config().num_layers;
    let step_tokens = engine.decoder().max_batched_tokens();
    let mut trial = engine.trial(tokens + 1)?;
    let (prompt, next) = (&prompt[..tokens], &prompt[tokens..]);
    let mut run = |what, tokens: &[u32]| -> Result<Profiled, Failure> {
        let depth = trial.len();
        let (wall, watched, profile) = watched(&mut trial, tokens)?;
        Ok(Profiled {
            what,
            tokens: tokens.len(),
            depth,
            step_tokens,
            layer_steps: layers * tokens.len().div_ceil(step_tokens),
            wall,
            watched,
            profile,
        })
    };
    Ok([run("prefill", prompt)?, run("decode", next)?])
}

/// `tokens` to warm up, then unwatched for the time, then profiled, and the time of that; they stay in the
/// context.
fn watched(trial: &mut Trial, tokens: &[u32]) -> Result<(Duration, Duration, Profile), Failure> {
    let depth = trial.len();
    trial.feed(tokens)?;
    trial.rewind(depth)?;
    let start = Instant::now();
    trial.feed(tokens)?;
    let wall = start.elapsed();
    trial.rewind(depth)?;
    let start = Instant::now();
    let profile = trial.profile(|trial| trial.feed(tokens).map(drop))?;
    Ok((wall, start.elapsed(), profile))
}

/// Dispatches of a kernel, or of one variant of it.
#[derive(Default)]
struct Line {
    name: String,
    count: u64,
    time: Duration,
}

impl Profiled {
    /// Kernels, the most expensive first, each with its variants where it has several.
    fn kernels(&self) -> Vec<(Line, Vec<Line>)> {
        let mut kernels: BTreeMap<&str, (Line, Vec<Line>)> = BTreeMap::new();
        for row in self.profile.rows() {
            let name = row.variant.kernel.name;
            let (kernel, variants) = kernels.entry(name).or_default();
            kernel.name = name.to_owned();
            kernel.count += row.count;
            kernel.time += row.time;
            variants.push(Line {
                name: row.variant.to_string()[name.len()..].trim().to_owned(),
                count: row.count,
                time: row.time,
            });
        }
        let mut kernels: Vec<_> = kernels.into_values().collect();
        kernels.sort_by_key(|(kernel, _)| std::cmp::Reverse(kernel.time));
        kernels
    }

    /// Dispatches of the run that was watched.
    pub fn dispatches(&self) -> u64 {
        self.profile.rows().iter().map(|row| row.count).sum()
    }

    /// The table with a line about it above.
    pub fn table(&self) -> String {
        let total = self.profile.total();
        let mut text = format!(
            "{}, {} at {}: {:.2} ms unwatched; {:.2} ms in {} dispatches, {:.2} a layer, by {}\n\
             {:>8} {:>10} {:>11} {:>10} {:>7}  kernel\n",
            self.what,
            match self.tokens {
                1 => "1 token".to_owned(),
                tokens => format!("{tokens} tokens"),
            },
            self.depth,
            self.wall.as_secs_f64() * 1e3,
            total.as_secs_f64() * 1e3,
            self.dispatches(),
            self.per_layer(self.dispatches()),
            self.profile.clock().name(),
            "count",
            "per layer",
            "total ms",
            "mean us",
            "share"
        );
        for (kernel, variants) in self.kernels() {
            text += &self.line(&kernel, &kernel.name);
            if variants.len() > 1 {
                for variant in &variants {
                    text += &self.line(variant, &format!("  {}", variant.name));
                }
            }
        }
        text
    }

    fn line(&self, line: &Line, name: &str) -> String {
        let seconds = line.time.as_secs_f64();
        format!(
            "{:>8} {:>10.2} {:>11.3} {:>10.1} {:>6.1}%  {name}\n",
            line.count,
            self.per_layer(line.count),
            seconds * 1e3,
            seconds * 1e6 / line.count.max(1) as f64,
            100.0 * self.share(line.time)
        )
    }

    fn per_layer(&self, count: u64) -> f64 {
        count as f64 / self.layer_steps.max(1) as f64
    }

    fn share(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.profile.total().as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The same as plain data: a row for each variant.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .profile
            .rows()
            .iter()
            .map(|row| {
                json!({
                    "kernel": row.variant.kernel.name,
                    "variant": row.variant.to_string(),
                    "count": row.count,
                    "per_layer": self.per_layer(row.count),
                    "total_ns": row.time.as_nanos() as u64,
                    "share": self.share(row.time),
                })
            })
            .collect();
        json!({
            "run": self.what,
            "tokens": self.tokens,
            "depth": self.depth,
            "clock": self.profile.clock().name(),
            "unwatched_ns": self.wall.as_nanos() as u64,
            "total_ns": self.profile.total().as_nanos() as u64,
            "dispatches": self.dispatches(),
            "dispatches_per_layer": self.per_layer(self.dispatches()),
            "rows": rows,
        })
    }
}
