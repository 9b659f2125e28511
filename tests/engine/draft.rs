//! A model that drafts for itself: what it proposes is what it says, whatever was proposed, taken back, lost
//! or computed in company before.

use super::common::{NAN, answer, decoder, engine, fill_pages, gpu, request, tokens};
use nelumbo::engine::speculate::{DraftDraws, DraftModel, MOST_PROPOSED, Proposal, Proposer, Text};
use nelumbo::engine::{RequestId, Sampling};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::case::Data;
use nelumbo::kernels::sample::MOST_CHOICES;
use nelumbo::kv::KvFormat;
use nelumbo::model::config::LayerKind;
use nelumbo::model::{Config, synthetic};
use nelumbo::{Error, LoadOptions};
use std::sync::Arc;

/// Tokens of a step.
const STEP: usize = 32;

fn options() -> LoadOptions {
    LoadOptions {
        kv_format: KvFormat::F32,
        ctx_size: Some(512),
        batch_size: Some(STEP),
        max_running: 4,
        ..LoadOptions::default()
    }
}

/// Two groups: one that sees all, one that sees a window.
fn windowed() -> Config {
    let kind = |window| LayerKind { window, rope: 0 };
    Config {
        layer_kinds: vec![kind(Some(24)), kind(None)],
        ..synthetic::tiny()
    }
}

fn draft(gpu: &Arc<Gpu>, config: &Config, options: &LoadOptions) -> DraftModel {
    DraftModel::new(
        decoder(gpu, config, options),
        config.vocab_size,
        DraftDraws::Apart,
    )
    .unwrap()
}

fn greedy() -> &'static Sampling {
    static GREEDY: std::sync::LazyLock<Sampling> = std::sync::LazyLock::new(Sampling::default);
    &GREEDY
}

fn text(id: u64, tokens: &[u32], most: usize) -> Text<'_> {
    Text {
        id: RequestId(id),
        tokens,
        cache_salt: b"",
        sampling: greedy(),
        most,
    }
}

/// What is proposed for one text once it is caught up.
fn propose(draft: &mut DraftModel, text: Text<'_>) -> Proposal {
    let most_calls = text.tokens.len() / 100 + 1;
    for _ in 0..most_calls {
        let proposal = draft.propose(&[text]).unwrap().remove(0);
        draft.check();
        if !proposal.tokens.is_empty() {
            return proposal;
        }
    }
    panic!("nothing proposed in {most_calls} calls");
}

/// What plain decoding makes of `prompt`.
fn decoded(gpu: &Arc<Gpu>, config: &Config, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut engine = engine(gpu, config, &options());
    let sampling = Sampling::default();
    answer(&mut engine, request(prompt, count, sampling)).tokens
}

#[test]
fn greedy_proposals_are_what_decoding_says() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for config in [synthetic::tiny(), windowed()] {
        let prompt = tokens(3, 45, config.vocab_size);
        let said = decoded(&gpu, &config, &prompt, 90);
        let mut draft = draft(&gpu, &config, &options());
        let (mut data, mut done) = (Data::new(5), 0);
        while done < 70 {
            let known = [&prompt[..], &said[..done]].concat();
            let most = 1 + data.below(MOST_PROPOSED);
            let proposal = propose(&mut draft, text(1, &known, most));
            assert_eq!(proposal.tokens, said[done..done + most], "after {done}");
            assert!(proposal.choices.is_empty());
            // all of them are right, but no more than so many are taken
            done += 1 + data.below(most + 1);
        }
        draft.end(RequestId(1), &[], b"");
        draft.check();
    }
}

#[test]
fn a_text_that_goes_on_otherwise_is_as_if_it_were_new() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for config in [synthetic::tiny(), windowed()] {
        let draft_of = || draft(&gpu, &config, &options());
        let (mut old, mut new) = (draft_of(), draft_of());
        let mut data = Data::new(11);
        let mut known = tokens(4, 40, config.vocab_size);
        for turn in 0..40 {
            let asked = text(1, &known, 1 + data.below(MOST_PROPOSED));
            let found = propose(&mut old, asked);
            new.forget_all();
            let expected = propose(&mut new, asked);
            assert_eq!(found, expected, "turn {turn}, {} tokens", known.len());
            if turn % 5 == 4 {
                // far back, behind what is known
                known.truncate(1 + data.below(known.len()));
            } else {
                let accepted = data.below(found.tokens.len() + 1);
                known.extend(&found.tokens[..accepted]);
            }
            known.extend((0..1 + data.below(9)).map(|_| data.below(config.vocab_size) as u32));
        }
    }
}

#[test]
fn in_company_and_in_few_pages_no_proposal_differs() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for config in [synthetic::tiny(), windowed()] {
        let lens = [70, 20, 45, 33, 90];
        let prompts: Vec<Vec<u32>> = lens
            .into_iter()
            .zip(20..)
            .map(|(len, seed)| tokens(seed, len, config.vocab_size))
            .collect();
        let said: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| decoded(&gpu, &config, prompt, 80))
            .collect();
        // room for the longest, and not for two of them
        let few = LoadOptions {
            pool_tokens: Some(224),
            ctx_size: Some(224),
            ..options()
        };
        let mut draft = draft(&gpu, &config, &few);
        let mut data = Data::new(8);
        let mut done = [0; 5];
        let (mut proposed, mut empty) = ([0; 5], 0);
        for turn in 0..80 {
            let ids: Vec<usize> = (0..5)
                .filter(|&i| done[i] < 60 && data.below(3) > 0)
                .collect();
            let known: Vec<Vec<u32>> = ids
                .iter()
                .map(|&i| [&prompts[i][..], &said[i][..done[i]]].concat())
                .collect();
            let texts: Vec<Text<'_>> = ids
                .iter()
                .zip(&known)
                .map(|(&i, known)| text(i as u64, known, 1 + data.below(8)))
                .collect();
            let proposals = draft.propose(&texts).unwrap();
            draft.check();
            assert_eq!(proposals.len(), texts.len());
            for (at, (&i, proposal)) in ids.iter().zip(&proposals).enumerate() {
                let count = proposal.tokens.len();
                let expected = &said[i][done[i]..done[i] + count];
                assert_eq!(proposal.tokens, expected, "turn {turn}, text {i}");
                if at == 0 {
                    assert_eq!(count, texts[0].most, "nobody takes from the first");
                }
                empty += usize::from(count == 0);
                proposed[i] += count;
                done[i] += data.below(count + 1) + data.below(2);
            }
        }
        assert!(proposed.iter().all(|&count| count > 0), "{proposed:?}");
        assert!(empty > 0, "there was room for all of them");
    }
}

#[test]
fn what_is_drawn_is_drawn_from_the_choices_and_repeats() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut draft = draft(&gpu, &config, &options());
    let (one, two) = (tokens(1, 30, 512), tokens(2, 41, 512));
    let sampling = |seed| Sampling {
        temperature: 0.9,
        top_p: 0.95,
        seed,
        ..Sampling::default()
    };
    let seeds = [sampling(1), sampling(2)];
    let drawn = |draft: &mut DraftModel, seed: usize, most| {
        let of = |id, tokens, sampling| Text {
            sampling,
            ..text(id, tokens, most)
        };
        // beside one that takes the likeliest
        let texts = [of(1, &one, &seeds[seed]), of(2, &two, greedy())];
        draft.propose(&texts).unwrap()
    };
    let found = drawn(&mut draft, 0, 8);
    assert!(found[1].choices.is_empty());
    assert_ne!(found[0].class, found[1].class);
    assert_eq!((found[0].tokens.len(), found[0].choices.len()), (8, 8));
    for (token, choices) in found[0].tokens.iter().zip(&found[0].choices) {
        let sum: f64 = choices.iter().map(|&(_, q)| f64::from(q)).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        assert!((1..=MOST_CHOICES).contains(&choices.len()));
        assert!(choices.iter().any(|(id, q)| id == token && *q > 0.0));
    }
    let likeliest = |p: &Proposal| p.choices.iter().map(|c| c[0].0).collect::<Vec<_>>();
    assert_ne!(found[0].tokens, likeliest(&found[0]), "nothing was drawn");
    draft.forget_all();
    assert_eq!(drawn(&mut draft, 0, 8), found);
    assert_eq!(drawn(&mut draft, 0, 3)[0].tokens, found[0].tokens[..3]);
    assert_ne!(drawn(&mut draft, 1, 8)[0].tokens, found[0].tokens);
    // what the other model does not know is never proposed
    let decoder = decoder(&gpu, &config, &options());
    let mut narrow = DraftModel::new(decoder, 100, DraftDraws::Apart).unwrap();
    let found = drawn(&mut narrow, 0, 8);
    for proposal in &found {
        assert!(proposal.tokens.iter().all(|&token| token < 100));
        let known = |choices: &Vec<(u32, f32)>| choices.iter().all(|&(token, _)| token < 100);
        assert!(proposal.choices.iter().all(known));
    }
}

#[test]
fn long_texts_are_caught_up_in_pieces_and_those_beyond_the_context_left_alone() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let long = LoadOptions {
        ctx_size: Some(800),
        ..options()
    };
    let mut draft = draft(&gpu, &config, &long);
    let (short, prompt) = (tokens(1, 10, 512), tokens(2, 700, 512));
    let mut counts = Vec::new();
    for _ in 0..4 {
        let texts = [text(1, &short, 4), text(2, &prompt, 4)];
        let proposals = draft.propose(&texts).unwrap();
        assert_eq!(proposals[0].tokens.len(), 4, "nobody waits for others");
        counts.push(proposals[1].tokens.len());
    }
    assert_eq!(counts, [0, 0, 4, 4], "256 tokens at a time");
    // up to the last place of the context
    let full = tokens(3, 798, 512);
    let proposal = propose(&mut draft, text(3, &full, 16));
    assert_eq!(proposal.tokens.len(), 3, "the last is not computed");
    let longer = tokens(3, 801, 512);
    for _ in 0..5 {
        assert!(
            draft.propose(&[text(3, &longer, 16)]).unwrap()[0]
                .tokens
                .is_empty()
        );
        draft.check();
    }
    // nor what has tokens that the draft does not know
    let unknown = [1, 2, 512];
    let proposals = draft.propose(&[text(4, &unknown, 4), text(1, &short, 4)]);
    let counts: Vec<_> = proposals.unwrap().iter().map(|p| p.tokens.len()).collect();
    assert_eq!(counts, [0, 4]);
}

#[test]
fn a_draft_that_computes_no_numbers_proposes_nothing() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut draft = draft(&gpu, &config, &options());
    let (one, two) = (tokens(1, 40, 512), tokens(2, 30, 512));
    let expected = propose(&mut draft, text(1, &one, 6));
    fill_pages(draft.decoder(), NAN, &[]);
    for _ in 0..2 {
        let found = draft.propose(&[text(1, &one, 6)]).unwrap();
        assert_eq!(found, [Proposal::default()]);
        draft.check();
    }
    // nothing of it is left for others
    assert_eq!(propose(&mut draft, text(2, &one, 6)), expected);
    assert_eq!(propose(&mut draft, text(3, &two, 6)).tokens.len(), 6);
    draft.end(RequestId(1), &one, b"");
    assert_eq!(propose(&mut draft, text(1, &one, 6)), expected);
}

#[test]
fn a_lost_device_is_an_error_once() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut draft = draft(&gpu, &config, &options());
    let known = tokens(1, 40, 512);
    let expected = propose(&mut draft, text(1, &known, 6));
    for _ in 0..2 {
        draft.decoder().gpu().destroy();
        let found = match draft.propose(&[text(1, &known, 6)]) {
            Ok(proposals) => proposals, // it was seen before anything was computed
            Err(Error::DeviceLost { .. }) => draft.propose(&[text(1, &known, 6)]).unwrap(),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(found, std::slice::from_ref(&expected));
        draft.check();
    }
}
