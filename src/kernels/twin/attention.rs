//! The twin of `attention` and `attention_coop`: the items of a dispatch, the pages that they read, and
//! pieces for results and partial results.

use super::endings::Exact;
use super::kv::{Slab, SomePages};
use super::matmul::{f32_pieces, floats};
use super::runs::{Run, joined};
use super::{Piece, parallel};
use crate::error::Result;
use crate::gpu::Call;
use crate::kernels::activations::Activations;
use crate::kernels::attention::{self, AttentionParams, Scores};
use crate::kernels::attention_output::Output;
use crate::kernels::attention_plan::Item;
use crate::kv::{KvFormat, PAGE_SIZE, SPLIT_SIZE};
use std::ops::Range;

/// What a dispatch writes. Of the query of a row, the keys and values that it sees, and what makes its
/// scores `whole` makes the result, and `partial` a partial result, `head_dim + 4` elements.
pub(crate) fn pieces(
    call: &mut Call<'_>,
    whole: impl Fn(&[f32], &[f32], &[f32], Scores) -> Vec<Exact> + Sync,
    partial: impl Fn(&[f32], &[f32], &[f32], Scores) -> Vec<Exact> + Sync,
) -> Result<Vec<Piece>> {
    let p: AttentionParams = call.params();
    let head_dim = call.number("HEAD_DIM").expect("dims are set") as usize;
    let (num_heads, num_kv_heads) = (p.num_heads as usize, p.num_kv_heads as usize);
    let slab = Slab {
        format: KvFormat::of_variant(&call.variant),
        first_page: p.first_page,
        num_pages: p.num_pages,
        num_kv_heads,
        head_dim,
    };
    let items = Walk::all(call, &p)?;
    let pages = items.iter().flat_map(|walk| walk.table.iter().copied());
    let pages = SomePages::read(call, slab, pages)?;
    // rows of q from the first that any item has
    let first = items.iter().map(|w| w.token0()).min().unwrap_or(0);
    let end = items.iter().map(|w| w.token0() + w.tokens()).max();
    let width = num_heads * head_dim;
    let q = first * width..end.unwrap_or(0) * width;
    let q = floats(&call.read_range("q", q)?);

    let scores = attention::scores_of(call, &p);
    let group = num_heads / num_kv_heads;
    // all rows of an item and a key head, by token and query head
    let task = |task: usize| -> Vec<Vec<Exact>> {
        let (walk, kv_head) = (&items[task / num_kv_heads], task % num_kv_heads);
        let loaded = walk.loaded();
        let [keys, values] = pages.head(&walk.table, kv_head, loaded.len());
        let mut rows = Vec::with_capacity(walk.tokens() * group);
        for token in 0..walk.tokens() {
            let seen = walk.seen(token);
            let seen = match seen.is_empty() {
                true => 0..0,
                false => {
                    (seen.start - loaded.start) * head_dim..(seen.end - loaded.start) * head_dim
                }
            };
            let (keys, values) = (&keys[seen.clone()], &values[seen]);
            for head in kv_head * group..(kv_head + 1) * group {
                let row = (walk.token0() + token - first) * num_heads + head;
                let q = &q[row * head_dim..][..head_dim];
                rows.push(match walk.item.slot0 {
                    None => whole(q, keys, values, scores),
                    Some(_) => partial(q, keys, values, scores),
                });
            }
        }
        rows
    };
    let mut found = parallel::map(items.len() * num_kv_heads, task).into_iter();
    let (mut results, mut partials) = (Vec::new(), Vec::new());
    for walk in &items {
        let heads: Vec<Vec<Vec<Exact>>> = found.by_ref().take(num_kv_heads).collect();
        for token in 0..walk.tokens() {
            let own = heads.iter().map(|rows| &rows[token * group..][..group]);
            let row: Vec<Exact> = own.flatten().flatten().copied().collect();
            match walk.item.slot0 {
                None => results.push(((walk.token0() + token) * width, row)),
                Some(slot0) => partials.push(((slot0 as usize + token) * row.len(), row)),
            }
        }
    }
    let mut pieces = f32_pieces("partials", partials);
    pieces.extend(output(call, width, results));
    Ok(pieces)
}

/// Rows of `width` results, by the number of a row's first element.
pub(crate) fn output(call: &Call<'_>, width: usize, rows: Vec<Run<Exact>>) -> Vec<Piece> {
    match Output::of_call(call) {
        Output::Rows => f32_pieces("out", rows),
        Output::Records => {
            let activations = Activations::stored_by(call);
            let [_, row_words] = activations.dims(1, width);
            let piece = |(at, exact)| {
                activations.piece("act_out", at / width * row_words, width, exact, None)
            };
            joined(rows).into_iter().map(piece).collect()
        }
    }
}

/// An item, and the pages that its tokens see of its splits.
struct Walk {
    item: Item,
    position0: usize,
    /// Keys of its splits.
    keys: Range<usize>,
    /// Keys that a token sees at most.
    window: usize,
    table: Vec<u32>,
}

impl Walk {
    fn all(call: &mut Call<'_>, p: &AttentionParams) -> Result<Vec<Walk>> {
        let at = p.items_at as usize;
        let words = at..at + p.num_items as usize * Item::WORDS;
        let words = call.read_range("step_meta", words)?;
        let items = words.chunks_exact(Item::WORDS).map(Item::from_words);
        let walk = |item| Walk::new(item, p.window as usize);
        let mut all: Vec<Walk> = items.map(walk).collect();
        let table = |walk: &Walk| {
            let (loaded, at) = (walk.loaded(), walk.item.table_at as usize);
            at + loaded.start / PAGE_SIZE..at + loaded.end.div_ceil(PAGE_SIZE)
        };
        let ranges: Vec<_> = all.iter().map(table).collect();
        let words = call.read_ranges("step_meta", &ranges)?;
        let mut words = words.iter().copied();
        for (walk, range) in all.iter_mut().zip(ranges) {
            walk.table = words.by_ref().take(range.len()).collect();
        }
        Ok(all)
    }

    fn new(item: Item, window: usize) -> Walk {
        let (first, splits) = (item.first_split as usize, item.num_splits as usize);
        Walk {
            item,
            position0: item.position0 as usize,
            keys: first * SPLIT_SIZE..(first + splits) * SPLIT_SIZE,
            window,
            table: Vec::new(),
        }
    }

    fn token0(&self) -> usize {
        self.item.token0 as usize
    }

    fn tokens(&self) -> usize {
        self.item.num_tokens as usize
    }

    /// The keys of the splits that a token of the item sees; none where the range is the wrong way round.
    fn seen(&self, token: usize) -> Range<usize> {
        let end = self.position0 + token + 1;
        let first = end.saturating_sub(self.window);
        first.max(self.keys.start)..end.min(self.keys.end)
    }

    /// The keys from the first page that a token sees to the last that one sees; no pages where there are
    /// none.
    fn loaded(&self) -> Range<usize> {
        let first = self.seen(0).start / PAGE_SIZE * PAGE_SIZE;
        first..self.seen(self.tokens() - 1).end.max(first)
    }
}
