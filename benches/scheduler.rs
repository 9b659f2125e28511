//! What planning and committing a step costs, without a device.
//!
//! `cargo bench --bench scheduler` runs 1, 16, 64 and 256 sequences whose lengths differ: alone, with a
//! long prompt that is computed beside them, and with sequences that end and others that begin. It tells
//! the median, the 99th of 100 and the worst time of a step's plan and commit; what other programs take
//! from it is in the latter two. `-o json` prints an array of rows instead.

#[path = "../apps/cli/commit.rs"]
mod commit;

#[path = "support/quantile.rs"]
mod quantile;

use nelumbo::engine::scheduler::Sampled;
use nelumbo::engine::{Limits, Request, Scheduler};
use nelumbo::kv::{PageGeometry, Pages};
use quantile::quantile;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

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
    company: Company,
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
        for company in Company::ALL {
            let times = measure(running, company);
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

/// What happens beside decoding.
#[derive(Clone, Copy, PartialEq)]
enum Company {
    /// Nothing: nobody comes or goes.
    None,
    /// A prompt of 60,000 tokens, 48 in each step; the next one follows.
    Prompt,
    /// Answers end after 64 to 320 tokens, and other requests take their place.
    Others,
}

impl Company {
    const ALL: [Company; 3] = [Company::None, Company::Prompt, Company::Others];

    fn name(self) -> &'static str {
        match self {
            Company::None => "none",
            Company::Prompt => "prompt",
            Company::Others => "others",
        }
    }
}

/// Requests of 200 to 4,200 tokens, or to 400.
struct Clients {
    next: usize,
    company: Company,
}

impl Clients {
    fn request(&mut self) -> Request {
        self.next += 1;
        // those who come and go are short, so that all seats are taken all the time
        let (most_tokens, max_tokens) = match self.company {
            Company::Others => (200, 64 + self.next * 31 % 256),
            _ => (4000, 1 << 16),
        };
        Request {
            tokens: self.tokens(200 + self.next * 977 % most_tokens),
            max_tokens,
            ..Request::default()
        }
    }

    fn prompt(&mut self) -> Request {
        self.next += 1;
        Request {
            tokens: self.tokens(60_000),
            max_tokens: 1,
            ..Request::default()
        }
    }

    /// Of the request that is next: no two begin alike.
    fn tokens(&self, len: usize) -> Vec<u32> {
        let of = |j: usize| (self.next * 7919 + j * 31) % 50_000;
        (0..len).map(|j| of(j) as u32).collect()
    }
}

fn measure(running: usize, company: Company) -> Times {
    let limits = Limits {
        // everybody's prompt in a step, so that all begin at once
        max_batched_tokens: (running + 1) * 4300,
        max_running: running + 1,
        max_rows: running + 1,
        max_model_len: 1 << 17,
        max_waiting: running + 1,
    };
    let pages = (running + 1) * 500 + (1 << 13) + SLAB_PAGES;
    let pages = Pages::new(PageGeometry::new(pages, SLAB_PAGES), true);
    let mut scheduler = Scheduler::new(limits, pages, b"bench");
    let mut clients = Clients { next: 0, company };
    for _ in 0..running {
        scheduler.submit(clients.request()).expect("room for all");
    }
    step(&mut scheduler, usize::MAX);
    let decodes = scheduler.running().filter(|s| s.gap() == 1).count();
    assert_eq!(decodes, running, "all have begun");
    let mut times = Times {
        running,
        company,
        total: Vec::new(),
        plan: Vec::new(),
        commit: Vec::new(),
        mean_pages: 0.0,
    };
    let prompt_tokens = if company == Company::Others { 1024 } else { 48 };
    let mut pages = 0;
    for i in 0..WARM_UP + STEPS {
        while scheduler.queue_lens().0 + scheduler.queue_lens().1 < running {
            scheduler.submit(clients.request()).expect("somebody ended");
        }
        if company == Company::Prompt && scheduler.queue_lens() == (running, 0) {
            scheduler
                .submit(clients.prompt())
                .expect("room for one more");
        }
        let (plan, commit) = step(&mut scheduler, prompt_tokens);
        if i >= WARM_UP {
            times.plan.push(plan);
            times.commit.push(commit);
            times.total.push(plan + commit);
            pages += scheduler.running().map(|s| s.pages[0].len()).sum::<usize>();
        }
    }
    times.mean_pages = pages as f64 / (STEPS * running) as f64;
    for times in [&mut times.total, &mut times.plan, &mut times.commit] {
        times.sort_unstable_by(f64::total_cmp);
    }
    times
}

/// Microseconds of plan and commit.
fn step(scheduler: &mut Scheduler, prompt_tokens: usize) -> (f64, f64) {
    let start = Instant::now();
    let plan = scheduler.plan_step(prompt_tokens);
    let planned = start.elapsed();
    let draws = plan.chunks.iter().map(|chunk| chunk.draws).sum();
    let drawn = Sampled {
        token: 1,
        top_logprobs: Vec::new(),
    };
    let sampled = vec![Some(drawn); draws];
    let start = Instant::now();
    let events = scheduler.commit_step(&plan, sampled);
    let committed = start.elapsed();
    drop(events);
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    (us(planned), us(committed))
}

fn print_row(times: &Times) {
    let last = times.total.len() - 1;
    println!(
        "{:>8} {:>8} {:>12.0} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>10.1}",
        times.running,
        times.company.name(),
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
        "company": times.company.name(),
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
