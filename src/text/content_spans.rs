//! Telling the messages' text from the template's in a rendering.
//!
//! The rule, in the order in which it is tried:
//!
//! 1. **Marks.** The template runs three times: with the messages as they are, which gives the prompt;
//!    with every content wrapped in two marks of its own, private-use characters that occur neither in
//!    the messages nor in the template; and with a single such mark, a neutral word, as every content.
//!    White space at a content's edges stays where it is, so templates may trim. What lies between the
//!    marks is content if taking the marks out gives the prompt again, every mark is in its pair, and
//!    what lies outside is what the template writes around neutral words.
//! 2. **Neutral words.** A template that searches or cuts a content breaks its marks. If the parts that
//!    it writes around neutral words occur in the prompt in exactly one way, in their order from the
//!    first byte to the last, and none of them occurs in a message, everything between is content.
//! 3. **Doubt.** Otherwise everything between the first part and the last is content, or the whole
//!    prompt where not even these are found. The prompt may then lack control tokens of the template,
//!    but no message can ever write one.

use std::ops::Range;

use super::chat_template::{RenderOptions, Rendered};
use crate::error::{Error, Result};

/// Renders with `render`, which runs the template on texts in the places of `contents`, and finds the content
/// spans. A content here is any text that is not the template's, such as the description of a tool.
pub(super) fn render(
    source: &str,
    contents: Vec<String>,
    options: &RenderOptions,
    render: impl Fn(&[String]) -> Result<String>,
) -> Result<Rendered> {
    let text = render(&contents)?;
    // White space alone is no control token.
    if contents.iter().all(|content| content.trim().is_empty()) {
        return Ok(Rendered {
            text,
            content_spans: Vec::new(),
        });
    }
    let marks = Marks::choose(source, &contents, options)?;
    let with = |wrap: &dyn Fn(usize, &str) -> String| -> Vec<String> {
        contents
            .iter()
            .enumerate()
            .map(|(i, content)| wrap(i, content))
            .collect()
    };
    // A template that refuses neutral words, or marks, leaves nothing to compare with.
    let neutral = render(&with(&|i, content| marks.replace(i, content))).unwrap_or_default();
    let parts: Vec<&str> = neutral.split(|c| marks.index(c).is_some()).collect();
    let content_spans = match render(&with(&|i, content| marks.wrap(i, content))) {
        Ok(marked) => marks.take_out(&marked, &text, &parts),
        Err(_) => None,
    };
    let content_spans = content_spans.unwrap_or_else(|| by_parts(&text, &parts, &contents));
    Ok(Rendered {
        text,
        content_spans,
    })
}

/// Private-use characters, two for each content.
struct Marks {
    /// Ascending, so that a mark is found by bisection.
    chars: Vec<char>,
}

impl Marks {
    fn choose(source: &str, contents: &[String], options: &RenderOptions) -> Result<Marks> {
        let private =
            |c: &char| matches!(c, '\u{F0000}'..='\u{FFFFD}' | '\u{100000}'..='\u{10FFFD}');
        let kwargs = serde_json::Value::Object(options.kwargs.clone()).to_string();
        let texts = [source, &options.bos_token, &options.eos_token, &kwargs];
        let texts = texts.into_iter().chain(contents.iter().map(String::as_str));
        let used: std::collections::BTreeSet<char> =
            texts.flat_map(str::chars).filter(private).collect();
        let free = ('\u{F0000}'..='\u{FFFFD}')
            .chain('\u{100000}'..='\u{10FFFD}')
            .filter(|c| !used.contains(c));
        let chars: Vec<char> = free.take(2 * contents.len()).collect();
        if chars.len() < 2 * contents.len() {
            let problem = format!(
                "{} are too many, about {} can be rendered",
                contents.len(),
                chars.len() / 2
            );
            return Err(Error::request("messages", problem));
        }
        Ok(Marks { chars })
    }

    /// A mark's number: even for an opening one, odd for a closing one; half of it is the message.
    fn index(&self, c: char) -> Option<usize> {
        self.chars.binary_search(&c).ok()
    }

    /// The content with its marks, white space outside.
    fn wrap(&self, message: usize, content: &str) -> String {
        self.around(message, content, |inner, open, close| {
            format!("{open}{inner}{close}")
        })
    }

    /// A mark in the content's place, with the white space around it.
    fn replace(&self, message: usize, content: &str) -> String {
        self.around(message, content, |_, open, _| open.to_string())
    }

    fn around(
        &self,
        message: usize,
        content: &str,
        wrap: impl Fn(&str, char, char) -> String,
    ) -> String {
        let inner = content.trim();
        if inner.is_empty() {
            return content.to_owned();
        }
        let start = content.len() - content.trim_start().len();
        let (before, after) = (&content[..start], &content[start + inner.len()..]);
        format!(
            "{before}{}{after}",
            wrap(inner, self.chars[2 * message], self.chars[2 * message + 1])
        )
    }

    /// Where the marked contents lie in the rendering without marks. `None` when that is not `text`, a
    /// mark is without its partner, or there is more outside than the template's own parts.
    fn take_out(&self, marked: &str, text: &str, parts: &[&str]) -> Option<Vec<Range<usize>>> {
        let mut plain = String::with_capacity(text.len());
        let mut outside = String::new();
        let mut spans = Vec::new();
        let mut open: Option<(usize, usize)> = None; // (message, start)
        for c in marked.chars() {
            match (self.index(c), open) {
                (None, _) => {
                    plain.push(c);
                    if open.is_none() {
                        outside.push(c);
                    }
                }
                (Some(mark), None) if mark % 2 == 0 => open = Some((mark / 2, plain.len())),
                (Some(mark), Some((message, start))) if mark == 2 * message + 1 => {
                    spans.push(start..plain.len());
                    open = None;
                }
                _ => return None,
            }
        }
        (open.is_none() && plain == text && outside == parts.concat()).then_some(spans)
    }
}

/// The spans between the template's own parts; rules 2 and 3.
fn by_parts(text: &str, parts: &[&str], contents: &[String]) -> Vec<Range<usize>> {
    let doubt = |span: Range<usize>| {
        log::warn!(
            "chat template: it changes the messages in a way that hides where they begin and end; control tokens in bytes {span:?} of the prompt are plain text"
        );
        vec![span]
    };
    let in_content = |part: &str| {
        !part.trim().is_empty() && contents.iter().any(|content| content.contains(part.trim()))
    };
    let [first, middle @ .., last] = parts else {
        return doubt(0..text.len());
    };
    let fits =
        text.starts_with(first) && text.ends_with(last) && first.len() + last.len() <= text.len();
    if !fits || in_content(first) || in_content(last) {
        return doubt(0..text.len());
    }
    let inner = first.len()..text.len() - last.len();
    if middle.iter().any(|part| in_content(part)) {
        return doubt(inner);
    }
    let leftmost = place(&text[inner.clone()], middle.iter(), str::find, false);
    let rightmost = place(&text[inner.clone()], middle.iter().rev(), str::rfind, true);
    match (leftmost, rightmost) {
        (Some(places), Some(mut reversed)) => {
            reversed.reverse();
            if places != reversed {
                return doubt(inner);
            }
            let mut spans = Vec::with_capacity(places.len() + 1);
            let mut start = inner.start;
            for place in places {
                spans.push(start..inner.start + place.start);
                start = inner.start + place.end;
            }
            spans.push(start..inner.end);
            spans.retain(|span| !span.is_empty());
            spans
        }
        _ => doubt(inner),
    }
}

/// Finds the parts that are not empty one after the other, from the left or from the right.
fn place<'a>(
    text: &str,
    parts: impl Iterator<Item = &'a &'a str>,
    find: impl Fn(&str, &'a str) -> Option<usize>,
    from_right: bool,
) -> Option<Vec<Range<usize>>> {
    let mut rest = 0..text.len();
    let mut places = Vec::new();
    for part in parts.filter(|part| !part.is_empty()) {
        let at = rest.start + find(&text[rest.clone()], part)?;
        let place = at..at + part.len();
        if from_right {
            rest.end = place.start;
        } else {
            rest.start = place.end;
        }
        places.push(place);
    }
    Some(places)
}
