//! The device of the simulation: a slot of the cache holds a hash, and what a step may see is compared before it
//! writes.

use super::hashes::{POISON, begin, drawn, extended};
use super::{StepPlan, World};
use crate::engine::scheduler::Sampled;
use crate::kv::{GONE, PAGE_SIZE, PageId};

impl World {
    /// Computes all of a step, or, where it fails, some of it.
    pub fn execute(&mut self, plan: &StepPlan, fails: bool) -> Vec<Sampled> {
        let slots = |page: PageId| page as usize * PAGE_SIZE..(page as usize + 1) * PAGE_SIZE;
        for copy in &plan.copies {
            let cells = &mut self.cells[copy.group];
            cells.copy_within(slots(copy.from), copy.to as usize * PAGE_SIZE);
        }
        let mut sampled = Vec::new();
        let mut writes: Vec<(usize, usize, u64)> = Vec::new();
        let mut verified = plan.verified.iter();
        for chunk in &plan.chunks {
            let s = self.scheduler.sequence(chunk.id);
            let mut hash = begin(&s.request.cache_salt);
            let mut hashes = Vec::new();
            let known = chunk.start + chunk.len - chunk.proposed;
            let proposed =
                (chunk.proposed > 0).then(|| &verified.next().expect("one").proposal.tokens);
            let proposed = proposed.into_iter().flatten();
            for &token in s.tokens[..known].iter().chain(proposed) {
                hash = extended(hash, token);
                hashes.push(hash);
            }
            assert_eq!(hashes.len(), chunk.start + chunk.len);
            let pages = &self.scheduler.pages;
            for (group, (pool, window)) in pages.pools().zip(pages.windows()).enumerate() {
                let table = &s.pages[group];
                let first = (chunk.start + 1).saturating_sub(window.unwrap_or(usize::MAX));
                for (i, &hash) in hashes.iter().enumerate().skip(first) {
                    let page = table[i / PAGE_SIZE];
                    assert_ne!(page, GONE, "{:?} sees {i}", s.id);
                    let slot = page as usize * PAGE_SIZE + i % PAGE_SIZE;
                    if i < chunk.start {
                        let found = self.cells[group][slot];
                        assert_eq!(found, hash, "{:?} reads another's {i}", s.id);
                    } else {
                        let owners = pool.owners(page);
                        assert_eq!(owners, 1, "{:?} writes to what is shared", s.id);
                        writes.push((group, slot, hash));
                    }
                }
            }
            let drawn = |hash, seed| Sampled {
                token: drawn(hash, seed, self.vocab),
                top_logprobs: Vec::new(),
            };
            if chunk.proposed > 0 {
                let seed = s.request.sampling.seed;
                sampled.extend(hashes[known - 1..].iter().map(|&hash| drawn(hash, seed)));
            } else {
                sampled.extend(s.seeds().take(chunk.draws).map(|seed| drawn(hash, seed)));
            }
        }
        let done = if fails {
            self.random.below(writes.len() + 1)
        } else {
            writes.len()
        };
        for (group, slot, hash) in writes.drain(..done) {
            self.cells[group][slot] = hash;
        }
        sampled
    }

    /// What nobody owns and nothing is kept in is not to be read again.
    pub fn poison(&mut self) {
        for (pool, cells) in self.scheduler.pages.pools().zip(&mut self.cells) {
            for page in 0..pool.geometry().num_pages as PageId {
                if pool.owners(page) == 0 && !pool.is_kept(page) {
                    cells[page as usize * PAGE_SIZE..][..PAGE_SIZE].fill(POISON);
                }
            }
        }
    }
}
