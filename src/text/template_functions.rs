//! The functions and filters that chat templates expect beyond Jinja's own.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error as JinjaError, ErrorKind, Value};

use super::chat_template::MAX_OUTPUT_BYTES;
use crate::error::{Error, Result};

/// The deepest nesting that `tojson` follows.
const MAX_JSON_DEPTH: usize = 128;

/// The most parts of a list or a map that are printed.
const MAX_PRINTED_VALUES: usize = 100_000;

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
        check_size(value)?;
        minijinja::escape_formatter(out, state, value)
    });
    // What these write grows with the square of a value's depth, before any fuel is charged.
    environment.remove_filter("pprint");
    environment.remove_global("debug");
}

/// Refuses to print lists and maps that are nested too deeply, or whose shared parts are too many when
/// each is counted as often as it would be printed: fuel is charged for that only afterwards.
fn check_size(value: &Value) -> Result<(), JinjaError> {
    let mut open = vec![(value.clone(), 0)];
    let mut left = MAX_PRINTED_VALUES;
    while let Some((value, depth)) = open.pop() {
        let kind = value.kind();
        if !matches!(kind, ValueKind::Seq | ValueKind::Map) {
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
            let item = if kind == ValueKind::Map {
                value.get_item(&item)?
            } else {
                item
            };
            open.push((item, depth + 1));
        }
    }
    Ok(())
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
            ValueKind::Number => {
                write!(self.out, "{value}").expect("writing to a string does not fail")
            }
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

/// A point in time for `strftime_now`, told by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Date {
    year: u32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

impl Date {
    /// `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM:SS`; an empty text is no date.
    pub(super) fn parse(text: &str) -> Result<Option<Date>> {
        if text.is_empty() {
            return Ok(None);
        }
        let bad = || {
            Error::request(
                "date",
                format!("\"{text}\", expected YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS"),
            )
        };
        let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
        let numbers = |text: &str, separator: char, widths: [usize; 3]| -> Option<[u32; 3]> {
            let mut out = [0; 3];
            let mut parts = text.split(separator);
            for (number, width) in out.iter_mut().zip(widths) {
                let part = parts.next().filter(|part| {
                    part.len() == width && part.bytes().all(|b| b.is_ascii_digit())
                })?;
                *number = part.parse().ok()?;
            }
            parts.next().is_none().then_some(out)
        };
        let [year, month, day] = numbers(date, '-', [4, 2, 2]).ok_or_else(bad)?;
        let [hour, minute, second] = numbers(time, ':', [2, 2, 2]).ok_or_else(bad)?;
        let date = Date {
            year,
            month,
            day,
            hour,
            minute,
            second,
        };
        let in_range = (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 61;
        if in_range { Ok(Some(date)) } else { Err(bad()) }
    }

    /// C's `strftime` in English, for the conversions that a date and a time can answer.
    pub(super) fn format(self, format: &str) -> Result<String, JinjaError> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut conversion = chars.next();
            let unpadded = conversion == Some('-');
            if unpadded {
                conversion = chars.next();
            }
            let month = MONTHS[self.month as usize - 1];
            let weekday = WEEKDAYS[self.weekday() as usize];
            let (number, width) = match conversion {
                Some('Y') => (self.year, 4),
                Some('y') => (self.year % 100, 2),
                Some('m') => (self.month, 2),
                Some('d') => (self.day, 2),
                Some('j') => (self.day_of_year(), 3),
                Some('H') => (self.hour, 2),
                Some('I') => ((self.hour + 11) % 12 + 1, 2),
                Some('M') => (self.minute, 2),
                Some('S') => (self.second, 2),
                other => {
                    match other {
                        Some('B') => out.push_str(month),
                        Some('b' | 'h') => out.push_str(&month[..3]),
                        Some('A') => out.push_str(weekday),
                        Some('a') => out.push_str(&weekday[..3]),
                        Some('p') => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
                        Some('F') => out.push_str(&self.format("%Y-%m-%d")?),
                        Some('T') => out.push_str(&self.format("%H:%M:%S")?),
                        Some('e') => out.push_str(&format!("{:2}", self.day)),
                        Some('%') => out.push('%'),
                        _ => {
                            let problem =
                                format!("strftime_now does not know the conversion in {format:?}");
                            return Err(JinjaError::new(ErrorKind::InvalidOperation, problem));
                        }
                    }
                    continue;
                }
            };
            let width = if unpadded { 0 } else { width };
            write!(out, "{number:0width$}").expect("writing to a string does not fail");
        }
        Ok(out)
    }

    fn day_of_year(self) -> u32 {
        (1..self.month)
            .map(|month| days_in(self.year, month))
            .sum::<u32>()
            + self.day
    }

    /// 0 is Sunday. Counts days since the (proleptic Gregorian) year 0, whose first day was a Saturday.
    fn weekday(self) -> u32 {
        let leap_days = if self.year == 0 {
            0
        } else {
            (self.year - 1) / 4 - (self.year - 1) / 100 + (self.year - 1) / 400 + 1
        };
        (self.year * 365 + leap_days + self.day_of_year() - 1 + 6) % 7
    }
}

fn days_in(year: u32, month: u32) -> u32 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let date = Date::parse("2026-03-05T15:04:09").unwrap().unwrap();
        assert_eq!(
            date.format("%d %b %Y, %A %-d %B %I:%M:%S %p %j %y %e %%")
                .unwrap(),
            "05 Mar 2026, Thursday 5 March 03:04:09 PM 064 26  5 %"
        );
        let weekday = |text| Date::parse(text).unwrap().unwrap().format("%a").unwrap();
        assert_eq!(
            [
                weekday("2000-01-01"),
                weekday("2024-02-29"),
                weekday("1970-01-01")
            ],
            ["Sat", "Thu", "Thu"]
        );
        assert_eq!(
            [
                weekday("0000-01-01"),
                weekday("0001-01-01"),
                weekday("9999-12-31")
            ],
            ["Sat", "Mon", "Fri"]
        );
        assert!(date.format("%Q").is_err() && date.format("%").is_err());
        assert_eq!(Date::parse("").unwrap(), None);
        for bad in [
            "today",
            "2026-02-29",
            "2026-13-01",
            "2026-1-01",
            "2026-01-01T24:00:00",
            "+026-01-01",
        ] {
            assert!(
                Date::parse(bad)
                    .unwrap_err()
                    .to_string()
                    .starts_with("date: "),
                "{bad}"
            );
        }
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
