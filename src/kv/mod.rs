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
//! Layers that see as much of a text are a *group*: page ids are the same in all of them, and each has the
//! same slabs, so one page table serves them all. Most models are one group. Where some layers see a window
//! alone, these have pages and tables of their own, and what no token will see again is given back while
//! the sequence runs: its table says [`GONE`] there.
//!
//! A slab is what a kernel can bind, so a layer's pages are spread over as many slabs as
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

/// A page's number, across the slabs of its group.
pub type PageId = u32;
/// In place of a page that nobody sees again: no page's number.
pub const GONE: PageId = PageId::MAX;
/// A sequence's pages: by group its page table, from position 0 on. None at all is as good as empty ones.
pub type Tables = Vec<Vec<PageId>>;

/// Pages of the layers whose tokens see as much as one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageGroup {
    /// The pages there are, and their slabs.
    pub geometry: PageGeometry,
    /// Tokens that a token sees, itself included; `None` where it sees all.
    pub window: Option<usize>,
}

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

/// Pages at the front of a table that no token from position `computed` on sees.
pub fn pages_gone(computed: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| {
        (computed + 1).saturating_sub(window) / PAGE_SIZE
    })
}

/// Pages that a sequence has at a time, at most, where a token sees `window` tokens and a step computes
/// `chunk` of it: wherever in a page they begin.
pub fn window_pages(window: usize, chunk: usize) -> usize {
    pages_for(window.saturating_add(chunk)) + 1
}

/// Pages in which a sequence that is alone can go on for ever, in steps of `chunk` tokens: beside its own
/// there may be two splits in `num_slabs` slabs that no other split fits in.
fn lasting_pages(window: usize, chunk: usize, num_slabs: usize) -> usize {
    let spare = if num_slabs > 1 { 2 * SPLIT_PAGES } else { 0 };
    window_pages(window, chunk) + spare
}

/// Pages of a group where one whose tokens see all has `pages`: what `sequences` with `chunk` tokens in a step
/// each can have at a time, where that is less.
pub fn group_pages(window: Option<usize>, pages: usize, sequences: usize, chunk: usize) -> usize {
    let own = window.map(|window| window_pages(window, chunk).saturating_mul(sequences));
    own.map_or(pages, |own| pages.min(own.saturating_add(2 * SPLIT_PAGES)))
}

/// Pages that hold `tokens` tokens.
pub fn pages_for(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_SIZE)
}
