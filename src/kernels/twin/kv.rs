//! Pages of a slab as a twin sees them: where keys and values go, and what is read of them.

use super::Piece;
use super::endings::Exact;
use super::runs::{self, Run, joined};
use crate::error::Result;
use crate::gpu::Call;
use crate::kv::{KvFormat, PAGE_SIZE};
use std::collections::{BTreeMap, BTreeSet};

/// A slab's shape. A page is `[num_kv_heads, 16, head_dim]`.
#[derive(Clone, Copy)]
pub(crate) struct Slab {
    pub format: KvFormat,
    pub first_page: u32,
    pub num_pages: u32,
    pub num_kv_heads: usize,
    pub head_dim: usize,
}

impl Slab {
    fn page_elements(&self) -> usize {
        self.num_kv_heads * PAGE_SIZE * self.head_dim
    }

    /// Elements that a word has.
    fn word_elements(&self) -> usize {
        4 / self.format.dtype().bytes() as usize
    }

    /// The number that shaders take for that of a page in the slab.
    fn in_slab(&self, page: u32) -> u32 {
        page.wrapping_sub(self.first_page).min(self.num_pages - 1)
    }

    /// The first element of a key head at a slot; `None` where the slot's page is in another slab.
    pub fn place(&self, slot: u32, kv_head: usize) -> Option<usize> {
        let (page, token) = (slot / PAGE_SIZE as u32, slot as usize % PAGE_SIZE);
        let page = page.wrapping_sub(self.first_page);
        let row = (page as usize * self.num_kv_heads + kv_head) * PAGE_SIZE + token;
        (page < self.num_pages).then_some(row * self.head_dim)
    }

    /// What is written to `tensor`, by places in elements.
    pub fn pieces(&self, tensor: &'static str, written: Vec<Run<Exact>>) -> Vec<Piece> {
        let piece =
            |(at, exact)| Piece::stored(tensor, at / self.word_elements(), self.format, exact);
        joined(written).into_iter().map(piece).collect()
    }
}

/// Some pages of keys and values.
pub(crate) struct SomePages {
    slab: Slab,
    /// Where each page, by its number in the slab, begins in both.
    at: BTreeMap<u32, usize>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl SomePages {
    /// Reads `pages` of the slab that `call` binds, by their ids. A page of another slab is taken for one
    /// at the slab's end, as shaders do.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read(
        call: &mut Call<'_>,
        slab: Slab,
        pages: impl Iterator<Item = u32>,
    ) -> Result<SomePages> {
        let pages: BTreeSet<u32> = pages.map(|page| slab.in_slab(page)).collect();
        let words = slab.page_elements() / slab.word_elements();
        let ranges = runs::ranges(pages.iter().map(|&page| page as usize), words);
        let [keys, values] = ["k", "v"].map(|name| -> Result<Vec<f32>> {
            let words = call.read_ranges(name, &ranges)?;
            Ok(slab.format.unpack(&words))
        });
        let places = (0..).map(|i| i * slab.page_elements());
        Ok(SomePages {
            slab,
            at: pages.into_iter().zip(places).collect(),
            keys: keys?,
            values: values?,
        })
    }

    /// Keys and values of one head, of the first `num_keys` tokens of the pages of `table`:
    /// `[num_keys, head_dim]` each.
    pub fn head(&self, table: &[u32], kv_head: usize, num_keys: usize) -> [Vec<f32>; 2] {
        let (slab, rows) = (&self.slab, PAGE_SIZE * self.slab.head_dim);
        let gather = |from: &[f32]| {
            let mut all = Vec::with_capacity(num_keys.next_multiple_of(PAGE_SIZE) * slab.head_dim);
            for &page in &table[..num_keys.div_ceil(PAGE_SIZE)] {
                let at = self.at[&slab.in_slab(page)] + kv_head * rows;
                all.extend_from_slice(&from[at..at + rows]);
            }
            all.truncate(num_keys * slab.head_dim);
            all
        };
        [gather(&self.keys), gather(&self.values)]
    }
}
