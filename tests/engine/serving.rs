//! Requests served by scheduler and runner themselves, so that every logit behind every token can be
//! held against another run's, and pages can be looked at and spoilt between plan and step.

use super::common::{argmax, bits};
use nelumbo::engine::batch::Batch;
use nelumbo::engine::runner::Runner;
use nelumbo::engine::scheduler::{Sampled, StepPlan};
use nelumbo::engine::{Event, Limits, Request, RequestId, Scheduler};
use nelumbo::kv::{PageGeometry, PageGroup, Pages};
use nelumbo::model::Decoder;
use std::collections::BTreeMap;

/// What a request drew: the bits of all logits, for every token.
pub type Rows = Vec<Vec<u32>>;

/// Who runs with whom.
#[derive(Clone, Copy, Debug)]
pub struct Company {
    /// Requests at a time.
    pub max_running: usize,
    /// Tokens of a step, and of prompts beside those who decode.
    pub budget: usize,
    /// Pages for all of them.
    pub num_pages: usize,
}

/// A scheduler over the first pages of a decoder's cache.
pub struct Serving<'a> {
    runner: &'a mut Runner,
    pub scheduler: Scheduler,
    budget: usize,
    rows: BTreeMap<RequestId, Rows>,
    /// How often somebody gave up his pages.
    pub preemptions: usize,
    /// Most who had a token in one step.
    pub widest: usize,
}

impl<'a> Serving<'a> {
    pub fn new(runner: &'a mut Runner, company: Company, cached: bool) -> Serving<'a> {
        let decoder = runner.decoder();
        let limits = Limits {
            // a token for everybody at least
            max_batched_tokens: company.budget.max(company.max_running),
            max_running: company.max_running,
            max_rows: company.max_running,
            max_model_len: decoder.max_model_len(),
            max_waiting: 256,
        };
        let group = |there: &PageGroup| {
            let PageGeometry {
                num_pages,
                slab_pages,
            } = there.geometry;
            // of a window there may be fewer
            let pages = company.num_pages.min(num_pages);
            assert!(pages == company.num_pages || there.window.is_some());
            let geometry = PageGeometry::new(pages, slab_pages);
            PageGroup { geometry, ..*there }
        };
        let groups: Vec<PageGroup> = decoder.kv().groups().iter().map(group).collect();
        let pages = Pages::grouped(&groups, limits.max_batched_tokens, cached);
        let scheduler = Scheduler::new(limits, pages, b"");
        Serving {
            runner,
            scheduler,
            budget: company.budget,
            rows: BTreeMap::new(),
            preemptions: 0,
            widest: 0,
        }
    }

    /// One step; `spoil` may do what it likes to the cache after everything is planned.
    pub fn step(&mut self, spoil: impl FnOnce(&Decoder, &Scheduler, &StepPlan)) {
        let plan = self.scheduler.plan_step(self.budget);
        self.scheduler.check();
        assert!(plan.copies.is_empty(), "one answer for each prompt");
        self.preemptions += plan.preempted.len();
        self.widest = self.widest.max(plan.chunks.len());
        spoil(self.runner.decoder(), &self.scheduler, &plan);
        let batch = Batch::from_plan(&plan, &self.scheduler);
        let logits = self.runner.logits(&batch.spans).unwrap();
        let vocab_size = self.runner.decoder().config().vocab_size;
        let drawers = plan.chunks.iter().filter(|chunk| chunk.draws > 0);
        let mut sampled = Vec::new();
        for (chunk, row) in drawers.zip(logits.chunks(vocab_size)) {
            self.rows.entry(chunk.id).or_default().push(bits(row));
            sampled.push(Some(Sampled {
                token: argmax(row),
                top_logprobs: Vec::new(),
            }));
        }
        for event in self.scheduler.commit_step(&plan, sampled) {
            if let Event::Finished { reason, .. } = event {
                assert_eq!(reason.name(), "length");
            }
        }
        self.scheduler.check();
    }

    /// Serves `requests` to their ends, and returns what each drew. Nothing is owned afterwards.
    pub fn serve(&mut self, requests: &[Request]) -> Vec<Rows> {
        let ids: Vec<RequestId> = requests
            .iter()
            .map(|request| self.scheduler.submit(request.clone()).unwrap())
            .collect();
        while !self.scheduler.is_idle() {
            self.step(|_, _, _| ());
        }
        assert_eq!(self.scheduler.pages().num_used(), 0, "pages left");
        let rows = ids.iter().map(|id| self.take(*id));
        rows.collect()
    }

    /// What a request has drawn so far.
    pub fn take(&mut self, id: RequestId) -> Rows {
        self.rows.remove(&id).expect("it drew")
    }
}

/// Pages of the group that has most.
fn most_pages(decoder: &Decoder) -> usize {
    let groups = decoder.kv().groups().iter();
    let pages = groups.map(|group| group.geometry.num_pages);
    pages.max().expect("a group at least")
}

/// Each of `requests` by itself, in a cache that keeps nothing.
pub fn alone(runner: &mut Runner, requests: &[Request]) -> Vec<Rows> {
    let company = Company {
        max_running: 1,
        budget: runner.decoder().max_batched_tokens(),
        num_pages: most_pages(runner.decoder()),
    };
    let each = requests.iter().map(|request| {
        let mut serving = Serving::new(runner, company, false);
        let rows = serving.serve(std::slice::from_ref(request)).remove(0);
        assert_eq!(rows.len(), request.max_tokens);
        let is_finite = |&bits: &u32| f32::from_bits(bits).is_finite();
        assert!(rows.iter().flatten().all(is_finite), "logits are numbers");
        rows
    });
    each.collect()
}
