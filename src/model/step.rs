//! What a step uploads: one run of words that says, for every token, where it comes from, where its
//! keys and values go, and what it attends to.

use super::rope::RopeTable;
use crate::kernels::attention::Items;
use crate::kernels::attention_plan::{self, Item, MergeRow, PlanLimits, PlanSequence, Round};
use crate::kernels::rope::RopeRows;
use crate::kv::{PAGE_SIZE, PageId};

/// Items of few tokens that get a dispatch of their own beside wider ones, at least.
const LEAST_NARROW: usize = 2;

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Their ids, at least one.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub first_position: usize,
    /// The sequence's pages, at least as many as its tokens up to the last of the span need.
    pub pages: &'a [PageId],
    /// Which of them get logits.
    pub head_rows: HeadRows,
}

/// Which tokens of a span get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadRows {
    /// None: more of the sequence follows in another step.
    None,
    /// The last one, in so many rows: each is drawn from on its own.
    Last(usize),
    /// All of them.
    All,
}

/// A step's metadata, and where its sections begin.
pub struct Step {
    /// Everything, as it is uploaded.
    pub words: Vec<u32>,
    /// Tokens in all.
    pub num_tokens: usize,
    /// Token ids: `[num_tokens]`.
    pub ids_at: usize,
    /// Slots and rotation of each token, by rotary embedding.
    pub rope_rows: Vec<RopeRows>,
    /// Position of each token, where a table of positions is read: `[num_tokens]`.
    pub positions_at: Option<usize>,
    /// Row numbers of the tokens that get logits: `[head_rows]`.
    pub head_rows_at: usize,
    /// How many get logits.
    pub head_rows: usize,
    /// Every token gets logits once, so that nothing has to be gathered.
    pub head_in_order: bool,
    /// Tokens of the longest span.
    pub longest_span: usize,
    /// Seconds that the step will take, where somebody knows.
    pub expected_seconds: Option<f64>,
    /// Who attends to what, by window: rounds that share the partial results, one after another.
    pub attention: Vec<Vec<AttentionRound>>,
}

/// Where a round of attention lies in the metadata.
pub struct AttentionRound {
    /// Lists of items, each with the slab that they read: those of few tokens by themselves where there
    /// are wider ones, which would make them wide as well.
    pub items: Vec<(usize, Items)>,
    /// First word of the merge rows.
    pub merge_at: usize,
    /// How many rows to merge.
    pub merge_rows: usize,
}

impl Step {
    /// Lays out the metadata of `spans`: angles for each of `ropes`, positions where they are asked for, and
    /// a plan of attention for each of `windows`.
    ///
    /// # Panics
    /// When a span has no token, or fewer pages than its tokens need.
    pub fn new(
        spans: &[Span],
        ropes: &[RopeTable],
        windows: &[Option<usize>],
        with_positions: bool,
        limits: &PlanLimits,
    ) -> Step {
        let mut words: Vec<u32> = spans.iter().flat_map(|s| s.tokens).copied().collect();
        let num_tokens = words.len();
        let positions = || {
            spans
                .iter()
                .flat_map(|s| (0..s.tokens.len()).map(move |i| (s, s.first_position + i)))
        };

        let slots_at = words.len();
        for (span, position) in positions() {
            let page = span.pages[position / PAGE_SIZE];
            words.push(page * PAGE_SIZE as u32 + (position % PAGE_SIZE) as u32);
        }
        let mut rope_rows = Vec::with_capacity(ropes.len());
        for rope in ropes {
            words.resize(words.len().next_multiple_of(4), 0); // angles are read four at a time
            let rope_at = words.len();
            rope_rows.push(RopeRows { slots_at, rope_at });
            for (_, position) in positions() {
                rope.push_row(position, &mut words);
            }
        }
        let positions_at = with_positions.then(|| {
            let at = words.len();
            words.extend(positions().map(|(_, position)| position as u32));
            at
        });
        let head_rows_at = words.len();
        let mut first_row = 0;
        for span in spans {
            let rows = first_row..first_row + span.tokens.len();
            match span.head_rows {
                HeadRows::None => {}
                HeadRows::Last(count) => {
                    words.extend(std::iter::repeat_n(rows.end as u32 - 1, count));
                }
                HeadRows::All => words.extend(rows.clone().map(|row| row as u32)),
            }
            first_row = rows.end;
        }
        let head_rows = words.len() - head_rows_at;
        let head_in_order = words[head_rows_at..]
            .iter()
            .copied()
            .eq(0..num_tokens as u32);
        let sequences = push_tables(spans, &mut words);
        let mut attention = Vec::with_capacity(windows.len());
        for &window in windows {
            let rounds = attention_plan::plan(&sequences, limits, window);
            let rounds = rounds
                .iter()
                .map(|round| push_round(round, limits.tiling.narrow_tokens, &mut words));
            attention.push(rounds.collect());
        }
        Step {
            words,
            num_tokens,
            ids_at: 0,
            rope_rows,
            positions_at,
            head_rows_at,
            head_rows,
            head_in_order,
            longest_span: spans.iter().map(|s| s.tokens.len()).max().unwrap_or(0),
            expected_seconds: None,
            attention,
        }
    }
}

/// Appends page tables.
fn push_tables<'a>(spans: &[Span<'a>], words: &mut Vec<u32>) -> Vec<PlanSequence<'a>> {
    let mut sequences = Vec::with_capacity(spans.len());
    let mut token0 = 0;
    for span in spans {
        let table_at = words.len();
        words.extend_from_slice(span.pages);
        sequences.push(PlanSequence {
            token0,
            num_tokens: span.tokens.len(),
            position0: span.first_position,
            page_table: span.pages,
            table_at,
        });
        token0 += span.tokens.len();
    }
    sequences
}

fn push_round(round: &Round, narrow_tokens: usize, words: &mut Vec<u32>) -> AttentionRound {
    let mut lists = Vec::with_capacity(round.slabs.len());
    let mut push = |slab: usize, items: &[&Item]| {
        let widest = items.iter().map(|item| item.num_tokens as usize).max();
        let list = Items {
            at: words.len(),
            count: items.len(),
            max_tokens: widest.unwrap_or(0),
        };
        lists.push((slab, list));
        words.extend(items.iter().flat_map(|item| item.words()));
    };
    for (slab, items) in round.slabs.iter().enumerate() {
        let is_narrow = |item: &&Item| item.num_tokens as usize <= narrow_tokens;
        let (narrow, wide): (Vec<&Item>, Vec<&Item>) = items.iter().partition(is_narrow);
        // a dispatch more has to be worth it
        if wide.is_empty() || narrow.len() < LEAST_NARROW {
            push(slab, &items.iter().collect::<Vec<_>>());
        } else {
            push(slab, &narrow);
            push(slab, &wide);
        }
    }
    let merge_at = words.len();
    words.extend(round.merge.iter().flat_map(MergeRow::words));
    AttentionRound {
        items: lists,
        merge_at,
        merge_rows: round.merge.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention_plan::Tiling;
    use crate::kv::PageGeometry;
    use crate::model::rope::Rope;

    fn limits() -> PlanLimits {
        PlanLimits {
            geometry: PageGeometry::new(64, 64),
            tiling: Tiling {
                tile_tokens: 8,
                narrow_tokens: 1,
                item_teams: 1,
            },
            wanted_teams: 0,
            partial_slots: 64,
        }
    }

    fn tables() -> [RopeTable; 2] {
        [10_000.0, 1e6].map(|theta| {
            let rope = Rope {
                theta,
                ..Rope::default()
            };
            RopeTable::new(&rope, 32)
        })
    }

    /// 5 tokens from position 300 on and one at position 7.
    fn step(ropes: &[RopeTable], windows: &[Option<usize>], with_positions: bool) -> Step {
        let pages: Vec<PageId> = (0..20).collect();
        let spans = [
            Span {
                tokens: &[1, 2, 3, 4, 5],
                first_position: 300,
                pages: &pages,
                head_rows: HeadRows::Last(1),
            },
            Span {
                tokens: &[6],
                first_position: 7,
                pages: &[20],
                head_rows: HeadRows::All,
            },
        ];
        Step::new(&spans, ropes, windows, with_positions, &limits())
    }

    #[test]
    fn a_section_of_angles_for_each_rope_and_positions_where_asked_for() {
        let tables = tables();
        let step = step(&tables, &[None], true);
        let positions = [300, 301, 302, 303, 304, 7];
        let at = step.positions_at.expect("positions");
        assert_eq!(step.words[at..at + 6], positions);
        assert_eq!(step.rope_rows.len(), 2);
        for (rows, table) in step.rope_rows.iter().zip(&tables) {
            assert!(rows.rope_at.is_multiple_of(4));
            let mut angles = Vec::new();
            for position in positions {
                table.push_row(position as usize, &mut angles);
            }
            assert_eq!(step.words[rows.rope_at..][..6 * 32], angles);
            let slots = positions.map(|p| if p == 7 { 20 * 16 + 7 } else { p });
            assert_eq!(step.words[rows.slots_at..][..6], slots);
        }
        assert_eq!(self::step(&tables, &[None], false).positions_at, None);
    }

    #[test]
    fn a_plan_for_each_window_by_the_same_page_tables() {
        let windows = [Some(20), None, Some(60)];
        let step = step(&tables()[..1], &windows, false);
        assert_eq!(step.attention.len(), 3);
        let mut firsts = Vec::new();
        for rounds in &step.attention {
            assert_eq!(rounds.len(), 1);
            let mut items = Vec::new();
            for (_, list) in &rounds[0].items {
                let words = &step.words[list.at..][..list.count * Item::WORDS];
                items.extend(words.chunks_exact(Item::WORDS).map(Item::from_words));
            }
            let of = |token0| items.iter().find(|item| item.token0 == token0).unwrap();
            let (long, short) = (of(0), of(5));
            assert_eq!((long.num_tokens, short.num_tokens), (5, 1));
            assert_eq!(step.words[long.table_at as usize + 19], 19);
            assert_eq!(step.words[short.table_at as usize], 20);
            firsts.push((long.first_split, long.num_splits));
        }
        // keys 281..=300 are in the second split, 241..=300 begin in the first
        assert_eq!(firsts, [(1, 1), (0, 2), (0, 2)]);
        // with one window and one rope nothing else is in the words
        let plain = self::step(&tables()[..1], &[None], false);
        let [round] = &plain.attention[0][..] else {
            panic!("one round")
        };
        let of_items: usize = round
            .items
            .iter()
            .map(|(_, list)| list.count * Item::WORDS)
            .sum();
        assert_eq!(plain.words.len(), 6 + 6 + 6 * 32 + 2 + 21 + of_items);
    }
}
