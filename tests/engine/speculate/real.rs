//! The same of the real model, and what speculation saves of its tasks.

use super::{answers, fixed};
use crate::common::{gpu, model_path, request};
use nelumbo::engine::speculate::{DraftDraws, DraftModel};
use nelumbo::engine::{EngineCore, EngineOptions, Request, Sampling, Speculate};
use nelumbo::gpu::OpenOptions;
use nelumbo::quant::Format;
use nelumbo::text::Message;
use nelumbo::{LoadOptions, Model};

/// `NELUMBO_SPECULATE_PROMPTS` asks for more prompts than the usual ones.
#[test]
fn the_real_model_with_int8_weights_says_the_same() {
    let (Some(gpu), Some(path)) = (gpu(&OpenOptions::default()), model_path()) else {
        return;
    };
    drop(gpu);
    let count = std::env::var("NELUMBO_SPECULATE_PROMPTS");
    let count = count.map_or(16, |text| text.parse().expect("a number of prompts"));
    let load = LoadOptions {
        ctx_size: Some(512),
        max_running: 8,
        ..LoadOptions::default()
    };
    let sentences = [
        "Repeat this list: apple, pear, plum, apple, pear, plum.",
        "Write the numbers from one to twenty as words.",
        "let total = items.iter().map(|item| item.price).sum();\nlet total = items",
        "{\"name\": \"Ada\", \"age\": 36}, {\"name\": \"Alan\", \"age\": 41}, {\"name\":",
        "The quick brown fox jumps over the lazy dog. The quick brown",
        "Why is the sky blue?",
        "Roses are red, violets are blue, sugar is sweet,",
        "To be, or not to be, that is the question. To be, or",
    ];
    let draft = || -> Box<DraftModel> {
        let load = LoadOptions {
            weights: Format::from_name("f16").expect("a format"),
            ..load.clone()
        };
        let Model { decoder, .. } = Model::load(&path, &load, &mut |_, _| ()).unwrap();
        let vocab_size = decoder.config().vocab_size;
        Box::new(DraftModel::new(decoder, vocab_size, DraftDraws::Alike).unwrap())
    };
    let run = |mode: Speculate, proposed: usize, own: &dyn Fn(&usize) -> bool| {
        let options = EngineOptions {
            speculate: fixed(mode, proposed),
            ..EngineOptions::default()
        };
        let Model { decoder, texts } = Model::load(&path, &load, &mut |_, _| ()).unwrap();
        let mut engine = EngineCore::with_options(decoder, &options).unwrap();
        if mode == Speculate::Draft {
            engine.set_draft(draft()).unwrap();
        }
        let each = |i: usize| {
            let text = format!("{}{}", &"#".repeat(i / 8 % 40), sentences[i % 8]);
            let tokens = texts.tokenizer.encode_plain(&text).unwrap();
            Request {
                logprobs: 2,
                ..request(&tokens, 24, Sampling::default())
            }
        };
        let requests: Vec<Request> = (0..count).filter(own).map(each).collect();
        let answers = answers(&mut engine, &requests);
        println!("{mode:?}, {proposed}: {:?}", engine.speculation());
        answers
    };
    let plain = run(Speculate::Off, 0, &|_| true);
    // each number of tokens has its part of the prompts
    let part = |i: &usize| (i + i / 8) % 8 + 1;
    let few = [4]; // a draft is loaded for each
    let all = [1, 2, 3, 4, 5, 6, 7, 8];
    let drafted = if count > 16 { &all[..] } else { &few };
    for (mode, proposed) in [(Speculate::NGram, &all[..]), (Speculate::Draft, drafted)] {
        for &proposed in proposed {
            let own = |i: &usize| part(i) == proposed;
            let expected: Vec<_> = (0..count).filter(own).map(|i| &plain[i]).collect();
            let got = run(mode, proposed, &own);
            let got: Vec<_> = got.iter().collect();
            assert_eq!(got, expected, "{mode:?}, {proposed} tokens");
        }
    }
}

/// Of texts that repeat their prompts, at most half as many passes are left. `benches/speculate` tells what that
/// is in seconds.
#[test]
fn tasks_that_copy_take_half_the_passes() {
    let (Some(gpu), Some(path)) = (gpu(&OpenOptions::default()), model_path()) else {
        return;
    };
    drop(gpu);
    let load = LoadOptions {
        ctx_size: Some(1024),
        max_running: 4,
        ..LoadOptions::default()
    };
    let options = EngineOptions {
        speculate: fixed(Speculate::NGram, 8),
        ..EngineOptions::default()
    };
    let Model { decoder, texts } = Model::load(&path, &load, &mut |_, _| ()).unwrap();
    let mut engine = EngineCore::with_options(decoder, &options).unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speculate");
    let task = |name: &str| {
        let text = std::fs::read_to_string(folder.join(format!("{name}.txt"))).unwrap();
        let messages = [Message::new("user", text.trim_end())];
        Request {
            end_tokens: texts.end_tokens.clone(),
            ..request(
                &texts.encode_chat(&messages, "2026-01-01").unwrap(),
                96,
                Sampling::default(),
            )
        }
    };
    let requests: Vec<Request> = ["code_edit", "quote_back", "json_reformat", "list_sort"]
        .into_iter()
        .map(task)
        .collect();
    let drawn: usize = answers(&mut engine, &requests)
        .iter()
        .map(|answer| answer.tokens.len())
        .sum();
    let totals = engine.speculation();
    println!("{drawn} tokens: {totals:?}");
    assert!(drawn > 200, "the model says little: {drawn} tokens");
    assert!(2 * totals.target_passes <= drawn as u64, "{totals:?}");
}
