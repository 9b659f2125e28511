//! What planning and committing a step costs, without a device.
//!
//! `cargo bench --bench scheduler` runs 1, 16, 64 and 256 sequences whose lengths differ, with and
//! without a long prompt that is computed beside them, and tells the median, the 99th of 100 and the
//! worst time of a step's plan and commit. Sequences that end are followed by others, as in a server;
//! what a step then admits is in its time. `-o json` prints an array of rows instead.

#[path = "../apps/cli/commit.rs"]
mod commit;

use nelumbo::engine::scheduler::Sampled;
use nelumbo::engine::{Event, Limits, Request, Scheduler};
use nelumbo::kv::{PageGeometry, Pages};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;

/// Steps that are timed.
const STEPS: usize = 3000;
/// Steps before.
const WARM_UP: usize = 300;
/// Microseconds that a step's plan and commit may take, at the median.
const TARGET_US: f64 = 50.0;
/// Pages of a slab.
const SLAB_PAGES: usize = 4096;

/// Times of a step, in microseconds.
struct Times {
    running: usize,
    prompt: bool,
    /// Sum of both, sorted.
    total: Vec<f64>,
    plan: Vec<f64>,
    commit: Vec<f64>,
    mean_pages: f64,
}

fn main() {
    let as_json = std::env::args().any(|word| word == "json");
    let mut rows = Vec::new();
    if !as_json {
        println!("plan and commit of a step, {STEPS} steps, pages are looked up and published");
        println!(
            "{:>8} {:>8} {:>12} {:>9} {:>9} {:>9} {:>9} {:>10}",
            "running",
            "prompt",
            "mean pages",
            "p50 us",
            "p99 us",
            "max us",
            "plan p50",
            "commit p50"
        );
    }
    for running in [1, 16, 64, 256] {
        for prompt in [false, true] {
            let times = measure(running, prompt);
            if as_json {
                rows.push(row(&times));
            } else {
                print_row(&times);
            }
        }
    }
    if as_json {
        println!("{:#}", Value::from(rows));
    } else {
        println!("target: p50 within {TARGET_US} us at 256 running");
    }
}

/// Sequences with contexts of 200 to 4,200 tokens, each with an answer of 64 to 320.
struct Clients {
    next: u64,
    vocab: u32,
}

impl Clients {
    fn request(&mut self) -> Request {
        self.next += 1;
        let i = self.next as usize;
        let len = 200 + i * 977 % 4000;
        Request {
            tokens: self.tokens(len),
            max_tokens: 64 + i * 31 % 256,
            ..Request::default()
        }
    }

    fn tokens(&self, len: usize) -> Vec<u32> {
        let of = |j: usize| (self.next as u32).wrapping_mul(7919) + j as u32 * 31;
        (0..len).map(|j| of(j) % self.vocab).collect()
    }
}

fn measure(running: usize, prompt: bool) -> Times {
    let limits = Limits {
        max_batched_tokens: running + 512,
        max_running: running + 1,
        max_model_len: 1 << 17,
        max_waiting: 2 * running + 2,
    };
    let pages = (running + 1) * 300 + (1 << 13) + SLAB_PAGES;
    let pages = Pages::new(PageGeometry::new(pages, SLAB_PAGES), true);
    let mut scheduler = Scheduler::new(limits, pages, b"bench");
    let mut clients = Clients {
        next: 0,
        vocab: 50_000,
    };
    for _ in 0..running {
        scheduler.submit(clients.request()).expect("room for all");
    }
    while scheduler.running().filter(|s| s.gap() == 1).count() < running {
        step(&mut scheduler, &mut clients, usize::MAX);
    }
    let mut times = Times {
        running,
        prompt,
        total: Vec::new(),
        plan: Vec::new(),
        commit: Vec::new(),
        mean_pages: 0.0,
    };
    let mut pages = 0;
    let mut long = None;
    for i in 0..WARM_UP + STEPS {
        if prompt && long.is_none_or(|id| scheduler.counts(id).is_none()) {
            clients.next += 1;
            let request = Request {
                tokens: clients.tokens(60_000),
                max_tokens: 1,
                ..Request::default()
            };
            long = Some(scheduler.submit(request).expect("room for one more"));
        }
        let (plan, commit) = step(&mut scheduler, &mut clients, 48);
        if i >= WARM_UP {
            times.plan.push(plan);
            times.commit.push(commit);
            times.total.push(plan + commit);
            pages += scheduler.running().map(|s| s.pages.len()).sum::<usize>();
        }
    }
    times.mean_pages = pages as f64 / (STEPS * running) as f64;
    for times in [&mut times.total, &mut times.plan, &mut times.commit] {
        times.sort_unstable_by(f64::total_cmp);
    }
    times
}

/// Microseconds of plan and commit. Who ended is followed by another, outside of the time.
fn step(scheduler: &mut Scheduler, clients: &mut Clients, prompt_tokens: usize) -> (f64, f64) {
    let start = Instant::now();
    let plan = scheduler.plan_step(prompt_tokens);
    let planned = start.elapsed();
    let draws = plan.chunks.iter().map(|chunk| chunk.draws).sum();
    let drawn = Sampled {
        token: 1,
        top_logprobs: Vec::new(),
    };
    let sampled = vec![drawn; draws];
    let start = Instant::now();
    let events = scheduler.commit_step(&plan, sampled);
    let committed = start.elapsed();
    let ended = |event: &&Event| matches!(event, Event::Finished { .. });
    for _ in events.iter().filter(ended) {
        // the last place is the long prompt's
        if scheduler.running().count() + scheduler.waiting().count()
            < scheduler.limits().max_running - 1
        {
            scheduler.submit(clients.request()).expect("somebody ended");
        }
    }
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    (us(planned), us(committed))
}

/// The value that a share of `sorted` is at most.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

fn print_row(times: &Times) {
    let last = times.total.len() - 1;
    println!(
        "{:>8} {:>8} {:>12.0} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>10.1}",
        times.running,
        if times.prompt { "beside" } else { "none" },
        times.mean_pages,
        quantile(&times.total, 0.5),
        quantile(&times.total, 0.99),
        times.total[last],
        quantile(&times.plan, 0.5),
        quantile(&times.commit, 0.5),
    );
}

fn row(times: &Times) -> Value {
    json!({
        "running": times.running,
        "prompt": times.prompt,
        "steps": STEPS,
        "mean_pages": times.mean_pages,
        "p50_us": quantile(&times.total, 0.5),
        "p99_us": quantile(&times.total, 0.99),
        "max_us": times.total[times.total.len() - 1],
        "plan_p50_us": quantile(&times.plan, 0.5),
        "commit_p50_us": quantile(&times.commit, 0.5),
        "target_p50_us": TARGET_US,
        "commit": commit::head(Path::new(env!("CARGO_MANIFEST_DIR"))).commit,
    })
}
