//! What the pace means for the next step: how much of a prompt, and how many tokens at all.

use super::pace::{Load, Pace, last_that};
use super::scheduler::Scheduler;
use crate::model::Config;
use crate::model::submits::DISPATCH_SECONDS;

/// Tokens that a step may have in any case.
const LEAST_TOKENS: usize = 16;

/// The pace of a device, and the bounds that it is held against.
#[derive(Debug, Default)]
pub struct Pacer {
    pace: Pace,
    /// Seconds that nobody who decodes should wait longer for the next token.
    max_itl: Option<f64>,
    /// Whether no dispatch may hold the device for long.
    watched: bool,
}

/// What a scheduler has to do.
struct Outlook {
    /// Those who decode.
    decodes: Load,
    /// Where the prompt goes on that is next; `None` where there is none.
    position: Option<usize>,
}

impl Pacer {
    /// For a device that others wait for as well, if `watched`.
    pub fn new(watched: bool) -> Pacer {
        Pacer {
            watched,
            ..Pacer::default()
        }
    }

    /// The longest that somebody who decodes should wait for the next token, in seconds.
    pub fn set_max_itl(&mut self, seconds: Option<f64>) {
        self.max_itl = seconds;
    }

    /// Before a step is planned: bounds its tokens, and tells how many of them prompts may have while
    /// somebody decodes.
    pub fn bound(&self, scheduler: &mut Scheduler, config: &Config) -> usize {
        if self.max_itl.is_none() && !self.watched {
            return usize::MAX;
        }
        let outlook = Outlook::of(scheduler);
        let Some(position) = outlook.position else {
            return usize::MAX;
        };
        let most = scheduler.limits().max_batched_tokens;
        if self.watched {
            scheduler.bound_steps(self.step_tokens(config, &outlook.decodes, position, most));
        }
        let room = most.saturating_sub(outlook.decodes.decodes);
        match self.max_itl {
            Some(limit) => self
                .pace
                .prompt_tokens(limit, &outlook.decodes, position, room),
            None => usize::MAX,
        }
    }

    /// Tokens of a step beside the queue, from `position` of its text on: up to `most`, and where nobody who
    /// decodes should wait long, as many as a prompt would get.
    pub fn beside(&self, scheduler: &Scheduler, position: usize, most: usize) -> usize {
        let decodes = Outlook::of(scheduler).decodes;
        match self.max_itl {
            Some(limit) if decodes.decodes > 0 => {
                self.pace.prompt_tokens(limit, &decodes, position, most)
            }
            _ => most,
        }
    }

    /// Tokens of a step whose longest dispatch ends in time.
    fn step_tokens(&self, config: &Config, decodes: &Load, position: usize, most: usize) -> usize {
        let own = decodes.decodes;
        let in_time = |tokens: usize| {
            let prompt = tokens.saturating_sub(own);
            let seconds = self.pace.parts(&decodes.with_prompt(position, prompt));
            seconds.is_none_or(|seconds| {
                config.longest_dispatch(tokens, own + 1, seconds) <= DISPATCH_SECONDS
            })
        };
        last_that(most, in_time).max(LEAST_TOKENS)
    }

    /// Seconds that a step of `load` will take, where that is known.
    pub fn expected(&self, load: &Load) -> Option<f64> {
        self.pace.expected(load)
    }

    /// Takes note of a step of `load` that took `seconds`.
    pub fn learn(&mut self, load: &Load, seconds: f64) {
        self.pace.learn(load, seconds);
    }
}

impl Outlook {
    fn of(scheduler: &Scheduler) -> Outlook {
        let (mut decodes, mut position) = (Load::default(), None);
        for sequence in scheduler.running() {
            if sequence.gap() == 1 {
                decodes.add(sequence.num_computed, 1);
            } else {
                position = position.max(Some(sequence.num_computed));
            }
        }
        // who waits may find all of its prompt computed but for the last token
        let next = || scheduler.waiting().next().map(|s| s.tokens.len() - 1);
        Outlook {
            decodes,
            position: position.or_else(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::Request;
    use crate::engine::scheduler::{Limits, Sampled};
    use crate::kv::{PageGeometry, Pages};
    use crate::model::synthetic;

    fn scheduler() -> Scheduler {
        let limits = Limits {
            max_batched_tokens: 512,
            max_running: 4,
            max_rows: 4,
            max_model_len: 8192,
            max_waiting: 4,
        };
        Scheduler::new(
            limits,
            Pages::new(PageGeometry::new(1024, 1024), false),
            b"",
        )
    }

    /// Runs until nothing is left of `tokens` of a prompt but the last step; the tokens of each step.
    fn run(pacer: &mut Pacer, scheduler: &mut Scheduler, device: fn(&Load) -> f64) -> Vec<Load> {
        let config = synthetic::tiny();
        let mut loads = Vec::new();
        while scheduler.running().any(|s| s.gap() > 1) || scheduler.waiting().next().is_some() {
            let prompt_tokens = pacer.bound(scheduler, &config);
            let plan = scheduler.plan_step(prompt_tokens);
            let load = Load::of(&plan.chunks);
            pacer.learn(&load, device(&load));
            loads.push(load);
            let draws = plan.chunks.iter().map(|chunk| chunk.draws).sum();
            let drawn = Sampled {
                token: 1,
                top_logprobs: Vec::new(),
            };
            scheduler.commit_step(&plan, vec![Some(drawn); draws]);
            scheduler.check();
        }
        loads
    }

    fn request(len: usize) -> Request {
        Request {
            tokens: vec![1; len],
            max_tokens: 2000,
            ..Request::default()
        }
    }

    fn device(load: &Load) -> f64 {
        0.02 + 0.004 * load.decodes as f64
            + 0.002 * load.prompt_tokens as f64
            + 1e-6 * load.prompt_context as f64
    }

    #[test]
    fn prompts_are_held_back_only_while_somebody_decodes() {
        let (mut pacer, mut scheduler) = (Pacer::new(false), scheduler());
        pacer.set_max_itl(Some(0.15));
        scheduler.submit(request(1000)).unwrap();
        let alone = run(&mut pacer, &mut scheduler, device);
        assert_eq!(alone[0].prompt_tokens, 512, "nobody waits");
        for _ in 0..3 {
            scheduler.submit(request(2000)).unwrap();
        }
        let beside = run(&mut pacer, &mut scheduler, device);
        assert!(beside.iter().all(|load| load.decodes > 0));
        let times: Vec<f64> = beside.iter().map(device).collect();
        assert!(times.iter().all(|&t| t < 0.19), "{times:?}");
        let close = times.iter().filter(|&&t| t > 0.11).count();
        assert!(close * 10 > times.len() * 9, "{times:?}");

        pacer.set_max_itl(None);
        scheduler.cancel(crate::engine::RequestId(1)).unwrap();
        scheduler.submit(request(1000)).unwrap();
        let free = run(&mut pacer, &mut scheduler, device);
        assert_eq!(free[0].prompt_tokens + free[0].decodes, 512);
    }

    #[test]
    fn work_beside_the_queue_is_held_back_like_a_prompt() {
        let (mut pacer, mut scheduler) = (Pacer::new(false), scheduler());
        scheduler.submit(request(600)).unwrap();
        run(&mut pacer, &mut scheduler, device);
        assert_eq!(pacer.beside(&scheduler, 0, 64), 64, "nobody asked for less");
        pacer.set_max_itl(Some(0.07));
        let held_back = pacer.beside(&scheduler, 0, 64);
        assert!((8..32).contains(&held_back), "{held_back}");
        scheduler.cancel(crate::engine::RequestId(1)).unwrap();
        assert_eq!(pacer.beside(&scheduler, 0, 64), 64, "nobody decodes");
    }

    #[test]
    fn steps_of_a_slow_device_that_is_watched_are_bounded_whoever_waits() {
        let dispatch = |load: &Load| {
            let (matrices, attention) = (
                0.002 * load.prompt_tokens as f64,
                1e-6 * load.prompt_context as f64,
            );
            synthetic::tiny().longest_dispatch(load.prompt_tokens, 1, (matrices, attention))
        };
        let longest = |watched| {
            let (mut pacer, mut scheduler) = (Pacer::new(watched), scheduler());
            scheduler.submit(request(8000)).unwrap();
            let loads = run(&mut pacer, &mut scheduler, device);
            let longest = loads[4..].iter().map(dispatch).fold(0.0, f64::max);
            (longest, loads)
        };
        let (free, _) = longest(false);
        let (bounded, loads) = longest(true);
        assert!(free > 2.0 * DISPATCH_SECONDS, "{free}");
        assert!(bounded < 1.2 * DISPATCH_SECONDS, "{bounded}: {loads:?}");
        assert!(loads.len() < 8000 / LEAST_TOKENS, "{loads:?}");
    }
}
