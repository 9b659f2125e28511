//! What each page of the cache is used for: a picture for people and for tests.

use super::EngineCore;
use super::request::RequestId;
use crate::kv::pages::there;
use crate::kv::{PageId, PagePool};

/// What a page is used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageUse {
    /// Nothing.
    Free,
    /// Nobody's, kept for whoever begins with the same tokens.
    Cached,
    /// By these requests, in the order of their ids; by none of them, where it is work beside the queue.
    Owned(Vec<RequestId>),
}

impl EngineCore {
    /// All pages, group by group, in the order of their ids.
    pub fn page_map(&self) -> Vec<PageUse> {
        let pages = &self.scheduler.pages;
        let of = |pool: &PagePool| {
            let of = |page| match pool.owners(page) {
                0 if pool.is_idle(page) => PageUse::Cached,
                0 => PageUse::Free,
                _ => PageUse::Owned(Vec::new()),
            };
            let pages = 0..pool.geometry().num_pages as PageId;
            pages.map(of).collect()
        };
        let mut maps: Vec<Vec<PageUse>> = pages.pools().map(of).collect();
        for sequence in self.scheduler.sequences.values() {
            for (map, table) in maps.iter_mut().zip(&sequence.pages) {
                for page in there(table) {
                    match &mut map[page as usize] {
                        PageUse::Owned(owners) => owners.push(sequence.id),
                        other => panic!("page {page} of {:?} is {other:?}", sequence.id),
                    }
                }
            }
        }
        maps.concat()
    }
}
