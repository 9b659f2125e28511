//! Full pages by what is in them: who asks for the same tokens after the same tokens, of the same
//! model and the same tenant, finds their keys and values computed. Pure; no device.
//!
//! A page's key is the SHA-256 of its parent's key and its token ids, and the first parent's is that of
//! the model and a salt, so a key stands for everything before it. It is not believed alone: parent
//! and tokens are kept, and compared when a key is found. A lookup goes from the front and ends at
//! the first page that is missing: pages behind an evicted one are out of reach, and age. Where tokens
//! see a window a missing page is missed by those alone that see it, so a text can be gone on with
//! wherever the pages of the last window are there.

use super::{GONE, PAGE_SIZE, PageGroup, PageId, SPLIT_PAGES, Tables, pages_gone};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Stands for all tokens up to the end of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefixKey([u8; 32]);

impl PrefixKey {
    /// Before the first page: everything beside tokens that keys and values depend on (`model`: weights
    /// and their digest, adapter, numerics, type of the cache), and whose they are (`salt`).
    pub fn root(model: &[u8], salt: &[u8]) -> PrefixKey {
        let mut hash = Sha256::new();
        for part in [model, salt] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        PrefixKey(hash.finalize().into())
    }

    fn page(&self, tokens: &[u32]) -> PrefixKey {
        let mut hash = Sha256::new();
        hash.update(self.0);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        PrefixKey(hash.finalize().into())
    }
}

/// How far the pages of a text are found in the cache, or put into it. What was hashed on the way is kept for
/// the next time: who waits looks again and again. So a chain is of one text, which may grow.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Of no page, of one, of two, and so on.
    keys: Vec<PrefixKey>,
    /// Pages so far.
    pub num_pages: usize,
}

impl Chain {
    /// No page yet.
    pub fn new(root: PrefixKey) -> Chain {
        Chain {
            keys: vec![root],
            num_pages: 0,
        }
    }

    /// Page `page` of `tokens`, which are those of the chain.
    fn link<'a>(&mut self, page: usize, tokens: &'a [u32]) -> Link<'a> {
        let of = |page: usize| &tokens[page * PAGE_SIZE..][..PAGE_SIZE];
        for known in self.keys.len() - 1..=page {
            self.keys.push(self.keys[known].page(of(known)));
        }
        Link {
            parent: self.keys[page],
            key: self.keys[page + 1],
            tokens: of(page),
        }
    }
}

/// A page of a text.
struct Link<'a> {
    /// Of all before it.
    parent: PrefixKey,
    /// Of all up to its end.
    key: PrefixKey,
    tokens: &'a [u32],
}

#[derive(Clone, Debug)]
struct Entry {
    key: PrefixKey,
    parent: PrefixKey,
    tokens: [u32; PAGE_SIZE],
}

/// Which page of a group holds what.
#[derive(Clone, Debug)]
struct Shelf {
    group: PageGroup,
    index: BTreeMap<PrefixKey, PageId>,
    entries: Vec<Option<Entry>>,
}

impl Shelf {
    /// The page that holds `link`.
    fn get(&self, link: &Link) -> Option<PageId> {
        let page = *self.index.get(&link.key)?;
        let is_own = |e: &Entry| e.parent == link.parent && e.tokens == link.tokens;
        let entry = self.entries[page as usize].as_ref();
        entry.is_some_and(is_own).then_some(page)
    }

    /// Whether `page` may follow on those of `table`: not where a split would lie in two slabs, as it may
    /// when two sequences computed the same at the same time.
    fn goes_on(&self, table: &[PageId], page: PageId) -> bool {
        let starts_split = table.len().is_multiple_of(SPLIT_PAGES);
        let last = table.last().filter(|&&last| !starts_split && last != GONE);
        let slab_of = |page| self.group.geometry.slab_of(page);
        last.is_none_or(|&last| slab_of(last) == slab_of(page))
    }

    /// Pages at the front that whoever goes on after `pages` does not see.
    fn gone(&self, pages: usize) -> usize {
        pages_gone(pages * PAGE_SIZE, self.group.window)
    }

    fn forget(&mut self, page: PageId) {
        if let Some(entry) = self.entries[page as usize].take() {
            self.index.remove(&entry.key);
        }
    }
}

/// Which pages hold what, by group.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    shelves: Vec<Shelf>,
}

impl PrefixCache {
    /// Nothing in any page of `groups`.
    pub fn new(groups: &[PageGroup]) -> PrefixCache {
        let shelf = |&group: &PageGroup| Shelf {
            group,
            index: BTreeMap::new(),
            entries: vec![None; group.geometry.num_pages],
        };
        PrefixCache {
            shelves: groups.iter().map(shelf).collect(),
        }
    }

    /// Pages that can be found.
    pub fn len(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.index.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pages that hold the beginning of `tokens`, as far as all is there that whoever goes on from
    /// there sees: every page where it sees all, the last ones where it sees a window, [`GONE`] before
    /// them. `chain` goes back to the beginning and moves along. The last token is left out: something has to
    /// be computed.
    pub fn find(&self, chain: &mut Chain, tokens: &[u32]) -> Tables {
        let mut tables: Tables = vec![Vec::new(); self.shelves.len()];
        // by group, how many of the last pages are there in a row
        let mut runs = vec![0; self.shelves.len()];
        let most = tokens.len().saturating_sub(1) / PAGE_SIZE;
        chain.num_pages = 0;
        'pages: for at in 0..most {
            let link = chain.link(at, tokens);
            for ((shelf, table), run) in self.shelves.iter().zip(&mut tables).zip(&mut runs) {
                let page = shelf.get(&link);
                let goes_on = page.is_some_and(|page| shelf.goes_on(table, page));
                if !goes_on && shelf.group.window.is_none() {
                    break 'pages;
                }
                *run = match page {
                    Some(_) if goes_on => *run + 1,
                    Some(_) => 1,
                    None => 0,
                };
                table.push(page.unwrap_or(GONE));
            }
            let pages = at + 1;
            let is_there = |(shelf, run): (&Shelf, &usize)| pages <= shelf.gone(pages) + run;
            if self.shelves.iter().zip(&runs).all(is_there) {
                chain.num_pages = pages;
            }
        }
        for (shelf, table) in self.shelves.iter().zip(&mut tables) {
            table.truncate(chain.num_pages);
            let gone = table.len().min(shelf.gone(chain.num_pages));
            table[..gone].fill(GONE);
        }
        tables
    }

    /// Puts the full pages among the first `computed` of `tokens` in, from `chain` on, which moves
    /// along. Returns those that are new here, with their groups; what somebody else put in stays.
    pub fn publish(
        &mut self,
        chain: &mut Chain,
        tokens: &[u32],
        computed: usize,
        tables: &[Vec<PageId>],
    ) -> Vec<(usize, PageId)> {
        let mut published = Vec::new();
        while (chain.num_pages + 1) * PAGE_SIZE <= computed {
            let link = chain.link(chain.num_pages, tokens);
            for (group, (shelf, table)) in self.shelves.iter_mut().zip(tables).enumerate() {
                let page = table[chain.num_pages];
                assert_ne!(page, GONE, "page {} is put in too late", chain.num_pages);
                if let std::collections::btree_map::Entry::Vacant(vacant) =
                    shelf.index.entry(link.key)
                {
                    vacant.insert(page);
                    shelf.entries[page as usize] = Some(Entry {
                        key: link.key,
                        parent: link.parent,
                        tokens: link.tokens.try_into().expect("a page of tokens"),
                    });
                    published.push((group, page));
                }
            }
            chain.num_pages += 1;
        }
        published
    }

    /// The page holds something else from now on.
    pub fn forget(&mut self, group: usize, page: PageId) {
        self.shelves[group].forget(page);
    }

    /// The pages that hold the beginning of `tokens`, one by one, whatever lies between.
    pub fn every_page(&self, chain: &mut Chain, tokens: &[u32]) -> Vec<(usize, PageId)> {
        let mut pages = Vec::new();
        for at in 0..tokens.len() / PAGE_SIZE {
            let link = chain.link(at, tokens);
            let of = |(group, shelf): (usize, &Shelf)| Some((group, shelf.get(&link)?));
            pages.extend(self.shelves.iter().enumerate().filter_map(of));
        }
        pages
    }

    /// Asserts that pages and keys agree.
    ///
    /// # Panics
    /// When they do not.
    pub fn check(&self) {
        for shelf in &self.shelves {
            for (key, &page) in &shelf.index {
                let entry = shelf.entries[page as usize].as_ref();
                assert!(entry.is_some_and(|e| e.key == *key), "page {page}");
            }
            let entries = shelf.entries.iter().flatten().count();
            assert_eq!(entries, shelf.index.len(), "pages with content, and keys");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::PageGeometry;

    fn tokens(len: usize) -> Vec<u32> {
        (0..len as u32).map(|i| i * i % 97).collect()
    }

    /// One group that sees all, in slabs of a split.
    fn whole(num_pages: usize) -> PageGroup {
        PageGroup {
            geometry: PageGeometry::new(num_pages, 16),
            window: None,
        }
    }

    fn put(
        cache: &mut PrefixCache,
        text: &[u32],
        computed: usize,
        pages: &[PageId],
    ) -> Vec<PageId> {
        let new = cache.publish(&mut chain(""), text, computed, &[pages.to_vec()]);
        new.into_iter().map(|(_, page)| page).collect()
    }

    fn find(cache: &PrefixCache, text: &[u32]) -> Vec<PageId> {
        cache.find(&mut chain(""), text).remove(0)
    }

    fn chain(salt: &str) -> Chain {
        Chain::new(PrefixKey::root(b"model", salt.as_bytes()))
    }

    #[test]
    fn what_was_put_in_is_found_up_to_the_first_difference() {
        let mut cache = PrefixCache::new(&[whole(64)]);
        let text = tokens(100);
        let pages: Vec<PageId> = (0..7).collect();
        let new = cache.publish(&mut chain("a"), &text, 100, std::slice::from_ref(&pages));
        let of_first = |&page: &PageId| (0, page);
        assert!(
            new.into_iter().eq(pages[..6].iter().map(of_first)),
            "the seventh is not full"
        );
        let found = |salt, text: &[u32]| cache.find(&mut chain(salt), text)[0].len();
        assert_eq!(found("a", &text), 6);
        assert_eq!(found("a", &text[..96]), 5, "one token is left to compute");
        assert_eq!(found("a", &text[..97]), 6);
        assert_eq!((found("a", &text[..16]), found("a", &[])), (0, 0));
        assert_eq!(found("b", &text), 0, "of another tenant");
        for at in [0, 15, 16, 50, 95] {
            let mut other = text.clone();
            other[at] += 1;
            assert_eq!(found("a", &other), at / PAGE_SIZE, "differs at {at}");
        }
        // the same tokens after others
        assert_eq!(found("a", &text[16..]), 0);
    }

    #[test]
    fn behind_a_forgotten_page_nothing_is_found() {
        let mut cache = PrefixCache::new(&[whole(64)]);
        let text = tokens(100);
        put(&mut cache, &text, 96, &[9, 8, 7, 6, 5, 4]);
        cache.forget(0, 7);
        cache.check();
        assert_eq!(find(&cache, &text), [9, 8]);
        // computed again, elsewhere: the chain is whole
        let mut again = chain("");
        assert_eq!(cache.find(&mut again, &text), [[9, 8]]);
        assert_eq!(
            cache.publish(&mut again, &text, 48, &[vec![9, 8, 3]]),
            [(0, 3)]
        );
        assert_eq!(find(&cache, &text), [9, 8, 3, 6, 5, 4]);
        cache.check();
    }

    #[test]
    fn a_split_is_not_taken_from_two_slabs() {
        let mut cache = PrefixCache::new(&[whole(64)]);
        let text = tokens(20 * PAGE_SIZE);
        let mut pages: Vec<PageId> = (0..20).collect();
        pages[5] = 40;
        put(&mut cache, &text, 19 * PAGE_SIZE, &pages);
        assert_eq!(find(&cache, &text), pages[..5]);
        cache.forget(0, 40);
        let in_order: Vec<PageId> = (0..20).collect();
        put(&mut cache, &text, 19 * PAGE_SIZE, &in_order);
        // from page 16 on another split, so another slab
        assert_eq!(find(&cache, &text).len(), 19);
    }

    #[test]
    fn a_key_is_not_believed_alone() {
        let mut cache = PrefixCache::new(&[whole(16)]);
        let text = tokens(33);
        put(&mut cache, &text, 32, &[0, 1]);
        cache.shelves[0].entries[1].as_mut().unwrap().tokens[3] ^= 1; // as if two texts had one hash
        assert_eq!(find(&cache, &text), [0]);
    }

    /// One that sees all, and one that sees `window` tokens, of `num_pages` each.
    fn two(window: usize, num_pages: usize) -> [PageGroup; 2] {
        let all = whole(num_pages);
        let window = Some(window);
        [all, PageGroup { window, ..all }]
    }

    #[test]
    fn where_a_window_is_seen_only_its_pages_have_to_be_there() {
        let text = tokens(200);
        let tables = [(0..12).collect::<Vec<PageId>>(), (20..32).collect()];
        // who goes on at position 16 n sees the page before, and the one before that but for one token
        for (window, pages_seen) in [
            (1, 0),
            (2, 1),
            (17, 1),
            (18, 2),
            (33, 2),
            (34, 3),
            (500, 12),
        ] {
            let mut cache = PrefixCache::new(&two(window, 64));
            cache.publish(&mut chain(""), &text, 192, &tables);
            let mut at = chain("");
            let found = cache.find(&mut at, &text);
            assert_eq!((at.num_pages, &found[0]), (12, &tables[0]));
            let gone = 12 - pages_seen;
            assert!(
                found[1][..gone].iter().all(|&page| page == GONE),
                "{window}"
            );
            assert_eq!(found[1][gone..], tables[1][gone..], "{window}");
        }
    }

    #[test]
    fn a_text_is_gone_on_with_where_the_last_window_is_there() {
        let text = tokens(200);
        let tables = [(0..12).collect::<Vec<PageId>>(), (20..32).collect()];
        let mut cache = PrefixCache::new(&two(30, 64)); // two pages before one that begins
        cache.publish(&mut chain(""), &text, 192, &tables);
        let len = |cache: &PrefixCache| {
            let mut at = chain("");
            cache.find(&mut at, &text);
            at.num_pages
        };
        cache.forget(1, 20);
        assert_eq!(len(&cache), 12, "nobody sees the first page any more");
        cache.forget(1, 30);
        assert_eq!(len(&cache), 10);
        cache.forget(1, 26);
        assert_eq!(len(&cache), 10, "28 and 29 are there");
        cache.forget(1, 28);
        assert_eq!(len(&cache), 6, "24 and 25");
        cache.forget(0, 4);
        assert_eq!(
            len(&cache),
            4,
            "of those who see all a page is missed by everybody"
        );
        let first = [1, 2, 3].map(|page| cache.forget(1, 20 + page));
        assert_eq!((len(&cache), first.len()), (0, 3));
        cache.check();
        // all that is left, for who does not trust it
        let left = cache.every_page(&mut chain(""), &text);
        assert_eq!(left.len(), cache.len());
    }
}
