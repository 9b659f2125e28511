use super::*;
use crate::kv::PagePool;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

fn limits(slab_pages: usize, num_pages: usize) -> PlanLimits {
    PlanLimits {
        geometry: PageGeometry::new(num_pages, slab_pages),
        tiling: Tiling {
            tile_tokens: 5,
            item_teams: 3,
            narrow_tokens: 1,
        },
        wanted_teams: 12,
        partial_slots: 64,
    }
}

fn sequence(
    token0: usize,
    num_tokens: usize,
    position0: usize,
    table: &[PageId],
) -> PlanSequence<'_> {
    PlanSequence {
        token0,
        num_tokens,
        position0,
        page_table: table,
        table_at: 1000 + token0,
    }
}

#[test]
fn one_short_sequence_is_one_item() {
    let table: Vec<PageId> = (0..16).collect();
    let rounds = plan(&[sequence(0, 1, 255, &table)], &limits(64, 64), None);
    assert_eq!(rounds.len(), 1);
    assert_eq!((rounds[0].merge.len(), rounds[0].max_tokens), (0, 1));
    let item = rounds[0].slabs[0][0];
    assert_eq!(item.words(), [0, 1, 255, 1000, 0, 1, u32::MAX, 0]);
}

#[test]
fn a_long_sequence_alone_is_split_and_merged() {
    let table: Vec<PageId> = (0..33).collect();
    let rounds = plan(&[sequence(0, 2, 511, &table)], &limits(64, 64), None);
    let slots: Vec<_> = rounds[0].slabs[0].iter().map(|i| i.slot0).collect();
    assert_eq!(slots, [Some(0), Some(2), Some(4)]);
    let words: Vec<_> = rounds[0].merge.iter().map(MergeRow::words).collect();
    assert_eq!(words, [[0, 2, 0, 2], [1, 3, 1, 2]]);
}

#[test]
fn with_teams_enough_splits_are_folded_in_place() {
    let table: Vec<PageId> = (0..64).collect();
    let rounds = plan(&[sequence(0, 20, 600, &table)], &limits(64, 64), None);
    assert!(rounds[0].merge.is_empty());
    assert!(
        rounds[0].slabs[0]
            .iter()
            .all(|i| i.num_splits == 3 && i.slot0.is_none())
    );
    // but not across slabs
    let rounds = plan(&[sequence(0, 20, 600, &table)], &limits(16, 64), None);
    assert_eq!(rounds[0].merge.len(), 20);
}

#[test]
fn partial_results_over_the_capacity_take_another_round() {
    let table: Vec<PageId> = (0..64).collect();
    let limits = PlanLimits {
        partial_slots: 7,
        ..limits(16, 64)
    };
    let rounds = plan(&[sequence(0, 5, 600, &table)], &limits, None);
    // three splits each: tiles of two tokens, one of them to a round
    let merged: Vec<usize> = rounds.iter().map(|r| r.merge.len()).collect();
    assert_eq!(merged, [2, 2, 1]);
}

#[test]
#[should_panic(expected = "4 partial results, room for 3")]
fn partial_results_of_one_token_must_fit() {
    let table: Vec<PageId> = (0..64).collect();
    let limits = PlanLimits {
        partial_slots: 3,
        ..limits(16, 64)
    };
    plan(&[sequence(0, 1, 1000, &table)], &limits, None);
}

/// The splits of which a token sees some key.
fn seen_by(position: usize, window: Option<usize>) -> Vec<usize> {
    let seen = (0..=position).filter(|key| window.is_none_or(|window| position - key < window));
    let mut splits: Vec<usize> = seen.map(|key| key / SPLIT_SIZE).collect();
    splits.dedup();
    splits
}

#[test]
fn what_lies_before_the_window_is_neither_planned_nor_looked_at() {
    // two splits and a half of pages, of which only the last twenty are known
    let mut table = vec![PageId::MAX; 20];
    table.extend(4..24);
    let window = |window| {
        plan(
            &[sequence(0, 2, 600, &table)],
            &limits(64, 64),
            Some(window),
        )
    };
    // keys 557..=600 and 558..=601 are in the last split
    let rounds = window(44);
    let items: Vec<_> = rounds[0].slabs.iter().flatten().map(Item::words).collect();
    assert_eq!(items, [[0, 2, 600, 1000, 2, 1, u32::MAX, 0]]);
    assert!(rounds[0].merge.is_empty());
    // keys 511..=600 begin in the split before, 512..=601 do not
    let rounds = window(90);
    let items: Vec<_> = rounds[0].slabs.iter().flatten().map(Item::words).collect();
    let expected = [[0, 2, 600, 1000, 1, 1, 0, 0], [0, 2, 600, 1000, 2, 1, 2, 0]];
    assert_eq!(items, expected);
    let words: Vec<_> = rounds[0].merge.iter().map(MergeRow::words).collect();
    assert_eq!(words, [[0, 2, 0, 2], [1, 1, 3, 2]]);
}

#[test]
fn a_window_as_long_as_the_context_plans_what_none_does() {
    let table: Vec<PageId> = (0..64).collect();
    let sequences = [sequence(0, 20, 600, &table)];
    for limits in [limits(64, 64), limits(16, 64)] {
        let all = plan(&sequences, &limits, None);
        assert_eq!(plan(&sequences, &limits, Some(620)), all);
        assert_eq!(plan(&sequences, &limits, Some(usize::MAX)), all);
        assert_ne!(plan(&sequences, &limits, Some(300)), all);
    }
}

proptest! {
    #[test]
    fn every_split_that_a_token_sees_is_computed_once(
        shapes in proptest::collection::vec((1..40usize, 0..1500usize), 1..6),
        slab_splits in 1..8usize,
        tile_tokens in 1..17usize,
        wanted_teams in 0..60usize,
        partial_slots in 7..200usize,
        window in prop_oneof![Just(None), (1..40usize).prop_map(Some), (1..1600usize).prop_map(Some)],
    ) {
        let geometry = PageGeometry::new(40 * SPLIT_PAGES, slab_splits * SPLIT_PAGES);
        let tiling = Tiling { tile_tokens, narrow_tokens: 1, item_teams: 3 };
        let limits = PlanLimits { geometry, tiling, wanted_teams, partial_slots };
        let mut pool = PagePool::new(geometry);
        let mut tables = vec![Vec::new(); shapes.len()];
        for ((tokens, position), table) in shapes.iter().zip(&mut tables) {
            prop_assert!(pool.extend(table, (tokens + position).div_ceil(PAGE_SIZE)));
        }
        let real = tables.clone();
        for ((_, position), table) in shapes.iter().zip(&mut tables) {
            // pages before the window of the first token belong to nobody
            table[..first_key(*position, window) / PAGE_SIZE].fill(PageId::MAX);
        }
        let mut token0 = 0;
        let mut sequences = Vec::new();
        for ((tokens, position), table) in shapes.iter().zip(&tables) {
            sequences.push(sequence(token0, *tokens, *position, table));
            token0 += tokens;
        }
        let mut computed: HashMap<(usize, usize), usize> = HashMap::new();
        for round in plan(&sequences, &limits, window) {
            let mut slots: HashMap<usize, (usize, usize)> = HashMap::new();
            let (mut planned, mut useful) = (0, HashSet::new());
            for (slab, items) in round.slabs.iter().enumerate() {
                for (at, item) in items.iter().enumerate() {
                    planned += item.num_splits as usize;
                    prop_assert!(item.num_tokens as usize <= tile_tokens.min(round.max_tokens));
                    let owner = sequences.iter().rfind(|s| s.token0 <= item.token0 as usize).unwrap();
                    prop_assert_eq!(owner.table_at, item.table_at as usize);
                    prop_assert!(item.slot0.is_none() || item.num_splits == 1);
                    for token in 0..item.num_tokens as usize {
                        let row = item.token0 as usize + token;
                        let position = item.position0 as usize + token;
                        prop_assert_eq!(position, owner.position0 + row - owner.token0);
                        let last = owner.position0 + owner.num_tokens - 1;
                        let seen = seen_by(position, window);
                        let splits = item.first_split..item.first_split + item.num_splits;
                        for split in splits.map(|s| s as usize) {
                            let pages = split * SPLIT_PAGES..((split + 1) * SPLIT_PAGES).min(last / PAGE_SIZE + 1);
                            let of = sequences.iter().position(|s| s.table_at == owner.table_at).unwrap();
                            for &page in &real[of][pages] {
                                prop_assert_eq!(geometry.slab_of(page), slab);
                            }
                            if seen.contains(&split) {
                                *computed.entry((row, split)).or_default() += 1;
                                useful.insert((slab, at, split));
                            }
                            if let Some(slot0) = item.slot0 {
                                let slot = slot0 as usize + token;
                                prop_assert!(slot < partial_slots);
                                prop_assert!(slots.insert(slot, (row, split)).is_none(), "slot {} twice", slot);
                            }
                        }
                    }
                }
            }
            prop_assert_eq!(useful.len(), planned, "a split that no token sees");
            for row in &round.merge {
                let owner = sequences.iter().rfind(|s| s.token0 <= row.token as usize).unwrap();
                let position = owner.position0 + row.token as usize - owner.token0;
                let splits = seen_by(position, window);
                prop_assert_eq!(row.num_splits as usize, splits.len());
                for (i, split) in splits.into_iter().enumerate() {
                    let slot = row.slot0 as usize + i * row.stride as usize;
                    prop_assert_eq!(slots.get(&slot), Some(&(row.token as usize, split)));
                }
            }
            let merged: usize = round.merge.len();
            let partial: HashSet<usize> = slots.values().map(|s| s.0).collect();
            prop_assert_eq!(merged, partial.len());
        }
        let mut expected = 0;
        for s in &sequences {
            for t in 0..s.num_tokens {
                for split in seen_by(s.position0 + t, window) {
                    prop_assert_eq!(computed.get(&(s.token0 + t, split)), Some(&1), "token {} split {}", t, split);
                    expected += 1;
                }
            }
        }
        prop_assert_eq!(computed.len(), expected);
    }
}
