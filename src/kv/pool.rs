//! Who owns which page: a free list per slab and a count of owners per page. Pure; no device.
//!
//! The rule of placement: the pages of a split (16 in a row of a page table, from a multiple of 16
//! on) lie in one slab. So a table that ends inside a split goes on in that split's slab, even when
//! another has more room, and a new split starts in the slab with the most free pages. A sequence
//! that has the pool to itself can fill it to the last page: every other slab is left whole, in
//! multiples of a split. With neighbours, a slab may run full under a split that was begun there;
//! [`PagePool::extend`] then refuses although pages are free elsewhere, and the scheduler makes room
//! as it does when none are.

use super::{PageGeometry, PageId, SPLIT_PAGES};

/// Free pages and owners. Everything that holds a page (a sequence, a cached prefix) counts once.
#[derive(Clone, Debug)]
pub struct PagePool {
    geometry: PageGeometry,
    /// Per slab; the page freed last is taken first, since caches may still hold it.
    free: Vec<Vec<PageId>>,
    owners: Vec<u32>,
    num_free: usize,
}

impl PagePool {
    /// All pages free.
    pub fn new(geometry: PageGeometry) -> PagePool {
        let free = (0..geometry.num_slabs())
            .map(|slab| geometry.pages_of(slab).rev().collect())
            .collect();
        PagePool {
            geometry,
            free,
            owners: vec![0; geometry.num_pages],
            num_free: geometry.num_pages,
        }
    }

    /// The pages there are, and their slabs.
    pub fn geometry(&self) -> PageGeometry {
        self.geometry
    }

    /// Pages without an owner.
    pub fn num_free(&self) -> usize {
        self.num_free
    }

    /// Pages with one or more owners.
    pub fn num_used(&self) -> usize {
        self.geometry.num_pages - self.num_free
    }

    /// Owners of `page`; a page with more than one may not be written.
    pub fn owners(&self, page: PageId) -> u32 {
        self.owners[page as usize]
    }

    /// Appends `count` pages to `table`, each with one owner: all of them, or none and `false`.
    /// `table` holds the sequence's pages from position 0 on.
    pub fn extend(&mut self, table: &mut Vec<PageId>, count: usize) -> bool {
        let before = table.len();
        while table.len() < before + count {
            let in_split = table.len() % SPLIT_PAGES;
            let wanted = (SPLIT_PAGES - in_split).min(before + count - table.len());
            let slab = match table.last() {
                Some(&last) if in_split > 0 => self.geometry.slab_of(last),
                _ => self.roomiest(),
            };
            if self.free.get(slab).map_or(0, Vec::len) < wanted {
                // given back in reverse, the free list is as it was
                for page in table.drain(before..).rev() {
                    self.release(page);
                }
                return false;
            }
            for _ in 0..wanted {
                table.push(self.take(slab));
            }
        }
        true
    }

    /// One more owner for a page that has one.
    ///
    /// # Panics
    /// When the page is free: that is a bug of the caller.
    pub fn share(&mut self, page: PageId) {
        let owners = &mut self.owners[page as usize];
        assert!(*owners > 0, "page {page} is free and cannot be shared");
        *owners += 1;
    }

    /// One owner less; the page is free when that was the last.
    ///
    /// # Panics
    /// When the page is free: that is a bug of the caller.
    pub fn release(&mut self, page: PageId) {
        let owners = &mut self.owners[page as usize];
        assert!(*owners > 0, "page {page} is free and cannot be released");
        *owners -= 1;
        if *owners == 0 {
            self.free[self.geometry.slab_of(page)].push(page);
            self.num_free += 1;
        }
    }

    /// Asserts what must always hold: a page is free or owned, and in its own slab's list once.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        let mut listed = vec![false; self.geometry.num_pages];
        for (slab, pages) in self.free.iter().enumerate() {
            for &page in pages {
                assert!(
                    self.geometry.pages_of(slab).contains(&page),
                    "page {page} is in the list of slab {slab}"
                );
                assert!(!listed[page as usize], "page {page} is listed twice");
                listed[page as usize] = true;
            }
        }
        for (page, (&owners, &listed)) in self.owners.iter().zip(&listed).enumerate() {
            assert_eq!(
                owners == 0,
                listed,
                "page {page} has {owners} owners, free: {listed}"
            );
        }
        let num_listed: usize = self.free.iter().map(Vec::len).sum();
        assert_eq!(num_listed, self.num_free, "free pages");
    }

    /// The slab with the most free pages, the first of equals.
    fn roomiest(&self) -> usize {
        let mut best = 0;
        for slab in 1..self.free.len() {
            if self.free[slab].len() > self.free[best].len() {
                best = slab;
            }
        }
        best
    }

    fn take(&mut self, slab: usize) -> PageId {
        let page = self.free[slab].pop().expect("extend looked at the length");
        self.owners[page as usize] = 1;
        self.num_free -= 1;
        page
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
    #[should_panic(expected = "is free and cannot be released")]
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
