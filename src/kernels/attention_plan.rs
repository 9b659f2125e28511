//! Who computes which part of a step's attention: work items for the attention kernels, and rows for
//! the merge of what several items found. Pure: a function of numbers.
//!
//! A tile is a few neighbouring tokens of one sequence. It becomes one item that folds all its
//! splits and writes the result, where all its pages are in one slab and the step has workgroups
//! enough without more; otherwise one item per split, each in its split's slab, and a merge row per
//! token. The result of `attention` does not depend on the choice, not in a bit.
//!
//! Where tokens see a window, splits that no token of a tile sees are in no item, and their pages are not
//! looked at.

use crate::kv::{PAGE_SIZE, PageGeometry, PageId, SPLIT_PAGES, SPLIT_SIZE};
use std::ops::Range;

/// Tokens of one sequence in a step: neighbours in the sequence and in the step.
#[derive(Clone, Copy, Debug)]
pub struct PlanSequence<'a> {
    /// Their first row in the step.
    pub token0: usize,
    /// How many there are.
    pub num_tokens: usize,
    /// Position of the first.
    pub position0: usize,
    /// The sequence's pages from position 0 on, at least up to the last token; those that no token sees may
    /// be any number.
    pub page_table: &'a [PageId],
    /// Where that table is in the step's metadata, in words.
    pub table_at: usize,
}

/// How the kernel that a plan is for cuts rows into items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// The most tokens of an item: as many as fill whole tiles.
    pub tile_tokens: usize,
    /// Items of so many tokens are done with less work by themselves than beside wider ones; 0 where all
    /// are alike.
    pub narrow_tokens: usize,
    /// Teams of eight invocations that an item has, at least.
    pub item_teams: usize,
}

/// What a plan has to keep to.
#[derive(Clone, Copy, Debug)]
pub struct PlanLimits {
    /// Where pages are.
    pub geometry: PageGeometry,
    /// Of the kernel.
    pub tiling: Tiling,
    /// Teams that keep the device busy: with fewer, splits become items of their own.
    pub wanted_teams: usize,
    /// Rows of the tensor of partial results.
    pub partial_slots: usize,
}

/// One entry of an attention kernel's work list; the words are described in `shaders/lib/attention_items.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// First row of the step.
    pub token0: u32,
    /// Rows.
    pub num_tokens: u32,
    /// Position of the first row.
    pub position0: u32,
    /// The page table, in words of the step's metadata.
    pub table_at: u32,
    /// First split.
    pub first_split: u32,
    /// Splits.
    pub num_splits: u32,
    /// Where the first token's partial result goes; `None` folds and writes the result itself.
    pub slot0: Option<u32>,
}

impl Item {
    /// Words of an item.
    pub const WORDS: usize = 8;

    /// What [`Item::words`] made.
    pub fn from_words(words: &[u32]) -> Item {
        Item {
            token0: words[0],
            num_tokens: words[1],
            position0: words[2],
            table_at: words[3],
            first_split: words[4],
            num_splits: words[5],
            slot0: (words[6] != u32::MAX).then_some(words[6]),
        }
    }

    /// As the kernel reads it.
    pub fn words(&self) -> [u32; Item::WORDS] {
        [
            self.token0,
            self.num_tokens,
            self.position0,
            self.table_at,
            self.first_split,
            self.num_splits,
            self.slot0.unwrap_or(u32::MAX),
            0,
        ]
    }
}

/// One entry of the merge kernel's work list: a token whose splits were several items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeRow {
    /// Row of the step.
    pub token: u32,
    /// Splits to fold.
    pub num_splits: u32,
    /// Partial result of the first.
    pub slot0: u32,
    /// Slots from one split to the next.
    pub stride: u32,
}

impl MergeRow {
    /// Words of a row.
    pub const WORDS: usize = 4;

    /// What [`MergeRow::words`] made.
    pub fn from_words(words: &[u32]) -> MergeRow {
        MergeRow {
            token: words[0],
            num_splits: words[1],
            slot0: words[2],
            stride: words[3],
        }
    }

    /// As the kernel reads it.
    pub fn words(&self) -> [u32; MergeRow::WORDS] {
        [self.token, self.num_splits, self.slot0, self.stride]
    }
}

/// Work that shares the tensor of partial results: all items, then the merge, then the next round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Items of each slab: a dispatch for every list that is not empty.
    pub slabs: Vec<Vec<Item>>,
    /// Rows to merge.
    pub merge: Vec<MergeRow>,
    /// The most tokens of an item.
    pub max_tokens: usize,
    used_slots: usize,
}

impl Round {
    fn new(num_slabs: usize) -> Round {
        Round {
            slabs: vec![Vec::new(); num_slabs],
            merge: Vec::new(),
            max_tokens: 0,
            used_slots: 0,
        }
    }
}

/// Splits that hold the keys up to `position`, itself included.
pub fn splits_for(position: usize) -> usize {
    position / SPLIT_SIZE + 1
}

/// The first key that a token at `position` sees, of `window` in all or all that there are.
pub fn first_key(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// The splits that hold the keys of neighbours, from the first key of one at `first` up to `last`.
fn splits_of(first: usize, last: usize, window: Option<usize>) -> Range<usize> {
    first_key(first, window) / SPLIT_SIZE..splits_for(last)
}

/// The rounds of a step's attention. Every token of `sequences` is in one, and sees `window` keys or all.
///
/// # Panics
/// When a page table is too short, breaks the rule of placement, or when the partial results of one
/// token do not fit: the least is [`splits_for`] slots of the longest sequence's last position.
pub fn plan(sequences: &[PlanSequence], limits: &PlanLimits, window: Option<usize>) -> Vec<Round> {
    let tiles: usize = sequences
        .iter()
        .map(|s| s.num_tokens.div_ceil(limits.tiling.tile_tokens))
        .sum();
    let enough = tiles * limits.tiling.item_teams >= limits.wanted_teams;
    let num_slabs = limits.geometry.num_slabs();
    let mut rounds = vec![Round::new(num_slabs)];
    for sequence in sequences {
        let slabs = SplitSlabs::of(sequence, &limits.geometry, window);
        let mut done = 0;
        while done < sequence.num_tokens {
            let first = sequence.position0 + done;
            let splits_of = |tokens| splits_of(first, first + tokens - 1, window);
            let mut tokens = limits.tiling.tile_tokens.min(sequence.num_tokens - done);
            let mut splits = splits_of(tokens);
            let one_slab = slabs.are_one(splits.clone());
            let fold = one_slab && (splits.len() == 1 || enough);
            if !fold {
                // a tile that asks for more room than there is at all becomes narrower
                tokens = tokens.min((limits.partial_slots / splits.len()).max(1));
                splits = splits_of(tokens);
            }
            let slots = if fold { 0 } else { tokens * splits.len() };
            assert!(
                slots <= limits.partial_slots,
                "{slots} partial results, room for {}",
                limits.partial_slots
            );
            let last = rounds.last().expect("there is one");
            if last.used_slots + slots > limits.partial_slots {
                rounds.push(Round::new(num_slabs));
            }
            let round = rounds.last_mut().expect("there is one");
            let tile = Tile {
                done,
                tokens,
                splits,
                fold,
            };
            push_tile(round, sequence, tile, &slabs, window);
            done += tokens;
        }
    }
    rounds
}

/// Tokens `done .. done + tokens` of a sequence, and the splits that they see.
struct Tile {
    done: usize,
    tokens: usize,
    splits: Range<usize>,
    fold: bool,
}

fn push_tile(
    round: &mut Round,
    sequence: &PlanSequence,
    tile: Tile,
    slabs: &SplitSlabs,
    window: Option<usize>,
) {
    let Tile {
        done,
        tokens,
        splits,
        fold,
    } = tile;
    let position0 = sequence.position0 + done;
    let mut item = |first_split: usize, num_splits: usize, slot0: Option<usize>| {
        round.max_tokens = round.max_tokens.max(tokens);
        let item = Item {
            token0: (sequence.token0 + done) as u32,
            num_tokens: tokens as u32,
            position0: position0 as u32,
            table_at: sequence.table_at as u32,
            first_split: first_split as u32,
            num_splits: num_splits as u32,
            slot0: slot0.map(|slot| slot as u32),
        };
        round.slabs[slabs.of_split(first_split)].push(item);
    };
    if fold {
        item(splits.start, splits.len(), None);
        return;
    }
    let slot0 = round.used_slots;
    let slot_of = |split| slot0 + (split - splits.start) * tokens;
    for split in splits.clone() {
        item(split, 1, Some(slot_of(split)));
    }
    for token in 0..tokens {
        let own = splits_of(position0 + token, position0 + token, window);
        round.merge.push(MergeRow {
            token: (sequence.token0 + done + token) as u32,
            num_splits: own.len() as u32,
            slot0: (slot_of(own.start) + token) as u32,
            stride: tokens as u32,
        });
    }
    round.used_slots += tokens * splits.len();
}

/// The slab of each split that the tokens of a sequence see.
struct SplitSlabs {
    first: usize,
    slabs: Vec<usize>,
}

impl SplitSlabs {
    fn of(sequence: &PlanSequence, geometry: &PageGeometry, window: Option<usize>) -> SplitSlabs {
        let pages = (sequence.position0 + sequence.num_tokens).div_ceil(PAGE_SIZE);
        assert!(
            pages <= sequence.page_table.len(),
            "{pages} pages of a table of {}",
            sequence.page_table.len()
        );
        let seen = first_key(sequence.position0, window) / PAGE_SIZE..pages;
        let first = seen.start / SPLIT_PAGES;
        let slabs = (first..pages.div_ceil(SPLIT_PAGES)).map(|split| {
            let of_split = split * SPLIT_PAGES..(split + 1) * SPLIT_PAGES;
            let of_split = of_split.start.max(seen.start)..of_split.end.min(seen.end);
            let pages = &sequence.page_table[of_split];
            let slab = geometry.slab_of(pages[0]);
            assert!(
                pages.iter().all(|&page| geometry.slab_of(page) == slab),
                "a split in two slabs: pages {pages:?}"
            );
            slab
        });
        SplitSlabs {
            first,
            slabs: slabs.collect(),
        }
    }

    fn of_split(&self, split: usize) -> usize {
        self.slabs[split - self.first]
    }

    fn are_one(&self, mut splits: Range<usize>) -> bool {
        let slab = self.of_split(splits.start);
        splits.all(|split| self.of_split(split) == slab)
    }
}

#[cfg(test)]
mod tests;
