//! The pools and the prefix cache as one: what sequences get their pages from.
//!
//! ```text
//!                     computed      end of the next step
//! a group that sees all   |             |
//!   [ 0 ][ 1 ][ 2 ][ 3 ][ 4 ][ 5 ][ 6 ][ 7 ]        everything known, from the beginning
//! a group that sees a window
//!   gone  gone [ 2 ][ 3 ][ 4 ][ 5 ][ 6 ]            the window, and room for a step
//! ```
//!
//! What a sequence needs it gets in all groups or in none.

use super::prefix::{Chain, PrefixCache};
use super::{
    GONE, PAGE_SIZE, PageGeometry, PageGroup, PageId, PagePool, Tables, lasting_pages, pages_for,
    pages_gone, window_pages,
};
use crate::planted::{Fault, planted};

/// A page to be copied before a step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Whose layers.
    pub group: usize,
    /// What is copied.
    pub from: PageId,
    /// Where to.
    pub to: PageId,
}

/// What there was no page for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lack {
    /// In which group.
    pub group: usize,
    /// In which slab; `None` where a page of any would do.
    pub slab: Option<usize>,
}

#[derive(Clone, Debug)]
struct Group {
    window: Option<usize>,
    pool: PagePool,
}

/// Pages by owner and by content.
#[derive(Clone, Debug)]
pub struct Pages {
    groups: Vec<Group>,
    /// `None` where nothing is to be found again.
    prefix: Option<PrefixCache>,
    /// Tokens of a sequence in a step, at most.
    chunk: usize,
}

impl Pages {
    /// Of one group whose tokens see all, all free.
    pub fn new(geometry: PageGeometry, cached: bool) -> Pages {
        let window = None;
        Pages::grouped(&[PageGroup { geometry, window }], usize::MAX, cached)
    }

    /// Of these groups, all free, for steps with at most `chunk` tokens of a sequence.
    pub fn grouped(groups: &[PageGroup], chunk: usize, cached: bool) -> Pages {
        let group = |group: &PageGroup| Group {
            window: group.window,
            pool: PagePool::new(group.geometry),
        };
        Pages {
            groups: groups.iter().map(group).collect(),
            prefix: cached.then(|| PrefixCache::new(groups)),
            chunk,
        }
    }

    /// Tokens of a sequence in a step, at most.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// By group, who owns what.
    pub fn pools(&self) -> impl ExactSizeIterator<Item = &PagePool> {
        self.groups.iter().map(|group| &group.pool)
    }

    /// By group, how many tokens a token sees.
    pub fn windows(&self) -> impl ExactSizeIterator<Item = Option<usize>> {
        self.groups.iter().map(|group| group.window)
    }

    /// Whether the pages of a group are in several slabs.
    pub fn has_several_slabs(&self) -> bool {
        let mut geometries = self.pools().map(PagePool::geometry);
        geometries.any(|geometry| geometry.num_slabs() > 1)
    }

    /// Pages that nobody owns and nothing is kept in.
    pub fn num_free(&self) -> usize {
        self.pools().map(PagePool::num_free).sum()
    }

    /// Pages that nobody owns and whose content is kept.
    pub fn num_idle(&self) -> usize {
        self.pools().map(PagePool::num_idle).sum()
    }

    /// Pages with an owner or more.
    pub fn num_used(&self) -> usize {
        self.pools().map(PagePool::num_used).sum()
    }

    /// Pages with content that can be found.
    pub fn num_cached(&self) -> usize {
        self.prefix.as_ref().map_or(0, PrefixCache::len)
    }

    /// Tokens of the longest sequence that there are pages for when all but `others` of each group are its
    /// own.
    pub fn longest(&self, others: usize) -> usize {
        let of = |group: &Group| {
            let geometry = group.pool.geometry();
            let pages = geometry.num_pages.saturating_sub(others);
            let lasting = |w| pages >= lasting_pages(w, self.chunk, geometry.num_slabs());
            match group.window {
                Some(window) if lasting(window) => usize::MAX,
                _ => pages * PAGE_SIZE,
            }
        };
        self.groups.iter().map(of).min().unwrap_or(0)
    }

    /// Entries that a table of `group` should have for tokens up to `end` where `computed` are: all of
    /// them, or those before the window, those in it and in a step.
    pub fn wanted(&self, group: usize, computed: usize, end: usize) -> usize {
        match self.groups[group].window {
            None => pages_for(end),
            Some(window) => {
                let gone = pages_gone(computed, Some(window));
                pages_for(end).min(gone + window_pages(window, self.chunk))
            }
        }
    }

    /// The pages with the beginning of `tokens`, all but the last of them at most; nobody's until they
    /// are shared. `chain` goes back to the beginning and moves along.
    pub fn find(&self, chain: &mut Chain, tokens: &[u32]) -> Tables {
        match &self.prefix {
            Some(prefix) => prefix.find(chain, tokens),
            None => {
                chain.num_pages = 0;
                vec![Vec::new(); self.groups.len()]
            }
        }
    }

    /// The full pages of a sequence's first `computed` tokens can be found from now on.
    pub fn publish(
        &mut self,
        chain: &mut Chain,
        tokens: &[u32],
        computed: usize,
        tables: &[Vec<PageId>],
    ) {
        if let Some(prefix) = &mut self.prefix {
            for (group, page) in prefix.publish(chain, tokens, computed, tables) {
                self.groups[group].pool.keep(page);
            }
        }
    }

    /// Entries for tokens up to `end` where `computed` are, as [`Pages::wanted`] has it. All, or none and
    /// `false`.
    pub fn provide(&mut self, tables: &mut Tables, computed: usize, end: usize) -> bool {
        tables.resize(self.groups.len(), Vec::new());
        let more = |pages: &Pages, group: usize, table: &Vec<PageId>| {
            let wanted = pages.wanted(group, computed, end);
            wanted.saturating_sub(table.len())
        };
        let has_room = |(group, table): (usize, &Vec<PageId>)| {
            let pool = &self.groups[group].pool;
            let count = more(self, group, table);
            count == 0 || pool.has_room(table, count, None).is_ok()
        };
        if !tables.iter().enumerate().all(has_room) {
            return false;
        }
        for (group, table) in tables.iter_mut().enumerate() {
            let count = more(self, group, table);
            self.extend(group, table, count);
        }
        true
    }

    /// Room for tokens up to `end` where `start` are computed, in pages that are the sequence's own:
    /// a page that is shared and not full is replaced by one that is to be a copy. Everything, or
    /// nothing.
    ///
    /// # Errors
    /// What there was no page for.
    pub fn reserve(
        &mut self,
        tables: &mut Tables,
        start: usize,
        end: usize,
        copies: &mut Vec<PageCopy>,
    ) -> Result<(), Lack> {
        let mut lacks = false;
        for (group, table) in tables.iter().enumerate() {
            let (shared, count) = self.missing(group, table, start, end);
            if shared.is_some() || count > 0 {
                lacks = true;
                let room = self.groups[group].pool.has_room(table, count, shared);
                room.map_err(|slab| Lack { group, slab })?;
            }
        }
        if !lacks {
            return Ok(()); // as in most steps
        }
        for (group, table) in tables.iter_mut().enumerate() {
            let (shared, count) = self.missing(group, table, start, end);
            if let Some(from) = shared {
                let pool = &mut self.groups[group].pool;
                let to = pool.take_beside(from).expect("there was room");
                table[start / PAGE_SIZE] = to;
                pool.release(from);
                copies.push(PageCopy { group, from, to });
                self.forget_evicted(group);
            }
            self.extend(group, table, count);
        }
        Ok(())
    }

    /// What `table` lacks to have tokens `start..end` written: a page in place of one that is shared, and
    /// so many more.
    fn missing(
        &self,
        group: usize,
        table: &[PageId],
        start: usize,
        end: usize,
    ) -> (Option<PageId>, usize) {
        let begun = !start.is_multiple_of(PAGE_SIZE) && !planted(Fault::SkipCopy);
        let page = begun.then(|| table[start / PAGE_SIZE]);
        let pool = &self.groups[group].pool;
        let shared = page.filter(|&page| pool.owners(page) > 1);
        (shared, pages_for(end).saturating_sub(table.len()))
    }

    /// Tokens before `computed` are computed: pages that nobody from there on sees are given back. Whoever
    /// begins with the same tokens may find them still.
    pub fn pass(&mut self, tables: &mut Tables, computed: usize) {
        let computed = computed + usize::from(planted(Fault::FreeEarly));
        for (group, table) in self.groups.iter_mut().zip(tables) {
            let gone = pages_gone(computed, group.window).min(table.len());
            let passed = table[..gone].iter_mut().rev();
            for page in passed.take_while(|page| **page != GONE) {
                group.pool.release(std::mem::replace(page, GONE));
            }
        }
    }

    /// Tokens that there are entries for in all of `tables`.
    pub fn room(&self, tables: &[Vec<PageId>]) -> usize {
        let entries = tables.iter().map(Vec::len).min();
        entries.unwrap_or(0) * PAGE_SIZE
    }

    /// Pages for nothing but tokens from `end` on are given back.
    pub fn shrink(&mut self, tables: &mut Tables, end: usize) {
        for (group, table) in self.groups.iter_mut().zip(tables) {
            let kept = pages_for(end).min(table.len());
            table
                .drain(kept..)
                .rev()
                .for_each(|page| group.pool.release(page));
        }
    }

    /// One more owner for each.
    pub fn share(&mut self, tables: &[Vec<PageId>]) {
        for (group, table) in self.groups.iter_mut().zip(tables) {
            there(table).for_each(|page| group.pool.share(page));
        }
    }

    /// One owner less for each, from the end: what is further from the beginning is evicted sooner.
    pub fn release(&mut self, tables: &[Vec<PageId>]) {
        for (group, table) in self.groups.iter_mut().zip(tables) {
            there(table).rev().for_each(|page| group.pool.release(page));
        }
    }

    /// What is in `tables`, and in pages of the same `tokens`, whose chain it is, that are in no table any
    /// more, is not found again: it is not to be trusted.
    pub fn forget(&mut self, tables: &[Vec<PageId>], chain: &mut Chain, tokens: &[u32]) {
        let Some(prefix) = &self.prefix else {
            return;
        };
        let windowed = |&(group, _): &(usize, PageId)| self.groups[group].window.is_some();
        let mut pages = match self.groups.iter().any(|group| group.window.is_some()) {
            true => prefix.every_page(chain, tokens),
            false => Vec::new(),
        };
        pages.retain(windowed);
        for (group, table) in tables.iter().enumerate() {
            pages.extend(there(table).map(|page| (group, page)));
        }
        self.forget_pages(pages);
    }

    /// Nothing can be found any more: what was in the pages is lost.
    pub fn forget_all(&mut self) {
        let pages = |pool: &PagePool| 0..pool.geometry().num_pages as PageId;
        let all = self.pools().map(pages).enumerate();
        let all: Vec<_> = all
            .flat_map(|(group, pages)| pages.map(move |page| (group, page)))
            .collect();
        self.forget_pages(all);
    }

    fn forget_pages(&mut self, pages: Vec<(usize, PageId)>) {
        if let Some(prefix) = &mut self.prefix {
            for (group, page) in pages {
                prefix.forget(group, page);
                self.groups[group].pool.unkeep(page);
            }
        }
    }

    /// `count` pages that there are.
    fn extend(&mut self, group: usize, table: &mut Vec<PageId>, count: usize) {
        if count > 0 {
            let grown = self.groups[group].pool.extend(table, count);
            assert!(grown, "{count} pages of group {group} were there");
            self.forget_evicted(group);
        }
    }

    fn forget_evicted(&mut self, group: usize) {
        for page in self.groups[group].pool.take_evicted() {
            if let Some(prefix) = self.prefix.as_mut().filter(|_| !planted(Fault::KeepKey)) {
                prefix.forget(group, page);
            }
        }
    }

    /// Asserts what holds between any two calls.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        self.pools().for_each(PagePool::check);
        if let Some(prefix) = &self.prefix {
            prefix.check();
        }
    }
}

/// The pages of a table that are not gone.
pub fn there(table: &[PageId]) -> impl DoubleEndedIterator<Item = PageId> + '_ {
    table.iter().copied().filter(|&page| page != GONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::prefix::PrefixKey;

    const TEXT: [u32; 400] = [3; 400];

    fn chain() -> Chain {
        Chain::new(PrefixKey::root(b"", b""))
    }

    /// Groups that see all and 20 tokens, of so many pages, for steps of 16 tokens.
    fn two(all: usize, few: usize) -> Pages {
        let group = |pages, window| PageGroup {
            geometry: PageGeometry::new(pages, 64),
            window,
        };
        Pages::grouped(&[group(all, None), group(few, Some(20))], 16, true)
    }

    /// Computes `TEXT` up to `len` in steps of 16 tokens, and looks at the tables after each.
    fn compute(pages: &mut Pages, len: usize, mut look: impl FnMut(&Tables, usize)) -> Tables {
        let (mut tables, mut chain) = (Tables::new(), chain());
        assert!(pages.provide(&mut tables, 0, len));
        for start in (0..len).step_by(16) {
            let end = len.min(start + 16);
            pages
                .reserve(&mut tables, start, end, &mut Vec::new())
                .unwrap();
            pages.publish(&mut chain, &TEXT, end, &tables);
            pages.pass(&mut tables, end);
            pages.check();
            look(&tables, end);
        }
        tables
    }

    #[test]
    fn a_window_moves_over_a_text_in_a_few_pages() {
        let mut pages = two(25, 4);
        assert_eq!(pages.longest(0), 400, "4 pages are 20 tokens and a step");
        let tables = compute(&mut pages, 400, |tables, computed| {
            let gone = (computed + 1).saturating_sub(20) / 16;
            assert!(tables[1][..gone].iter().all(|&page| page == GONE));
            assert!((1..=4).contains(&there(&tables[1]).count()));
            assert_eq!(there(&tables[1]).count(), tables[1].len() - gone);
        });
        assert_eq!(there(&tables[0]).count(), 25);
        pages.release(&tables);
        assert_eq!(pages.num_used(), 0);
        // of the window only the last pages are left, and enough for who goes on behind them
        let mut at = chain();
        let found = pages.find(&mut at, &TEXT);
        assert_eq!((at.num_pages, there(&found[1]).count()), (24, 2));
        assert_eq!(two(25, 3).longest(0), 48, "too few to go on for ever");
        assert_eq!(two(25, 5).longest(1), 384);
    }

    #[test]
    fn in_all_groups_or_in_none() {
        let mut pages = two(9, 4);
        let first = compute(&mut pages, 100, |_, _| ());
        let before = format!("{pages:?}");
        let mut second = Tables::new();
        assert!(!pages.provide(&mut second, 0, 40), "2 of 3 are free");
        assert!(second.iter().all(Vec::is_empty));
        // nor does who was refused evict anything
        assert_eq!(format!("{pages:?}"), before);
        assert!(pages.provide(&mut second, 0, 20));
        let lack = pages.reserve(&mut second, 20, 40, &mut Vec::new());
        assert_eq!(
            lack,
            Err(Lack {
                group: 0,
                slab: Some(0)
            })
        );
        pages.release(&first);
        assert_eq!(pages.reserve(&mut second, 20, 40, &mut Vec::new()), Ok(()));
        pages.release(&second);
        pages.check();
        assert_eq!(pages.num_used(), 0);
    }

    #[test]
    fn a_shared_page_is_copied_in_every_group() {
        let mut pages = two(8, 8);
        let mut first = compute(&mut pages, 40, |_, _| ());
        let second = first.clone();
        pages.share(&second);
        let mut copies = Vec::new();
        pages.reserve(&mut first, 40, 41, &mut copies).unwrap();
        let of = |copy: &PageCopy| (copy.group, copy.from, copy.to);
        let expected = [0, 1].map(|group: usize| (group, second[group][2], first[group][2]));
        assert!(copies.iter().map(of).eq(expected));
        assert!(expected.iter().all(|(_, from, to)| from != to));
        pages.release(&first);
        pages.release(&second);
        assert_eq!(pages.num_used(), 0);
    }

    #[test]
    fn what_is_not_to_be_trusted_is_not_found_where_it_is_gone_from_tables_either() {
        let mut pages = two(25, 25);
        let tables = compute(&mut pages, 200, |_, _| ());
        pages.forget(&tables, &mut chain(), &TEXT[..200]);
        assert_eq!(pages.num_cached(), 0);
        pages.release(&tables);
        assert_eq!((pages.num_idle(), pages.num_used()), (0, 0));
    }
}
