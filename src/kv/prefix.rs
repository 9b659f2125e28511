//! Full pages by what is in them: who asks for the same tokens after the same tokens, of the same
//! model and the same tenant, finds their keys and values computed. Pure; no device.
//!
//! A page's key is the SHA-256 of its parent's key and its token ids, and the first parent's is that of
//! the model and a salt, so a key stands for everything before it. It is not believed alone: parent
//! and tokens are kept, and compared when a key is found. A lookup goes from the front and ends at
//! the first page that is missing: pages behind an evicted one are out of reach, and age.

use super::{PAGE_SIZE, PageGeometry, PageId};
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

/// How far a sequence's pages are found in the cache, or put into it.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    key: PrefixKey,
    /// Pages so far.
    pub num_pages: usize,
}

impl Chain {
    /// No page yet.
    pub fn new(root: PrefixKey) -> Chain {
        Chain {
            key: root,
            num_pages: 0,
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    key: PrefixKey,
    parent: PrefixKey,
    tokens: [u32; PAGE_SIZE],
}

/// Which page holds what.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    index: BTreeMap<PrefixKey, PageId>,
    entries: Vec<Option<Entry>>,
}

impl PrefixCache {
    /// Nothing in any of `num_pages` pages.
    pub fn new(num_pages: usize) -> PrefixCache {
        PrefixCache {
            index: BTreeMap::new(),
            entries: vec![None; num_pages],
        }
    }

    /// Pages that can be found.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The pages that hold the beginning of `tokens`, as far as they go on from `chain`, which moves
    /// along. The last token is left out: something has to be computed. Nor does it go where a split
    /// would lie in two slabs, as it may when two sequences computed the same at the same time.
    pub fn find(&self, chain: &mut Chain, tokens: &[u32], geometry: PageGeometry) -> Vec<PageId> {
        let mut found: Vec<PageId> = Vec::new();
        let most = tokens.len().saturating_sub(1) / PAGE_SIZE;
        while chain.num_pages < most {
            let own = &tokens[chain.num_pages * PAGE_SIZE..][..PAGE_SIZE];
            let key = chain.key.page(own);
            let Some(&page) = self.index.get(&key) else {
                break;
            };
            let is_own = |e: &Entry| e.parent == chain.key && e.tokens == own;
            let starts_split = chain.num_pages.is_multiple_of(super::SPLIT_PAGES);
            let last = found.last().filter(|_| !starts_split);
            let elsewhere = |&last: &PageId| geometry.slab_of(last) != geometry.slab_of(page);
            if !self.entries[page as usize].as_ref().is_some_and(is_own)
                || last.is_some_and(elsewhere)
            {
                break;
            }
            found.push(page);
            chain.key = key;
            chain.num_pages += 1;
        }
        found
    }

    /// Puts the full pages among the first `computed` of `tokens` in, from `chain` on, which moves
    /// along. Returns those that are new here; what somebody else put in stays.
    pub fn publish(
        &mut self,
        chain: &mut Chain,
        tokens: &[u32],
        computed: usize,
        pages: &[PageId],
    ) -> Vec<PageId> {
        let mut published = Vec::new();
        while (chain.num_pages + 1) * PAGE_SIZE <= computed {
            let own = &tokens[chain.num_pages * PAGE_SIZE..][..PAGE_SIZE];
            let (key, page) = (chain.key.page(own), pages[chain.num_pages]);
            if let std::collections::btree_map::Entry::Vacant(vacant) = self.index.entry(key) {
                vacant.insert(page);
                self.entries[page as usize] = Some(Entry {
                    key,
                    parent: chain.key,
                    tokens: own.try_into().expect("a page of tokens"),
                });
                published.push(page);
            }
            chain.key = key;
            chain.num_pages += 1;
        }
        published
    }

    /// The page holds something else from now on.
    pub fn forget(&mut self, page: PageId) {
        if let Some(entry) = self.entries[page as usize].take() {
            self.index.remove(&entry.key);
        }
    }

    /// Asserts that pages and keys agree.
    ///
    /// # Panics
    /// When they do not.
    pub fn check(&self) {
        for (key, &page) in &self.index {
            let entry = self.entries[page as usize].as_ref();
            assert!(entry.is_some_and(|e| e.key == *key), "page {page}");
        }
        let entries = self.entries.iter().flatten().count();
        assert_eq!(entries, self.index.len(), "pages with content, and keys");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(len: usize) -> Vec<u32> {
        (0..len as u32).map(|i| i * i % 97).collect()
    }

    fn chain(salt: &str) -> Chain {
        Chain::new(PrefixKey::root(b"model", salt.as_bytes()))
    }

    #[test]
    fn what_was_put_in_is_found_up_to_the_first_difference() {
        let geometry = PageGeometry::new(64, 16);
        let mut cache = PrefixCache::new(64);
        let text = tokens(100);
        let pages: Vec<PageId> = (0..7).collect();
        let new = cache.publish(&mut chain("a"), &text, 100, &pages);
        assert_eq!(new, pages[..6], "the seventh is not full");
        let found = |salt, text: &[u32]| cache.find(&mut chain(salt), text, geometry).len();
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
        let geometry = PageGeometry::new(64, 16);
        let mut cache = PrefixCache::new(64);
        let text = tokens(100);
        cache.publish(&mut chain(""), &text, 96, &[9, 8, 7, 6, 5, 4]);
        cache.forget(7);
        cache.check();
        assert_eq!(cache.find(&mut chain(""), &text, geometry), [9, 8]);
        // computed again, elsewhere: the chain is whole
        let mut again = chain("");
        assert_eq!(cache.find(&mut again, &text, geometry), [9, 8]);
        assert_eq!(cache.publish(&mut again, &text, 48, &[9, 8, 3]), [3]);
        assert_eq!(
            cache.find(&mut chain(""), &text, geometry),
            [9, 8, 3, 6, 5, 4]
        );
        cache.check();
    }

    #[test]
    fn a_split_is_not_taken_from_two_slabs() {
        let geometry = PageGeometry::new(64, 16);
        let mut cache = PrefixCache::new(64);
        let text = tokens(20 * PAGE_SIZE);
        let mut pages: Vec<PageId> = (0..20).collect();
        pages[5] = 40;
        cache.publish(&mut chain(""), &text, 19 * PAGE_SIZE, &pages);
        assert_eq!(cache.find(&mut chain(""), &text, geometry), pages[..5]);
        cache.forget(40);
        cache.publish(
            &mut chain(""),
            &text,
            19 * PAGE_SIZE,
            &(0..20).collect::<Vec<_>>(),
        );
        // from page 16 on another split, so another slab
        assert_eq!(cache.find(&mut chain(""), &text, geometry).len(), 19);
    }

    #[test]
    fn a_key_is_not_believed_alone() {
        let geometry = PageGeometry::new(16, 16);
        let mut cache = PrefixCache::new(16);
        let text = tokens(33);
        cache.publish(&mut chain(""), &text, 32, &[0, 1]);
        cache.entries[1].as_mut().unwrap().tokens[3] ^= 1; // as if two texts had one hash
        assert_eq!(cache.find(&mut chain(""), &text, geometry), [0]);
    }
}
