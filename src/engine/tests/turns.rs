//! Who is computed when, step by step, where it takes more than one to tell.

use super::*;
use crate::engine::Failure;
use crate::engine::speculate::Proposal;
use crate::kv::PageGeometry;

/// A scheduler of 8 pages for four at a time, and requests with prompts of so many tokens, all different.
fn small() -> Scheduler {
    let limits = Limits {
        max_batched_tokens: 200,
        max_running: 4,
        max_rows: 4,
        max_model_len: 128,
        max_waiting: 9,
    };
    Scheduler::new(limits, Pages::new(PageGeometry::new(8, 16), true), b"")
}

fn ask(scheduler: &mut Scheduler, len: usize, priority: i32) -> RequestId {
    let first = scheduler.next_id as u32 * 1000;
    let request = Request {
        tokens: (first..).take(len).collect(),
        priority,
        ..Request::default()
    };
    scheduler.submit(request).unwrap()
}

/// Computes a step, and returns whose.
fn compute(scheduler: &mut Scheduler) -> Vec<RequestId> {
    let plan = scheduler.plan_step(usize::MAX);
    let draws = plan.chunks.iter().map(|chunk| chunk.draws).sum();
    let drawn = Sampled {
        token: 7,
        top_logprobs: Vec::new(),
    };
    scheduler.commit_step(&plan, vec![Some(drawn); draws]);
    scheduler.check();
    plan.chunks.iter().map(|chunk| chunk.id).collect()
}

#[test]
fn nobody_makes_way_for_who_would_not_fit_all_the_same() {
    // three pages of a high priority, two of a low one, three that are free
    let mut s = small();
    let (high, low) = (ask(&mut s, 40, 1), ask(&mut s, 20, 0));
    assert_eq!(compute(&mut s), [high, low]);
    let large = ask(&mut s, 90, 1);
    for _ in 0..3 {
        assert_eq!(compute(&mut s), [high, low], "five pages are not six");
    }
    s.cancel(high).unwrap();
    assert_eq!(compute(&mut s), [low, large], "now there are six");
    // with one page less to be had the low one has to go, and that helps
    s.cancel(large).unwrap();
    let larger = ask(&mut s, 100, 1);
    assert_eq!(compute(&mut s), [larger]);
    assert_eq!(s.counts(low).unwrap().preemptions, 1);
    // seats count like pages
    let mut s = small();
    let high = [ask(&mut s, 4, 1), ask(&mut s, 5, 1), ask(&mut s, 6, 1)];
    let low = ask(&mut s, 7, 0);
    assert_eq!(compute(&mut s).len(), 4);
    let twins = Request {
        tokens: vec![1; 8],
        priority: 1,
        ..Request::default()
    };
    let twins = s.submit_several(twins, 2).unwrap();
    assert_eq!(compute(&mut s).len(), 4, "one seat is not two");
    s.cancel(high[0]).unwrap();
    assert_eq!(compute(&mut s), [high[1], high[2], twins[0]]);
    assert_eq!(s.counts(low).unwrap().preemptions, 1);
}

#[test]
fn who_lost_the_device_twice_is_computed_alone_and_waits_for_no_end_of_others() {
    let mut s = small();
    let ids = [ask(&mut s, 20, 0), ask(&mut s, 20, 0), ask(&mut s, 20, 0)];
    for _ in 0..MAX_LOSSES {
        let plan = s.plan_step(usize::MAX);
        assert_eq!(plan.chunks.len(), 3);
        assert_eq!(
            s.restart(&plan.chunks),
            [],
            "it may have been somebody else"
        );
        s.check();
    }
    // one after another, and whoever is through goes on in between
    assert_eq!(compute(&mut s), ids[..1]);
    assert_eq!(compute(&mut s), ids[..1]);
    assert_eq!(compute(&mut s), ids[1..2]);
    assert_eq!(compute(&mut s), ids[..2]);
    assert_eq!(compute(&mut s), ids[2..]);
    assert_eq!(compute(&mut s), ids, "nothing was wrong with them");
    // nor is anything when they are preempted
    let high = ask(&mut s, 120, 1);
    assert_eq!(compute(&mut s), [high]);
    s.cancel(high).unwrap();
    assert_eq!(compute(&mut s), ids);
    // work beside the queue is not theirs; what all of them were in, is nobody's
    assert_eq!(s.restart(&[]), []);
    assert_eq!(s.counts(ids[0]).unwrap().losses, MAX_LOSSES);
    let plan = s.plan_step(usize::MAX);
    assert_eq!(plan.chunks.len(), 3);
    assert_eq!(s.restart(&plan.chunks), []);
    // and who is alone when it happens once more, was it
    let plan = s.plan_step(usize::MAX);
    assert_eq!(plan.chunks.len(), 1);
    let (id, failure) = (ids[0], Failure::DeviceLost);
    assert_eq!(s.restart(&plan.chunks), [Event::Failed { id, failure }]);
    for expected in [&ids[1..2], &ids[1..2], &ids[2..], &ids[1..]] {
        assert_eq!(compute(&mut s), expected);
    }
}

#[test]
fn guesses_take_no_page_that_somebody_waits_for() {
    let limits = Limits {
        max_batched_tokens: 200,
        max_running: 4,
        max_rows: 64,
        max_model_len: 64,
        max_waiting: 9,
    };
    let pages = Pages::new(PageGeometry::new(4, 16), true);
    let mut scheduler = Scheduler::new(limits, pages, b"");
    let proposal = || Proposal {
        tokens: vec![0; 16],
        ..Proposal::default()
    };
    let first = ask(&mut scheduler, 16, 0);
    assert_eq!(compute(&mut scheduler), [first]);
    // alone it has a third page for as long as the step
    scheduler.propose(first, proposal());
    let plan = scheduler.plan_step(usize::MAX);
    assert_eq!(
        (plan.chunks[0].proposed, scheduler.pages.num_used()),
        (16, 3)
    );
    let drawn = Sampled {
        token: 7,
        top_logprobs: Vec::new(),
    };
    scheduler.commit_step(&plan, vec![Some(drawn); 17]);
    assert_eq!(scheduler.pages.num_used(), 2);
    scheduler.check();
    // the two that are left are for whoever waits
    let second = ask(&mut scheduler, 20, 0);
    scheduler.propose(first, proposal());
    let plan = scheduler.plan_step(usize::MAX);
    let planned: Vec<_> = plan.chunks.iter().map(|c| (c.id, c.proposed)).collect();
    assert_eq!(planned, [(first, 14), (second, 0)]);
}
