//! The scheduler on a device that is a table of hashes, by the ten thousand.
//!
//! A slot of the cache holds a hash of the tenant and of all tokens up to its own. Before a step writes,
//! what a chunk sees of its context is read through its page tables, by group, and compared; what is drawn is a hash of what
//! was read. So each answer must be that of the request alone, whatever ran beside it, was shared,
//! evicted, copied, preempted, cancelled or lost.
//!
//! `NELUMBO_SIMULATION_SEEDS` asks for more seeds than the usual ones.

pub(super) mod hashes;
mod table_of_hashes;

use super::*;
use crate::engine::speculate::{MOST_PROPOSED, Proposal};
use crate::engine::{Failure, FinishReason, Sampling};
use crate::kv::{GONE, PAGE_SIZE, PageGeometry, PageGroup, pages_for};
use crate::planted;
use hashes::{POISON, Random, alone};
use std::collections::BTreeSet;

/// What a request is expected to answer, and what it has so far.
struct Asked {
    answer: Vec<u32>,
    got: Vec<u32>,
    finished: Option<FinishReason>,
}

struct World {
    random: Random,
    scheduler: Scheduler,
    vocab: u32,
    /// By group.
    cells: Vec<Vec<u64>>,
    asked: BTreeMap<RequestId, Asked>,
    /// Texts that prompts begin with.
    documents: Vec<Vec<u32>>,
    /// The device is lost whenever a step computes one of these tokens of these requests, and in no other
    /// step.
    cursed: Option<Vec<(RequestId, usize)>>,
    preemptions: usize,
    /// Who computed no numbers, and who lost the device too often.
    failures: (usize, usize),
    cached: usize,
    /// Tokens that were proposed and verified, and those that were right.
    proposed: (usize, usize),
    /// Pages that were given back behind a window.
    passed: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D));
        let max_running = random.range(1, 8);
        let groups = groups(&mut random);
        // of a window there may be fewer pages than a text has
        let is_long = groups.iter().any(|g| g.window.is_some()) && random.once_in(3);
        let longest = if is_long { 1000 } else { 200 };
        let limits = Limits {
            max_batched_tokens: max_running + random.below(48),
            max_running,
            max_rows: max_running + random.below(20),
            max_model_len: random.range(20, longest),
            max_waiting: random.range(1, 12),
        };
        let vocab = random.range(2, 12) as u32;
        let documents = (0..3)
            .map(|_| {
                (0..longest / 2 - 10)
                    .map(|_| random.below(vocab as usize) as u32)
                    .collect()
            })
            .collect();
        let cached = !random.once_in(4);
        let cursed = random.once_in(4).then(Vec::new);
        World {
            scheduler: Scheduler::new(
                limits,
                Pages::grouped(&groups, limits.max_batched_tokens, cached),
                b"simulated",
            ),
            vocab,
            cells: groups
                .iter()
                .map(|group| vec![POISON; group.geometry.num_pages * PAGE_SIZE])
                .collect(),
            asked: BTreeMap::new(),
            documents,
            random,
            cursed,
            preemptions: 0,
            failures: (0, 0),
            cached: 0,
            proposed: (0, 0),
            passed: 0,
        }
    }

    fn submit(&mut self) {
        let random = &mut self.random;
        let document = &self.documents[random.below(3)];
        // around the edges of pages, and anywhere
        let shared = if random.once_in(2) {
            (PAGE_SIZE * random.range(0, document.len() / PAGE_SIZE) + random.range(0, 2))
                .saturating_sub(1)
        } else {
            random.below(document.len())
        };
        let mut tokens = document[..shared].to_vec();
        let own = random.range(usize::from(shared == 0), 12);
        tokens.extend((0..own).map(|_| random.below(self.vocab as usize) as u32));
        let request = Request {
            tokens,
            sampling: Sampling {
                seed: random.next(),
                ..Sampling::default()
            },
            max_tokens: random.range(1, 40),
            end_tokens: if random.once_in(2) {
                vec![1]
            } else {
                Vec::new()
            },
            priority: i32::from(random.once_in(5)),
            cache_salt: vec![7; random.below(2)],
            ..Request::default()
        };
        let count = if random.once_in(4) {
            random.range(2, 4)
        } else {
            1
        };
        let servable_len = self.scheduler.servable_len();
        let fits = request.tokens.len() < servable_len;
        match self.scheduler.submit_several(request.clone(), count) {
            Ok(ids) => {
                assert!(fits, "admitted what can never be served");
                if let (Some(cursed), [id]) = (&mut self.cursed, &ids[..])
                    && cursed.len() < 3
                    && self.random.once_in(4)
                {
                    cursed.push((*id, self.random.below(request.tokens.len() + 4)));
                }
                for (id, which) in ids.into_iter().zip(0..) {
                    let mut request = request.clone();
                    request.sampling.seed = request.sampling.seed.wrapping_add(which);
                    let answer = alone(&request, servable_len, self.vocab);
                    let asked = Asked {
                        answer,
                        got: Vec::new(),
                        finished: None,
                    };
                    self.asked.insert(id, asked);
                }
            }
            Err(Error::RequestTooLong { limit, .. }) => assert!(!fits && limit == servable_len),
            Err(Error::Request { field, .. }) => {
                let (_, waiting) = self.scheduler.queue_lens();
                let full = waiting >= self.scheduler.limits().max_waiting;
                let many = count > self.scheduler.limits().max_running;
                assert!(field == "queue" && full || field == "n" && many, "{field}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Of anybody, in any state, also of those who are over or never were.
    fn cancel(&mut self) {
        let id = RequestId(self.random.range(1, self.asked.len() + 2) as u64);
        let open = self.asked.get(&id).is_some_and(|a| a.finished.is_none());
        let event = self.scheduler.cancel(id);
        assert_eq!(event.is_some(), open, "{id:?}");
        event.into_iter().for_each(|event| self.hear(event));
        assert_eq!(self.scheduler.cancel(id), None, "cancelled twice");
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Token { id, token, .. } => {
                let asked = self.asked.get_mut(&id).expect("somebody asked");
                assert!(asked.finished.is_none(), "{id:?} goes on after its end");
                asked.got.push(token);
                assert!(asked.answer.starts_with(&asked.got), "{id:?} alone differs");
            }
            Event::Finished { id, reason } => {
                let asked = self.asked.get_mut(&id).expect("somebody asked");
                assert!(asked.finished.is_none(), "{id:?} ends twice");
                let whole = asked.got.len() == asked.answer.len();
                assert!(
                    whole || reason == FinishReason::Cancelled,
                    "{id:?} ends early"
                );
                asked.finished = Some(reason);
            }
            Event::Failed { id, failure } => {
                let asked = self.asked.get_mut(&id).expect("somebody asked");
                assert!(asked.finished.is_none(), "{id:?} ends twice");
                asked.finished = Some(FinishReason::Cancelled);
                match failure {
                    Failure::NotNumbers => self.failures.0 += 1,
                    Failure::DeviceLost => {
                        let is_cursed = |cursed: &Vec<_>| cursed.iter().any(|&(c, _)| c == id);
                        let guilty = self.cursed.as_ref().is_none_or(is_cursed);
                        assert!(guilty, "{id:?} pays for somebody else");
                        self.failures.1 += 1;
                    }
                }
            }
        }
    }

    /// One step, in which the device computes all, fails, or is lost.
    fn step(&mut self, prompt_tokens: usize, fails: bool, is_lost: bool) {
        self.propose();
        let before: Vec<Rank> = self.scheduler.running.keys().copied().collect();
        let first_waiting = self.scheduler.waiting.keys().next().copied();
        let plan = self.scheduler.plan_step(prompt_tokens);
        self.scheduler.check();
        self.fair(&plan, &before, first_waiting);
        self.preemptions += plan.preempted.len();
        assert!(
            !plan.is_empty() || self.scheduler.is_idle(),
            "somebody waits, and nothing is done"
        );
        assert!(plan.num_tokens() <= self.scheduler.limits().max_batched_tokens);
        let planned: BTreeSet<RequestId> = plan.chunks.iter().map(|chunk| chunk.id).collect();
        assert_eq!(
            planned.len(),
            plan.chunks.len(),
            "a sequence is in a step once"
        );
        let draws: usize = plan.chunks.iter().map(|chunk| chunk.draws).sum();
        assert!(
            draws <= self.scheduler.limits().max_rows,
            "{draws} rows of logits"
        );
        let curse = |chunk: &Chunk| {
            let mut own = self.cursed.iter().flatten().filter(|c| c.0 == chunk.id);
            own.any(|(_, at)| (chunk.start..chunk.start + chunk.len).contains(at))
        };
        let is_suspect = |chunk: &Chunk| self.scheduler.sequence(chunk.id).is_suspect();
        assert!(
            plan.chunks.len() <= 1 || !plan.chunks.iter().any(is_suspect),
            "a suspect in company"
        );
        if is_lost || plan.chunks.iter().any(curse) {
            self.lose_device(&plan.chunks);
            return;
        }
        let mut sampled: Vec<Option<Sampled>> =
            self.execute(&plan, fails).into_iter().map(Some).collect();
        if !sampled.is_empty() && self.random.once_in(400) {
            let which = self.random.below(sampled.len());
            sampled[which] = None;
        }
        if fails {
            let events = self.scheduler.abandon();
            events.into_iter().for_each(|event| self.hear(event));
            assert!(self.scheduler.is_idle());
        } else {
            let events = self.scheduler.commit_step(&plan, sampled);
            let proposed: usize = plan.chunks.iter().map(|chunk| chunk.proposed).sum();
            let drawn = plan.chunks.iter().filter(|chunk| chunk.draws > 0).count();
            let tokens = events
                .iter()
                .filter(|event| matches!(event, Event::Token { .. }));
            self.proposed.0 += proposed;
            if proposed > 0 {
                self.proposed.1 += tokens.count().saturating_sub(drawn);
            }
            events.into_iter().for_each(|event| self.hear(event));
        }
        self.scheduler.check();
        self.thrifty();
        self.poison();
    }

    /// Something that may follow, right up to somewhere, or nonsense; also for those it is of no use for.
    fn propose(&mut self) {
        let ids: Vec<RequestId> = self.scheduler.sequences.keys().copied().collect();
        for id in ids {
            if self.random.once_in(2) {
                continue;
            }
            let asked = &self.asked[&id];
            let right = asked.answer[asked.got.len()..].iter().copied();
            let mut tokens: Vec<u32> = right.take(self.random.range(1, MOST_PROPOSED)).collect();
            let (wrong, most) = (self.random.range(1, 8), self.random.below(3));
            tokens.extend((0..most).map(|_| 0));
            for token in &mut tokens {
                if self.random.once_in(wrong) {
                    *token = self.random.below(self.vocab as usize) as u32;
                }
            }
            self.scheduler.propose(
                id,
                Proposal {
                    tokens,
                    ..Proposal::default()
                },
            );
        }
    }

    /// Who came first is served first, and whoever is oldest keeps what it has.
    fn fair(&self, plan: &StepPlan, before: &[Rank], first_waiting: Option<Rank>) {
        let order = |sequences: &mut dyn Iterator<Item = &Sequence>| {
            let ranks: Vec<_> = sequences
                .map(|s| (std::cmp::Reverse(s.request.priority), s.id))
                .collect();
            assert!(
                ranks.is_sorted(),
                "in the order of priority and arrival: {ranks:?}"
            );
            ranks
        };
        let running = order(&mut self.scheduler.running());
        let waiting = order(&mut self.scheduler.waiting());
        // with several slabs the oldest may have to begin again in another
        if let Some(oldest) = before.first()
            && self
                .scheduler
                .pages
                .pools()
                .all(|p| p.geometry().num_slabs() == 1)
            && first_waiting.is_none_or(|first| first.0 >= oldest.0)
        {
            let runs = self.scheduler.running.contains_key(oldest);
            assert!(runs, "the oldest was preempted");
        }
        let admitted = running.iter().filter(|(_, id)| {
            let was_there = before
                .iter()
                .any(|rank| self.scheduler.running.get(rank) == Some(id));
            !was_there
        });
        if let (Some(last), Some(first)) = (admitted.max(), waiting.first()) {
            assert!(last < first, "somebody overtook");
        }
        for chunk in &plan.chunks {
            let runs = running.iter().any(|(_, id)| *id == chunk.id);
            assert!(runs, "{:?} is planned and does not run", chunk.id);
        }
    }

    /// Whoever runs has of what it sees of a window no more than a page, and room for a step, beyond it.
    fn thrifty(&mut self) {
        let (limits, windows) = (self.scheduler.limits(), self.scheduler.pages.windows());
        for (group, window) in windows.enumerate() {
            let Some(window) = window else { continue };
            for s in self.scheduler.running() {
                let there = s.pages[group].iter().filter(|&&page| page != GONE).count();
                let most = pages_for(window + limits.max_batched_tokens) + 1;
                assert!(there <= most, "{:?} has {there} pages, not {most}", s.id);
                self.passed += s.pages[group].len() - there;
            }
        }
    }

    /// In a step of `chunks`, or without any, by work beside the queue.
    fn lose_device(&mut self, chunks: &[Chunk]) {
        self.cells.iter_mut().for_each(|cells| cells.fill(POISON));
        let events = self.scheduler.restart(chunks);
        events.into_iter().for_each(|event| self.hear(event));
        self.scheduler.check();
        assert_eq!(self.scheduler.pages.num_cached(), 0);
    }

    fn run(mut self) -> World {
        let (arrivals, rush) = (self.random.range(10, 60), self.random.range(1, 6));
        for _ in 0..arrivals {
            if self.random.once_in(rush) {
                self.submit();
            }
            if self.random.once_in(12) {
                self.cancel();
            }
            if self.random.once_in(200) {
                self.lose_device(&[]);
            }
            let prompt_tokens = if self.random.once_in(3) {
                self.random.range(0, 20)
            } else {
                usize::MAX
            };
            let fails = self.random.once_in(150);
            let is_lost = self.cursed.is_none() && self.random.once_in(150);
            self.step(prompt_tokens, fails, is_lost);
        }
        // whoever is left comes to an end: each step computes what is known, or draws
        let left = |s: &Sequence| s.tokens.len() + s.request.max_tokens.min(60) * s.width();
        let work: usize = self.scheduler.sequences.values().map(left).sum();
        let mut steps = 0;
        while !self.scheduler.is_idle() {
            self.step(usize::MAX, false, false);
            steps += 1;
            assert!(
                steps <= 8 * work + 8,
                "no end after {steps} steps for {work} tokens"
            );
        }
        for (id, asked) in &self.asked {
            assert!(asked.finished.is_some(), "{id:?} never ends");
        }
        self.cached = self.scheduler.pages.num_cached();
        assert_eq!(self.scheduler.pages.num_used(), 0, "pages are left");
        self
    }
}

/// Half of the worlds are models without windows; the others have up to three groups.
fn groups(random: &mut Random) -> Vec<PageGroup> {
    let count = if random.once_in(2) {
        1
    } else {
        random.range(1, 3)
    };
    let group = |number| {
        let window = match count {
            1 => random.once_in(4).then(|| random.range(1, 60)),
            _ if number == 1 => None,
            _ => Some(random.range(1, 60)),
        };
        // of a window as many as a sequence goes on in for ever, or too few
        let pages = [40, 80][random.below(2)];
        let geometry = PageGeometry::new(random.range(2, pages), 16);
        PageGroup { geometry, window }
    };
    (0..count).map(group).collect()
}

fn seeds(usual: u64) -> u64 {
    let asked = std::env::var("NELUMBO_SIMULATION_SEEDS");
    asked.map_or(usual, |text| text.parse().expect("a number of seeds"))
}

#[test]
fn every_answer_is_that_of_the_request_alone() {
    let (mut requests, mut preemptions, mut cached, mut failures) = (0, 0, 0, (0, 0));
    let (mut passed, mut proposed) = (0, (0, 0));
    for seed in 0..seeds(10_000) {
        let world = std::panic::catch_unwind(|| World::new(seed).run());
        let world = world.unwrap_or_else(|_| panic!("seed {seed}"));
        requests += world.asked.len();
        preemptions += world.preemptions;
        cached += world.cached;
        passed += world.passed;
        proposed.0 += world.proposed.0;
        proposed.1 += world.proposed.1;
        failures.0 += world.failures.0;
        failures.1 += world.failures.1;
    }
    println!(
        "{requests} requests, {preemptions} preemptions, {cached} pages cached at the ends, \
         {passed} behind windows, {} of {} proposed tokens accepted, {} without numbers, {} that lost the device too often",
        proposed.1, proposed.0, failures.0, failures.1
    );
    let proposed = proposed.1 > 0 && proposed.0 > proposed.1;
    let tried =
        proposed && preemptions > 0 && cached > 0 && passed > 0 && failures.0 > 0 && failures.1 > 0;
    assert!(tried, "the seeds try nothing");
}

#[test]
fn planted_faults_are_noticed() {
    let faults = [
        Fault::ForgetRelease,
        Fault::ReleaseTwice,
        Fault::PublishEarly,
        Fault::SkipCopy,
        Fault::StaleComputed,
        Fault::SharedIsFree,
        Fault::EvictOwned,
        Fault::AdmitWithoutOutput,
        Fault::RequeueLast,
        Fault::ForgetSibling,
        Fault::KeepKey,
        Fault::DropWakeUp,
        Fault::FreeEarly,
        Fault::AcceptMore,
        Fault::KeepRejected,
        Fault::ForgetRollback,
    ];
    for fault in faults {
        let noticed = (0..1000u64).find(|&seed| {
            let run = || planted::with(Some(fault), || World::new(seed).run());
            std::panic::catch_unwind(run).is_err()
        });
        let seed = noticed.unwrap_or_else(|| panic!("{fault:?} is not noticed"));
        println!("{fault:?}: seed {seed}");
    }
}
