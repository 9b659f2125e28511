//! Speculation on devices that are formulas, with guesses that are right by chance: never much slower than
//! without, and about as fast as whoever knew beforehand.

use super::*;
use crate::engine::request::Sampling;
use crate::engine::speculate::account;

/// Proposes as much as is asked for, of one class.
struct Always {
    /// Whether that takes no time.
    is_free: bool,
}

impl Proposer for Always {
    fn propose(&mut self, texts: &[Text<'_>]) -> Result<Vec<Proposal>> {
        let proposal = |text: &Text<'_>| Proposal {
            tokens: vec![7; text.most],
            choices: Vec::new(),
            class: 3,
        };
        Ok(texts.iter().map(proposal).collect())
    }

    fn end(&mut self, _: RequestId, _: &[u32], _: &[u8]) {}

    fn is_free(&self) -> bool {
        self.is_free
    }
}

/// Seconds of a step: by its rows, and the tokens that each text has.
type Device = fn(usize, usize) -> f64;
/// The chance that a proposed token is right: by the tokens that a text has.
type Chance = fn(usize) -> f64;

#[derive(Clone, Copy)]
struct Case {
    device: Device,
    chance: Chance,
    sequences: usize,
    tokens: usize,
    /// Seconds of the draft model for a token of each sequence.
    draft: Option<f64>,
}

/// What became of a case.
struct Outcome {
    seconds: f64,
    /// When each tenth of the tokens was there.
    tenths: [f64; 10],
    totals: Totals,
}

/// Uniform in 0 to 1 (splitmix64).
fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

fn run(case: &Case, options: SpeculateOptions, seed: u64) -> Outcome {
    let draft = Always {
        is_free: case.draft.is_none(),
    };
    let mut speculator = Speculator::new(options, Some(Box::new(draft)));
    let (mut noise, mut state) = (seed, seed ^ 1);
    let mut done = vec![0; case.sequences];
    let (mut seconds, mut tenths) = (0.0, [0.0; 10]);
    let sampling = Sampling::default();
    while done.iter().any(|&done| done < case.tokens) {
        let going: Vec<usize> = (0..done.len()).filter(|&i| done[i] < case.tokens).collect();
        let text = |&i: &usize| Text {
            id: RequestId(i as u64),
            tokens: &[1, 2, 3],
            cache_salt: b"",
            sampling: &sampling,
            most: case.tokens - done[i] - 1,
        };
        let texts: Vec<Text<'_>> = going.iter().map(text).collect();
        let proposals = speculator.propose(&texts, 64).unwrap();
        if let Some(each) = case.draft {
            let took = each * speculator.drafting.asked() as f64;
            speculator.took(took);
            seconds += took;
        }
        let proposed: usize = proposals.iter().map(|p| p.tokens.len()).sum();
        let rows = going.len() + proposed;
        let took = (case.device)(rows, done[going[0]]) * (0.97 + 0.06 * draw(&mut noise));
        seconds += took;
        let mut outcomes = Vec::new();
        for (&i, proposal) in going.iter().zip(&proposals) {
            let chance = (case.chance)(done[i]);
            let right = (0..proposal.tokens.len()).take_while(|_| draw(&mut state) < chance);
            let accepted = right.count();
            for _ in 0..=accepted {
                let tenth = 10 * done[i] / case.tokens;
                tenths[tenth] = seconds;
                done[i] += 1;
            }
            outcomes.push((RequestId(i as u64), proposal, accepted));
        }
        if proposed > 0 {
            speculator.learn(&outcomes, rows, Some(took));
        } else {
            speculator.plain(rows, Some(took));
        }
    }
    Outcome {
        seconds,
        tenths,
        totals: speculator.totals(),
    }
}

fn options(mode: Speculate, fixed: Option<usize>) -> SpeculateOptions {
    SpeculateOptions {
        mode,
        fixed,
        ..SpeculateOptions::default()
    }
}

fn plain(case: &Case) -> f64 {
    run(case, options(Speculate::Off, None), seed()).seconds
}

fn adaptive(case: &Case) -> Outcome {
    run(case, options(Speculate::Draft, None), seed())
}

/// The least seconds that any fixed number of tokens takes.
fn best_fixed(case: &Case) -> f64 {
    let fixed = [1, 2, 3, 4, 6, 8, 12, 16];
    let fixed = fixed.map(|k| run(case, options(Speculate::Draft, Some(k)), seed()).seconds);
    fixed.into_iter().fold(f64::INFINITY, f64::min)
}

fn seed() -> u64 {
    std::env::var("SEED").map_or(5, |s| s.parse().unwrap())
}

const DEVICES: [(&str, Device); 6] = [
    // reads weights once for all rows
    ("flat", |_, _| 1.0),
    ("nearly flat", |rows, _| 1.0 + 0.02 * rows as f64),
    // computes row by row
    ("proportional", |rows, _| rows as f64),
    ("in between", |rows, _| 1.0 + 0.15 * rows as f64),
    // tiles of rows
    ("stair", |rows, _| 0.5 + 0.5 * rows.div_ceil(4) as f64),
    // one kernel for a few rows, another for many; and steps get slower as texts get longer
    ("cliff", |rows, tokens| {
        let cliff = if rows > 4 { 1.8 } else { 1.0 };
        cliff * (1.0 + tokens as f64 / 1000.0)
    }),
];

const CHANCES: [(&str, Chance); 6] = [
    ("never", |_| 0.0),
    ("seldom", |_| 0.3),
    ("often", |_| 0.8),
    ("nearly always", |_| 0.97),
    (
        "often, then never",
        |done| if done < 700 { 0.8 } else { 0.0 },
    ),
    (
        "never, then often",
        |done| if done < 700 { 0.0 } else { 0.8 },
    ),
];

#[test]
fn it_never_costs_much_and_brings_what_it_can() {
    let mut wrong = Vec::new();
    for (device, seconds) in DEVICES {
        for (guesses, chance) in CHANCES {
            for (sequences, draft) in [(1, None), (4, None), (20, None), (1, Some(0.1))] {
                let case = Case {
                    device: seconds,
                    chance,
                    sequences,
                    tokens: 1400,
                    draft,
                };
                let (plain, best) = (plain(&case), best_fixed(&case));
                let ours = adaptive(&case).seconds;
                let told = format!(
                    "{device}, {guesses} right, {sequences} sequences, draft {draft:?}: {ours:.0} s, \
                     plain {plain:.0}, fixed {best:.0}"
                );
                println!("{told}");
                if ours > plain / 0.97 || best < plain / 1.1 && ours > best / 0.9 {
                    wrong.push(told);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn short_texts_lose_little() {
    for (device, seconds) in DEVICES {
        for tokens in [30, 60, 120, 250] {
            let case = Case {
                device: seconds,
                chance: |_| 0.0,
                sequences: 1,
                tokens,
                draft: None,
            };
            let (plain, ours) = (plain(&case), adaptive(&case).seconds);
            // the credit of the beginning, which is lost at most once in an engine's life
            let most = plain * (1.0 + account::EARNED) + 2.0 * seconds(1, tokens);
            assert!(ours <= most, "{device}, {tokens} tokens: {ours} s, {plain}");
        }
    }
}

#[test]
fn it_goes_off_and_on_again() {
    for (device, seconds) in DEVICES.into_iter().filter(|d| d.0 != "proportional") {
        let case = Case {
            device: seconds,
            chance: |done| match done {
                0..1000 | 2000.. => 0.8,
                _ => 0.0,
            },
            sequences: 1,
            tokens: 5000,
            draft: None,
        };
        let outcome = adaptive(&case);
        let took = |from: usize, to: usize| outcome.tenths[to - 1] - outcome.tenths[from - 1];
        let plain = run(&case, options(Speculate::Off, None), seed());
        let plain = |from: usize, to: usize| plain.tenths[to - 1] - plain.tenths[from - 1];
        // once more as fast, in its last third, as it was in the first, and no slower between
        let (off, on) = (took(2, 4) / plain(2, 4), took(7, 10) / plain(7, 10));
        let first = took(1, 2) / plain(1, 2);
        println!("{device}: {first:.2} {off:.2} {on:.2}");
        assert!(first < 0.8, "{device}: {first}");
        assert!(off < 1.05, "{device}: {off}");
        assert!(on < 1.2 * first, "{device}: {on}, {first} before");
    }
}

#[test]
fn nothing_is_proposed_where_there_is_no_room_or_nobody_to_ask() {
    let sampling = Sampling::default();
    let text = |id, most| Text {
        id: RequestId(id),
        tokens: &[1, 2, 3, 1, 2, 3, 1, 2],
        cache_salt: b"",
        sampling: &sampling,
        most,
    };
    let texts = [text(1, 9), text(2, 0), text(3, 2)];
    let lens = |mode, fixed, max_rows| -> Vec<usize> {
        let mut speculator = Speculator::new(options(mode, fixed), None);
        let proposals = speculator.propose(&texts, max_rows).unwrap();
        proposals.iter().map(|p| p.tokens.len()).collect()
    };
    assert_eq!(lens(Speculate::NGram, Some(4), 64), [4, 0, 2]);
    assert_eq!(lens(Speculate::Auto, Some(40), 64), [9, 0, 2]);
    assert_eq!(lens(Speculate::Auto, Some(4), 8), [4, 0, 1]);
    assert_eq!(lens(Speculate::Auto, Some(4), 3), [0, 0, 0]);
    assert_eq!(lens(Speculate::Auto, Some(4), 1), [0, 0, 0]);
    assert_eq!(lens(Speculate::Off, Some(4), 64), [0, 0, 0]);
    assert_eq!(lens(Speculate::Draft, Some(4), 64), [0, 0, 0], "no model");
    assert_eq!(lens(Speculate::Auto, None, 64), [0, 0, 0], "plain first");
}

#[test]
fn drafts_are_made_where_texts_have_nothing() {
    let sampling = Sampling::default();
    let text = |id, tokens| Text {
        id: RequestId(id),
        tokens,
        cache_salt: b"",
        sampling: &sampling,
        most: 9,
    };
    let texts = [text(1, &[1, 2, 3, 1, 2][..]), text(2, &[1, 2, 3, 4, 5])];
    let draft = || Box::new(Always { is_free: true });
    let mut speculator = Speculator::new(options(Speculate::Auto, Some(3)), Some(draft()));
    let proposals = speculator.propose(&texts, 64).unwrap();
    assert_eq!(proposals[0].tokens, [3, 1, 2]);
    assert_eq!(proposals[1].tokens, [7, 7, 7]);
    assert!(proposals[0].class < CLASSES && proposals[1].class >= CLASSES);
    let outcomes = [
        (RequestId(1), &proposals[0], 2),
        (RequestId(2), &proposals[1], 0),
    ];
    speculator.learn(&outcomes, 8, Some(0.5));
    speculator.took(0.25);
    speculator.plain(2, None);
    let expected = Totals {
        proposed: 6,
        accepted: 2,
        proposals: 2,
        target_passes: 4,
        propose_seconds: 0.25,
        verify_seconds: 0.5,
    };
    assert_eq!(speculator.totals(), expected);

    // and where both are there, whichever is right more often
    let mut speculator = Speculator::new(options(Speculate::Auto, None), Some(draft()));
    let mut drafted = [0, 0];
    for step in 0..200 {
        let proposals = speculator.propose(&texts, 64).unwrap();
        let is_draft = |p: &Proposal| p.class >= CLASSES && !p.tokens.is_empty();
        let outcome = |i: usize| {
            let len = proposals[i].tokens.len();
            let accepted = if is_draft(&proposals[i]) { len } else { 0 };
            (texts[i].id, &proposals[i], accepted)
        };
        let outcomes = [outcome(0), outcome(1)];
        let proposed: usize = proposals.iter().map(|p| p.tokens.len()).sum();
        let rows = 2 + proposed;
        if proposed > 0 {
            speculator.learn(&outcomes, rows, Some(1.0));
        } else {
            speculator.plain(rows, Some(1.0));
        }
        if step >= 100 {
            (0..2).for_each(|i| drafted[i] += usize::from(is_draft(&proposals[i])));
        }
    }
    assert!(drafted.iter().all(|&steps| steps > 90), "{drafted:?}");
}

#[test]
fn totals_of_a_case_add_up() {
    let case = Case {
        device: DEVICES[0].1,
        chance: |_| 0.8,
        sequences: 2,
        tokens: 500,
        draft: Some(0.01),
    };
    let totals = adaptive(&case).totals;
    assert_eq!(totals.target_passes + totals.accepted, 1000);
    assert!(totals.proposed > totals.accepted && totals.proposals < totals.target_passes);
    assert!(totals.propose_seconds > 0.0 && totals.verify_seconds > totals.propose_seconds);
}
