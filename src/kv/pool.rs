//! Who owns which page: a free list per slab, a count of owners per page, and pages that nobody owns
//! but that are kept for whoever asks for the same tokens. Pure; no device.
//!
//! ```text
//!            extend                      keep, and the last owner leaves
//!   free ------------> owned (1, 2, ..) --------------------------------> idle
//!     ^                  |    ^                                           |  |
//!     +------------------+    +--------------- share ---------------------+  |
//!     |   the last owner leaves                                              |
//!     +------------------------- evict: least recently left first -----------+
//! ```
//!
//! The rule of placement: the pages of a split (16 in a row of a page table, from a multiple of 16
//! on) lie in one slab. So a table that ends inside a split goes on in that split's slab, even when
//! another has more room, and a new split starts in the slab with the most free pages. A sequence
//! that has the pool to itself can fill it to the last page: every other slab is left whole, in
//! multiples of a split. With neighbours, a slab may run full under a split that was begun there;
//! [`PagePool::extend`] then refuses although pages are free elsewhere, and the scheduler makes room
//! as it does when none are.

use super::{GONE, PageGeometry, PageId, SPLIT_PAGES};
use crate::planted::{Fault, planted};
use std::collections::BTreeMap;

/// Free pages, idle pages, and owners. Everything that holds a page counts once as its owner.
#[derive(Clone, Debug)]
pub struct PagePool {
    geometry: PageGeometry,
    /// Per slab; the page freed last is taken first, since caches may still hold it.
    free: Vec<Vec<PageId>>,
    owners: Vec<u32>,
    num_free: usize,
    /// Pages that stay when nobody owns them any more.
    kept: Vec<bool>,
    /// Per slab the idle ones, by the moment in which they were left.
    idle: Vec<BTreeMap<u64, PageId>>,
    left_at: Vec<u64>,
    num_idle: usize,
    clock: u64,
    evicted: Vec<PageId>,
}

impl PagePool {
    /// All pages free.
    pub fn new(geometry: PageGeometry) -> PagePool {
        let free: Vec<Vec<PageId>> = (0..geometry.num_slabs())
            .map(|slab| geometry.pages_of(slab).rev().collect())
            .collect();
        PagePool {
            idle: vec![BTreeMap::new(); free.len()],
            free,
            owners: vec![0; geometry.num_pages],
            num_free: geometry.num_pages,
            kept: vec![false; geometry.num_pages],
            left_at: vec![0; geometry.num_pages],
            num_idle: 0,
            clock: 0,
            evicted: Vec::new(),
            geometry,
        }
    }

    /// The pages there are, and their slabs.
    pub fn geometry(&self) -> PageGeometry {
        self.geometry
    }

    /// Pages that nobody owns and nothing is kept in.
    pub fn num_free(&self) -> usize {
        self.num_free
    }

    /// Pages that nobody owns and whose content is kept: they can be had, too.
    pub fn num_idle(&self) -> usize {
        self.num_idle
    }

    /// Pages with one or more owners.
    pub fn num_used(&self) -> usize {
        self.geometry.num_pages - self.num_free - self.num_idle
    }

    /// Owners of `page`; a page with more than one may not be written.
    pub fn owners(&self, page: PageId) -> u32 {
        self.owners[page as usize]
    }

    /// Whether nobody owns `page` and its content is kept.
    pub fn is_idle(&self, page: PageId) -> bool {
        self.owners[page as usize] == 0 && self.kept[page as usize]
    }

    /// Appends `count` pages to `table`, each with one owner: all of them, or none and `false`.
    /// `table` holds the sequence's pages from position 0 on. Idle pages are evicted where free ones
    /// are too few; [`PagePool::take_evicted`] tells which.
    pub fn extend(&mut self, table: &mut Vec<PageId>, count: usize) -> bool {
        let Ok(shares) = self.shares(table, count, None) else {
            return false;
        };
        for (slab, count) in shares {
            for _ in 0..count {
                table.push(self.take(slab));
            }
        }
        true
    }

    /// Whether [`PagePool::extend`] would succeed after [`PagePool::take_beside`] a page of `table`, where
    /// there is one to be replaced.
    ///
    /// # Errors
    /// The slab that a page would have to come from; `None` where any would do.
    pub fn has_room(
        &self,
        table: &[PageId],
        count: usize,
        beside: Option<PageId>,
    ) -> Result<(), Option<usize>> {
        let slab = beside.map(|page| self.geometry.slab_of(page));
        if let Some(slab) = slab
            && self.free[slab].is_empty()
            && self.idle[slab].is_empty()
        {
            return Err(Some(slab));
        }
        self.shares(table, count, slab).map(|_| ())
    }

    /// A page of the slab of `page`, with one owner, to take its place in a table.
    pub fn take_beside(&mut self, page: PageId) -> Option<PageId> {
        let slab = self.geometry.slab_of(page);
        (self.free[slab].len() + self.idle[slab].len() > 0).then(|| self.take(slab))
    }

    /// From which slabs `count` more pages of `table` would come, in order, when `spoken_for` has given a
    /// page to somebody else. Where there are too few, the slab that lacks them, or none in particular.
    fn shares(
        &self,
        table: &[PageId],
        count: usize,
        spoken_for: Option<usize>,
    ) -> Result<Vec<(usize, usize)>, Option<usize>> {
        let mut shares: Vec<(usize, usize)> = Vec::new();
        // behind pages that are gone a split begins where it likes
        let last = table.last().filter(|&&page| page != GONE);
        let mut last_slab = last.map(|&page| self.geometry.slab_of(page));
        let mut taken = vec![0; self.free.len()];
        if let Some(slab) = spoken_for {
            taken[slab] = 1;
        }
        let mut len = table.len();
        while len < table.len() + count {
            let in_split = len % SPLIT_PAGES;
            let wanted = (SPLIT_PAGES - in_split).min(table.len() + count - len);
            let begun = last_slab.filter(|_| in_split > 0);
            let slab = begun.or_else(|| self.roomiest(&taken)).ok_or(None)?;
            if self.free[slab].len() + self.idle[slab].len() < taken[slab] + wanted {
                return Err(begun);
            }
            taken[slab] += wanted;
            shares.push((slab, wanted));
            (last_slab, len) = (Some(slab), len + wanted);
        }
        Ok(shares)
    }

    /// The slab with the most free pages, the first of equals; where those are too few for a whole
    /// split, the one with the most that can be had.
    fn roomiest(&self, taken: &[usize]) -> Option<usize> {
        let first_of_most = |room: &dyn Fn(usize) -> usize| {
            (0..self.free.len())
                .rev()
                .max_by_key(|&slab| room(slab).saturating_sub(taken[slab]))
        };
        let free = |slab: usize| self.free[slab].len();
        let slab = first_of_most(&free)?;
        if free(slab) >= taken[slab] + SPLIT_PAGES {
            return Some(slab);
        }
        first_of_most(&|slab| free(slab) + self.idle[slab].len())
    }

    /// One more owner for a page that has one, or is kept.
    ///
    /// # Panics
    /// When the page is free: that is a bug of the caller.
    pub fn share(&mut self, page: PageId) {
        let at = page as usize;
        if self.owners[at] == 0 {
            assert!(self.kept[at], "page {page} is free and cannot be shared");
            let slab = self.geometry.slab_of(page);
            assert_eq!(self.idle[slab].remove(&self.left_at[at]), Some(page));
            self.num_idle -= 1;
        }
        self.owners[at] += 1;
    }

    /// One owner less. After the last one the page is free, or idle if it is kept.
    ///
    /// # Panics
    /// When the page has none: that is a bug of the caller.
    pub fn release(&mut self, page: PageId) {
        let (at, slab) = (page as usize, self.geometry.slab_of(page));
        assert!(
            self.owners[at] > 0,
            "page {page} has no owner and cannot be released"
        );
        self.owners[at] -= 1;
        if self.owners[at] > 0 && !(planted(Fault::SharedIsFree) && self.owners[at] == 1) {
            return;
        }
        if self.kept[at] {
            self.clock += 1;
            self.left_at[at] = self.clock;
            self.idle[slab].insert(self.clock, page);
            self.num_idle += 1;
        } else {
            self.free[slab].push(page);
            self.num_free += 1;
        }
    }

    /// From now on the page becomes idle, not free, when its last owner leaves.
    ///
    /// # Panics
    /// When it has no owner.
    pub fn keep(&mut self, page: PageId) {
        assert!(self.owners(page) > 0, "page {page} has no owner");
        self.kept[page as usize] = true;
    }

    /// Whether its content is kept.
    pub fn is_kept(&self, page: PageId) -> bool {
        self.kept[page as usize]
    }

    /// What is kept in `page` is worth nothing any more: an idle page is free.
    pub fn unkeep(&mut self, page: PageId) {
        let (at, slab) = (page as usize, self.geometry.slab_of(page));
        if std::mem::take(&mut self.kept[at]) && self.owners[at] == 0 {
            self.idle[slab].remove(&self.left_at[at]);
            self.num_idle -= 1;
            self.free[slab].push(page);
            self.num_free += 1;
        }
    }

    /// Idle pages that were given to others since this was last asked.
    pub fn take_evicted(&mut self) -> Vec<PageId> {
        std::mem::take(&mut self.evicted)
    }

    fn take(&mut self, slab: usize) -> PageId {
        if self.free[slab].is_empty() || planted(Fault::EvictOwned) {
            self.evict(slab);
        }
        let page = self.free[slab].pop().expect("shares looked at the room");
        self.owners[page as usize] = 1;
        self.num_free -= 1;
        page
    }

    fn evict(&mut self, slab: usize) {
        if planted(Fault::EvictOwned)
            && let Some(page) = self.geometry.pages_of(slab).find(|&p| self.owners(p) == 1)
        {
            self.owners[page as usize] = 0;
            self.free[slab].push(page);
            self.num_free += 1;
            return;
        }
        if let Some((_, page)) = self.idle[slab].pop_first() {
            self.num_idle -= 1;
            self.kept[page as usize] = false;
            self.free[slab].push(page);
            self.num_free += 1;
            self.evicted.push(page);
        }
    }

    /// Asserts what must always hold: a page is free, idle or owned, and in its own slab's list once.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        let mut listed = vec![0; self.geometry.num_pages];
        for slab in 0..self.free.len() {
            for &page in self.free[slab].iter().chain(self.idle[slab].values()) {
                let own = self.geometry.pages_of(slab);
                assert!(own.contains(&page), "page {page} in a list of slab {slab}");
                listed[page as usize] += 1;
            }
            for &page in self.idle[slab].values() {
                assert!(self.kept[page as usize], "page {page} is idle, not kept");
            }
        }
        for (page, (&owners, &listed)) in self.owners.iter().zip(&listed).enumerate() {
            let expected = usize::from(owners == 0);
            assert_eq!(listed, expected, "page {page} has {owners} owners");
        }
        let num_free: usize = self.free.iter().map(Vec::len).sum();
        let num_idle: usize = self.idle.iter().map(BTreeMap::len).sum();
        assert_eq!((num_free, num_idle), (self.num_free, self.num_idle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn pool(num_pages: usize, slab_pages: usize) -> PagePool {
        PagePool::new(PageGeometry::new(num_pages, slab_pages))
    }

    fn splits_stay_in_their_slab(geometry: PageGeometry, table: &[PageId]) -> bool {
        table.chunks(SPLIT_PAGES).all(|split| {
            split
                .iter()
                .all(|&p| geometry.slab_of(p) == geometry.slab_of(split[0]))
        })
    }

    #[test]
    fn a_sequence_alone_can_have_every_page() {
        for (num_pages, slab_pages) in [(1, 16), (7, 16), (64, 16), (75, 32), (16, 48)] {
            let mut pool = pool(num_pages, slab_pages);
            let mut table = Vec::new();
            for page in 0..num_pages {
                assert!(pool.extend(&mut table, 1), "page {page} of {num_pages}");
            }
            assert!(!pool.extend(&mut table, 1));
            assert!(splits_stay_in_their_slab(pool.geometry(), &table));
            assert_eq!(table.iter().collect::<HashSet<_>>().len(), num_pages);
            pool.check();
        }
    }

    #[test]
    fn a_new_split_starts_where_there_is_most_room() {
        let mut pool = pool(64, 32);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pool.extend(&mut a, 3));
        assert!(pool.extend(&mut b, 1));
        assert_eq!((a.as_slice(), b.as_slice()), (&[0, 1, 2][..], &[32][..]));
        assert!(pool.extend(&mut a, 14)); // 13 in the split begun, then slab 1 has most
        assert_eq!((a[15], a[16]), (15, 33));
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let mut pool = pool(48, 16);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pool.extend(&mut a, 6));
        let before = format!("{pool:?}");
        // two whole slabs are taken and given back: the last 12 pages find only 10
        assert!(!pool.extend(&mut b, 44));
        assert_eq!((format!("{pool:?}"), b.len()), (before, 0));

        assert!(pool.extend(&mut b, 32));
        let mut c = Vec::new();
        assert!(pool.extend(&mut c, 3));
        let before = format!("{pool:?}");
        // 7 pages are free, all in slab 0, and the split of `a` has room for 10
        assert!(!pool.extend(&mut a, 8));
        assert_eq!((format!("{pool:?}"), a.len()), (before, 6));
        pool.check();
    }

    #[test]
    fn a_split_begun_waits_for_its_own_slab() {
        let mut pool = pool(32, 16);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        assert!(pool.extend(&mut a, 9)); // slab 0
        assert!(pool.extend(&mut b, 8)); // slab 1
        let mut c = Vec::new();
        assert!(pool.extend(&mut c, 8)); // slab 1 had one more
        assert!(pool.extend(&mut a, 6));
        let mut d = Vec::new();
        assert!(pool.extend(&mut d, 1)); // the last of slab 0
        pool.release(b.pop().expect("b has 8"));
        assert!(!pool.extend(&mut a, 1), "only slab 1 has a free page");
        pool.release(d[0]);
        assert!(pool.extend(&mut a, 1));
    }

    #[test]
    #[should_panic(expected = "has no owner and cannot be released")]
    fn releasing_a_free_page_is_a_bug() {
        pool(16, 16).release(3);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Extend(usize, usize),
        Fork(usize, usize),
        Drop(usize),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            4 => (0..6usize, 1..40usize).prop_map(|(s, n)| Op::Extend(s, n)),
            1 => (0..6usize, 0..6usize).prop_map(|(a, b)| Op::Fork(a, b)),
            2 => (0..6usize).prop_map(Op::Drop),
        ];
        proptest::collection::vec(op, 1..80)
    }

    proptest! {
        /// Six sequences extend, share each other's pages and end: the pool agrees with their tables.
        #[test]
        fn agrees_with_the_tables_it_serves(ops in ops(), slabs in 1..5usize, spare in 0..16usize) {
            let geometry = PageGeometry::new(slabs * 32 - spare, 32);
            let mut pool = PagePool::new(geometry);
            let mut tables: Vec<Vec<PageId>> = vec![Vec::new(); 6];
            for op in ops {
                match op {
                    Op::Extend(s, n) => {
                        let (before, free) = (tables[s].clone(), pool.num_free());
                        let done = pool.extend(&mut tables[s], n);
                        prop_assert_eq!(&tables[s][..before.len()], &before[..]);
                        prop_assert_eq!(tables[s].len(), before.len() + if done { n } else { 0 });
                        prop_assert_eq!(pool.num_free(), free - if done { n } else { 0 });
                        let used_before: HashSet<PageId> =
                            tables.iter().enumerate().flat_map(|(i, t)| {
                                if i == s { before.clone() } else { t.clone() }
                            }).collect();
                        for page in &tables[s][before.len()..] {
                            prop_assert!(!used_before.contains(page), "page {} was in use", page);
                        }
                    }
                    Op::Fork(a, b) if a != b => {
                        for page in std::mem::take(&mut tables[b]) {
                            pool.release(page);
                        }
                        tables[b] = tables[a].clone();
                        for &page in &tables[b] {
                            pool.share(page);
                        }
                    }
                    Op::Fork(..) => {}
                    Op::Drop(s) => {
                        for page in std::mem::take(&mut tables[s]) {
                            pool.release(page);
                        }
                    }
                }
                pool.check();
                for page in 0..geometry.num_pages as PageId {
                    let holders = tables.iter().filter(|t| t.contains(&page)).count();
                    prop_assert_eq!(pool.owners(page) as usize, holders);
                }
                for table in &tables {
                    prop_assert!(splits_stay_in_their_slab(geometry, table));
                }
            }
        }
    }
}
