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
use crate::kernels::attention::AttentionParams;
use crate::kernels::attention_output::Output;
use crate::kernels::attention_plan::Item;
use crate::kv::{KvFormat, PAGE_SIZE, SPLIT_PAGES};
use std::f64::consts::LOG2_E;

/// What a dispatch writes. Of the query of a row, the keys and values that it sees, and the factor of its
/// scores in nats `whole` makes the result, and `partial` a partial result, `head_dim + 4` elements.
pub(crate) fn pieces(
    call: &mut Call<'_>,
    whole: impl Fn(&[f32], &[f32], &[f32], f64) -> Vec<Exact> + Sync,
    partial: impl Fn(&[f32], &[f32], &[f32], f64) -> Vec<Exact> + Sync,
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

    let scale = f64::from(p.scale_log2e) / LOG2_E;
    let group = num_heads / num_kv_heads;
    // all rows of an item and a key head, by token and query head
    let task = |task: usize| -> Vec<Vec<Exact>> {
        let (walk, kv_head) = (&items[task / num_kv_heads], task % num_kv_heads);
        let [keys, values] = pages.head(&walk.table, kv_head, walk.seen(walk.tokens() - 1));
        let mut rows = Vec::with_capacity(walk.tokens() * group);
        for token in 0..walk.tokens() {
            let seen = walk.seen(token) * head_dim;
            let (keys, values) = (&keys[..seen], &values[..seen]);
            for head in kv_head * group..(kv_head + 1) * group {
                let row = (walk.token0() + token - first) * num_heads + head;
                let q = &q[row * head_dim..][..head_dim];
                rows.push(match walk.item.slot0 {
                    None => whole(q, keys, values, scale),
                    Some(_) => partial(q, keys, values, scale),
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

/// An item, and the pages that its last token sees of its splits.
struct Walk {
    item: Item,
    /// The first token's position, and that of the first key.
    position0: usize,
    first_key: usize,
    /// Keys that there are at most.
    most: usize,
    table: Vec<u32>,
}

impl Walk {
    fn all(call: &mut Call<'_>, p: &AttentionParams) -> Result<Vec<Walk>> {
        let at = p.items_at as usize;
        let words = at..at + p.num_items as usize * Item::WORDS;
        let words = call.read_range("step_meta", words)?;
        let items = words.chunks_exact(Item::WORDS).map(Item::from_words);
        let mut all: Vec<Walk> = items.map(Walk::new).collect();
        let table = |walk: &Walk| {
            let first = walk.item.table_at as usize + walk.first_key / PAGE_SIZE;
            first..first + walk.seen(walk.tokens() - 1).div_ceil(PAGE_SIZE)
        };
        let ranges: Vec<_> = all.iter().map(table).collect();
        let words = call.read_ranges("step_meta", &ranges)?;
        let mut words = words.iter().copied();
        for (walk, range) in all.iter_mut().zip(ranges) {
            walk.table = words.by_ref().take(range.len()).collect();
        }
        Ok(all)
    }

    fn new(item: Item) -> Walk {
        let split = SPLIT_PAGES * PAGE_SIZE;
        Walk {
            item,
            position0: item.position0 as usize,
            first_key: item.first_split as usize * split,
            most: item.num_splits as usize * split,
            table: Vec::new(),
        }
    }

    fn token0(&self) -> usize {
        self.item.token0 as usize
    }

    fn tokens(&self) -> usize {
        self.item.num_tokens as usize
    }

    /// Keys of the splits that a token of the item sees.
    fn seen(&self, token: usize) -> usize {
        let all = self.position0 + token + 1;
        all.saturating_sub(self.first_key).min(self.most)
    }
}
