//! What a draft model has computed of each text, and the pages that it lies in. Pure.
//!
//! ```text
//! known       [ prompt, answer so far                ]
//! computed    [ known tokens        ][ proposed ones ]
//! found again [ full pages of known tokens ]
//! ```
//!
//! Proposed tokens are computed in the pages behind the known ones; where a text goes on otherwise they are
//! taken back by a subtraction. Only pages of known tokens can be found by others, and nobody writes to these.

use crate::engine::request::RequestId;
use crate::kv::prefix::{Chain, PrefixKey};
use crate::kv::{GONE, PAGE_SIZE, PageGroup, Pages, Tables, pages_gone};
use std::collections::BTreeMap;

/// Texts, as far as a draft model has them.
pub(super) struct Held {
    pages: Pages,
    texts: BTreeMap<RequestId, Own>,
    /// Moments of use so far.
    clock: u64,
}

/// One text.
struct Own {
    root: PrefixKey,
    chain: Chain,
    tables: Tables,
    /// Tokens whose keys and values are in the pages.
    computed: Vec<u32>,
    /// When it was last asked for.
    used: u64,
    /// What is found of its beginning is left alone the next time: it lies in a slab without room for the rest.
    begins_alone: bool,
    /// The draft computes no numbers for it.
    is_barred: bool,
}

impl Held {
    /// Nothing, in pages of these groups, for steps with at most `chunk` tokens of a text.
    pub fn new(groups: &[PageGroup], chunk: usize) -> Held {
        Held {
            pages: Pages::grouped(groups, chunk, true),
            texts: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Tokens of the longest text that there are pages for.
    pub fn longest(&self) -> usize {
        self.pages.longest(0)
    }

    /// Texts by their salts are asked for now, the first of them last: who comes first keeps what it has, and
    /// who has not been asked for in the longest time loses it first.
    pub fn ask<'a>(&mut self, texts: impl DoubleEndedIterator<Item = (RequestId, &'a [u8])>) {
        for (id, salt) in texts.rev() {
            self.clock += 1;
            let own = self.texts.entry(id).or_insert_with(|| Own::new(salt));
            own.used = self.clock;
        }
    }

    /// How many tokens of `text` are computed: those that are a text's own still, or found in the pages of
    /// others, and fewer than all. `None` where nothing comes of this text.
    ///
    /// # Panics
    /// When it was not asked for, or has no token.
    pub fn resume(&mut self, id: RequestId, text: &[u32]) -> Option<usize> {
        let own = self.texts.get_mut(&id).expect("it was asked for");
        if own.is_barred {
            return None;
        }
        // the last one is computed in any case: what follows is drawn from it
        let pairs = own.computed.iter().zip(&text[..text.len() - 1]);
        let kept = pairs.take_while(|(own, known)| own == known).count();
        own.rewind(&mut self.pages, kept);
        if own.computed.is_empty() {
            own.begin(&mut self.pages, text);
        }
        Some(own.computed.len())
    }

    /// Pages for tokens up to `end`, and for all of a text up to `last` sooner or later; those of who was asked
    /// for longer ago are taken for it. `false` where there are too few: then it has none.
    pub fn secure(&mut self, id: RequestId, end: usize, last: usize) -> bool {
        loop {
            let own = self.texts.get_mut(&id).expect("it was asked for");
            if own.reserve(&mut self.pages, end, last) {
                own.begins_alone = false;
                return true;
            }
            let used = own.used;
            let owners = self.texts.iter().filter(|(_, own)| own.has_pages());
            let others = owners.filter(|(_, own)| own.used < used);
            let victim = others.min_by_key(|(_, own)| own.used).map(|(&id, _)| id);
            let needy = victim.unwrap_or(id);
            let own = self.texts.get_mut(&needy).expect("found just now");
            own.clear(&mut self.pages);
            if needy == id {
                own.begins_alone = !own.begins_alone;
                return false;
            }
        }
    }

    /// How many tokens of a text are computed.
    pub fn len(&self, id: RequestId) -> usize {
        self.texts[&id].computed.len()
    }

    /// The pages of a text.
    pub fn tables(&self, id: RequestId) -> &Tables {
        &self.texts[&id].tables
    }

    /// `tokens` are computed, the next of a text; of known ones full pages are found from now on, and those
    /// that nobody sees any more are given back.
    pub fn advance(&mut self, id: RequestId, tokens: &[u32], are_known: bool) {
        let own = self.texts.get_mut(&id).expect("it was asked for");
        own.computed.extend(tokens);
        if are_known {
            let computed = own.computed.len();
            let (chain, tables) = (&mut own.chain, &mut own.tables);
            self.pages.publish(chain, &own.computed, computed, tables);
            self.pages.pass(tables, computed);
        }
    }

    /// What was computed of a text are no numbers: it is found by nobody, and the text is not gone on with.
    pub fn bar(&mut self, id: RequestId) {
        let own = self.texts.get_mut(&id).expect("it was asked for");
        let mut begin = Chain::new(own.root);
        self.pages.forget(&own.tables, &mut begin, &own.computed);
        own.clear(&mut self.pages);
        own.is_barred = true;
    }

    /// Pages of a text go back; who begins as it did may find them still.
    pub fn release(&mut self, id: RequestId) {
        if let Some(mut own) = self.texts.remove(&id) {
            own.clear(&mut self.pages);
        }
    }

    /// Everything is lost, and computed anew where it is asked for.
    pub fn forget_all(&mut self) {
        for own in self.texts.values_mut() {
            own.clear(&mut self.pages);
        }
        self.texts.clear();
        self.pages.forget_all();
    }

    /// Asserts what holds between any two calls.
    ///
    /// # Panics
    /// When it does not.
    pub fn check(&self) {
        self.pages.check();
        for (id, own) in &self.texts {
            let (len, published) = (own.computed.len(), own.chain.num_pages * PAGE_SIZE);
            assert!(published <= len, "{id:?}: {published} published of {len}");
            for table in &own.tables {
                let room = table.len() * PAGE_SIZE;
                assert!(len <= room, "{id:?}: {len} tokens in {room}");
            }
            let windows = self.pages.windows().zip(&own.tables);
            let sees_gone = windows.filter(|&(window, table)| {
                table[pages_gone(len, window).min(table.len())..].contains(&GONE)
            });
            assert_eq!(sees_gone.count(), 0, "{id:?} sees what is gone");
        }
        let owned = self.texts.values().flat_map(|own| &own.tables);
        let owned = owned
            .flat_map(|table| crate::kv::pages::there(table))
            .count();
        let owners = self.pages.pools().map(|pool| {
            let pages = 0..pool.geometry().num_pages as u32;
            pages.map(|page| pool.owners(page) as usize).sum::<usize>()
        });
        assert_eq!(owners.sum::<usize>(), owned, "owners of pages");
    }
}

impl Own {
    fn new(salt: &[u8]) -> Own {
        // pages live and die with the draft, and so with one model and one adapter
        let root = PrefixKey::root(b"", salt);
        Own {
            root,
            chain: Chain::new(root),
            tables: Tables::new(),
            computed: Vec::new(),
            used: 0,
            begins_alone: false,
            is_barred: false,
        }
    }

    fn has_pages(&self) -> bool {
        self.tables.iter().any(|table| !table.is_empty())
    }

    /// All but the first `kept` tokens are taken back. Where pages behind them can be found by others, or what
    /// a window has passed on would be seen again, all of them are.
    fn rewind(&mut self, pages: &mut Pages, kept: usize) {
        if kept == self.computed.len() {
            return;
        }
        let gone_again = |(window, table): (Option<usize>, &Vec<_>)| {
            table.get(pages_gone(kept, window)) == Some(&GONE)
        };
        let sees_gone = pages.windows().zip(&self.tables).any(gone_again);
        if kept < self.chain.num_pages * PAGE_SIZE || sees_gone {
            self.clear(pages);
        } else {
            self.computed.truncate(kept);
            pages.shrink(&mut self.tables, kept);
        }
    }

    /// From the first token on, or from behind those whose pages are found.
    fn begin(&mut self, pages: &mut Pages, text: &[u32]) {
        self.clear(pages);
        if self.begins_alone {
            return;
        }
        self.tables = pages.find(&mut self.chain, text);
        pages.share(&self.tables);
        let found = self.chain.num_pages * PAGE_SIZE;
        self.computed.extend(&text[..found]);
    }

    /// See [`Held::secure`]; as it was and `false` where there are too few.
    fn reserve(&mut self, pages: &mut Pages, end: usize, last: usize) -> bool {
        let start = self.computed.len();
        let mut copies = Vec::new();
        let has_room = pages.provide(&mut self.tables, start, last)
            && pages
                .reserve(&mut self.tables, start, end, &mut copies)
                .is_ok();
        assert!(copies.is_empty(), "a page that is written has one owner");
        has_room
    }

    /// It has nothing any more, as in the beginning.
    fn clear(&mut self, pages: &mut Pages) {
        pages.release(&self.tables);
        self.tables.clear();
        self.computed.clear();
        self.chain = Chain::new(self.root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::PageGeometry;

    const A: RequestId = RequestId(1);
    const B: RequestId = RequestId(2);
    const C: RequestId = RequestId(3);

    /// Groups that see all and a window of 20, of so many pages, for steps of 16 tokens.
    fn held(all: usize, few: usize) -> Held {
        let group = |pages, window| PageGroup {
            geometry: PageGeometry::new(pages, 64),
            window,
        };
        Held::new(&[group(all, None), group(few, Some(20))], 16)
    }

    fn text(seed: u32, len: u32) -> Vec<u32> {
        (0..len).map(|i| seed + i * i % 7).collect()
    }

    /// Computes `text` to its end in steps of 16 tokens; whether there was room.
    fn compute(held: &mut Held, id: RequestId, text: &[u32]) -> bool {
        let Some(mut start) = held.resume(id, text) else {
            return false;
        };
        while start < text.len() {
            let end = text.len().min(start + 16);
            if !held.secure(id, end, text.len()) {
                held.check();
                return false;
            }
            held.advance(id, &text[start..end], true);
            held.check();
            start = end;
        }
        true
    }

    /// All of these are asked for, the first first.
    fn ask(held: &mut Held, ids: &[RequestId]) {
        held.ask(ids.iter().map(|&id| (id, b"".as_slice())));
    }

    #[test]
    fn proposed_tokens_are_taken_back_by_a_subtraction() {
        let mut held = held(8, 8);
        ask(&mut held, &[A]);
        let mut known = text(0, 40);
        assert!(compute(&mut held, A, &known));
        let used = held.pages.num_used();
        assert!(held.secure(A, 56, 56));
        held.advance(A, &[100; 10], false);
        held.check();
        assert!(held.pages.num_used() > used);
        // two of them were right
        known.extend([100, 100, 5]);
        assert_eq!(held.resume(A, &known), Some(42));
        assert_eq!(
            held.pages.num_used(),
            used,
            "43 tokens, as many pages as 40"
        );
        held.check();
        assert!(compute(&mut held, A, &known));
        // asked again with nothing new, the last token is computed again
        assert_eq!(held.resume(A, &known), Some(42));
        held.check();
    }

    #[test]
    fn what_was_proposed_is_found_by_nobody() {
        let mut held = held(16, 16);
        ask(&mut held, &[A, B]);
        held.ask([(C, b"another".as_slice())].into_iter());
        let known = text(0, 30);
        assert!(compute(&mut held, A, &known));
        assert!(held.secure(A, 40, 40));
        held.advance(A, &[100; 10], false);
        let proposed = [&known[..], &[100; 10]].concat();
        assert_eq!(held.resume(B, &proposed), Some(16), "one page is full");
        assert_eq!(held.resume(C, &proposed), Some(0), "of another tenant");
        held.check();
        // known by now, they are found
        assert_eq!(held.resume(A, &proposed), Some(39));
        assert!(compute(&mut held, A, &proposed));
        held.release(B);
        ask(&mut held, &[B]);
        assert_eq!(held.resume(B, &proposed), Some(32));
        held.check();
    }

    #[test]
    fn back_behind_known_tokens_it_begins_with_what_is_found() {
        let mut held = held(16, 16);
        ask(&mut held, &[A, B]);
        let known = text(0, 100);
        assert!(compute(&mut held, A, &known));
        let other = [&known[..70], &[9; 20]].concat();
        // 64 tokens are in full pages, the last of the window's among them
        assert_eq!(held.resume(A, &other), Some(64));
        held.check();
        assert!(compute(&mut held, A, &other));
        let other = [&known[..3], &[9; 20]].concat();
        assert_eq!(held.resume(A, &other), Some(0));
        held.check();
        assert_eq!(held.pages.num_used(), 0);
    }

    #[test]
    fn who_was_not_asked_for_longest_loses_its_pages_and_who_comes_first_keeps_them() {
        let mut held = held(8, 24);
        let texts = [text(0, 60), text(10, 50), text(20, 60)];
        for (id, text) in [A, B].into_iter().zip(&texts) {
            ask(&mut held, &[id]);
            assert!(compute(&mut held, id, text));
        }
        // of 8 pages 4 and 4 are in use
        ask(&mut held, &[C]);
        assert!(compute(&mut held, C, &texts[2]));
        assert!(!held.texts[&A].has_pages() && held.texts[&B].has_pages());
        // together, the first two have them; the last takes from nobody
        ask(&mut held, &[A, B, C]);
        assert!(compute(&mut held, A, &texts[0]));
        assert!(compute(&mut held, B, &texts[1]));
        assert!(!compute(&mut held, C, &texts[2]));
        assert!(held.texts[&A].has_pages() && held.texts[&B].has_pages());
        assert!(!held.texts[&C].has_pages());
        held.release(A);
        ask(&mut held, &[B, C]);
        assert!(compute(&mut held, C, &texts[2]));
        ask(&mut held, &[B]);
        // more than there are
        assert!(!compute(&mut held, B, &text(30, 200)));
        assert!(!held.texts[&B].has_pages());
        held.check();
    }

    #[test]
    fn what_is_no_number_is_neither_found_nor_gone_on_with() {
        let mut held = held(16, 16);
        ask(&mut held, &[A, B]);
        let known = text(0, 60);
        assert!(compute(&mut held, A, &known));
        held.bar(A);
        held.check();
        assert_eq!((held.pages.num_used(), held.pages.num_cached()), (0, 0));
        assert_eq!(held.resume(A, &known), None);
        assert_eq!(held.resume(B, &known), Some(0));
        held.release(A);
        ask(&mut held, &[A]);
        assert_eq!(held.resume(A, &known), Some(0));
    }

    #[test]
    fn what_is_lost_is_begun_anew() {
        let mut held = held(16, 16);
        ask(&mut held, &[A, B]);
        let known = text(0, 60);
        assert!(compute(&mut held, A, &known));
        held.forget_all();
        held.check();
        ask(&mut held, &[A]);
        assert_eq!((held.pages.num_used(), held.pages.num_cached()), (0, 0));
        assert_eq!(held.resume(A, &known), Some(0));
    }
}
