//! What a step uploads: one run of words that says, for every token, where it comes from, where its
//! keys and values go, and what it attends to.

use super::rope::RopeTable;
use crate::kernels::attention::Items;
use crate::kernels::attention_plan::{self, Item, MergeRow, PlanLimits, PlanSequence, Round};
use crate::kv::{PAGE_SIZE, PageId, pages_for};

/// Items of few tokens that get a dispatch of their own beside wider ones, at least.
const LEAST_NARROW: usize = 2;

/// Words for the rows that verify proposed tokens, beside those that every sequence has.
pub const PROPOSAL_WORDS: usize = 16 * 1024;

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Their ids, at least one.
    pub tokens: &'a [u32],
    /// Position of the first.
    pub first_position: usize,
    /// The sequence's page table of each group, at least as long as its tokens up to the last of the span
    /// need; pages that none of them sees may be any number.
    pub pages: &'a [Vec<PageId>],
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
    /// The last so many, a row each.
    Tail(usize),
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
    /// The slot of each token, by group: `[num_tokens]`.
    pub slots_at: Vec<usize>,
    /// The rotation of each token, by rotary embedding.
    pub rope_at: Vec<usize>,
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
    /// Who attends to what, by group: rounds that share the partial results, one after another.
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
    /// for each of `groups`, which see a window or all, slots, page tables and a plan of attention.
    ///
    /// # Panics
    /// When a span has no token, or fewer pages than its tokens need.
    pub fn new(
        spans: &[Span],
        ropes: &[RopeTable],
        groups: &[(Option<usize>, PlanLimits)],
        with_positions: bool,
    ) -> Step {
        let mut words: Vec<u32> = spans.iter().flat_map(|s| s.tokens).copied().collect();
        let num_tokens = words.len();
        let positions = || {
            spans
                .iter()
                .flat_map(|s| (0..s.tokens.len()).map(move |i| (s, s.first_position + i)))
        };

        let mut slots_at = Vec::with_capacity(groups.len());
        for group in 0..groups.len() {
            slots_at.push(words.len());
            for (span, position) in positions() {
                let page = span.pages[group][position / PAGE_SIZE];
                words.push(page * PAGE_SIZE as u32 + (position % PAGE_SIZE) as u32);
            }
        }
        let mut rope_at = Vec::with_capacity(ropes.len());
        for rope in ropes {
            words.resize(words.len().next_multiple_of(4), 0); // angles are read four at a time
            rope_at.push(words.len());
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
                HeadRows::Tail(count) => {
                    words.extend(rows.clone().rev().take(count).rev().map(|row| row as u32))
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
        let mut attention = Vec::with_capacity(groups.len());
        for (group, (window, limits)) in groups.iter().enumerate() {
            let sequences = push_tables(spans, group, &mut words);
            let rounds = attention_plan::plan(&sequences, limits, *window);
            let rounds = rounds
                .iter()
                .map(|round| push_round(round, limits.tiling.narrow_tokens, &mut words));
            attention.push(rounds.collect());
        }
        Step {
            words,
            num_tokens,
            ids_at: 0,
            slots_at,
            rope_at,
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

/// Appends the page tables of a group.
fn push_tables<'a>(
    spans: &[Span<'a>],
    group: usize,
    words: &mut Vec<u32>,
) -> Vec<PlanSequence<'a>> {
    let mut sequences = Vec::with_capacity(spans.len());
    let mut token0 = 0;
    for span in spans {
        let table_at = words.len();
        // promised pages are of no use yet
        let pages = pages_for(span.first_position + span.tokens.len());
        let page_table = &span.pages[group][..pages];
        words.extend_from_slice(page_table);
        sequences.push(PlanSequence {
            token0,
            num_tokens: span.tokens.len(),
            position0: span.first_position,
            page_table,
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
            geometry: PageGeometry::new(128, 128),
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

    /// 5 tokens from position 300 on and one at position 7, in groups that see this much.
    fn step(ropes: &[RopeTable], windows: &[Option<usize>], with_positions: bool) -> Step {
        // another table in each group, and pages before it that are nowhere
        let first = |group: usize| 20 * group as PageId;
        let long = |group| (first(group)..first(group) + 20).collect();
        let long: Vec<Vec<PageId>> = (0..windows.len()).map(long).collect();
        let short: Vec<Vec<PageId>> = (0..windows.len())
            .map(|group| vec![first(group) + 63])
            .collect();
        let spans = [
            Span {
                tokens: &[1, 2, 3, 4, 5],
                first_position: 300,
                pages: &long,
                head_rows: HeadRows::Last(1),
            },
            Span {
                tokens: &[6],
                first_position: 7,
                pages: &short,
                head_rows: HeadRows::All,
            },
        ];
        let groups: Vec<_> = windows.iter().map(|&window| (window, limits())).collect();
        Step::new(&spans, ropes, &groups, with_positions)
    }

    #[test]
    fn a_section_of_angles_for_each_rope_and_positions_where_asked_for() {
        let tables = tables();
        let step = step(&tables, &[None], true);
        let positions = [300, 301, 302, 303, 304, 7];
        let at = step.positions_at.expect("positions");
        assert_eq!(step.words[at..at + 6], positions);
        assert_eq!(step.rope_at.len(), 2);
        for (&rope_at, table) in step.rope_at.iter().zip(&tables) {
            assert!(rope_at.is_multiple_of(4));
            let mut angles = Vec::new();
            for position in positions {
                table.push_row(position as usize, &mut angles);
            }
            assert_eq!(step.words[rope_at..][..6 * 32], angles);
        }
        let slots = positions.map(|p| if p == 7 { 63 * 16 + 7 } else { p });
        assert_eq!(step.words[step.slots_at[0]..][..6], slots);
        assert_eq!(self::step(&tables, &[None], false).positions_at, None);
    }

    #[test]
    fn slots_page_tables_and_a_plan_for_each_group() {
        let windows = [Some(20), None, Some(60)];
        let step = step(&tables()[..1], &windows, false);
        assert_eq!((step.attention.len(), step.slots_at.len()), (3, 3));
        let mut firsts = Vec::new();
        for (group, rounds) in (0..).zip(&step.attention) {
            assert_eq!(rounds.len(), 1);
            let mut items = Vec::new();
            for (_, list) in &rounds[0].items {
                let words = &step.words[list.at..][..list.count * Item::WORDS];
                items.extend(words.chunks_exact(Item::WORDS).map(Item::from_words));
            }
            let of = |token0| items.iter().find(|item| item.token0 == token0).unwrap();
            let (long, short) = (of(0), of(5));
            assert_eq!((long.num_tokens, short.num_tokens), (5, 1));
            let entry = |item: &Item, page| step.words[item.table_at as usize + page];
            assert_eq!(entry(long, 18), 20 * group + 18);
            assert_eq!(entry(short, 0), 20 * group + 63);
            let slots = &step.words[step.slots_at[group as usize]..][..6];
            assert_eq!(
                (slots[0], slots[5]),
                (320 * group + 300, 320 * group + 63 * 16 + 7)
            );
            firsts.push((long.first_split, long.num_splits));
        }
        // keys 281..=300 are in the second split, 241..=300 begin in the first
        assert_eq!(firsts, [(1, 1), (0, 2), (0, 2)]);
        // with one group and one rope nothing else is in the words, nor pages for tokens to come
        let plain = self::step(&tables()[..1], &[None], false);
        let [round] = &plain.attention[0][..] else {
            panic!("one round")
        };
        let of_items: usize = round
            .items
            .iter()
            .map(|(_, list)| list.count * Item::WORDS)
            .sum();
        assert_eq!(plain.words.len(), 6 + 6 + 6 * 32 + 2 + 20 + 1 + of_items);
    }
}
