//! The loop: who has arrived is submitted, a step is planned, the clock goes on by what it costs.

use super::StepCost;
use super::arrivals::{self, Arrival};
use super::contiguous::{Contiguous, Reserve};
use super::figures::MemoryUse;
use super::paged::Paged;
use crate::engine::pace::Load;
use crate::engine::plan::Chunk;
use crate::error::{Error, Result};
use crate::kv::PAGE_SIZE;
use crate::model::Config;

/// Steps of a simulation at most.
const MOST_STEPS: u64 = 20_000_000;
/// Seconds of a step at most: who asks for more has a unit wrong.
const LONGEST_STEP: f64 = 86_400.0;
/// Requests that wait in the scheduler at a time; others wait outside, in the same order.
pub(super) const WAITING: usize = 256;

/// How many tokens of prompts a step has while somebody decodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Chunking {
    /// As many as fit.
    Whole,
    /// So many at most.
    Fixed(usize),
    /// What the pacer says, who learns from the simulated times: nobody should wait longer than so many
    /// seconds for the next token.
    MaxItl(f64),
}

/// How requests hold their keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// In pages, as the engine does.
    Paged {
        /// Whether full pages are found again.
        prefix_cache: bool,
    },
    /// In one piece each.
    Contiguous(Reserve),
}

/// What serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// Tokens of a step at most.
    pub max_batched_tokens: usize,
    /// Requests that run at a time at most.
    pub max_running: usize,
    /// The longest sequence, prompt and answer, in tokens.
    pub max_model_len: usize,
    /// Tokens whose keys and values there is memory for; whole pages of it are used.
    pub pool_tokens: usize,
    /// How prompts are cut.
    pub chunking: Chunking,
    /// Whether no dispatch may hold the device for long, as on a GPU that others use as well.
    pub watched: bool,
    /// How memory is given out.
    pub memory: Memory,
}

/// A request that came to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Its number among the arrivals.
    pub index: usize,
    /// Seconds: when it came.
    pub arrival: f64,
    /// When its first token was there.
    pub first: f64,
    /// When its last token was there.
    pub end: f64,
    /// Tokens of its answer.
    pub tokens: usize,
    /// The longest wait between two of them.
    pub longest_gap: f64,
}

impl Served {
    /// Seconds for a token after the first, on average; none of an answer of one token.
    pub fn tpot(&self) -> Option<f64> {
        (self.tokens > 1).then(|| (self.end - self.first) / (self.tokens - 1) as f64)
    }
}

/// What became of all requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// In the order of their ends.
    pub served: Vec<Served>,
    /// Waits between two tokens of a request, over all requests, in seconds.
    pub gaps: Vec<f32>,
    /// Requests that could never have been served: too long for the context or the memory.
    pub refused: usize,
    /// Steps.
    pub steps: u64,
    /// When the last one ended, in seconds.
    pub seconds: f64,
    /// Seconds of all steps.
    pub busy_seconds: f64,
    /// How often somebody's memory was taken for others.
    pub preemptions: usize,
    /// Tokens of prompts, over those who were served.
    pub prompt_tokens: usize,
    /// Tokens that were computed, again after preemptions, and without those that were found.
    pub computed_tokens: usize,
    /// The most tokens of prompts in a step beside somebody who decodes.
    pub largest_chunk: usize,
    /// How memory was used.
    pub memory: MemoryUse,
}

/// What a step is for: chunks by request, and who lost their memory.
#[derive(Default)]
pub(super) struct Planned {
    pub chunks: Vec<Chunk>,
    pub preemptions: usize,
}

/// A token that somebody got.
pub(super) struct Drawn {
    /// Whose, by number among the arrivals.
    pub index: usize,
    /// Whether it is the last.
    pub is_last: bool,
}

/// How memory stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    /// Requests that have memory.
    pub running: usize,
    /// Whether others wait for it.
    pub waiting: bool,
    /// Tokens that were given room.
    pub reserved: usize,
    /// Tokens that are known of them, each counted once where several share its room.
    pub held: usize,
}

/// Who serves: takes requests in, plans steps, and hears that they are computed.
pub(super) trait Server {
    /// Room in the queue.
    fn has_room(&self) -> bool;
    /// `false` where it can never be served.
    fn submit(&mut self, index: usize, arrival: &Arrival) -> bool;
    fn is_idle(&self) -> bool;
    fn plan(&mut self) -> Planned;
    fn standing(&self) -> Standing;
    fn learn(&mut self, load: &Load, seconds: f64);
    fn commit(&mut self) -> Vec<Drawn>;
    /// Asserts that nothing is left behind.
    fn check(&self);
}

/// Serves `arrivals`, which are in order of time, by `setup`; `config` is the model's, which tells how
/// long its dispatches are among a step's.
///
/// # Errors
/// [`Error::Request`] for numbers out of range, a step that costs no time or a day, and a simulation of
/// more than 20 million steps.
pub fn simulate(
    setup: &Setup,
    config: &Config,
    arrivals: &[Arrival],
    cost: &dyn StepCost,
) -> Result<Outcome> {
    arrivals::check(arrivals)?;
    setup.check()?;
    match setup.memory {
        Memory::Paged { prefix_cache } => {
            // pages that nobody ever gets would only have to be kept track of
            let most =
                |a: &Arrival| (a.prompt_tokens + a.output_tokens).next_multiple_of(PAGE_SIZE);
            let all: usize = arrivals.iter().map(|a| most(a) + PAGE_SIZE).sum();
            let pool_tokens = setup.pool_tokens.min(all.max(setup.max_model_len));
            let setup = Setup {
                pool_tokens,
                ..*setup
            };
            run(
                &mut Paged::new(&setup, config, prefix_cache),
                arrivals,
                cost,
            )
        }
        Memory::Contiguous(reserve) => run(&mut Contiguous::new(setup, reserve), arrivals, cost),
    }
}

impl Setup {
    fn check(&self) -> Result<()> {
        let chunk = match self.chunking {
            Chunking::Fixed(tokens) => tokens,
            _ => 1,
        };
        for (field, value, low, high) in [
            ("parallel", self.max_running, 1, 65_536),
            (
                "batch size",
                self.max_batched_tokens,
                self.max_running,
                1 << 24,
            ),
            ("context", self.max_model_len, 2, 1 << 24),
            ("pool", self.pool_tokens, PAGE_SIZE, 1 << 40),
            ("chunk", chunk, 1, 1 << 24),
        ] {
            if !(low..=high).contains(&value) {
                let problem = format!("is {value}, expected {low} to {high}");
                return Err(Error::request(field, problem));
            }
        }
        match self.chunking {
            Chunking::MaxItl(limit) if !(1e-6..=LONGEST_STEP).contains(&limit) => {
                let problem = format!("is {limit} s, expected 0.000001 to {LONGEST_STEP}");
                Err(Error::request("max_itl", problem))
            }
            _ => Ok(()),
        }
    }
}

fn run(server: &mut dyn Server, arrivals: &[Arrival], cost: &dyn StepCost) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    // of each request: when its last token was there, and what is known of it so far
    let mut open: Vec<Option<(f64, Served)>> = vec![None; arrivals.len()];
    let mut coming = arrivals.iter().enumerate().peekable();
    let mut now = 0.0;
    loop {
        while let Some((index, arrival)) = coming.next_if(|(_, a)| a.at <= now && server.has_room())
        {
            if !server.submit(index, arrival) {
                outcome.refused += 1;
            }
        }
        if server.is_idle() {
            let Some((_, next)) = coming.peek() else {
                break;
            };
            now = next.at.max(now);
            continue;
        }
        let planned = server.plan();
        let seconds = step_seconds(cost, &planned.chunks, &mut outcome)?;
        let load = Load::of(&planned.chunks);
        let held_outside = coming.peek().is_some_and(|(_, a)| a.at <= now);
        outcome.memory.add(server.standing(), held_outside, seconds);
        outcome.preemptions += planned.preemptions;
        outcome.computed_tokens += load.decodes + load.prompt_tokens;
        if load.decodes > 0 {
            outcome.largest_chunk = outcome.largest_chunk.max(load.prompt_tokens);
        }
        outcome.busy_seconds += seconds;
        now += seconds;
        server.learn(&load, seconds);
        for drawn in server.commit() {
            let Drawn { index, is_last } = drawn;
            let at = arrivals[index].at;
            let (last, served) = open[index].get_or_insert((now, Served::begun(index, at, now)));
            if served.tokens > 0 {
                let gap = now - *last;
                outcome.gaps.push(gap as f32);
                served.longest_gap = served.longest_gap.max(gap);
            }
            served.tokens += 1;
            (*last, served.end) = (now, now);
            if is_last {
                outcome.served.push(*served);
                outcome.prompt_tokens += arrivals[index].prompt_tokens;
                open[index] = None;
            }
        }
    }
    server.check();
    let ended = outcome.served.len() + outcome.refused;
    assert_eq!(ended, arrivals.len(), "each request ends once");
    outcome.seconds = now;
    Ok(outcome)
}

impl Served {
    fn begun(index: usize, arrival: f64, first: f64) -> Served {
        Served {
            index,
            arrival,
            first,
            end: first,
            tokens: 0,
            longest_gap: 0.0,
        }
    }
}

/// What the step costs, held against reason.
fn step_seconds(cost: &dyn StepCost, chunks: &[Chunk], outcome: &mut Outcome) -> Result<f64> {
    assert!(!chunks.is_empty(), "somebody waits, and nothing is done");
    outcome.steps += 1;
    if outcome.steps > MOST_STEPS {
        let problem = format!("is not over after {MOST_STEPS} steps");
        return Err(Error::request("simulation", problem));
    }
    let seconds = cost.seconds(chunks);
    if !(seconds > 0.0 && seconds <= LONGEST_STEP) {
        let tokens: usize = chunks.iter().map(|chunk| chunk.len).sum();
        let problem = format!(
            "of a step of {tokens} tokens is {seconds} s, expected above 0, up to {LONGEST_STEP}"
        );
        return Err(Error::request("cost", problem));
    }
    Ok(seconds)
}
