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
    /// Slots and rotation of each token.
    pub rope_rows: RopeRows,
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
    /// Who attends to what: rounds that share the partial results, one after another.
    pub attention: Vec<AttentionRound>,
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
    /// Lays out the metadata of `spans`.
    ///
    /// # Panics
    /// When a span has no token, or fewer pages than its tokens need.
    pub fn new(spans: &[Span], rope_table: &RopeTable, limits: &PlanLimits) -> Step {
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
        words.resize(words.len().next_multiple_of(4), 0); // angles are read four at a time
        let rope_at = words.len();
        for (_, position) in positions() {
            rope_table.push_row(position, &mut words);
        }
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
        let attention = push_attention(spans, limits, &mut words);
        Step {
            words,
            num_tokens,
            ids_at: 0,
            rope_rows: RopeRows { slots_at, rope_at },
            head_rows_at,
            head_rows,
            head_in_order,
            longest_span: spans.iter().map(|s| s.tokens.len()).max().unwrap_or(0),
            expected_seconds: None,
            attention,
        }
    }
}

/// Appends page tables and work lists.
fn push_attention(
    spans: &[Span],
    limits: &PlanLimits,
    words: &mut Vec<u32>,
) -> Vec<AttentionRound> {
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
    let rounds = attention_plan::plan(&sequences, limits);
    rounds
        .iter()
        .map(|round| push_round(round, limits.tiling.narrow_tokens, words))
        .collect()
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
