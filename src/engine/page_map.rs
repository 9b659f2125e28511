//! What each page of the cache is used for: a picture for people and for tests.

use super::EngineCore;
use super::request::RequestId;
use crate::kv::PageId;

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
    /// All pages, in the order of their ids.
    pub fn page_map(&self) -> Vec<PageUse> {
        let pool = self.scheduler.pages.pool();
        let pages = 0..pool.geometry().num_pages as PageId;
        let of = |page| match pool.owners(page) {
            0 if pool.is_idle(page) => PageUse::Cached,
            0 => PageUse::Free,
            _ => PageUse::Owned(Vec::new()),
        };
        let mut map: Vec<PageUse> = pages.map(of).collect();
        for sequence in self.scheduler.sequences.values() {
            for &page in &sequence.pages {
                match &mut map[page as usize] {
                    PageUse::Owned(owners) => owners.push(sequence.id),
                    other => panic!("page {page} of {:?} is {other:?}", sequence.id),
                }
            }
        }
        map
    }
}
