//! The scheduler as a value: no device, a hash for a model.

use super::common::request;
use nelumbo::Error;
use nelumbo::engine::scheduler::{Chunk, Sampled};
use nelumbo::engine::{Event, FinishReason, Limits, RequestId, Sampling, Scheduler};
use nelumbo::kv::{PAGE_SIZE, PageGeometry, Pages, pages_for};

const BUDGET: usize = 10;

/// 8 pages, 100 tokens a sequence, 10 tokens a step, one who runs and 3 who wait.
fn scheduler() -> Scheduler {
    let limits = Limits {
        max_batched_tokens: BUDGET,
        max_running: 1,
        max_rows: 1,
        max_model_len: 100,
        max_waiting: 3,
    };
    Scheduler::new(limits, Pages::new(PageGeometry::new(8, 16), false), b"")
}

fn submit(scheduler: &mut Scheduler, prompt_len: usize, max_tokens: usize) -> RequestId {
    let prompt: Vec<u32> = (0..prompt_len as u32).collect();
    let id = scheduler.submit(request(&prompt, max_tokens, Sampling::default()));
    id.unwrap()
}

/// One step: its chunk, and its events when `token` is what is sampled.
fn step(scheduler: &mut Scheduler, token: u32) -> (Chunk, Vec<Event>) {
    let plan = scheduler.plan_step(usize::MAX);
    let [chunk] = plan.chunks[..] else {
        panic!("{plan:?}");
    };
    let sampled = (chunk.draws > 0).then(|| Sampled {
        token,
        top_logprobs: Vec::new(),
    });
    scheduler.check();
    let events = scheduler.commit_step(&plan, sampled.into_iter().map(Some).collect());
    scheduler.check();
    (chunk, events)
}

fn used(scheduler: &mut Scheduler) -> usize {
    scheduler.pages().num_used()
}

fn finished(id: RequestId, reason: FinishReason) -> Event {
    Event::Finished { id, reason }
}

fn token(id: RequestId, token: u32) -> Event {
    Event::Token {
        id,
        token,
        top_logprobs: Vec::new(),
    }
}

#[test]
fn a_prompt_is_cut_by_the_budget_and_sampled_once_at_its_end() {
    for prompt_len in [1, 9, 10, 11, 20, 35] {
        let mut s = scheduler();
        let id = submit(&mut s, prompt_len, 3);
        let mut computed = 0;
        while computed < prompt_len {
            let (chunk, events) = step(&mut s, 7);
            let len = BUDGET.min(prompt_len - computed);
            let samples = computed + len == prompt_len;
            let expected = Chunk {
                id,
                start: computed,
                len,
                draws: usize::from(samples),
                proposed: 0,
            };
            assert_eq!(chunk, expected, "prompt of {prompt_len}");
            assert_eq!(
                events,
                if samples {
                    vec![token(id, 7)]
                } else {
                    Vec::new()
                }
            );
            computed += len;
            // from the first step on: the prompt's, and that of the token to be drawn
            assert_eq!(used(&mut s), pages_for(prompt_len + 1));
        }
        // from here on one token a step
        let (chunk, events) = step(&mut s, 8);
        assert_eq!(
            chunk,
            Chunk {
                id,
                start: computed,
                len: 1,
                draws: 1,
                proposed: 0,
            }
        );
        assert_eq!(events, [token(id, 8)]);
        let (_, events) = step(&mut s, 9);
        assert_eq!(events, [token(id, 9), finished(id, FinishReason::Length)]);
        assert!(s.is_idle() && s.plan_step(usize::MAX).is_empty());
        assert_eq!(used(&mut s), 0);
    }
}

#[test]
fn an_answer_takes_a_page_when_the_first_token_of_it_is_computed() {
    let mut s = scheduler();
    let id = submit(&mut s, PAGE_SIZE - 1, 40);
    for _ in 0..2 {
        step(&mut s, 1);
    }
    for computed in PAGE_SIZE..3 * PAGE_SIZE {
        let (chunk, _) = step(&mut s, 1);
        assert_eq!(chunk.start + 1, computed);
        let promised = computed.max(PAGE_SIZE);
        assert_eq!(used(&mut s), pages_for(promised), "{computed} tokens");
    }
    let sequence = s.sequence(id);
    assert_eq!(sequence.num_computed + 1, sequence.tokens.len());
    assert_eq!(
        sequence.num_generated(),
        sequence.tokens.len() - (PAGE_SIZE - 1)
    );
}

#[test]
fn requests_are_served_in_the_order_they_came() {
    let mut s = scheduler();
    let ids: Vec<RequestId> = [12, 3, 25].map(|len| submit(&mut s, len, 2)).to_vec();
    let mut over = Vec::new();
    while !s.is_idle() {
        let (chunk, events) = step(&mut s, 1);
        assert_eq!(chunk.id, ids[over.len()], "one runs until it is over");
        over.extend(events.into_iter().filter_map(|event| match event {
            Event::Finished { id, .. } => Some(id),
            Event::Token { .. } | Event::Failed { .. } => None,
        }));
    }
    assert_eq!(over, ids);
}

#[test]
fn an_end_token_stops_and_is_told() {
    let mut s = scheduler();
    let mut wanted = request(&[1, 2], 50, Sampling::default());
    wanted.end_tokens = vec![4, 5];
    let id = s.submit(wanted).unwrap();
    assert_eq!(step(&mut s, 3).1, [token(id, 3)]);
    assert_eq!(
        step(&mut s, 5).1,
        [token(id, 5), finished(id, FinishReason::Stop)]
    );
    assert_eq!(used(&mut s), 0);
}

#[test]
fn the_context_ends_an_answer() {
    let mut s = scheduler();
    assert_eq!(s.servable_len(), 100);
    let id = submit(&mut s, 97, 50);
    let mut events = Vec::new();
    while !s.is_idle() {
        events.extend(step(&mut s, 1).1);
    }
    let mut expected = vec![token(id, 1); 3];
    expected.push(finished(id, FinishReason::Length));
    assert_eq!(events, expected);
    // fewer pages than the limit on a sequence: the pages count
    let limits = *scheduler().limits();
    let s = Scheduler::new(limits, Pages::new(PageGeometry::new(3, 16), false), b"");
    assert_eq!(s.servable_len(), 3 * PAGE_SIZE);
}

#[test]
fn cancelling_works_in_every_state() {
    let cancelled = |id| Some(finished(id, FinishReason::Cancelled));
    let mut s = scheduler();
    let [waits, prefills, decodes] = [5, 30, 5].map(|len| submit(&mut s, len, 9));
    // who waits leaves the queue, the others keep their order
    assert_eq!(s.cancel(waits), cancelled(waits));
    s.check();
    assert_eq!(step(&mut s, 1).0.id, prefills);
    assert!(used(&mut s) > 0);
    // in the middle of a prompt
    assert_eq!(s.cancel(prefills), cancelled(prefills));
    s.check();
    assert_eq!(used(&mut s), 0);
    // in the middle of an answer
    for _ in 0..3 {
        assert_eq!(step(&mut s, 1).0.id, decodes);
    }
    assert_eq!(s.cancel(decodes), cancelled(decodes));
    s.check();
    assert!(s.is_idle() && used(&mut s) == 0);
    // over already, twice, or never there
    for id in [waits, prefills, decodes, RequestId(0), RequestId(999)] {
        assert_eq!(s.cancel(id), None);
    }
    // and life goes on, under a new name
    let next = submit(&mut s, 2, 1);
    assert!(![waits, prefills, decodes].contains(&next));
    assert_eq!(step(&mut s, 1).1.len(), 2);
    assert!(s.is_idle());
}

#[test]
fn what_can_never_be_served_is_refused_at_once() {
    let mut s = scheduler();
    let mut refused = |prompt_len: usize, max_tokens| {
        let request = request(&vec![0; prompt_len], max_tokens, Sampling::default());
        let error = s.submit(request).unwrap_err();
        s.check();
        assert!(s.is_idle());
        error
    };
    let too_long = refused(100, 1);
    assert!(
        matches!(
            too_long,
            Error::RequestTooLong {
                tokens: 100,
                limit: 100
            }
        ),
        "{too_long:?}"
    );
    assert!(refused(0, 1).to_string().starts_with("prompt"));
    assert!(refused(1, 0).to_string().starts_with("max_tokens"));
    // 99 and one token of an answer fit
    submit(&mut s, 99, 1);
    for _ in 0..2 {
        submit(&mut s, 1, 1);
    }
    let full = s.submit(request(&[0], 1, Sampling::default())).unwrap_err();
    assert!(full.to_string().starts_with("queue"), "{full}");
    // whoever runs does not wait: there is room again
    step(&mut s, 1);
    submit(&mut s, 1, 1);
}

#[test]
fn giving_up_ends_all_requests_and_frees_all_pages() {
    let mut s = scheduler();
    let ids = [30, 2, 2].map(|len| submit(&mut s, len, 5));
    step(&mut s, 1);
    let plan = s.plan_step(usize::MAX);
    assert!(!plan.is_empty() && used(&mut s) > 0);
    let events = s.abandon();
    let expected = ids.map(|id| finished(id, FinishReason::Cancelled));
    assert_eq!(events, expected);
    s.check();
    assert!(s.is_idle() && used(&mut s) == 0);
}
