//! The paged KV cache: who owns which page, and where a page lies on the device.
//!
//! ```text
//! a sequence's page table         slabs of one layer (K; V has the same)
//!
//! position   0..15  -> page 5     slab 0: pages 0..63       slab 1: pages 64..127
//!           16..31  -> page 2     +------+------+-- --+     +------+-- --+
//!           32..47  -> page 9     | pg 0 | pg 1 | ... |     | pg64 | ... |
//!              ...                +------+------+-- --+     +------+-- --+
//!          256..271 -> page 70
//!
//! a page: [kv_head][token 0..15][dim]; a head's 16 tokens are contiguous
//! a slot: page * 16 + token in page; one number says where a token's K and V go
//! ```
//!
//! Page ids are the same in every layer, and every layer has the same slabs: one page table serves
//! them all. A slab is what a kernel can bind, so a layer's pages are spread over as many slabs as
//! the binding limit asks for. Attention walks a context in splits of 256 tokens, and a split is read
//! by one workgroup from one slab: hence the rule of [`pool`], *the 16 pages of a split lie in one
//! slab*.
//!
//! Nobody writes to a page that has two owners. Full pages are found again by what is in them
//! ([`prefix`]) and shared; a sequence that would write into a shared page copies it first.

pub mod cache;
pub mod pages;
pub mod pool;
pub mod prefix;

pub use cache::{KvCache, KvFormat, KvSlab};
pub use pages::Pages;
pub use pool::PagePool;

/// Tokens of a page.
pub const PAGE_SIZE: usize = 16;
/// Tokens of a split: attention's partial results begin and end at multiples of it.
pub const SPLIT_SIZE: usize = 256;
/// Pages that there can be: a slot, page times 16 and an offset, is a u32.
pub const MAX_PAGES: usize = (1 << 27) - 1;
/// Pages of a split.
pub const SPLIT_PAGES: usize = SPLIT_SIZE / PAGE_SIZE;

/// A page's number, across slabs.
pub type PageId = u32;

/// How many pages there are, and how they are spread over slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageGeometry {
    /// All pages.
    pub num_pages: usize,
    /// Pages of every slab but the last, which may have fewer: a multiple of [`SPLIT_PAGES`].
    pub slab_pages: usize,
}

impl PageGeometry {
    /// `num_pages` in slabs of `slab_pages`.
    ///
    /// # Panics
    /// When `slab_pages` is not a multiple of [`SPLIT_PAGES`], or ids would not fit their type.
    pub fn new(num_pages: usize, slab_pages: usize) -> PageGeometry {
        assert!(
            slab_pages > 0 && slab_pages.is_multiple_of(SPLIT_PAGES),
            "slabs of {slab_pages} pages"
        );
        assert!(num_pages <= MAX_PAGES, "{num_pages} pages");
        PageGeometry {
            num_pages,
            slab_pages,
        }
    }

    /// How many slabs there are.
    pub fn num_slabs(&self) -> usize {
        self.num_pages.div_ceil(self.slab_pages)
    }

    /// The slab of `page`.
    pub fn slab_of(&self, page: PageId) -> usize {
        page as usize / self.slab_pages
    }

    /// The pages of slab `slab`.
    pub fn pages_of(&self, slab: usize) -> std::ops::Range<PageId> {
        let first = slab * self.slab_pages;
        let end = (first + self.slab_pages).min(self.num_pages);
        first as PageId..end as PageId
    }
}

/// Pages that hold `tokens` tokens.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_SIZE)
}
