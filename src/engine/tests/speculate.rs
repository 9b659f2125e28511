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
    /// When about each tenth of the tokens was there.
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

/// Texts that go on until all of them together have the tokens of the case: who is over is followed by another.
fn run(case: &Case, options: SpeculateOptions, seed: u64) -> Outcome {
    let draft = Always {
        is_free: case.draft.is_none(),
    };
    let mut speculator = Speculator::new(options, Some(Box::new(draft)));
    let mut noise = seed;
    // what follows a text is the same, however it is come by
    let is_right = |i: usize, at: usize, chance: f64| {
        draw(&mut (seed ^ ((i << 32 | at) as u64).wrapping_mul(977))) < chance
    };
    let sampling = Sampling::default();
    let text = |i: usize| Text {
        id: RequestId(i as u64),
        tokens: &[1, 2, 3],
        cache_salt: b"",
        sampling: &sampling,
        most: MOST_PROPOSED,
    };
    let texts: Vec<Text<'_>> = (0..case.sequences).map(text).collect();
    let mut done = vec![0; case.sequences];
    let all = case.tokens * case.sequences;
    let (mut total, mut seconds, mut tenths) = (0, 0.0, [0.0; 10]);
    while total < all {
        let proposals = speculator.propose(&texts, 64).unwrap();
        if let Some(each) = case.draft {
            let took = each * speculator.drafting.asked() as f64;
            speculator.took(took);
            seconds += took;
        }
        let proposed: usize = proposals.iter().map(|p| p.tokens.len()).sum();
        let (rows, tokens) = (texts.len() + proposed, total / texts.len());
        let took = (case.device)(rows, tokens) * (0.97 + 0.06 * draw(&mut noise));
        seconds += took;
        let chance = (case.chance)(tokens);
        let mut outcomes = Vec::new();
        for (i, proposal) in proposals.iter().enumerate() {
            let right = (0..proposal.tokens.len()).take_while(|j| is_right(i, done[i] + j, chance));
            let accepted = right.count();
            done[i] += 1 + accepted;
            total += 1 + accepted;
            outcomes.push((texts[i].id, proposal, accepted));
        }
        tenths[(10 * (total - 1) / all).min(9)] = seconds;
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
    run(case, options(Speculate::Off, None), SEED).seconds
}

fn adaptive(case: &Case) -> Outcome {
    run(case, options(Speculate::Draft, None), SEED)
}

/// The least seconds that any fixed number of tokens takes.
fn best_fixed(case: &Case) -> f64 {
    let fixed = [1, 2, 3, 4, 6, 8, 12, 16];
    let fixed = fixed.map(|k| run(case, options(Speculate::Draft, Some(k)), SEED).seconds);
    fixed.into_iter().fold(f64::INFINITY, f64::min)
}

/// Of noise and texts.
const SEED: u64 = 5;

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
        |done| if done < 1000 { 0.8 } else { 0.0 },
    ),
    (
        "never, then often",
        |done| if done < 1000 { 0.0 } else { 0.8 },
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
                    tokens: 1400 + 2600 / sequences,
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
        let plain = run(&case, options(Speculate::Off, None), SEED);
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
    let tokens = totals.target_passes + totals.accepted;
    assert!((1000..1034).contains(&tokens), "{tokens}");
    assert!(totals.proposed > totals.accepted && totals.proposals < totals.target_passes);
    assert!(totals.propose_seconds > 0.0 && totals.verify_seconds > totals.propose_seconds);
}

/// Tokens as words of prose come: few of them often, most of them seldom.
fn prose(len: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let word = |_| (3000.0f64.powf(draw(&mut state)) + 20.0 * draw(&mut state)) as u32;
    (0..len).map(word).collect()
}

/// Lets `speculator` follow a text whose first `prompt` tokens are given: seconds of its steps.
fn follow(
    speculator: &mut Speculator,
    id: u64,
    text: &[u32],
    prompt: usize,
    device: Device,
) -> f64 {
    let sampling = Sampling::default();
    let (mut known, mut seconds) = (prompt, 0.0);
    while known < text.len() {
        let asked = Text {
            id: RequestId(id),
            tokens: &text[..known],
            cache_salt: b"",
            sampling: &sampling,
            most: text.len() - known - 1,
        };
        let proposals = speculator.propose(&[asked], 64).unwrap();
        let proposed = &proposals[0].tokens;
        let equal = proposed
            .iter()
            .zip(&text[known..])
            .take_while(|(a, b)| a == b);
        let (accepted, rows) = (equal.count(), 1 + proposed.len());
        let took = device(rows, known);
        seconds += took;
        known += 1 + accepted;
        match rows {
            1 => speculator.plain(1, Some(took)),
            _ => speculator.learn(&[(asked.id, &proposals[0], accepted)], rows, Some(took)),
        }
    }
    speculator.end(RequestId(id), text, b"");
    seconds
}

#[test]
fn copies_take_half_the_passes_and_prose_no_longer() {
    for (device, seconds) in DEVICES {
        let mut speculator = Speculator::new(SpeculateOptions::default(), None);
        // a text that says what it was given again, a word in twenty being another
        let given = prose(400, 3);
        let edited = given.iter().enumerate().map(|(i, &token)| match i % 20 {
            7 => 5000 + i as u32,
            _ => token,
        });
        let copy: Vec<u32> = given.iter().copied().chain(edited).collect();
        let took = follow(&mut speculator, 1, &copy, 400, seconds);
        let plain: f64 = (400..800).map(|known| seconds(1, known)).sum();
        assert!(took < plain / 0.97, "{device}: {took}, {plain} plain");
        let passes = speculator.totals().target_passes;
        if device == "proportional" {
            assert!(
                passes > 380,
                "{passes} passes where rows cost all they bring"
            );
        } else {
            assert!(passes < 200, "{device}: {passes} passes");
            assert!(took < plain / 1.5, "{device}: {took}, {plain} plain");
        }
        // prose, of which pairs come again all the time, on the same engine
        let (mut took, mut plain) = (0.0, 0.0);
        for id in 2..6 {
            took += follow(&mut speculator, id, &prose(600, id), 100, seconds);
            plain += (100..600).map(|known| seconds(1, known)).sum::<f64>();
        }
        assert!(speculator.ngram.is_some());
        assert!(took < plain / 0.97, "{device}: {took}, {plain} plain");
        // and a text that was said before
        if device != "proportional" {
            let before = speculator.totals().target_passes;
            follow(&mut speculator, 6, &prose(600, 4), 100, seconds);
            let passes = speculator.totals().target_passes - before;
            assert!(passes < 250, "{device}: {passes} passes");
        }
    }
}
