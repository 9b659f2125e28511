//! What the sampler must do on shapes and settings of every kind.

use super::{Drafted, MOST_CHOICES, Row, SAMPLE, check_all, draw_from, encode, record, reference};
use crate::kernels::case::{Case, CaseTensor, Data};
use crate::kernels::{argmax, penalties};

/// Each filter alone and all together, at several temperatures, on vocabularies of 1, 2, around a
/// workgroup and a real one; then ties, NaNs, infinities and logits too large to be subtracted. All of
/// this again for rows with lists: of 1, 2 and 32 tokens, near to what is drawn from, equal to it, and
/// with nothing in common.
pub fn cases() -> Vec<Case> {
    let settings = settings();
    let mut all = Vec::new();
    for (seed, vocab_size) in [1, 2, 255, 257, 1000].into_iter().enumerate() {
        let logits: Vec<f32> = Data::new(seed as u64)
            .normal(settings.len() * vocab_size)
            .iter()
            .map(|l| l * 3.0)
            .collect();
        all.push(case(vocab_size.to_string(), logits, settings.clone()));
    }
    let rows: Vec<Row> = settings.iter().step_by(3).cloned().collect();
    let logits: Vec<f32> = Data::new(9)
        .normal(rows.len() * 49152)
        .iter()
        .map(|l| l * 3.0)
        .collect();
    all.push(case("49152".to_owned(), logits, rows));

    let base: Vec<f32> = Data::new(7).normal(300);
    for (name, edits) in edges() {
        let mut row = base.clone();
        for (range, value) in edits {
            row[range].fill(value);
        }
        all.push(case(
            name.to_owned(),
            row.repeat(settings.len()),
            settings.clone(),
        ));
        all.push(listed_case(format!("{name}, drafted"), &row, 300));
    }
    all.extend(drafts());
    all
}

/// Cases of rows with lists, and without them between.
fn drafts() -> Vec<Case> {
    let logits = |seed, n: usize| -> Vec<f32> {
        let normal = Data::new(seed).normal(n);
        normal.iter().map(|l| l * 3.0).collect()
    };
    let mut all = Vec::new();
    for (seed, vocab_size) in [1, 2, 12, 257, 1000].into_iter().enumerate() {
        let logits = logits(20 + seed as u64, 7 * vocab_size);
        let name = format!("{vocab_size}, drafted");
        all.push(listed_case(name, &logits, vocab_size));
    }
    // penalties move what was drafted up and down, out of what is kept and into it
    let mut penalised = logits(30, 7 * 300);
    for row in penalised.chunks_mut(300) {
        let entries = (0..60).map(|i| penalties::Entry {
            id: i * 5,
            count: i % 3,
            bias: [0.0, -100.0, 4.0, f32::NEG_INFINITY][i as usize % 4],
        });
        let penalties = penalties::Row {
            repeat: 1.3,
            presence: 0.5,
            frequency: 0.2,
            entries: entries.collect(),
        };
        let changed = penalties::reference(row, &penalties);
        for (logit, (value, _)) in row.iter_mut().zip(changed) {
            *logit = value as f32;
        }
    }
    all.push(listed_case(
        "penalised, drafted".to_owned(),
        &penalised,
        300,
    ));
    all.push(draft_case(49152));
    all
}

/// Every setting with every kind of list, and the kinds again by turns; of `logits`, as many rows as
/// there are, again and again.
fn listed_case(name: String, logits: &[f32], vocab_size: usize) -> Case {
    let rows = settings().into_iter().flat_map(|row| vec![row; KINDS]);
    let source = logits.chunks(vocab_size).cycle();
    let (mut listed, mut all) = (Vec::new(), Vec::new());
    for (i, (mut row, logits)) in rows.zip(source).enumerate() {
        row.position += i as u32;
        row.drafted = drafted(i % KINDS, i as u64, logits, &row);
        listed.push(row);
        all.extend_from_slice(logits);
    }
    case(name, all, listed)
}

/// A few rows with lists of the kinds that matter most, of a real vocabulary.
pub(in crate::kernels) fn draft_case(vocab_size: usize) -> Case {
    let logits = Data::new(40).normal(vocab_size);
    let logits: Vec<f32> = logits.iter().map(|l| l * 3.0).collect();
    let settings = settings();
    let rows = [(0, 1), (0, 7), (6, 2), (10, 1), (12, 3), (14, 1), (1, 1)];
    let rows = rows.into_iter().enumerate().map(|(i, (setting, kind))| {
        let mut row = settings[setting].clone();
        row.drafted = drafted(kind, i as u64, &logits, &row);
        row
    });
    let rows: Vec<Row> = rows.collect();
    case(
        format!("{vocab_size}, drafted"),
        logits.repeat(rows.len()),
        rows,
    )
}

/// Kinds of lists that [`drafted`] makes.
const KINDS: usize = 10;

/// A token drafted for `row`, in one of the ways that there are.
fn drafted(kind: usize, seed: u64, logits: &[f32], row: &Row) -> Option<Drafted> {
    let mut data = Data::new(100 + seed);
    let vocab_size = logits.len();
    let best = argmax::reference(logits);
    let any = data.below(vocab_size) as u32;
    let choices = match kind {
        0 => return None,
        // what a smaller model would say, of all tokens and of those that are kept
        1 | 2 => {
            let noise = data.normal(vocab_size);
            let near: Vec<f32> = logits.iter().zip(noise).map(|(l, n)| l + n).collect();
            let plain = Row {
                temperature: row.temperature,
                ..Row::GREEDY
            };
            likeliest(&reference(&near, if kind == 1 { &plain } else { row }))
        }
        // the same, but for those beyond the list
        3 => likeliest(&reference(logits, row)),
        // one token
        4 => vec![(best, 1.0)],
        5 => vec![(any, 1.0)],
        // two: one is too likely, or never kept
        6 if any != best => vec![(any, 0.125), (best, 0.875)],
        7 if any != best => vec![(best, 0.125), (any, 0.875)],
        // hardly ever drawn, and yet drawn
        8 if any != best => return draft(any, vec![(best, 1.0), (any, 1e-30)]),
        // anything
        9 => {
            let first = data.below(vocab_size);
            let ids = (0..MOST_CHOICES.min(vocab_size)).map(|i| (first + i * 7) % vocab_size);
            let mut ids: Vec<u32> = ids.map(|id| id as u32).collect();
            ids.sort_unstable();
            ids.dedup();
            let each = 1.0 / ids.len() as f32;
            ids.into_iter().map(|id| (id, each)).collect()
        }
        _ => vec![(any, 1.0)],
    };
    let drawn = draw_from(&choices, row.seed, row.position);
    draft(choices[drawn].0, choices)
}

fn draft(token: u32, choices: Vec<(u32, f32)>) -> Option<Drafted> {
    Some(Drafted { token, choices })
}

/// The likeliest tokens, as a list; the first token where none is likely.
fn likeliest(probabilities: &[f64]) -> Vec<(u32, f32)> {
    let mut ids: Vec<usize> = (0..probabilities.len()).collect();
    ids.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    ids.truncate(MOST_CHOICES);
    ids.retain(|&id| probabilities[id] > 1e-30);
    let total: f64 = ids.iter().map(|&id| probabilities[id]).sum();
    if ids.is_empty() {
        return vec![(0, 1.0)];
    }
    let choice = |id: usize| (id as u32, (probabilities[id] / total) as f32);
    ids.into_iter().map(choice).collect()
}

type Edits = Vec<(std::ops::Range<usize>, f32)>;

fn edges() -> Vec<(&'static str, Edits)> {
    vec![
        (
            "ties",
            vec![(10..20, 4.0), (100..103, 5.0), (290..300, 4.0)],
        ),
        ("all equal", vec![(0..300, -2.5)]),
        (
            "NaNs",
            vec![(0..150, f32::NAN), (290..295, f32::from_bits(0xFFC0_0001))],
        ),
        ("only NaNs", vec![(0..300, f32::NAN)]),
        ("one number", vec![(0..300, f32::NAN), (299..300, -3e38)]),
        (
            "infinities",
            vec![(5..8, f32::INFINITY), (20..200, f32::NEG_INFINITY)],
        ),
        ("nothing allowed", vec![(0..300, f32::NEG_INFINITY)]),
        (
            "huge",
            vec![(0..100, -3e38), (100..102, 3e38), (102..103, 2.9e38)],
        ),
        (
            "zeros",
            vec![
                (0..200, -0.0),
                (200..250, 0.0),
                (250..300, f32::from_bits(1)),
            ],
        ),
    ]
}

/// A plain draw.
const PLAIN: Row = Row {
    temperature: 1.0,
    seed: 0x0123_4567_89AB_CDEF,
    ..Row::GREEDY
};

/// No filter, each alone, several together; without lists.
pub(in crate::kernels) fn settings() -> Vec<Row> {
    let mut rows = vec![
        PLAIN,
        Row::GREEDY,
        Row {
            temperature: 0.1,
            ..PLAIN
        },
        Row {
            temperature: 5.0,
            ..PLAIN
        },
        Row {
            temperature: 1e-20,
            ..PLAIN
        },
        Row { top_k: 1, ..PLAIN },
        Row { top_k: 40, ..PLAIN },
        Row {
            top_k: u32::MAX,
            temperature: 2.0,
            ..PLAIN
        },
        Row {
            top_p: 0.0,
            ..PLAIN
        },
        Row {
            top_p: 0.5,
            temperature: 2.0,
            ..PLAIN
        },
        Row {
            top_p: 0.95,
            ..PLAIN
        },
        Row {
            top_p: 0.999,
            temperature: 3.0,
            ..PLAIN
        },
        Row {
            min_p: 0.05,
            ..PLAIN
        },
        Row {
            min_p: 1.0,
            ..PLAIN
        },
        Row {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            ..PLAIN
        },
        Row {
            temperature: 1.5,
            top_k: 5,
            top_p: 0.6,
            ..PLAIN
        },
    ];
    for (i, row) in rows.iter_mut().enumerate() {
        row.position = 100 + i as u32 / 2;
    }
    rows
}

pub(in crate::kernels) fn case(name: String, logits: Vec<f32>, rows: Vec<Row>) -> Case {
    let num_rows = rows.len();
    let vocab_size = logits.len() / num_rows;
    let rows_at = 5;
    let drafted = rows.iter().any(|row| row.drafted.is_some());
    let mut step = vec![u32::MAX; rows_at];
    step.extend(encode(&rows, rows_at, vocab_size));
    let shape = [num_rows, vocab_size];
    let input = CaseTensor::f32("logits", &shape, &logits);
    let judge = move |bytes: &[u8]| check_all(&logits, &rows, bytes);
    Case::new(&SAMPLE, name)
        .work(0.0, 4.0 * (num_rows * vocab_size) as f64)
        .tensor(input)
        .tensor(CaseTensor::u32("step", &[step.len()], &step))
        .tensor(CaseTensor::output_u32("ids", &[num_rows], &vec![0; num_rows]).judged(judge))
        .record(move |rec, t| {
            record(
                rec,
                t.get("logits"),
                t.get("step"),
                rows_at,
                num_rows,
                drafted,
                t.get("ids"),
            );
        })
}
