//! A vocabulary gives the same ids from a GGUF file and from a `tokenizer.json`, and those of the tokenizers
//! library.

use super::common::{Dice, Samples, VOCABULARIES, both, fixture, json};
use serde_json::Value;

const LINES: usize = 10_000;

#[test]
fn ten_thousand_lines_have_the_same_ids_from_both_layouts() {
    let samples = Samples::load();
    for name in VOCABULARIES {
        let vocabulary = both(name);
        let names = vocabulary.names();
        let mut dice = Dice(7);
        let (mut compared, mut special) = (0, 0);
        while compared < LINES {
            let line = samples.line(&mut dice, &names);
            if vocabulary.differs_by_nature(&line) {
                continue;
            }
            compared += 1;
            let ids = vocabulary.json.encode_raw(&line).unwrap();
            let other = vocabulary.gguf().encode_raw(&line).unwrap();
            assert_eq!(ids, other, "{name}, line {compared}: {line:?}");
            special += ids
                .iter()
                .filter(|&&id| vocabulary.json.is_control(id))
                .count();
        }
        assert!(special > LINES / 10, "{name}: {special} control tokens");
    }
}

#[test]
fn a_few_hundred_lines_have_the_ids_of_the_library() {
    let strings = |value: &Value| -> Vec<String> {
        let texts = value.as_array().unwrap().iter();
        texts
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    };
    let lines = strings(&json(&fixture("tokenizers/lines.json")));
    for name in VOCABULARIES {
        let vocabulary = both(name);
        let file = json(&fixture("tokenizers").join(name).join("ids.json"));
        let texts = [lines.clone(), strings(&file["names"])].concat();
        let expected: Vec<Vec<u32>> = serde_json::from_value(file["ids"].clone()).unwrap();
        assert!(
            texts.len() == expected.len() && texts.len() >= 300,
            "{name}"
        );
        for (text, expected) in texts.iter().zip(expected) {
            let gguf = (!vocabulary.differs_by_nature(text)).then(|| vocabulary.gguf());
            for tokenizer in std::iter::once(&vocabulary.json).chain(gguf) {
                let mut ids = tokenizer.encode_raw(text).unwrap();
                let bos: Vec<u32> = tokenizer
                    .bos()
                    .filter(|_| tokenizer.add_bos())
                    .into_iter()
                    .collect();
                if !expected.starts_with(&bos) {
                    assert!(ids.starts_with(&bos), "{name}: {text:?}");
                    ids.drain(..bos.len());
                }
                assert_eq!(ids, expected, "{name}: {text:?}");
            }
        }
    }
}

#[test]
fn special_ids_and_bytes_are_the_same_from_both_layouts() {
    for name in VOCABULARIES {
        let vocabulary = both(name);
        let (json, gguf) = (&vocabulary.json, vocabulary.gguf());
        assert_eq!(json.vocab_size(), gguf.vocab_size(), "{name}");
        assert_eq!(json.add_bos(), gguf.add_bos(), "{name}");
        assert_eq!((json.bos(), json.eos()), (gguf.bos(), gguf.eos()), "{name}");
        assert_eq!(json.control_ids(), gguf.control_ids(), "{name}");
        for id in 0..u32::try_from(json.vocab_size()).unwrap() {
            let kept = vocabulary.added.iter().any(|(added, _, _)| *added == id);
            assert_eq!(json.is_guarded(id), gguf.is_guarded(id), "{name}: {id}");
            // kept blanks are spelled in either way
            if !kept || !json.token_text(id).contains('▁') {
                assert_eq!(json.token_bytes(id), gguf.token_bytes(id), "{name}: {id}");
            }
        }
    }
}

#[test]
fn bos_and_eos_follow_file_and_family() {
    let expected = [
        ("gpt2", false),
        ("llama3", true),
        ("qwen2", false),
        ("tekken", true),
        ("phi4", false),
        ("llama2", true),
        ("mistral", true),
        ("phi3", false),
        ("gemma", true),
        ("unigram", false),
    ];
    for (name, adds) in expected {
        let vocabulary = both(name);
        for tokenizer in [&vocabulary.json, vocabulary.gguf()] {
            assert_eq!(tokenizer.add_bos(), adds, "{name}");
            let ids = tokenizer.encode_raw("a").unwrap();
            assert_eq!(ids.first().copied() == tokenizer.bos(), adds, "{name}");
            // nothing is ever put behind a prompt
            assert_ne!(ids.last().copied(), tokenizer.eos(), "{name}");
            if let Some(bos) = tokenizer.bos().filter(|_| adds) {
                let begun = format!("{}a", tokenizer.token_text(bos));
                assert_eq!(tokenizer.encode_raw(&begun).unwrap(), ids, "{name}");
            }
        }
    }
}
