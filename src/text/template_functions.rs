//! The functions and filters that chat templates expect beyond Jinja's own.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error as JinjaError, ErrorKind, Value};

use super::chat_template::MAX_OUTPUT_BYTES;

/// The deepest nesting that `tojson` follows.
const MAX_JSON_DEPTH: usize = 128;

/// The most parts of a list or a map that are printed.
const MAX_PRINTED_VALUES: usize = 100_000;

/// About what a value takes that is neither text nor made of others.
const PRINTED_NUMBER_BYTES: usize = 8;

/// The message of `raise_exception`, carried as the source of the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Adds `raise_exception` and a `tojson` that escapes nothing for HTML; takes out `pprint` and `debug`.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, JinjaError> {
            Err(
                JinjaError::new(ErrorKind::InvalidOperation, message.clone())
                    .with_source(Raised(message)),
            )
        },
    );
    environment.add_filter("tojson", to_json);
    environment.set_formatter(|out, state, value| {
        printed_bytes(value)?;
        match float(value) {
            Some(number) => out
                .write_str(&python_float(number))
                .map_err(JinjaError::from),
            None => minijinja::escape_formatter(out, state, value),
        }
    });
    // What these write grows with the square of a value's depth, before any fuel is charged.
    environment.remove_filter("pprint");
    environment.remove_global("debug");
}

/// The number, unless it is a whole one by type.
fn float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok())?
}

/// As Python prints it: the shortest digits that tell the number, with an exponent outside of 1e-4 to 1e16.
fn python_float(number: f64) -> String {
    let digits = format!("{number:e}");
    let Some((mantissa, exponent)) = digits.split_once('e') else {
        return number.to_string(); // no number at all
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{number:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// About how many bytes a value is as text. Refuses lists and maps that are nested too deeply, or whose shared
/// parts are too many when each is counted as often as it would be printed: fuel is charged for that only
/// afterwards.
pub(super) fn printed_bytes(value: &Value) -> Result<u64, JinjaError> {
    let mut open = vec![(value.clone(), 0)];
    let mut left = MAX_PRINTED_VALUES;
    let mut bytes: u64 = 0;
    while let Some((value, depth)) = open.pop() {
        let kind = value.kind();
        if !matches!(kind, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
            let len = value.as_str().map_or(PRINTED_NUMBER_BYTES, str::len);
            bytes = bytes.saturating_add(len as u64);
            continue;
        }
        for item in value.try_iter()? {
            if left == 0 || depth > MAX_JSON_DEPTH {
                let problem = format!(
                    "cannot print a value of more than {MAX_PRINTED_VALUES} parts or {MAX_JSON_DEPTH} levels"
                );
                return Err(JinjaError::new(ErrorKind::InvalidOperation, problem));
            }
            left -= 1;
            if kind == ValueKind::Map {
                open.push((value.get_item(&item)?, depth + 1));
            }
            open.push((item, depth + 1));
        }
    }
    Ok(bytes)
}

/// Replaces the tags `{% generation %}` and `{% endgeneration %}`, which mark training targets and mean
/// nothing here, by an `if` that is always taken. Line numbers and white space control stay.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        out.push_str(before);
        rest = tag;
        let Some(close) = tag.find("%}") else { break };
        let word = tag[..close].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        out.push_str(&tag[..close].replacen(word, replacement, 1));
        rest = &tag[close..];
    }
    out.push_str(rest);
    out
}

/// Python's `json.dumps` as templates call it: `tojson`, `tojson(indent=4)`. `ensure_ascii` is off
/// unless given, and white space follows separators.
fn to_json(value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<Value, JinjaError> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get::<Option<usize>>("indent")?,
    };
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;
    let mut item = if indent.is_some() { "," } else { ", " };
    let mut key = ": ";
    if let Some([first, second]) = separators.as_deref() {
        (item, key) = (first, second);
    }
    let mut writer = JsonWriter {
        out: String::new(),
        indent,
        item,
        key,
        ensure_ascii,
        sort_keys,
    };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

/// Lays JSON out as Python does.
struct JsonWriter<'a> {
    out: String,
    indent: Option<usize>,
    item: &'a str,
    key: &'a str,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), JinjaError> {
        let bad = |problem: String| Err(JinjaError::new(ErrorKind::BadSerialization, problem));
        // Values may share their parts, so a small template can build one that is huge when written out.
        if self.out.len() > MAX_OUTPUT_BYTES {
            return bad(format!(
                "the JSON text is longer than {MAX_OUTPUT_BYTES} bytes"
            ));
        }
        if depth > MAX_JSON_DEPTH {
            return bad(format!("the value is nested deeper than {MAX_JSON_DEPTH}"));
        }
        match value.kind() {
            ValueKind::Undefined => return bad("an undefined value has no JSON form".to_owned()),
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match float(value) {
                Some(number) => self.out.push_str(&python_float(number)),
                None => write!(self.out, "{value}").expect("writing to a string does not fail"),
            },
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    pairs.push((key.to_string(), value.get_item(&key)?));
                }
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.container(['{', '}'], depth, pairs.iter(), |writer, (key, value)| {
                    writer.string(key);
                    writer.out.push_str(writer.key);
                    writer.value(value, depth + 1)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.container(['[', ']'], depth, value.try_iter()?, |writer, value| {
                    writer.value(&value, depth + 1)
                })?;
            }
            kind => return bad(format!("a value of type {kind} has no JSON form")),
        }
        Ok(())
    }

    fn container<T>(
        &mut self,
        [open, close]: [char; 2],
        depth: usize,
        items: impl Iterator<Item = T>,
        write: impl Fn(&mut Self, T) -> Result<(), JinjaError>,
    ) -> Result<(), JinjaError> {
        self.out.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                self.out.push_str(self.item);
            }
            empty = false;
            self.new_line(depth + 1);
            write(self, item)?;
        }
        if !empty {
            self.new_line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            // Nobody indents wider, and the text must not outgrow the data.
            let width = indent.min(16) * depth;
            write!(self.out, "\n{:width$}", "").expect("writing to a string does not fail");
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{C}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}")
                            .expect("writing to a string does not fail");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// A value of the template language with the same content.
pub(super) fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(bool) => Value::from(*bool),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(from_json).collect(),
        serde_json::Value::Object(map) => Value::from_pairs(
            map.iter()
                .map(|(key, value)| (key.as_str(), from_json(value))),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_python_prints_them() {
        for (number, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-1.5e-7, "-1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (123_456_789.125, "123456789.125"),
            (f64::MAX, "1.7976931348623157e+308"),
        ] {
            assert_eq!(python_float(number), text);
        }
        assert_eq!(float(&Value::from(3)), None);
        assert_eq!(float(&Value::from(u64::MAX)), None);
        assert_eq!(float(&Value::from(3.0)), Some(3.0));
    }

    #[test]
    fn generation_tags() {
        let source =
            "a{%- generation -%}b{% endgeneration %}{% if generation %}{{ '{%' }}{% unclosed";
        assert_eq!(
            without_generation_tags(source),
            "a{%- if true -%}b{% endif %}{% if generation %}{{ '{%' }}{% unclosed"
        );
    }
}
