//! What paging is compared with: each request reserves one piece of memory for as long as it runs.
//!
//! Who comes first is served first, decodes go before prompts, and steps have the same budget as with
//! pages. A piece is found by first fit; who finds none waits, and everybody behind. As a piece is as
//! large as its request can become, nobody is ever preempted; nothing is shared.

use super::arrivals::Arrival;
use super::run::{Chunking, Drawn, Planned, Server, Setup, Standing, WAITING};
use crate::engine::pace::{Load, Pace};
use crate::engine::plan::Chunk;
use crate::engine::request::RequestId;
use std::collections::VecDeque;
use std::ops::Range;

/// How large a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The whole context: where an answer ends, nobody knows before.
    Context,
    /// What prompt and answer will have taken in the end: no allocator knows it; the best that contiguous
    /// memory could do.
    Foreseen,
}

pub(super) struct Contiguous {
    reserve: Reserve,
    context: usize,
    batch: usize,
    seats: usize,
    chunking: Chunking,
    pace: Pace,
    /// In order of place, none empty and no two adjacent.
    free: Vec<Range<usize>>,
    pool: usize,
    waiting: VecDeque<Run>,
    /// In order of arrival.
    running: Vec<Run>,
    planned: Vec<Chunk>,
}

/// A request on its way.
struct Run {
    index: usize,
    /// Tokens known, and in memory.
    known: usize,
    computed: usize,
    /// Tokens known in the end.
    end: usize,
    piece: Range<usize>,
}

impl Contiguous {
    pub fn new(setup: &Setup, reserve: Reserve) -> Contiguous {
        let whole = 0..setup.pool_tokens;
        Contiguous {
            reserve,
            context: setup.max_model_len,
            batch: setup.max_batched_tokens,
            seats: setup.max_running,
            chunking: setup.chunking,
            pace: Pace::default(),
            free: vec![whole],
            pool: setup.pool_tokens,
            waiting: VecDeque::new(),
            running: Vec::new(),
            planned: Vec::new(),
        }
    }

    /// Tokens that a request reserves.
    fn size(&self, run: &Run) -> usize {
        match self.reserve {
            Reserve::Context => self.context,
            Reserve::Foreseen => run.end,
        }
    }

    /// The first piece of `size` tokens that is free.
    fn take(&mut self, size: usize) -> Option<Range<usize>> {
        let at = self.free.iter().position(|piece| piece.len() >= size)?;
        let piece = &mut self.free[at];
        let taken = piece.start..piece.start + size;
        piece.start = taken.end;
        if piece.start == piece.end {
            self.free.remove(at);
        }
        Some(taken)
    }

    fn give_back(&mut self, piece: Range<usize>) {
        let at = self.free.partition_point(|free| free.start < piece.start);
        self.free.insert(at, piece);
        if at + 1 < self.free.len() && self.free[at].end == self.free[at + 1].start {
            self.free[at].end = self.free.remove(at + 1).end;
        }
        if at > 0 && self.free[at - 1].end == self.free[at].start {
            self.free[at - 1].end = self.free.remove(at).end;
        }
    }

    /// Tokens of prompts in this step, where somebody decodes.
    fn prompt_tokens(&self) -> usize {
        let limit = match self.chunking {
            Chunking::Whole => return usize::MAX,
            Chunking::Fixed(chunk) => return chunk,
            Chunking::MaxItl(limit) => limit,
        };
        let (mut decodes, mut position) = (Load::default(), None);
        for run in &self.running {
            if run.known - run.computed == 1 {
                decodes.add(run.computed, 1);
            } else {
                position = position.max(Some(run.computed));
            }
        }
        let next = || self.waiting.front().map(|run| run.known - 1);
        match position.or_else(next) {
            Some(position) => {
                let most = self.batch.saturating_sub(decodes.decodes);
                self.pace.prompt_tokens(limit, &decodes, position, most)
            }
            None => usize::MAX,
        }
    }
}

/// As much of `run` as is left to compute and the budget allows.
fn push_chunk(planned: &mut Vec<Chunk>, run: &Run, budget: &mut usize) {
    let len = (run.known - run.computed).min(*budget);
    if len == 0 {
        return;
    }
    *budget -= len;
    planned.push(Chunk {
        id: RequestId(run.index as u64),
        start: run.computed,
        len,
        draws: usize::from(run.computed + len == run.known),
        proposed: 0,
    });
}

impl Server for Contiguous {
    fn has_room(&self) -> bool {
        self.waiting.len() < WAITING
    }

    fn submit(&mut self, index: usize, arrival: &Arrival) -> bool {
        let known = arrival.prompt_tokens;
        let end = (known + arrival.output_tokens).min(self.context);
        let run = Run {
            index,
            known,
            computed: 0,
            end,
            piece: 0..0,
        };
        let fits = known < self.context && self.size(&run) <= self.pool;
        if fits {
            self.waiting.push_back(run);
        }
        fits
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    fn plan(&mut self) -> Planned {
        let prompt_tokens = self.prompt_tokens();
        let mut budget = self.batch;
        let mut planned = Vec::new();
        let decodes = |run: &&Run| run.known - run.computed == 1;
        for run in self.running.iter().filter(decodes) {
            push_chunk(&mut planned, run, &mut budget);
        }
        if !planned.is_empty() {
            budget = budget.min(prompt_tokens.max(1));
        }
        for run in self.running.iter().filter(|run| !decodes(run)) {
            push_chunk(&mut planned, run, &mut budget);
        }
        while budget > 0
            && self.running.len() < self.seats
            && let Some(first) = self.waiting.front()
            && let Some(piece) = self.take(self.size(first))
        {
            let mut run = self.waiting.pop_front().expect("it was there");
            run.piece = piece;
            push_chunk(&mut planned, &run, &mut budget);
            self.running.push(run);
        }
        self.planned = planned.clone();
        Planned {
            chunks: planned,
            preemptions: 0,
        }
    }

    fn standing(&self) -> Standing {
        Standing {
            running: self.running.len(),
            waiting: !self.waiting.is_empty(),
            reserved: self.running.iter().map(|run| run.piece.len()).sum(),
            held: self.running.iter().map(|run| run.known).sum(),
        }
    }

    fn learn(&mut self, load: &Load, seconds: f64) {
        self.pace.learn(load, seconds);
    }

    fn commit(&mut self) -> Vec<Drawn> {
        let mut all = Vec::new();
        for chunk in std::mem::take(&mut self.planned) {
            let index = chunk.id.0 as usize;
            let mut runs = self.running.iter_mut();
            let run = runs.find(|run| run.index == index).expect("it runs");
            run.computed += chunk.len;
            if chunk.draws > 0 {
                run.known += 1;
                let is_last = run.known == run.end;
                all.push(Drawn { index, is_last });
            }
        }
        let over = |run: &mut Run| run.known == run.end;
        let ended: Vec<Run> = self.running.extract_if(.., over).collect();
        for run in ended {
            self.give_back(run.piece);
        }
        all
    }

    fn check(&self) {
        let whole = 0..self.pool;
        assert_eq!(self.free, [whole], "memory of nobody");
    }
}
