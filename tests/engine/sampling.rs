//! Tokens drawn by the whole engine, held against the logits it draws them from.

use super::common::{answer, argmax, engine, gpu, request, tokens};
use nelumbo::LoadOptions;
use nelumbo::engine::{EngineCore, FinishReason, Request, Sampling};
use nelumbo::gpu::OpenOptions;
use nelumbo::model::synthetic;
use std::collections::HashSet;

/// An engine over a seeded model, and a prompt for it.
fn prepared() -> Option<(EngineCore, Vec<u32>)> {
    let config = synthetic::tiny();
    let engine = engine(
        &gpu(&OpenOptions::default())?,
        &config,
        &LoadOptions::default(),
    );
    Some((engine, tokens(41, 12, config.vocab_size)))
}

/// The logits that each of the generated tokens was drawn from, before penalties.
fn logits_behind(engine: &mut EngineCore, prompt: &[u32], generated: &[u32]) -> Vec<Vec<f32>> {
    let text = [prompt, &generated[..generated.len() - 1]].concat();
    let mut rows = Vec::new();
    engine
        .evaluate(&text, 64, prompt.len() - 1, |_, row| {
            rows.push(row.to_vec())
        })
        .unwrap();
    assert_eq!(rows.len(), generated.len());
    rows
}

fn best_of(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().map(|row| argmax(row)).collect()
}

/// A temperature high enough for the seed to matter.
fn hot(seed: u64) -> Sampling {
    Sampling {
        temperature: 1.5,
        seed,
        ..Sampling::default()
    }
}

#[test]
fn greedy_takes_the_best_token_always() {
    let Some((mut engine, prompt)) = prepared() else {
        return;
    };
    let greedy = answer(&mut engine, request(&prompt, 40, Sampling::default())).tokens;
    let rows = logits_behind(&mut engine, &prompt, &greedy);
    assert_eq!(greedy, best_of(&rows));
    assert!(
        greedy.iter().collect::<HashSet<_>>().len() > 4,
        "{greedy:?}"
    );
    // what leaves one candidate is greedy too, however hot
    let narrow = [
        Sampling { top_k: 1, ..hot(1) },
        Sampling {
            top_p: 1e-6,
            ..hot(1)
        },
        Sampling {
            min_p: 1.0,
            ..hot(1)
        },
    ];
    for sampling in narrow {
        let same = answer(&mut engine, request(&prompt, 40, sampling.clone())).tokens;
        assert_eq!(same, greedy, "{sampling:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_seed_another() {
    let Some((mut engine, prompt)) = prepared() else {
        return;
    };
    let mut run = |seed| answer(&mut engine, request(&prompt, 30, hot(seed))).tokens;
    let texts: Vec<Vec<u32>> = [1, 2, 3, u64::MAX].map(&mut run).to_vec();
    assert_eq!(texts.iter().collect::<HashSet<_>>().len(), 4, "{texts:?}");
    assert_eq!([1, 2, 3, u64::MAX].map(run).to_vec(), texts);
    // seeds that differ in their upper half only are different seeds
    let mut run = |seed| answer(&mut engine, request(&prompt, 30, hot(seed))).tokens;
    assert_ne!(run(1), run(1 + (1 << 32)));
}

#[test]
fn top_k_and_top_p_draw_only_from_the_best() {
    let Some((mut engine, prompt)) = prepared() else {
        return;
    };
    let sampling = Sampling { top_k: 3, ..hot(5) };
    let drawn = answer(&mut engine, request(&prompt, 60, sampling)).tokens;
    let rows = logits_behind(&mut engine, &prompt, &drawn);
    let rank = |row: &[f32], token: u32| row.iter().filter(|&&l| l > row[token as usize]).count();
    let ranks: Vec<usize> = rows
        .iter()
        .zip(&drawn)
        .map(|(row, &t)| rank(row, t))
        .collect();
    // 60 draws among three about equal ones miss one of them once in 10^10
    assert_eq!(
        ranks.iter().copied().collect::<HashSet<_>>(),
        HashSet::from([0, 1, 2])
    );

    let sampling = Sampling {
        top_p: 0.5,
        ..hot(6)
    };
    let drawn = answer(&mut engine, request(&prompt, 60, sampling)).tokens;
    let rows = logits_behind(&mut engine, &prompt, &drawn);
    for (row, &token) in rows.iter().zip(&drawn) {
        let weight = |l: f32| f64::from(l / 1.5).exp();
        let all: f64 = row.iter().map(|&l| weight(l)).sum();
        let better = row.iter().filter(|&&l| l > row[token as usize]);
        let before: f64 = better.map(|&l| weight(l)).sum::<f64>() / all;
        assert!(
            before < 0.5 + 1e-4,
            "{before} of the probability is better than token {token}"
        );
    }
}

#[test]
fn a_bias_forces_a_token_or_bans_it() {
    let Some((mut engine, prompt)) = prepared() else {
        return;
    };
    let mut biased = |bias: Vec<(u32, f32)>, base: Sampling| {
        let sampling = Sampling {
            logit_bias: bias,
            ..base
        };
        answer(&mut engine, request(&prompt, 10, sampling)).tokens
    };
    for base in [Sampling::default(), hot(7)] {
        assert_eq!(biased(vec![(77, 1000.0)], base.clone()), [77; 10]);
        let free = biased(Vec::new(), base.clone());
        let banned = biased(vec![(free[0], -1000.0)], base);
        assert!(!banned.contains(&free[0]), "{banned:?} has {}", free[0]);
    }
}

#[test]
fn penalties_push_seen_tokens_back() {
    let Some((mut engine, prompt)) = prepared() else {
        return;
    };
    let mut run = |sampling: Sampling| answer(&mut engine, request(&prompt, 40, sampling)).tokens;
    let seen_twice = |tokens: &[u32]| {
        let mut seen: HashSet<u32> = prompt.iter().copied().collect();
        tokens.iter().filter(|&&t| !seen.insert(t)).count()
    };
    // the bias makes it say the same again and again
    let stuck = Sampling {
        logit_bias: vec![(9, 50.0)],
        ..Sampling::default()
    };
    assert_eq!(run(stuck.clone()), [9; 40]);
    let presence = Sampling {
        presence_penalty: 100.0,
        ..stuck.clone()
    };
    assert_eq!(seen_twice(&run(presence)), 0);
    let frequency = Sampling {
        frequency_penalty: 100.0,
        ..stuck.clone()
    };
    assert_eq!(seen_twice(&run(frequency)), 0);
    // a window of one token forbids only an immediate repetition
    let short = Sampling {
        presence_penalty: 100.0,
        repeat_last_n: 1,
        ..stuck.clone()
    };
    let text = run(short);
    assert!(text.windows(2).all(|w| w[0] != w[1]), "{text:?}");
    assert!(text.iter().filter(|&&t| t == 9).count() >= 15, "{text:?}");
    // and one of none forbids nothing
    let none = Sampling {
        presence_penalty: 100.0,
        repeat_last_n: 0,
        ..stuck
    };
    assert_eq!(run(none), [9; 40]);
}

#[test]
fn penalties_and_bias_are_what_their_formula_says() {
    let Some((mut engine, prompt)) = prepared() else {
        return;
    };
    let plain = answer(&mut engine, request(&prompt, 40, Sampling::default())).tokens;
    let repeat = Sampling {
        repeat_penalty: 1.8,
        ..Sampling::default()
    };
    let all = Sampling {
        presence_penalty: 0.3,
        frequency_penalty: -0.2,
        repeat_last_n: 7,
        logit_bias: vec![(plain[3], 0.4), (100, 1.5)],
        ..repeat.clone()
    };
    for sampling in [repeat, all] {
        let text = answer(&mut engine, request(&prompt, 40, sampling.clone())).tokens;
        assert_ne!(text, plain, "{sampling:?} changes nothing");
        let mut rows = logits_behind(&mut engine, &prompt, &text);
        for (i, row) in rows.iter_mut().enumerate() {
            let known = [&prompt, &text[..i]].concat();
            let oldest = known.len().saturating_sub(sampling.repeat_last_n);
            penalise(row, &known[oldest..], &sampling);
        }
        assert_eq!(text, best_of(&rows), "{sampling:?}");
    }
}

/// Penalties on what the window holds, then the bias.
fn penalise(row: &mut [f32], window: &[u32], sampling: &Sampling) {
    for token in window.iter().collect::<HashSet<_>>() {
        let count = window.iter().filter(|&t| t == token).count() as f32;
        let logit = &mut row[*token as usize];
        let repeat = sampling.repeat_penalty;
        *logit = if *logit > 0.0 {
            *logit / repeat
        } else {
            *logit * repeat
        };
        *logit -= sampling.presence_penalty + count * sampling.frequency_penalty;
    }
    for &(token, bias) in &sampling.logit_bias {
        row[token as usize] += bias;
    }
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let Some((mut engine, prompt)) = prepared() else {
        return;
    };
    let sampling = Sampling {
        logit_bias: vec![(3, 4.0), (5, -2.0)],
        repeat_penalty: 1.3,
        top_k: 20,
        ..hot(8)
    };
    let with = |logprobs| Request {
        logprobs,
        ..request(&prompt, 20, sampling.clone())
    };
    let answered = answer(&mut engine, with(6));
    let rows = logits_behind(&mut engine, &prompt, &answered.tokens);
    for (row, top) in rows.iter().zip(&answered.top_logprobs) {
        let sum: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
        let mut expected: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        expected.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        assert_eq!(top.len(), 6);
        for (found, (token, logit)) in top.iter().zip(expected) {
            assert_eq!(found.token, token);
            let logprob = f64::from(logit) - sum.ln();
            assert!(
                (f64::from(found.logprob) - logprob).abs() < 1e-5,
                "{found:?}, {logprob}"
            );
        }
    }
    // to ask for them changes nothing
    let silent = answer(&mut engine, with(0));
    assert_eq!(silent.tokens, answered.tokens);
    assert!(silent.top_logprobs.iter().all(Vec::is_empty));
    // more than there are tokens: all of them
    let all = answer(&mut engine, with(10_000));
    assert!(all.top_logprobs.iter().all(|top| top.len() == 512));
}

#[test]
fn an_end_token_ends_the_answer() {
    let Some((mut engine, prompt)) = prepared() else {
        return;
    };
    let greedy = answer(&mut engine, request(&prompt, 20, Sampling::default())).tokens;
    let at = (1..greedy.len())
        .find(|&i| !greedy[..i].contains(&greedy[i]))
        .unwrap();
    let ended = answer(
        &mut engine,
        Request {
            end_tokens: vec![511, greedy[at]],
            ..request(&prompt, 20, Sampling::default())
        },
    );
    assert_eq!(ended.tokens, greedy[..=at]);
    assert_eq!(ended.reason, FinishReason::Stop);
}
