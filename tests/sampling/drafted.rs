//! Drafted tokens: whatever they are drawn from, what comes out is distributed as without them; and this
//! is noticed where it is not so.

use super::{DRAWS, PLAIN, count, deviate, draw, gpu, logits};
use nelumbo::gpu::faults::{Edit, ShaderFault};
use nelumbo::gpu::{DType, Gpu, OpenOptions, Recorder};
use nelumbo::kernels::case::Data;
use nelumbo::kernels::penalties;
use nelumbo::kernels::sample::{self, Drafted, MOST_CHOICES, Row, draw_from, reference};
use std::sync::Arc;

/// [`deviate`] at which right frequencies are in one of a hundred tests.
const ONE_IN_100: f64 = 2.326;

/// Logits with settings, and what tokens are drafted from.
struct Pair {
    name: String,
    logits: Vec<f32>,
    row: Row,
    choices: Vec<(u32, f32)>,
    /// Mistakes of several kinds show here.
    is_telling: bool,
}

impl Pair {
    fn new(name: &str, logits: &[f32], row: &Row, choices: Vec<(u32, f32)>) -> Pair {
        Pair {
            name: name.to_owned(),
            logits: logits.to_vec(),
            row: row.clone(),
            choices,
            is_telling: false,
        }
    }

    fn telling(self) -> Pair {
        Pair {
            is_telling: true,
            ..self
        }
    }

    /// Rows at [`DRAWS`] positions, each with the token that is drafted there.
    fn rows(&self) -> Vec<Row> {
        let at = |position| {
            let place = draw_from(&self.choices, self.row.seed, position);
            Row {
                position,
                drafted: Some(Drafted {
                    token: self.choices[place].0,
                    choices: self.choices.clone(),
                }),
                ..self.row.clone()
            }
        };
        (0..DRAWS as u32).map(at).collect()
    }

    fn drawn_on(&self, gpu: &Arc<Gpu>) -> Vec<u32> {
        draw(gpu, &self.logits, self.logits.len(), &self.rows())
    }

    fn drawn_by_twin(&self) -> Vec<u32> {
        let rows = self.rows();
        rows.iter()
            .map(|row| sample::draw(&self.logits, row))
            .collect()
    }

    /// How far `ids` are from what is drawn without a draft.
    fn deviate(&self, ids: &[u32]) -> f64 {
        let expected = reference(&self.logits, &self.row);
        deviate(&count(ids, self.logits.len()), &expected)
    }

    /// The share of tokens that are kept, as it has to be: `sum min(p, q)`.
    fn kept(&self) -> f64 {
        let p = reference(&self.logits, &self.row);
        let min = |&(id, q): &(u32, f32)| p[id as usize].min(f64::from(q));
        self.choices.iter().map(min).sum()
    }
}

/// The likeliest tokens of a distribution, as a list.
fn listed(probabilities: &[f64], most: usize) -> Vec<(u32, f32)> {
    let mut ids: Vec<usize> = (0..probabilities.len()).collect();
    ids.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    ids.truncate(most);
    ids.retain(|&id| probabilities[id] > 0.0);
    let total: f64 = ids.iter().map(|&id| probabilities[id]).sum();
    let choice = |id: usize| (id as u32, (probabilities[id] / total) as f32);
    ids.into_iter().map(choice).collect()
}

/// What a draft says whose logits are those of `of`, or not quite.
fn near(of: &[f32], seed: u64, noise: f32, temperature: f32) -> Vec<(u32, f32)> {
    let noises = logits(seed, of.len(), noise);
    let near: Vec<f32> = of.iter().zip(noises).map(|(l, n)| l + n).collect();
    let row = Row {
        temperature,
        ..PLAIN
    };
    listed(&reference(&near, &row), MOST_CHOICES)
}

fn pairs() -> Vec<Pair> {
    let twelve = logits(11, 12, 1.2);
    let best = listed(&reference(&twelve, &PLAIN), 12);
    let likely = |place: usize| best[place].0;
    let even = |ids: &[u32]| -> Vec<(u32, f32)> {
        ids.iter().map(|&id| (id, 1.0 / ids.len() as f32)).collect()
    };
    let top_k = Row { top_k: 4, ..PLAIN };
    let filtered = Row {
        temperature: 1.3,
        top_k: 9,
        top_p: 0.9,
        min_p: 0.04,
        ..PLAIN
    };
    let cold = Row {
        temperature: 0.6,
        ..PLAIN
    };
    let all = even(&(0..12).collect::<Vec<_>>());
    let reversed: Vec<f32> = twelve.iter().map(|l| -l).collect();
    let others: Vec<u32> = (4..12).map(likely).collect();
    let wide = logits(12, 64, 2.0);
    let (even_low, even_high) = (even(&[0, 1, 2, 3, 4, 5]), even(&[6, 7, 8, 9, 10, 11]));
    let flat = [0.0; 12];
    vec![
        Pair::new("near", &twelve, &PLAIN, near(&twelve, 13, 0.7, 1.0)).telling(),
        Pair::new("equal", &twelve, &PLAIN, best.clone()),
        Pair::new("the likeliest", &twelve, &PLAIN, vec![(likely(0), 1.0)]).telling(),
        Pair::new("another one", &twelve, &PLAIN, vec![(likely(3), 1.0)]),
        Pair::new("even", &twelve, &PLAIN, all.clone()).telling(),
        Pair::new("half", &flat, &PLAIN, even_low).telling(),
        Pair::new("other half", &flat, &PLAIN, even_high).telling(),
        Pair::new(
            "turned round",
            &twelve,
            &PLAIN,
            near(&reversed, 0, 0.0, 1.0),
        ),
        Pair::new("two", &twelve, &cold, vec![(likely(0), 0.1), (0, 0.9)]).telling(),
        Pair::new("never kept", &twelve, &top_k, even(&others)),
        Pair::new(
            "one that is never kept",
            &twelve,
            &top_k,
            even(&others[..1]),
        ),
        Pair::new("colder", &twelve, &cold, near(&twelve, 0, 0.0, 1.0)),
        Pair::new("filtered", &twelve, &filtered, near(&twelve, 14, 0.5, 1.0)),
        Pair::new(
            "thirty-two of many",
            &wide,
            &PLAIN,
            near(&wide, 15, 1.0, 1.0),
        ),
    ]
}

#[test]
fn with_drafts_frequencies_are_those_without() {
    let Some(gpu) = gpu() else { return };
    for pair in pairs() {
        let ids = pair.drawn_on(gpu);
        let rows = pair.rows();
        for (row, &id) in rows.iter().zip(&ids) {
            if let Err(problem) = sample::check(&pair.logits, row, id) {
                panic!("{}, position {}: {problem}", pair.name, row.position);
            }
        }
        let stayed = |(row, id): &(&Row, &u32)| row.drafted.as_ref().unwrap().token == **id;
        let stayed = rows.iter().zip(&ids).filter(stayed).count() as f64 / DRAWS as f64;
        let (found, kept) = (pair.deviate(&ids), pair.kept());
        println!("{}: {found:.2}, {stayed:.4} of {kept:.4} kept", pair.name);
        assert!(found < ONE_IN_100, "{}: {found}", pair.name);
        // four deviations, and what f32 leaves open
        let open = 4.0 * (kept * (1.0 - kept) / DRAWS as f64).sqrt() + 1e-4;
        assert!(
            (stayed - kept).abs() < open,
            "{}: {stayed}, {kept}",
            pair.name
        );
    }
}

/// The formula itself, on settings of every kind with drafts of every kind.
#[test]
fn the_twin_draws_right_frequencies_for_many_pairs() {
    let mut worst = 0.0f64;
    for seed in 0..40 {
        let mut data = Data::new(seed);
        let size = [2, 5, 12, 40][data.below(4)];
        let logits = logits(seed + 200, size, [0.3, 1.0, 2.5][data.below(3)]);
        let row = Row {
            temperature: [0.7, 1.0, 1.6][data.below(3)],
            top_k: [0, 0, 2, 8][data.below(4)],
            top_p: [1.0, 0.7, 0.95][data.below(3)],
            min_p: [0.0, 0.02, 0.2][data.below(3)],
            seed: data.bits(),
            ..PLAIN
        };
        let most = [1, 2, 5, MOST_CHOICES][data.below(4)];
        let draft = near(&logits, seed + 300, [0.0, 0.5, 3.0][data.below(3)], 1.0);
        let shares: Vec<f64> = (0..size as u32)
            .map(|id| {
                draft
                    .iter()
                    .find(|c| c.0 == id)
                    .map_or(0.0, |c| f64::from(c.1))
            })
            .collect();
        let pair = Pair::new(&seed.to_string(), &logits, &row, listed(&shares, most));
        let ids = pair.drawn_by_twin();
        let likely = reference(&logits, &row)
            .iter()
            .filter(|p| **p > 0.0)
            .count();
        if likely == 1 {
            // no frequencies to speak of
            assert!(ids.iter().all(|id| *id == ids[0]), "{row:?}");
            continue;
        }
        let found = pair.deviate(&ids);
        worst = worst.max(found.abs());
        assert!(
            found.abs() < 4.0,
            "{seed}: {found}, {row:?} {:?}",
            pair.choices
        );
    }
    println!("at most {worst:.2}");
    assert!(worst > 0.0);
}

/// A draft of another model, rows without one between those that have one, and logits that penalties
/// changed: each row is what it is alone.
#[test]
fn rows_with_drafts_and_without_go_together_after_penalties() {
    let Some(gpu) = gpu() else { return };
    let plain = logits(21, 12, 1.2);
    let penalties = penalties::Row {
        repeat: 1.4,
        presence: 0.6,
        frequency: 0.1,
        entries: (0..6)
            .map(|i| penalties::Entry {
                id: i * 2,
                count: i % 3,
                bias: if i == 5 { f32::NEG_INFINITY } else { 0.5 },
            })
            .collect(),
    };
    let changed = penalties::reference(&plain, &penalties);
    let changed: Vec<f32> = changed.iter().map(|(value, _)| *value as f32).collect();
    let pair = Pair::new("penalised", &changed, &PLAIN, near(&plain, 22, 0.3, 1.0));
    let mut rows = pair.rows();
    let without = |i: usize| i % 3 == 1;
    for (i, row) in rows.iter_mut().enumerate() {
        if without(i) {
            row.drafted = None;
        }
    }
    let all = plain.repeat(rows.len());
    let on_device = gpu
        .tensor("logits", DType::F32, &[rows.len(), plain.len()])
        .unwrap();
    gpu.upload(&on_device, 0, bytemuck::cast_slice(&all))
        .unwrap();
    let listed = vec![penalties; rows.len()];
    let mut words = penalties::encode(&listed, 0);
    let rows_at = words.len();
    words.extend(sample::encode(&rows, rows_at, plain.len()));
    let step = gpu.tensor("step", DType::U32, &[words.len()]).unwrap();
    gpu.upload(&step, 0, bytemuck::cast_slice(&words)).unwrap();
    let ids = gpu.tensor("ids", DType::U32, &[rows.len()]).unwrap();
    let mut rec = Recorder::new(gpu).unwrap();
    penalties::record(&mut rec, &on_device, &step, 0, &listed);
    sample::record(&mut rec, &on_device, &step, rows_at, rows.len(), true, &ids);
    rec.submit().unwrap();
    let ids: Vec<u32> = gpu.download_as(&ids).unwrap();
    let (some, none): (Vec<_>, Vec<_>) = (0..ids.len()).partition(|&i| !without(i));
    for part in [some, none] {
        let ids: Vec<u32> = part.into_iter().map(|i| ids[i]).collect();
        let found = pair.deviate(&ids);
        println!("{} rows: {found:.2}", ids.len());
        assert!(found < ONE_IN_100, "{found}");
    }
    // a row without a list is none of their business
    let alone: Vec<Row> = pair
        .rows()
        .into_iter()
        .map(|row| Row {
            drafted: None,
            ..row
        })
        .collect();
    let alone = draw(gpu, &changed, changed.len(), &alone);
    let same = (0..ids.len())
        .filter(|&i| without(i))
        .all(|i| ids[i] == alone[i]);
    assert!(
        same,
        "rows without lists draw something else beside rows with lists"
    );
}

/// Where q has nothing that p has, the draw is that of a row without a list, seed for seed; at
/// temperature 0 it is the largest logit whatever is drafted.
#[test]
fn drafts_that_say_nothing_change_nothing() {
    let Some(gpu) = gpu() else { return };
    let all = pairs();
    let mut seen = 0;
    for pair in all.iter().filter(|pair| pair.kept() == 0.0) {
        let rows = pair.rows();
        let plain: Vec<Row> = rows
            .iter()
            .map(|row| Row {
                drafted: None,
                ..row.clone()
            })
            .collect();
        let ids = draw(gpu, &pair.logits, pair.logits.len(), &rows);
        assert_eq!(
            ids,
            draw(gpu, &pair.logits, pair.logits.len(), &plain),
            "{}",
            pair.name
        );
        seen += 1;
    }
    assert_eq!(seen, 2);
    let pair = &all[4];
    let greedy: Vec<Row> = pair
        .rows()
        .into_iter()
        .take(200)
        .map(|row| Row {
            temperature: 0.0,
            ..row
        })
        .collect();
    let best = nelumbo::kernels::argmax::reference(&pair.logits);
    assert_eq!(draw(gpu, &pair.logits, 12, &greedy), vec![best; 200]);
}

/// Pairs as one number, by how often each should be met.
fn joint(found: impl Iterator<Item = (u32, u32)>, sizes: [usize; 2], expected: &[f64]) -> f64 {
    let cells: Vec<u32> = found.map(|(a, b)| a * sizes[1] as u32 + b).collect();
    deviate(&count(&cells, sizes[0] * sizes[1]), expected)
}

/// What is drafted, what accepts it, and the noise of the tokens: three streams that do not hang
/// together, over positions and over seeds.
#[test]
fn drafting_accepting_and_drawing_are_independent() {
    // p is even over eight, q over the first four: half of what is drafted stays, the rest goes to the
    // other four
    let eight = [0.0f32; 8];
    let choices: Vec<(u32, f32)> = (0..4).map(|id| (id, 0.25)).collect();
    let by_position = |i: usize| Row {
        position: i as u32,
        ..PLAIN
    };
    let by_seed = |i: usize| Row {
        seed: (i as u64) << 13,
        position: 9,
        ..PLAIN
    };
    for (name, row) in [
        ("positions", &by_position as &dyn Fn(usize) -> Row),
        ("seeds", &by_seed),
    ] {
        let rows: Vec<Row> = (0..DRAWS).map(row).collect();
        let drafts: Vec<u32> = rows
            .iter()
            .map(|row| choices[draw_from(&choices, row.seed, row.position)].0)
            .collect();
        let draws: Vec<u32> = rows.iter().map(|row| sample::draw(&eight, row)).collect();
        let with = rows.iter().zip(&drafts).map(|(row, &token)| {
            let drafted = Some(Drafted {
                token,
                choices: choices.clone(),
            });
            let row = Row {
                drafted,
                ..row.clone()
            };
            sample::draw(&eight, &row)
        });
        let with: Vec<u32> = with.collect();
        let stays = |i: usize| u32::from(with[i] == drafts[i]);
        let all = 0..DRAWS;
        let mut expected = vec![0.0; 32];
        for draft in 0..4 {
            expected[draft * 8 + draft] = 0.125;
            expected[draft * 8 + 4..draft * 8 + 8].fill(0.25 * 0.5 * 0.25);
        }
        let found = [
            (
                "draft, draw",
                joint(
                    all.clone().map(|i| (drafts[i], draws[i])),
                    [4, 8],
                    &[1.0 / 32.0; 32],
                ),
            ),
            (
                "accepted, draw",
                joint(
                    all.clone().map(|i| (stays(i), draws[i])),
                    [2, 8],
                    &[1.0 / 16.0; 16],
                ),
            ),
            (
                "draft, accepted",
                joint(
                    all.clone().map(|i| (drafts[i], stays(i))),
                    [4, 2],
                    &[0.125; 8],
                ),
            ),
            (
                "draft, result",
                joint(all.clone().map(|i| (drafts[i], with[i])), [4, 8], &expected),
            ),
            (
                "drafts of neighbours",
                joint(
                    all.skip(1).step_by(2).map(|i| (drafts[i - 1], drafts[i])),
                    [4, 4],
                    &[1.0 / 16.0; 16],
                ),
            ),
        ];
        for (what, found) in found {
            println!("{name}: {what} {found:.2}");
            assert!(found.abs() < 4.0, "{name}: {what} {found}");
        }
    }
}

#[test]
fn what_is_drafted_has_the_frequencies_of_its_list() {
    for size in [2, 3, 12, 32] {
        let list = listed(&reference(&logits(size as u64, size, 1.5), &PLAIN), size);
        let shares: Vec<f64> = list.iter().map(|(_, share)| f64::from(*share)).collect();
        for (name, seed_of, position_of) in [
            ("positions", 0u64, 1u32),
            ("seeds", 1, 0),
            ("high seeds", 1 << 40, 0),
        ] {
            let place = |i: u64| draw_from(&list, i * seed_of, i as u32 * position_of) as u32;
            let places: Vec<u32> = (0..DRAWS as u64).map(place).collect();
            let found = deviate(&count(&places, size), &shares);
            println!("{size} by {name}: {found:.2}");
            assert!(found.abs() < 4.0, "{size} by {name}: {found}");
        }
    }
}

/// An acceptance or a draw that is wrong. No step of a model without a draft shows it.
static FAULTS: [ShaderFault; 4] = [
    fault(
        "drafted-inverted",
        &[Edit {
            part: "sample/drafted.wgsl",
            find: "return luck * share < mass;",
            put: "return luck * mass < share;",
        }],
    ),
    fault(
        "drafted-reused",
        &[
            Edit {
                part: "sample/drafted.wgsl",
                find: "let rest = mass - share * total;",
                put: "let rest = mass;",
            },
            Edit {
                part: "sample/drafted.wgsl",
                find: "rest > DRAFTED_NOTHING && token.y != drafted",
                put: "rest > DRAFTED_NOTHING",
            },
        ],
    ),
    // u is the noise of token 0
    fault(
        "drafted-noise",
        &[Edit {
            part: "sample/drafted.wgsl",
            find: "DRAFTED_STREAM: u32 = 0x61636365u",
            put: "DRAFTED_STREAM: u32 = 0x6e656c75u",
        }],
    ),
    // u is what token 0 was drafted by
    fault(
        "drafted-draft",
        &[Edit {
            part: "sample/drafted.wgsl",
            find: "DRAFTED_STREAM: u32 = 0x61636365u",
            put: "DRAFTED_STREAM: u32 = 0x64726166u",
        }],
    ),
];

const fn fault(name: &'static str, edits: &'static [Edit]) -> ShaderFault {
    ShaderFault {
        name,
        kernels: &["sample"],
        edits,
        shows: "where tokens are drafted",
    }
}

#[test]
fn every_mistake_is_noticed_by_frequencies_and_by_cases() {
    if gpu().is_none() {
        return;
    }
    let cases = sample::cases();
    let drafted = || cases.iter().filter(|case| case.name.ends_with("drafted"));
    for fault in &FAULTS {
        let faulty = Gpu::open(&OpenOptions {
            faults: vec![fault],
            ..OpenOptions::default()
        })
        .unwrap();
        let telling = pairs().into_iter().filter(|pair| pair.is_telling);
        let found = telling.map(|pair| (pair.deviate(&pair.drawn_on(&faulty)), pair.name));
        let found: Vec<(f64, String)> = found.collect();
        println!("{}: {found:.1?}", fault.name);
        let beyond = |limit| found.iter().filter(|(found, _)| *found > limit).count();
        assert!(
            beyond(5.0) >= 2 && beyond(20.0) >= 1,
            "{}: {found:?}",
            fault.name
        );
        let noticed = drafted().filter(|case| !case.run(&faulty).unwrap().is_empty());
        let noticed: Vec<&str> = noticed.map(|case| case.name.as_str()).collect();
        println!("{}: {noticed:?}", fault.name);
        // and by the case that a model is checked by when it is loaded
        let at_load = noticed.contains(&"49152, drafted");
        assert!(noticed.len() >= 5 && at_load, "{}: {noticed:?}", fault.name);
    }
}
