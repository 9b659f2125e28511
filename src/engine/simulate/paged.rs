//! The engine's own scheduler, pool and pacer, without a device.

use super::arrivals::Arrival;
use super::lengths::scrambled;
use super::run::{Chunking, Drawn, Planned, Server, Setup, Standing, WAITING};
use crate::engine::pace::Load;
use crate::engine::pacer::Pacer;
use crate::engine::plan::StepPlan;
use crate::engine::request::{Event, Request};
use crate::engine::scheduler::{Limits, Sampled, Scheduler};
use crate::kv::{
    MAX_PAGES, PAGE_SIZE, PageGeometry, PageGroup, PagePool, Pages, SPLIT_PAGES, group_pages,
};
use crate::model::Config;

/// What every step draws: answers end by their length, and whoever goes on is told apart by its prompt.
const TOKEN: u32 = 1;

pub(super) struct Paged {
    scheduler: Scheduler,
    pacer: Pacer,
    config: Config,
    /// Of each group of pages.
    layers: Vec<usize>,
    chunk: usize,
    /// Of each id, from 1: the number among the arrivals.
    indices: Vec<usize>,
    plan: StepPlan,
}

impl Paged {
    pub fn new(setup: &Setup, config: &Config, prefix_cache: bool) -> Paged {
        let limits = Limits {
            max_batched_tokens: setup.max_batched_tokens,
            max_running: setup.max_running,
            max_rows: setup.max_running,
            max_model_len: setup.max_model_len,
            max_waiting: WAITING,
        };
        let (groups, layers) = groups(setup, config);
        let pages = Pages::grouped(&groups, limits.max_batched_tokens, prefix_cache);
        let mut pacer = Pacer::new(setup.watched);
        let chunk = match setup.chunking {
            Chunking::Whole => usize::MAX,
            Chunking::Fixed(chunk) => chunk,
            Chunking::MaxItl(limit) => {
                pacer.set_max_itl(Some(limit));
                usize::MAX
            }
        };
        Paged {
            scheduler: Scheduler::new(limits, pages, b"simulated"),
            pacer,
            config: config.clone(),
            layers,
            chunk,
            indices: Vec::new(),
            plan: StepPlan::default(),
        }
    }
}

/// Groups of layers with pages for as many tokens as there is memory for, and the layers of each. Where some
/// see a window alone, there is memory for more tokens of the others.
fn groups(setup: &Setup, config: &Config) -> (Vec<PageGroup>, Vec<usize>) {
    let groups = config.layer_groups(setup.max_model_len);
    let (running, chunk) = (setup.max_running, setup.max_batched_tokens);
    let pages_of = |window, pages| group_pages(window, pages, running, chunk);
    let memory = setup.pool_tokens / PAGE_SIZE * config.num_layers;
    let fits = |pages: usize| {
        let taken = groups
            .iter()
            .map(|&(w, layers)| layers * pages_of(w, pages));
        taken.sum::<usize>() <= memory
    };
    // never less than if all saw all, never more than the memory of all for a single layer
    let (mut pages, mut beyond) = (setup.pool_tokens / PAGE_SIZE, memory + 1);
    while beyond - pages > 1 {
        let middle = pages + (beyond - pages) / 2;
        if fits(middle) {
            pages = middle;
        } else {
            beyond = middle;
        }
    }
    let pages = pages.min(MAX_PAGES);
    let group = |&(window, _): &(Option<usize>, usize)| {
        let pages = pages_of(window, pages);
        let geometry = PageGeometry::new(pages, pages.next_multiple_of(SPLIT_PAGES));
        PageGroup { geometry, window }
    };
    let layers = groups.iter().map(|&(_, layers)| layers);
    (groups.iter().map(group).collect(), layers.collect())
}

/// Ids that only prompts of one group begin with, or that one prompt alone has.
fn tokens(index: usize, arrival: &Arrival) -> Vec<u32> {
    let shared = arrival.prefix.map_or(0, |prefix| prefix.tokens);
    let group = arrival.prefix.map_or(0, |prefix| scrambled(prefix.group));
    let own = scrambled(!(index as u64));
    let id = |at: usize| {
        let stream = if at < shared { group } else { own };
        scrambled(stream ^ at as u64) as u32
    };
    (0..arrival.prompt_tokens).map(id).collect()
}

impl Paged {
    /// Tokens of each group, as tokens of all layers.
    fn of_all_layers(&self, tokens: impl Iterator<Item = usize>) -> usize {
        let weighed = tokens
            .zip(&self.layers)
            .map(|(tokens, layers)| tokens * layers);
        weighed.sum::<usize>() / self.config.num_layers.max(1)
    }
}

impl Server for Paged {
    fn has_room(&self) -> bool {
        self.scheduler.queue_lens().1 < WAITING
    }

    fn submit(&mut self, index: usize, arrival: &Arrival) -> bool {
        let request = Request {
            tokens: tokens(index, arrival),
            max_tokens: arrival.output_tokens,
            ..Request::default()
        };
        let taken = self.scheduler.submit(request);
        if let Ok(id) = taken {
            assert_eq!(
                id.0,
                self.indices.len() as u64 + 1,
                "ids are given in order"
            );
            self.indices.push(index);
        }
        taken.is_ok()
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    fn plan(&mut self) -> Planned {
        let paced = self.pacer.bound(&mut self.scheduler, &self.config);
        self.plan = self.scheduler.plan_step(paced.min(self.chunk));
        Planned {
            chunks: self.plan.chunks.clone(),
            preemptions: self.plan.preempted.len(),
        }
    }

    fn standing(&self) -> Standing {
        let (mut running, mut spare) = (0, 0);
        for sequence in self.scheduler.running() {
            running += 1;
            let rooms = sequence.pages.iter().map(|table| table.len() * PAGE_SIZE);
            let spares = rooms.map(|room| room.saturating_sub(sequence.tokens.len()));
            spare += self.of_all_layers(spares);
        }
        let used = self.scheduler.pages.pools().map(PagePool::num_used);
        let reserved = self.of_all_layers(used.map(|pages| pages * PAGE_SIZE));
        Standing {
            running,
            waiting: self.scheduler.queue_lens().1 > 0,
            reserved,
            // what several share is full: no spare room is counted twice
            held: reserved.saturating_sub(spare),
        }
    }

    fn learn(&mut self, load: &Load, seconds: f64) {
        self.pacer.learn(load, seconds);
    }

    fn commit(&mut self) -> Vec<Drawn> {
        let draws = self.plan.chunks.iter().map(|chunk| chunk.draws).sum();
        let drawn = Sampled {
            token: TOKEN,
            top_logprobs: Vec::new(),
        };
        let plan = std::mem::take(&mut self.plan);
        let events = self.scheduler.commit_step(&plan, vec![Some(drawn); draws]);
        let mut all: Vec<Drawn> = Vec::with_capacity(draws);
        for event in events {
            match event {
                Event::Token { id, .. } => all.push(Drawn {
                    index: self.indices[id.0 as usize - 1],
                    is_last: false,
                }),
                Event::Finished { .. } => {
                    let last = all.last_mut().expect("an end follows its last token");
                    last.is_last = true;
                }
                Event::Failed { id, .. } => unreachable!("{id:?} failed without a device"),
            }
        }
        all
    }

    fn check(&self) {
        self.scheduler.check();
        assert_eq!(self.scheduler.pages.num_used(), 0, "pages of nobody");
    }
}
