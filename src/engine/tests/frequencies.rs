//! How often tokens are drawn, with and without proposals: by a device that draws from a distribution that is
//! known, where proposals are good, bad or from another distribution.

use super::*;
use crate::engine::speculate::Proposal;
use crate::kv::PageGeometry;
use crate::planted;

/// What is drawn after anything, by the token before.
const SHARES: [[f64; 4]; 2] = [[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]];
const SAMPLES: usize = 20_000;
/// Tokens of an answer.
const ANSWER: usize = 6;

fn shares(before: u32) -> [f64; 4] {
    SHARES[usize::from(before > 1)]
}

/// What is drawn at a position of an answer: of seed, position and the token before alone.
fn drawn(seed: u64, position: usize, before: u32) -> u32 {
    let noise = simulation::hashes::mixed(seed ^ simulation::hashes::mixed(position as u64 + 1));
    let mut at = (noise >> 11) as f64 / (1u64 << 53) as f64;
    for (token, share) in (0..).zip(shares(before)) {
        at -= share;
        if at < 0.0 {
            return token;
        }
    }
    3
}

/// Counts of each token by the one before, over the answers to many requests; proposals are `proposed` by seed
/// and length of the text.
fn counts(proposed: impl Fn(u64, usize) -> Vec<u32>) -> [[f64; 4]; 2] {
    let limits = Limits {
        max_batched_tokens: 64,
        max_running: 8,
        max_rows: 64,
        max_model_len: 64,
        max_waiting: 8,
    };
    let pages = Pages::new(PageGeometry::new(64, 64), false);
    let mut scheduler = Scheduler::new(limits, pages, b"");
    let (mut counts, mut seed) = ([[0.0; 4]; 2], 0);
    let enough = |counts: &[[f64; 4]; 2]| counts.iter().flatten().sum::<f64>() >= SAMPLES as f64;
    while !enough(&counts) || !scheduler.is_idle() {
        while !enough(&counts) && scheduler.running().chain(scheduler.waiting()).count() < 8 {
            seed += 1;
            let sampling = crate::engine::Sampling {
                seed,
                ..Default::default()
            };
            let request = Request {
                tokens: vec![0],
                max_tokens: ANSWER,
                sampling,
                ..Request::default()
            };
            scheduler.submit(request).unwrap();
        }
        let running: Vec<(RequestId, u64, usize)> = scheduler
            .running()
            .map(|s| (s.id, s.request.sampling.seed, s.tokens.len()))
            .collect();
        for (id, seed, len) in running {
            let tokens = proposed(seed, len);
            scheduler.propose(
                id,
                Proposal {
                    tokens,
                    ..Proposal::default()
                },
            );
        }
        let plan = scheduler.plan_step(usize::MAX);
        let mut verified = plan.verified.iter();
        let mut sampled = Vec::new();
        for chunk in &plan.chunks {
            let s = scheduler.sequence(chunk.id);
            let mut text = s.tokens.clone();
            if chunk.proposed > 0 {
                text.extend(&verified.next().unwrap().proposal.tokens);
            }
            let first = text.len() - chunk.proposed;
            sampled.extend((first..=text.len()).take(chunk.draws).map(|len| {
                Some(Sampled {
                    token: drawn(s.request.sampling.seed, len, text[len - 1]),
                    top_logprobs: Vec::new(),
                })
            }));
        }
        let before: BTreeMap<RequestId, u32> = scheduler
            .running()
            .map(|s| (s.id, *s.tokens.last().unwrap()))
            .collect();
        let mut last = before;
        for event in scheduler.commit_step(&plan, sampled) {
            if let Event::Token { id, token, .. } = event {
                let before = last.insert(id, token).expect("it runs");
                counts[usize::from(before > 1)][token as usize] += 1.0;
            }
        }
        scheduler.check();
    }
    counts
}

/// Pearson's statistic of `counts` against what is to be expected, and what it exceeds once in a hundred times
/// (Wilson and Hilferty, 1931).
fn misfit(counts: &[[f64; 4]; 2]) -> (f64, f64) {
    let (mut statistic, mut freedom) = (0.0, 0.0);
    for (counts, shares) in counts.iter().zip(SHARES) {
        let all: f64 = counts.iter().sum();
        let terms = counts.iter().zip(shares).map(|(&count, share)| {
            let expected = all * share;
            (count - expected) * (count - expected) / expected
        });
        statistic += terms.sum::<f64>();
        freedom += counts.len() as f64 - 1.0;
    }
    let spread = 2.0 / (9.0 * freedom);
    let most = freedom * (1.0 - spread + 2.326 * spread.sqrt()).powi(3);
    (statistic, most)
}

/// Proposals: none, the likeliest, others, and some that are right because they know the answer.
fn proposals() -> Vec<(&'static str, fn(u64, usize) -> Vec<u32>)> {
    vec![
        ("none", |_, _| Vec::new()),
        ("the likeliest", |_, _| vec![0; 4]),
        ("the unlikeliest", |_, _| vec![3, 0, 3]),
        ("drawn from something else", |seed, len| {
            let noise = simulation::hashes::mixed(seed.wrapping_mul(31) + len as u64);
            (0..3).map(|i| (noise >> (8 * i)) as u32 % 4).collect()
        }),
    ]
}

#[test]
fn tokens_are_as_frequent_as_the_model_has_them_whatever_is_proposed() {
    for (name, proposed) in proposals() {
        let (statistic, most) = misfit(&counts(proposed));
        assert!(statistic < most, "{name}: {statistic:.1} of {most:.1}");
    }
}

#[test]
fn an_acceptance_that_is_wrong_shows_in_frequencies() {
    for fault in [Fault::AcceptMore, Fault::KeepRejected] {
        for (name, proposed) in &proposals()[1..] {
            let run = || planted::with(Some(fault), || misfit(&counts(proposed)));
            let (statistic, most) = run();
            assert!(statistic > 2.0 * most, "{fault:?}, {name}: {statistic:.1}");
        }
    }
}
