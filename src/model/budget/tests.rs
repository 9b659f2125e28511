//! Sums small enough to do in one's head.

use super::*;
use proptest::prelude::*;

/// 1000 bytes of weights, 10 a page, 100 and one for each 16 tokens of context of everything else.
fn costs() -> Costs<'static> {
    Costs {
        weights: 1000,
        cache: &|size| 10 * size.pages as u64,
        scratch: &|size| 100 + size.context as u64 / 16,
    }
}

fn wish(context: usize, is_asked: bool, sequences: usize) -> Wish {
    Wish {
        context,
        is_asked,
        sequences,
        pool_tokens: None,
    }
}

fn size(context: usize, pages: usize) -> PoolSize {
    PoolSize { context, pages }
}

fn chosen(wish: &Wish, limit: Option<u64>) -> Option<PoolSize> {
    choose(wish, &costs(), limit).ok()
}

#[test]
fn every_sequence_gets_its_context_where_there_is_room() {
    let four = wish(1600, true, 4);
    assert_eq!(chosen(&four, None), Some(size(1600, 400)));
    // 1000 + 200 + 4000
    assert_eq!(chosen(&four, Some(5200)), Some(size(1600, 400)));
    assert_eq!(chosen(&four, Some(5199)), Some(size(1600, 399)));
    assert_eq!(chosen(&four, Some(3000)), Some(size(1600, 180)));
    // one sequence is the least: 1000 + 200 + 1000
    assert_eq!(chosen(&four, Some(2200)), Some(size(1600, 100)));
    assert_eq!(chosen(&four, Some(2199)), None);
    // ids of pages end somewhere
    let vast = wish(1 << 24, true, 1024);
    assert_eq!(chosen(&vast, None), Some(size(1 << 24, MAX_PAGES)));
}

#[test]
fn a_context_that_nobody_asked_for_is_shortened() {
    let usual = wish(1600, false, 4);
    assert_eq!(chosen(&usual, Some(2200)), Some(size(1600, 100)));
    // 1000 + 100 + 11 for each page
    assert_eq!(chosen(&usual, Some(2199)), Some(size(99 * 16, 99)));
    assert_eq!(chosen(&usual, Some(1100 + 32 * 11)), Some(size(512, 32)));
    assert_eq!(chosen(&usual, Some(1100 + 32 * 11 - 1)), None);
    // models made for less are not held to that
    let short = wish(100, false, 1);
    assert_eq!(chosen(&short, Some(1100 + 6 + 70)), Some(size(100, 7)));
    assert_eq!(chosen(&short, Some(1100 + 6 + 69)), None);
}

#[test]
fn m32_what_does_not_fit_is_refused_with_the_sum_and_what_would_help() {
    let text = |wish: Wish, limit| {
        let refused = choose(&wish, &costs(), Some(limit));
        refused.expect_err("too little").to_string()
    };
    let error = text(wish(1600, true, 4), 1500);
    for part in [
        "1000 bytes of weights",
        "200 of activations",
        "1000 of KV cache for 1600 tokens",
        "needs 2200 bytes, 1500 are available",
        // 1000 + 100 + 36 * 11 = 1496
        "--ctx-size 576 is the largest",
        "--gpu-memory",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = text(wish(1600, true, 4), 1000);
    assert!(error.contains("no --ctx-size is small enough"), "{error}");
    let dear = Costs {
        weights: u64::MAX,
        ..costs()
    };
    assert!(choose(&wish(1600, true, 4), &dear, Some(u64::MAX - 1)).is_err());
}

#[test]
fn a_pool_of_ones_own_size_is_what_is_wanted() {
    let own = |tokens| Wish {
        pool_tokens: Some(tokens),
        ..wish(1600, true, 4)
    };
    assert_eq!(chosen(&own(5000), None), Some(size(1600, 313)));
    assert_eq!(chosen(&own(5000), Some(3000)), Some(size(1600, 180)));
    // less than a context too
    assert_eq!(chosen(&own(100), None), Some(size(1600, 7)));
    assert_eq!(chosen(&own(100), Some(1270)), Some(size(1600, 7)));
    assert_eq!(chosen(&own(100), Some(1269)), None);
    assert_eq!(chosen(&own(0), None), Some(size(1600, 1)));
}

#[test]
fn a_device_without_room_is_asked_for_less_and_less() {
    let tried = |from: PoolSize, least: usize| {
        let mut sizes = Vec::new();
        let result: Result<()> = until_it_fits(from, least, |size| {
            sizes.push((size.context, size.pages));
            Err(Error::OutOfMemory {
                what: "KV cache".to_owned(),
                bytes: 1,
            })
        });
        assert!(matches!(result, Err(Error::OutOfMemory { .. })));
        sizes
    };
    assert_eq!(
        tried(size(1600, 700), 1600),
        [(1600, 700), (1600, 350), (1600, 175), (1600, 100)]
    );
    assert_eq!(
        tried(size(1600, 150), 512),
        [(1600, 150), (1600, 100), (800, 50), (512, 32)]
    );
    assert_eq!(tried(size(1600, 7), 1600), [(1600, 7)]);
    // the first that fits is taken, and what is no lack of memory is told at once
    let mut calls = 0;
    let found = until_it_fits(size(1600, 700), 1600, |size| {
        calls += 1;
        match calls {
            1 => Err(Error::OutOfMemory {
                what: "KV cache".to_owned(),
                bytes: 1,
            }),
            _ => Ok(size.pages),
        }
    });
    assert_eq!((found.unwrap(), calls), (350, 2));
    let lost: Result<()> = until_it_fits(size(1600, 700), 1600, |_| {
        calls += 1;
        Err(Error::DeviceLost {
            reason: "unplugged".to_owned(),
        })
    });
    assert!(matches!(lost, Err(Error::DeviceLost { .. })) && calls == 3);
}

#[test]
fn limits_are_read_as_they_are_written() {
    let bytes = |text: &str| match text.parse() {
        Ok(MemoryLimit::Bytes(bytes)) => bytes,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(bytes("6GiB"), 6 << 30);
    assert_eq!(bytes("1.5 gib"), 3 << 29);
    assert_eq!(bytes("800MiB"), 800 << 20);
    assert_eq!(bytes("800MB"), 800_000_000);
    assert_eq!(bytes("0.5GB"), 500_000_000);
    assert_eq!(bytes("1.5TiB"), 3 << 39);
    assert_eq!(bytes("2TB"), 2_000_000_000_000);
    assert_eq!("80%".parse(), Ok(MemoryLimit::Percent(80.0)));
    assert_eq!("80.9%".parse(), Ok(MemoryLimit::Percent(80.9)));
    assert_eq!("100 %".parse(), Ok(MemoryLimit::Percent(100.0)));
    for bad in [
        "",
        "6",
        "GiB",
        "6G",
        "-1GiB",
        "1e3GiB",
        "0%",
        "101%",
        "NaN%",
        "0GiB",
        "1KiB",
        "1.2.3GiB",
        "99999999999GiB",
        "1001TB",
        "6GiBx",
        "inf",
    ] {
        let error = bad.parse::<MemoryLimit>().expect_err(bad);
        assert!(error.contains(bad), "{error}");
    }
    assert_eq!(MemoryLimit::Bytes(7).of(None), Some(7));
    assert_eq!(MemoryLimit::Percent(50.0).of(Some(1000)), Some(500));
    assert_eq!(MemoryLimit::Percent(80.9).of(Some(1000)), Some(809));
    assert_eq!(MemoryLimit::Percent(100.0).of(Some(6 << 30)), Some(6 << 30));
    assert_eq!(MemoryLimit::Percent(50.0).of(None), None);
}

proptest! {
    /// What is chosen fits, keeps its promises, and one page more would not fit.
    #[test]
    fn the_choice_fits_and_leaves_no_page_unused(
        context in 2..100_000usize,
        is_asked: bool,
        sequences in 1..64usize,
        limit in 1100..1_000_000u64,
    ) {
        let wish = wish(context, is_asked, sequences);
        let costs = costs();
        match choose(&wish, &costs, Some(limit)) {
            Ok(found) => {
                prop_assert!(costs.total(found) <= limit);
                prop_assert!((wish.least_context()..=context).contains(&found.context));
                prop_assert!(found.pages >= pages_for(found.context));
                let whole = wish.in_full(context);
                prop_assert!(found.pages <= whole.pages);
                if found != whole {
                    // a shortened context has no use for more pages than its own, unless it is longer
                    let more = if found.context == context {
                        PoolSize { pages: found.pages + 1, ..found }
                    } else {
                        wish.at_least(found.context + PAGE_SIZE)
                    };
                    prop_assert!(costs.total(more) > limit);
                }
            }
            Err(_) => {
                let least = wish.at_least(wish.least_context().next_multiple_of(PAGE_SIZE));
                prop_assert!(costs.total(least) > limit);
            }
        }
    }
}
