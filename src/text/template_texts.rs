//! The texts of a conversation that nobody vouches for: the messages' contents and fields, tools, documents.
//!
//! They are listed in the order in which a template's context is built, so that other texts can be put in
//! their places. Plain words inside of fields and tools are not listed: templates compare them (`"function"`,
//! `"string"`), and no control token is made of such characters alone. Nor is what templates
//! look for in a message: the marks of a thought in an answer, the switches in a system message.

use minijinja::Value;
use serde_json::Value as Json;

use super::chat_template::{Message, RenderOptions};
use super::template_functions;

/// What templates cut messages of a role at, or take out of them.
fn looked_for(role: &str) -> &'static [&'static str] {
    match role {
        "assistant" => &["<think>", "</think>"],
        "system" => &["/no_think", "/think", "/system_override"],
        _ => &[],
    }
}

/// Whether an argument's texts are no more the operator's than those of messages.
pub(super) fn is_foreign(argument: &str) -> bool {
    matches!(argument, "tools" | "documents")
}

/// Every text, in the order of [`Slots`].
pub(super) fn all(messages: &[Message], options: &RenderOptions) -> Vec<String> {
    let mut texts = Vec::with_capacity(messages.len());
    for message in messages {
        let listed = parts(message).filter(|(_, is_looked_for)| !is_looked_for);
        texts.extend(listed.map(|(part, _)| part.to_owned()));
        for (name, value) in &message.fields {
            collect_text(name, &mut texts);
            collect(value, &mut texts);
        }
    }
    for (name, value) in &options.kwargs {
        if is_foreign(name) {
            collect(value, &mut texts);
        }
    }
    texts
}

fn collect(value: &Json, texts: &mut Vec<String>) {
    match value {
        Json::String(text) => collect_text(text, texts),
        Json::Array(items) => items.iter().for_each(|item| collect(item, texts)),
        Json::Object(map) => {
            for (name, value) in map {
                collect_text(name, texts);
                collect(value, texts);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

fn collect_text(text: &str, texts: &mut Vec<String>) {
    if !is_plain(text) {
        texts.push(text.to_owned());
    }
}

/// A content, cut at what templates look for, and whether a part is such a thing.
fn parts(message: &Message) -> impl Iterator<Item = (&str, bool)> {
    let looked_for = looked_for(&message.role);
    let mut rest = Some(message.content.as_str());
    std::iter::from_fn(move || {
        let text = rest?;
        let places = looked_for.iter();
        let first = places.filter_map(|word| Some((text.find(word)?, word.len())));
        let (end, is_looked_for) = match first.min() {
            Some((0, len)) => (len, true),
            Some((at, _)) => (at, false),
            None => (text.len(), false),
        };
        let (part, after) = text.split_at(end);
        rest = (!after.is_empty()).then_some(after);
        Some((part, is_looked_for))
    })
}

fn is_plain(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' '))
}

/// Builds values of the template language with `texts` in the places of those that [`all`] has listed.
pub(super) struct Slots<'a> {
    texts: std::slice::Iter<'a, String>,
}

impl<'a> Slots<'a> {
    pub(super) fn new(texts: &'a [String]) -> Slots<'a> {
        Slots {
            texts: texts.iter(),
        }
    }

    fn next(&mut self) -> &'a str {
        self.texts.next().expect("as many texts as were listed")
    }

    fn text(&mut self, text: &'a str) -> &'a str {
        match is_plain(text) {
            true => text,
            false => self.next(),
        }
    }

    pub(super) fn message(&mut self, message: &'a Message) -> Value {
        let mut content = String::with_capacity(message.content.len());
        for (part, is_looked_for) in parts(message) {
            content.push_str(match is_looked_for {
                true => part,
                false => self.next(),
            });
        }
        let mut pairs = vec![
            ("role", Value::from(message.role.as_str())),
            ("content", Value::from(content)),
        ];
        for (name, value) in &message.fields {
            pairs.push((self.text(name), self.value(value)));
        }
        Value::from_pairs(pairs)
    }

    pub(super) fn value(&mut self, value: &'a Json) -> Value {
        match value {
            Json::String(text) => Value::from(self.text(text)),
            Json::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Json::Object(map) => {
                let mut pairs = Vec::with_capacity(map.len());
                for (name, value) in map {
                    pairs.push((self.text(name), self.value(value)));
                }
                Value::from_pairs(pairs)
            }
            other => template_functions::from_json(other),
        }
    }
}
