//! The pool and the prefix cache as one: what sequences get their pages from.

use super::prefix::{Chain, PrefixCache};
use super::{PAGE_SIZE, PageGeometry, PageId, PagePool, pages_for};
use crate::planted::{Fault, planted};

/// A page to be copied before a step writes: to the second from the first.
pub type PageCopy = (PageId, PageId);

/// Pages by owner and by content.
#[derive(Clone, Debug)]
pub struct Pages {
    pool: PagePool,
    /// `None` where nothing is to be found again.
    prefix: Option<PrefixCache>,
}

impl Pages {
    /// All free.
    pub fn new(geometry: PageGeometry, cached: bool) -> Pages {
        Pages {
            pool: PagePool::new(geometry),
            prefix: cached.then(|| PrefixCache::new(geometry.num_pages)),
        }
    }

    /// Who owns what.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Pages with content that can be found.
    pub fn num_cached(&self) -> usize {
        self.prefix.as_ref().map_or(0, PrefixCache::len)
    }

    /// The pages with the beginning of `tokens`, all but the last of them at most; nobody's until they
    /// are shared. `chain` moves along.
    pub fn find(&self, chain: &mut Chain, tokens: &[u32]) -> Vec<PageId> {
        match &self.prefix {
            Some(prefix) => prefix.find(chain, tokens, self.pool.geometry()),
            None => Vec::new(),
        }
    }

    /// The full pages of a sequence's first `computed` tokens can be found from now on.
    pub fn publish(
        &mut self,
        chain: &mut Chain,
        tokens: &[u32],
        computed: usize,
        table: &[PageId],
    ) {
        if let Some(prefix) = &mut self.prefix {
            for page in prefix.publish(chain, tokens, computed, table) {
                self.pool.keep(page);
            }
        }
    }

    /// As [`PagePool::extend`].
    pub fn extend(&mut self, table: &mut Vec<PageId>, count: usize) -> bool {
        let grown = self.pool.extend(table, count);
        self.forget_evicted();
        grown
    }

    /// Room for tokens up to `end` where `start` are computed, in pages that are the sequence's own:
    /// a page that is shared and not full is replaced by one that is to be a copy. Everything, or
    /// nothing and `false`.
    pub fn reserve(
        &mut self,
        table: &mut Vec<PageId>,
        start: usize,
        end: usize,
        copies: &mut Vec<PageCopy>,
    ) -> bool {
        let at = start / PAGE_SIZE;
        let shared = !start.is_multiple_of(PAGE_SIZE) && self.pool.owners(table[at]) > 1;
        let copy = if shared && !planted(Fault::SkipCopy) {
            let Some(own) = self.pool.take_beside(table[at]) else {
                return false;
            };
            Some((std::mem::replace(&mut table[at], own), own))
        } else {
            None
        };
        let count = pages_for(end).saturating_sub(table.len());
        let grown = count == 0 || self.pool.extend(table, count);
        self.forget_evicted();
        if let Some((from, own)) = copy {
            if grown {
                self.pool.release(from);
                copies.push((from, own));
            } else {
                table[at] = from;
                self.pool.release(own);
            }
        }
        grown
    }

    /// One more owner for each.
    pub fn share(&mut self, pages: &[PageId]) {
        pages.iter().for_each(|&page| self.pool.share(page));
    }

    /// One owner less for each, from the end: what is further from the beginning is evicted sooner.
    pub fn release(&mut self, pages: &[PageId]) {
        pages.iter().rev().for_each(|&page| self.pool.release(page));
    }

    /// What is in `pages` is not found again: it is not to be trusted.
    pub fn forget(&mut self, pages: &[PageId]) {
        if let Some(prefix) = &mut self.prefix {
            for &page in pages {
                prefix.forget(page);
                self.pool.unkeep(page);
            }
        }
    }

    /// Nothing can be found any more: what was in the pages is lost.
    pub fn forget_all(&mut self) {
        let all: Vec<PageId> = (0..self.pool.geometry().num_pages as PageId).collect();
        self.forget(&all);
    }

    fn forget_evicted(&mut self) {
        for page in self.pool.take_evicted() {
            if let Some(prefix) = self.prefix.as_mut().filter(|_| !planted(Fault::KeepKey)) {
                prefix.forget(page);
            }
        }
    }

    /// Asserts what holds between any two calls.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        self.pool.check();
        if let Some(prefix) = &self.prefix {
            prefix.check();
        }
    }
}
