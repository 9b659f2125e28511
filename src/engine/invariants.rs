//! What must hold of a scheduler between any two steps.

use super::scheduler::Scheduler;
use super::sequence::Sequence;
use crate::kv::{PAGE_SIZE, pages_for};

impl Scheduler {
    /// Asserts what must hold between steps; see the numbered invariants in ARCHITECTURE.md.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        self.pages.check();
        let listed = self.running.len() + self.waiting.len();
        assert_eq!(listed, self.sequences.len(), "each is in one list");
        let mut owners = vec![0; self.pages.pool().geometry().num_pages];
        for (rank, id) in self.running.iter().chain(&self.waiting) {
            let s = &self.sequences[id];
            assert_eq!(s.rank(), *rank, "{id:?} is where it belongs");
            let room = s.pages.len() * PAGE_SIZE;
            let (computed, known) = (s.num_computed, s.tokens.len());
            assert!(computed < known, "{computed} computed of {known}");
            assert!(computed <= room, "{computed} computed in {room}");
            for (i, &page) in s.pages.iter().enumerate() {
                owners[page as usize] += 1;
                assert!(!s.pages[..i].contains(&page), "page {page} twice");
            }
        }
        for s in self.running() {
            let promised = s.gap() == 1 || s.pages.len() >= pages_for(s.tokens.len() + 1);
            assert!(promised, "{:?} has pages for what it will draw", s.id);
        }
        for s in self.waiting() {
            assert!(s.pages.is_empty(), "who waits owns nothing");
        }
        let pool = self.pages.pool();
        for (page, &owners) in owners.iter().enumerate() {
            assert_eq!(pool.owners(page as u32), owners, "owners of page {page}");
        }
        let seats: usize = self.running().map(Sequence::width).sum();
        assert!(seats <= self.limits.max_running, "{seats} sequences run");
    }
}
