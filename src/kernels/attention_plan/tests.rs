use super::*;
use crate::kv::PagePool;
use proptest::prelude::*;
use std::collections::HashMap;

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
    let rounds = plan(&[sequence(0, 1, 255, &table)], &limits(64, 64));
    assert_eq!(rounds.len(), 1);
    assert_eq!((rounds[0].merge.len(), rounds[0].max_tokens), (0, 1));
    let item = rounds[0].slabs[0][0];
    assert_eq!(item.words(), [0, 1, 255, 1000, 0, 1, u32::MAX, 0]);
}

#[test]
fn a_long_sequence_alone_is_split_and_merged() {
    let table: Vec<PageId> = (0..33).collect();
    let rounds = plan(&[sequence(0, 2, 511, &table)], &limits(64, 64));
    let slots: Vec<_> = rounds[0].slabs[0].iter().map(|i| i.slot0).collect();
    assert_eq!(slots, [Some(0), Some(2), Some(4)]);
    let words: Vec<_> = rounds[0].merge.iter().map(MergeRow::words).collect();
    assert_eq!(words, [[0, 2, 0, 2], [1, 3, 1, 2]]);
}

#[test]
fn with_teams_enough_splits_are_folded_in_place() {
    let table: Vec<PageId> = (0..64).collect();
    let rounds = plan(&[sequence(0, 20, 600, &table)], &limits(64, 64));
    assert!(rounds[0].merge.is_empty());
    assert!(
        rounds[0].slabs[0]
            .iter()
            .all(|i| i.num_splits == 3 && i.slot0.is_none())
    );
    // but not across slabs
    let rounds = plan(&[sequence(0, 20, 600, &table)], &limits(16, 64));
    assert_eq!(rounds[0].merge.len(), 20);
}

#[test]
fn partial_results_over_the_capacity_take_another_round() {
    let table: Vec<PageId> = (0..64).collect();
    let limits = PlanLimits {
        partial_slots: 7,
        ..limits(16, 64)
    };
    let rounds = plan(&[sequence(0, 5, 600, &table)], &limits);
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
    plan(&[sequence(0, 1, 1000, &table)], &limits);
}

proptest! {
    #[test]
    fn every_split_of_every_token_is_computed_once(
        shapes in proptest::collection::vec((1..40usize, 0..1500usize), 1..6),
        slab_splits in 1..8usize,
        tile_tokens in 1..17usize,
        wanted_teams in 0..60usize,
        partial_slots in 7..200usize,
    ) {
        let geometry = PageGeometry::new(40 * SPLIT_PAGES, slab_splits * SPLIT_PAGES);
        let tiling = Tiling { tile_tokens, narrow_tokens: 1, item_teams: 3 };
        let limits = PlanLimits { geometry, tiling, wanted_teams, partial_slots };
        let mut pool = PagePool::new(geometry);
        let mut tables = vec![Vec::new(); shapes.len()];
        for ((tokens, position), table) in shapes.iter().zip(&mut tables) {
            prop_assert!(pool.extend(table, (tokens + position).div_ceil(PAGE_SIZE)));
        }
        let mut token0 = 0;
        let mut sequences = Vec::new();
        for ((tokens, position), table) in shapes.iter().zip(&tables) {
            sequences.push(sequence(token0, *tokens, *position, table));
            token0 += tokens;
        }
        let mut computed: HashMap<(usize, usize), usize> = HashMap::new();
        for round in plan(&sequences, &limits) {
            let mut slots: HashMap<usize, (usize, usize)> = HashMap::new();
            for (slab, items) in round.slabs.iter().enumerate() {
                for item in items {
                    prop_assert!(item.num_tokens as usize <= tile_tokens.min(round.max_tokens));
                    let owner = sequences.iter().rfind(|s| s.token0 <= item.token0 as usize).unwrap();
                    prop_assert_eq!(owner.table_at, item.table_at as usize);
                    prop_assert!(item.slot0.is_none() || item.num_splits == 1);
                    for token in 0..item.num_tokens as usize {
                        let row = item.token0 as usize + token;
                        let position = item.position0 as usize + token;
                        prop_assert_eq!(position, owner.position0 + row - owner.token0);
                        let last = owner.position0 + owner.num_tokens - 1;
                        let splits = item.first_split..item.first_split + item.num_splits;
                        for split in splits.map(|s| s as usize) {
                            let pages = split * SPLIT_PAGES..((split + 1) * SPLIT_PAGES).min(last / PAGE_SIZE + 1);
                            for &page in &owner.page_table[pages] {
                                prop_assert_eq!(geometry.slab_of(page), slab);
                            }
                            if split <= position / SPLIT_SIZE {
                                *computed.entry((row, split)).or_default() += 1;
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
            for row in &round.merge {
                for split in 0..row.num_splits as usize {
                    let slot = row.slot0 as usize + split * row.stride as usize;
                    prop_assert_eq!(slots.get(&slot), Some(&(row.token as usize, split)));
                }
            }
            let merged: usize = round.merge.len();
            let partial: std::collections::HashSet<usize> = slots.values().map(|s| s.0).collect();
            prop_assert_eq!(merged, partial.len());
        }
        let mut expected = 0;
        for s in &sequences {
            for t in 0..s.num_tokens {
                for split in 0..splits_for(s.position0 + t) {
                    prop_assert_eq!(computed.get(&(s.token0 + t, split)), Some(&1), "token {} split {}", t, split);
                    expected += 1;
                }
            }
        }
        prop_assert_eq!(computed.len(), expected);
    }
}
