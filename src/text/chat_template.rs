//! Chat templates: Jinja, as Hugging Face renders them.
//!
//! A template comes with a model's files and is not trusted: fuel bounds its time and memory, its source
//! and its output have a size limit, it sees no files, environment or clock, and it runs where there is
//! stack enough for its recursion limit. Blocks are trimmed as `trim_blocks` and `lstrip_blocks` do.
//!
//! One hole is left by the template engine: comparing or concatenating lists that a template has built
//! from one another by the dozen (`[x, x]`, `x + x`), or making texts of them otherwise than by printing
//! them (`x ~ ''`, `x | upper`), takes time and memory that no fuel is charged for. Where templates of
//! unknown origin are rendered, the caller has to watch both.
//!
//! Besides the messages a template sees `add_generation_prompt`, `bos_token`, `eos_token`, `tools` and
//! `documents` (none unless given), the caller's own arguments such as `enable_thinking`,
//! `raise_exception(message)` and, when the caller tells the date, `strftime_now(format)`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error as JinjaError, Value};
use serde::{Deserialize, Serialize};

use super::content_spans;
use super::template_date::Date;
use super::template_functions::{self, Raised};
use super::template_methods;
use super::template_percent;
use super::template_texts::{self, Slots};
use crate::error::{Error, Result};

/// The longest template, in bytes.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;
/// The longest rendered prompt, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Work that a rendering may cost at most; an instruction costs 1, and so do 64 bytes.
const MAX_FUEL: u64 = 2_000_000;
/// Work that a rendering may cost besides what messages and arguments account for.
const BASE_FUEL: u64 = 200_000;
/// Enough for the template engine's recursion limits, in parser and interpreter.
const STACK_BYTES: usize = 8 << 20;
/// Values nest as deeply as fuel allows, and the engine drops and prints them recursively. Measured are
/// at most 400 bytes of stack for each unit of fuel. The system provides only what is touched.
const STACK_BYTES_PER_FUEL: u64 = 512;
/// Names that the caller's arguments may not take.
const RESERVED: [&str; 6] = [
    "messages",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "raise_exception",
    "strftime_now",
];
/// The longest role, in bytes.
const MAX_ROLE_BYTES: usize = 64;
const NAME: &str = "chat_template";

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// The text. Nothing in it is ever a control token.
    pub content: String,
    /// What else a template may read of a message, such as `tool_calls`, `tool_call_id`, `name` or
    /// `reasoning_content`. Nothing in their texts is ever a control token either.
    #[serde(flatten, default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub fields: serde_json::Map<String, serde_json::Value>,
}

impl Message {
    /// What `role` says.
    pub fn new(role: &str, content: &str) -> Message {
        Message {
            role: role.to_owned(),
            content: content.to_owned(),
            fields: serde_json::Map::new(),
        }
    }
}

/// What a rendering depends on besides the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// Whether the prompt ends where the assistant begins to speak.
    pub add_generation_prompt: bool,
    /// The text of the BOS token; empty when there is none.
    pub bos_token: String,
    /// The text of the EOS token; empty when there is none.
    pub eos_token: String,
    /// Now, for `strftime_now`: `YYYY-MM-DD`, or with a time `YYYY-MM-DDTHH:MM:SS`. When empty, the
    /// template sees no such function.
    pub date: String,
    /// More arguments, such as `enable_thinking`. They are the operator's: unlike the messages' content,
    /// control tokens in their text are recognised. `tools` and `documents` are the exception: what
    /// describes them may come from anywhere, so their texts are treated as those of messages.
    pub kwargs: serde_json::Map<String, serde_json::Value>,
}

/// A prompt in text form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The whole prompt.
    pub text: String,
    /// Byte ranges of `text` that come from the messages, the tools and the documents, ascending and
    /// disjoint. White space at the edges of a text may be left out.
    pub content_spans: Vec<Range<usize>>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`Error::Template`] with the line of a syntax error, or when the source is longer than
    /// [`MAX_TEMPLATE_BYTES`].
    pub fn new(source: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_TEMPLATE_BYTES {
            let problem = format!("{} bytes, allowed are {MAX_TEMPLATE_BYTES}", source.len());
            return Err(Error::Template { problem });
        }
        with_stack(STACK_BYTES, || {
            let mut environment = Environment::new();
            let syntax = SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build();
            environment.set_syntax(syntax.map_err(|e| template_error(&e))?);
            environment.set_auto_escape_callback(|_| AutoEscape::None);
            template_functions::add_to(&mut environment);
            template_methods::add_to(&mut environment);
            let compiled = template_functions::without_generation_tags(source);
            let compiled = template_percent::as_filters(&compiled);
            environment
                .add_template_owned(NAME, compiled)
                .map_err(|e| template_error(&e))?;
            Ok(ChatTemplate {
                environment,
                source: source.to_owned(),
            })
        })
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation and finds out which of its bytes are the messages' content. The template
    /// runs three times for that.
    ///
    /// # Errors
    /// [`Error::Template`] with the template's own message when it refuses the conversation, with the
    /// line of any other failure, and when fuel or the output limit run out. [`Error::Request`] for a
    /// role that is no plain word, an argument that would replace one of the template's own, or a date
    /// that is none.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<Rendered> {
        check(messages, options)?;
        let date = Date::parse(&options.date)?;
        let fuel = fuel(messages, options);
        let stack_bytes = usize::try_from(fuel * STACK_BYTES_PER_FUEL)
            .unwrap_or(usize::MAX)
            .saturating_add(STACK_BYTES);
        with_stack(stack_bytes, || {
            let mut environment = self.environment.clone();
            environment.set_fuel(Some(fuel));
            let template = environment
                .get_template(NAME)
                .map_err(|e| template_error(&e))?;
            let render = |texts: &[String]| {
                let mut output = Limited { bytes: Vec::new() };
                let context = context(messages, texts, options, date);
                template
                    .render_captured_to(context, &mut output)
                    .map_err(|e| template_error(&e))?;
                String::from_utf8(output.bytes).map_err(|e| Error::Template {
                    problem: e.to_string(),
                })
            };
            let texts = template_texts::all(messages, options);
            content_spans::render(&self.source, texts, options, render)
        })
    }
}

fn check(messages: &[Message], options: &RenderOptions) -> Result<()> {
    for (i, message) in messages.iter().enumerate() {
        let role = &message.role;
        // Templates write the role next to their control tokens, so it must not hold any.
        let plain = role
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if role.is_empty() || role.len() > MAX_ROLE_BYTES || !plain {
            let problem = format!("expected 1 to {MAX_ROLE_BYTES} letters, digits, \"_\" or \"-\"");
            return Err(Error::request(format!("messages[{i}].role"), problem));
        }
    }
    if let Some(name) = RESERVED
        .into_iter()
        .find(|name| options.kwargs.contains_key(*name))
    {
        return Err(Error::request(
            format!("chat_template_kwargs.{name}"),
            "is set by the runtime",
        ));
    }
    Ok(())
}

/// What a rendering may cost: a share for each message and for each of its bytes, so that neither a long
/// conversation runs dry nor a small one buys a hostile template time.
fn fuel(messages: &[Message], options: &RenderOptions) -> u64 {
    let bytes_of = |message: &Message| {
        let fields = &message.fields;
        let fields_bytes = match fields.is_empty() {
            true => 0,
            false => serde_json::Value::Object(fields.clone()).to_string().len(),
        };
        message.content.len() + fields_bytes
    };
    let message_bytes: usize = messages.iter().map(bytes_of).sum();
    let kwargs_bytes = serde_json::Value::Object(options.kwargs.clone())
        .to_string()
        .len();
    let share = 500 * messages.len() as u64 + (message_bytes + kwargs_bytes) as u64 / 4;
    (BASE_FUEL + share).min(MAX_FUEL)
}

/// `texts` stand in the places of [`template_texts::all`].
fn context(
    messages: &[Message],
    texts: &[String],
    options: &RenderOptions,
    date: Option<Date>,
) -> Value {
    let mut slots = Slots::new(texts);
    let messages: Value = messages.iter().map(|m| slots.message(m)).collect();
    let mut context: BTreeMap<&str, Value> =
        BTreeMap::from([("tools", Value::from(())), ("documents", Value::from(()))]);
    for (name, value) in &options.kwargs {
        let value = match template_texts::is_foreign(name) {
            true => slots.value(value),
            false => template_functions::from_json(value),
        };
        context.insert(name, value);
    }
    context.insert("messages", messages);
    context.insert(
        "add_generation_prompt",
        Value::from(options.add_generation_prompt),
    );
    context.insert("bos_token", Value::from(options.bos_token.as_str()));
    context.insert("eos_token", Value::from(options.eos_token.as_str()));
    if let Some(date) = date {
        context.insert(
            "strftime_now",
            Value::from_function(move |format: &str| date.format(format)),
        );
    }
    Value::from_pairs(context)
}

/// The template's own message where it raised one, else kind, detail and line of the innermost error.
fn template_error(error: &JinjaError) -> Error {
    let mut line = error.line();
    let mut problem = error.to_string();
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
            return Error::Template {
                problem: message.clone(),
            };
        }
        if let Some(inner) = inner.downcast_ref::<JinjaError>() {
            line = inner.line().or(line);
            problem = match inner.detail() {
                Some(detail) => format!("{}: {detail}", inner.kind()),
                None => inner.kind().to_string(),
            };
        }
        source = inner.source();
    }
    match line {
        Some(line) => Error::Template {
            problem: format!("line {line}: {problem}"),
        },
        None => Error::Template { problem },
    }
}

/// Collects a rendering up to [`MAX_OUTPUT_BYTES`].
struct Limited {
    bytes: Vec<u8>,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT_BYTES {
            return Err(io::Error::other(format!(
                "the output is longer than {MAX_OUTPUT_BYTES} bytes"
            )));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` on a thread with a stack of known size, as parser and interpreter recurse deeply; in a
/// browser, where there are no threads, right here. A panic becomes an error.
#[cfg_attr(
    target_arch = "wasm32",
    expect(unused_variables, reason = "the stack is the browser's")
)]
fn with_stack<T: Send>(stack_bytes: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let failed = || Error::Template {
        problem: "the template engine failed on this template".to_owned(),
    };
    let guarded = || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(failed()));
    #[cfg(target_arch = "wasm32")]
    return guarded();
    #[cfg(not(target_arch = "wasm32"))]
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".to_owned())
            .stack_size(stack_bytes);
        match thread.spawn_scoped(scope, guarded) {
            Ok(handle) => handle.join().unwrap_or_else(|_| Err(failed())),
            Err(e) => Err(Error::Template {
                problem: format!("no thread to render on: {e}"),
            }),
        }
    })
}
