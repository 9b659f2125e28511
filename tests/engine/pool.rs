//! A pool that is too small for what is asked of it, and how much of a pool lies idle.

use super::common::{decoder, gpu, request, tokens};
use super::serving::{Company, Serving, alone};
use nelumbo::LoadOptions;
use nelumbo::engine::runner::Runner;
use nelumbo::engine::scheduler::Sampled;
use nelumbo::engine::{Limits, Request, Sampling, Scheduler};
use nelumbo::gpu::OpenOptions;
use nelumbo::kernels::Activations;
use nelumbo::kernels::case::Data;
use nelumbo::kv::{PAGE_SIZE, PageGeometry, Pages, pages_for};
use nelumbo::model::synthetic;

/// Prompts of 1 to 140 tokens, every third with a common beginning, and answers of 8 to 39.
fn random_requests(count: u64, vocab_size: usize) -> Vec<Request> {
    let document = tokens(500, 40, vocab_size);
    let mut data = Data::new(501);
    (0..count)
        .map(|i| {
            let own = tokens(600 + i, 1 + data.below(100), vocab_size);
            let shared = if i % 3 == 0 { data.below(41) } else { 0 };
            let prompt = [&document[..shared], &own].concat();
            request(&prompt, 8 + data.below(32), Sampling::default())
        })
        .collect()
}

#[test]
fn two_hundred_requests_pass_through_a_quarter_of_what_they_need() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let requests = random_requests(200, config.vocab_size);
    let need = |r: &Request| pages_for(r.tokens.len() + r.max_tokens);
    let all: usize = requests.iter().map(need).sum();
    let mut needs: Vec<usize> = requests.iter().map(need).collect();
    needs.sort_unstable();
    let largest: usize = needs.iter().rev().take(16).sum();
    // a quarter of what all of them need, and of what those need who may run at once
    for (at_a_time, num_pages) in [(64, all / 4), (16, largest / 4)] {
        let options = LoadOptions {
            activations: Some(Activations::F32),
            ctx_size: Some(256),
            batch_size: Some(256),
            max_running: at_a_time,
            pool_tokens: Some(num_pages * PAGE_SIZE),
            ..LoadOptions::default()
        };
        let mut runner = Runner::new(decoder(&gpu, &config, &options)).unwrap();
        assert_eq!(runner.decoder().kv().geometry(0).num_pages, num_pages);
        let expected = alone(&mut runner, &requests);
        let company = Company {
            max_running: at_a_time,
            budget: 256,
            num_pages,
        };
        let mut serving = Serving::new(&mut runner, company, true);
        let found = serving.serve(&requests);
        println!(
            "{at_a_time} at a time in {num_pages} pages of {all}: {} preemptions",
            serving.preemptions
        );
        assert!(
            serving.preemptions > 0,
            "{num_pages} pages hold {at_a_time}"
        );
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "request {i} of {at_a_time} at a time");
        }
    }
}

#[test]
fn less_than_4_percent_of_the_room_taken_is_unused_at_256_tokens() {
    const COUNT: usize = 256;
    let limits = Limits {
        max_batched_tokens: 1 << 20,
        max_running: COUNT,
        max_rows: COUNT,
        max_model_len: 4096,
        max_waiting: COUNT,
    };
    let pages = Pages::new(PageGeometry::new(1 << 14, 1024), true);
    let mut scheduler = Scheduler::new(limits, pages, b"");
    let mut data = Data::new(77);
    // 224 to 287 tokens at the end: 256 in the mean, and every remainder as likely
    for i in 0..COUNT as u64 {
        let prompt = tokens(1000 + i, 192 + data.below(64), 50_000);
        let request = request(&prompt, 64, Sampling::default());
        scheduler.submit(request).unwrap();
    }
    let (mut taken, mut used, mut steps) = (0, 0, 0);
    for _ in 0..64 {
        let plan = scheduler.plan_step(usize::MAX);
        let drawn = vec![
            Some(Sampled {
                token: 1,
                top_logprobs: Vec::new(),
            });
            COUNT
        ];
        let lengths: usize = scheduler.running().map(|s| s.tokens.len()).sum();
        let room = scheduler.pages().num_used() * PAGE_SIZE;
        assert_eq!(plan.chunks.len(), COUNT);
        scheduler.commit_step(&plan, drawn);
        let mean = lengths / COUNT;
        if (248..264).contains(&mean) {
            (taken, used, steps) = (taken + room, used + lengths, steps + 1);
            let waste = (room - lengths) as f64 / room as f64;
            assert!(waste < 0.04, "{waste:.4} of the room at {mean} tokens");
        }
    }
    let waste = (taken - used) as f64 / taken as f64;
    println!(
        "{:.2} % of the room is unused over {steps} steps",
        waste * 100.0
    );
    assert!(
        steps >= 8 && waste > 0.01,
        "half a page each is unavoidable"
    );
    assert!(scheduler.is_idle() && scheduler.pages().num_used() == 0);
}
