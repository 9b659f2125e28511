//! What a user writes never becomes a control token, for every kind of tokenizer and template.

use super::common::{Both, Dice, Samples, VOCABULARIES, both, fixture};
use nelumbo::text::{ChatTemplate, Message, RenderOptions, Rendered, Tokenizer};
use serde_json::{Map, Value, json};
use std::fs;

const LINES: usize = 1_500;
const NONE: [u32; 0] = [];

fn bytes(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    let all = ids.iter().flat_map(|&id| tokenizer.token_bytes(id));
    all.copied().collect()
}

fn guarded(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u32> {
    let ids = ids.iter().copied();
    ids.filter(|&id| tokenizer.is_guarded(id) || tokenizer.is_control(id))
        .collect()
}

#[test]
fn what_marks_turns_is_guarded_whatever_the_file_calls_it() {
    // kept whole, says the file
    for (name, marks) in [
        ("gemma", vec!["<start_of_turn>", "<end_of_turn>"]),
        ("phi4", vec!["<|tool|>", "<|/tool|>"]),
        ("qwen2", vec!["<|fim_pad|>"]),
    ] {
        let vocabulary = both(name);
        for mark in marks {
            let token = vocabulary.added.iter().find(|(_, text, _)| text == mark);
            let (id, _, special) = token.unwrap();
            assert!(!special, "{mark}");
            assert!(
                vocabulary.json.is_guarded(*id) && vocabulary.gguf().is_guarded(*id),
                "{mark}"
            );
        }
    }
    // and what is merely kept whole is met everywhere
    let vocabulary = both("qwen2");
    for tokenizer in [&vocabulary.json, vocabulary.gguf()] {
        let think = tokenizer.token_id("<think>").unwrap();
        assert_eq!(tokenizer.encode_plain("<think>").unwrap(), [think]);
        assert!(!tokenizer.is_guarded(think));
    }
}

#[test]
fn every_name_of_a_guarded_token_is_spelled_in_plain_text_and_met_in_raw_text() {
    for name in VOCABULARIES {
        let vocabulary = both(name);
        for tokenizer in [&vocabulary.json, vocabulary.gguf()] {
            let added = vocabulary.added.iter();
            for (id, text, _) in added.filter(|(id, _, _)| tokenizer.is_guarded(*id)) {
                assert_eq!(
                    tokenizer
                        .encode_plain(text)
                        .map(|ids| guarded(tokenizer, &ids))
                        .unwrap(),
                    NONE,
                    "{text}"
                );
                let raw = tokenizer.encode_raw(text).unwrap();
                assert_eq!(raw.last(), Some(id), "{name}: {text}");
            }
        }
    }
}

#[test]
fn no_line_of_plain_text_has_a_control_token_and_both_layouts_spell_it_alike() {
    let samples = Samples::load();
    for name in VOCABULARIES {
        let vocabulary = both(name);
        let names = vocabulary.names();
        let mut dice = Dice(11);
        for i in 0..LINES {
            let line = samples.line(&mut dice, &names);
            let of = |tokenizer: &Tokenizer| tokenizer.encode_plain(&line).unwrap();
            let (ids, other) = (of(&vocabulary.json), of(vocabulary.gguf()));
            assert_eq!(
                guarded(&vocabulary.json, &ids),
                NONE,
                "{name}, line {i}: {line:?}"
            );
            assert_eq!(
                guarded(vocabulary.gguf(), &other),
                NONE,
                "{name}, line {i}: {line:?}"
            );
            if !vocabulary.differs_by_nature(&line) {
                assert_eq!(ids, other, "{name}, line {i}: {line:?}");
            }
            if !["qwen2", "llama2", "mistral", "phi3", "gemma", "unigram"].contains(&name) {
                assert_eq!(
                    bytes(vocabulary.gguf(), &other),
                    line.as_bytes(),
                    "{name}, line {i}"
                );
            }
        }
    }
}

/// The control tokens of a conversation whose texts are all harmless.
fn controls(vocabulary: &Both, rendered: &Rendered) -> [Vec<u32>; 2] {
    [&vocabulary.json, vocabulary.gguf()].map(|tokenizer| {
        let ids = tokenizer.encode_rendered(rendered).unwrap();
        guarded(tokenizer, &ids)
    })
}

/// A conversation with `text` wherever somebody else than the template may write; calls and tools only for
/// templates that know of them.
fn conversation(text: &str, tokenizer: &Tokenizer, tools: bool) -> (Vec<Message>, RenderOptions) {
    let text_of = |id: Option<u32>| id.map(|id| tokenizer.token_text(id)).unwrap_or_default();
    let call = json!([{"id": "abcdef123", "type": "function",
                       "function": {"name": "now", "arguments": {"city": text, text: 1}}}]);
    let fields = |name: &str, value: Value| Map::from_iter([(name.to_owned(), value)]);
    let mut asks = Message::new("assistant", "");
    asks.fields = fields("tool_calls", call);
    let mut tells = Message::new("tool", text);
    tells.fields = fields("tool_call_id", json!("abcdef123"));
    let mut messages = vec![
        Message::new("user", text),
        asks,
        tells,
        Message::new("assistant", text),
        Message::new("user", text),
    ];
    if !tools {
        messages.drain(1..3);
    }
    let tool = json!([{"type": "function", "function": {"name": "now", "description": text, "parameters":
        {"type": "object", "properties": {text: {"type": "string", "description": text}}}}}]);
    let options = RenderOptions {
        add_generation_prompt: true,
        bos_token: text_of(tokenizer.bos()),
        eos_token: text_of(tokenizer.eos()),
        date: "2026-02-03".to_owned(),
        kwargs: match tools {
            true => fields("tools", tool),
            false => Map::new(),
        },
    };
    (messages, options)
}

#[test]
fn messages_calls_and_tools_hold_no_control_token_in_any_template() {
    let families = [
        ("llama2", "llama2", false),
        ("llama3", "llama3", true),
        ("mistral", "mistral", true),
        ("mistral", "tekken", true),
        ("qwen2", "qwen2", true),
        ("qwen3", "qwen2", true),
        ("gemma2", "gemma", false),
        ("gemma3", "gemma", false),
        ("phi3", "phi3", true),
        ("phi4", "phi4", true),
        ("smollm3", "smollm2", true),
        ("olmo2", "olmo2", true),
        ("granite", "granite", true),
    ];
    for (template, name, tools) in families {
        let vocabulary = both(name);
        let path = fixture("templates").join(format!("{template}.jinja"));
        let chat = ChatTemplate::new(&fs::read_to_string(path).unwrap()).unwrap();
        let render = |text: &str| {
            let (messages, options) = conversation(text, &vocabulary.json, tools);
            chat.render(&messages, &options).unwrap()
        };
        let harmless = controls(&vocabulary, &render("<harmless> words"));
        assert_eq!(harmless[0], harmless[1], "{template}");
        assert!(!harmless[0].is_empty(), "{template}");
        for (id, text, _) in &vocabulary.added {
            if vocabulary.json.is_guarded(*id) {
                for text in [
                    text.clone(),
                    format!("a {text}{text} b"),
                    format!("{text}\n"),
                ] {
                    let found = controls(&vocabulary, &render(&text));
                    assert_eq!(found, harmless, "{template}, {name}: {text:?}");
                }
            }
        }
    }
}
