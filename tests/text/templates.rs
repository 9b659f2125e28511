//! Templates with the constructs of every family give what transformers gives.

use super::common::{fixture, json};
use nelumbo::Error;
use nelumbo::text::{ChatTemplate, Message, RenderOptions};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;

#[derive(Deserialize)]
struct Expected {
    now: String,
    /// BOS and EOS by template.
    tokens: BTreeMap<String, (Option<String>, String)>,
    conversations: BTreeMap<String, Conversation>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Conversation {
    messages: Vec<Message>,
    tools: Value,
    /// `add_generation_prompt` and arguments.
    options: Map<String, Value>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    conversation: String,
    text: Option<String>,
    error: Option<String>,
}

/// Where two texts part, and what follows there.
fn difference<'a>(a: &'a str, b: &'a str) -> (usize, &'a str, &'a str) {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    let from: usize = same.map(|(c, _)| c.len_utf8()).sum();
    let short = |text: &'a str| {
        let rest = &text[from..];
        let end = rest.char_indices().nth(60).map_or(rest.len(), |(at, _)| at);
        &rest[..end]
    };
    (from, short(a), short(b))
}

#[test]
fn every_familys_template_renders_as_transformers_renders_it() {
    let expected: Expected =
        serde_json::from_value(json(&fixture("templates/expected.json"))).unwrap();
    let mut wrong = Vec::new();
    let mut in_doubt = Vec::new();
    for case in &expected.cases {
        let path = fixture("templates").join(format!("{}.jinja", case.template));
        let template = ChatTemplate::new(&fs::read_to_string(path).unwrap()).unwrap();
        let (bos, eos) = &expected.tokens[&case.template];
        let conversation = &expected.conversations[&case.conversation];
        let mut kwargs = conversation.options.clone();
        let prompt = kwargs.remove("add_generation_prompt");
        if !conversation.tools.is_null() {
            kwargs.insert("tools".to_owned(), conversation.tools.clone());
        }
        let options = RenderOptions {
            add_generation_prompt: prompt.is_none_or(|value| value == true),
            bos_token: bos.clone().unwrap_or_default(),
            eos_token: eos.clone(),
            date: expected.now.clone(),
            kwargs,
        };
        let rendered = template.render(&conversation.messages, &options);
        let what = format!("{}, {}", case.template, case.conversation);
        match (&rendered, &case.text, &case.error) {
            (Ok(rendered), Some(text), _) if rendered.text == *text => {
                // the prompt's own marks are not taken for a message's text
                let whole = |span: &std::ops::Range<usize>| span.len() == text.len();
                if rendered.content_spans.iter().any(whole) {
                    in_doubt.push(what);
                }
            }
            (Err(Error::Template { problem }), None, Some(error)) if problem == error => {}
            (Ok(rendered), text, error) => {
                let (from, got, want) = difference(&rendered.text, text.as_deref().unwrap_or(""));
                wrong.push(format!(
                    "{what}, byte {from}: {got:?}, expected {want:?} {error:?}"
                ));
            }
            (Err(e), text, error) => {
                wrong.push(format!("{what}: {e}, expected {text:?} {error:?}"))
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        expected.cases.len(),
        wrong.join("\n")
    );
    // only the template of odd constructs takes messages apart beyond recognition
    assert!(
        in_doubt.iter().all(|what| what.starts_with("constructs")),
        "{in_doubt:?}"
    );
    assert!(expected.cases.len() > 150);
}
