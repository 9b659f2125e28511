//! What must hold of a scheduler between any two steps.

use super::scheduler::Scheduler;
use super::sequence::Sequence;
use crate::kv::pages::there;
use crate::kv::{GONE, PAGE_SIZE, PagePool, pages_for, pages_gone};

impl Scheduler {
    /// Asserts what must hold between steps; see the numbered invariants in ARCHITECTURE.md.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        self.pages.check();
        let listed = self.running.len() + self.waiting.len();
        assert_eq!(listed, self.sequences.len(), "each is in one list");
        let pages = |pool: &PagePool| vec![0; pool.geometry().num_pages];
        let mut owners: Vec<Vec<u32>> = self.pages.pools().map(pages).collect();
        for (rank, id) in self.running.iter().chain(&self.waiting) {
            let s = &self.sequences[id];
            assert_eq!(s.rank(), *rank, "{id:?} is where it belongs");
            let (computed, known) = (s.num_computed, s.tokens.len());
            assert!(computed < known, "{computed} computed of {known}");
            for (group, table) in s.pages.iter().enumerate() {
                for page in there(table) {
                    owners[group][page as usize] += 1;
                    let times = there(table).filter(|&other| other == page).count();
                    assert_eq!(times, 1, "page {page} of group {group}");
                }
            }
        }
        for s in self.running() {
            self.check_tables(s);
        }
        for s in self.waiting() {
            assert!(s.pages.is_empty(), "who waits owns nothing");
        }
        for (group, (pool, owners)) in self.pages.pools().zip(&owners).enumerate() {
            for (page, &owners) in owners.iter().enumerate() {
                let found = pool.owners(page as u32);
                assert_eq!(found, owners, "owners of page {page} of group {group}");
            }
        }
        let seats: usize = self.running().map(Sequence::width).sum();
        assert!(seats <= self.limits.max_running, "{seats} sequences run");
    }

    /// Of somebody who runs: all that it sees is there, and nothing that it does not see.
    fn check_tables(&self, s: &Sequence) {
        let (id, computed) = (s.id, s.num_computed);
        assert_eq!(s.pages.len(), self.pages.windows().len(), "a table each");
        for (window, table) in self.pages.windows().zip(&s.pages) {
            let room = table.len() * PAGE_SIZE;
            assert!(computed <= room, "{computed} computed in {room}");
            let promised = s.gap() == 1 || table.len() >= pages_for(s.tokens.len() + 1);
            assert!(
                promised || window.is_some(),
                "{id:?} has pages for what it will draw"
            );
            let gone = pages_gone(computed, window).min(table.len());
            assert!(
                table[..gone].iter().all(|&page| page == GONE),
                "{id:?} keeps what it does not see any more"
            );
            assert!(!table[gone..].contains(&GONE), "{id:?} sees what is gone");
        }
    }
}
