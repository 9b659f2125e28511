//! What templates may do with strings as Python does: methods, and `%` as an operator.
//!
//! The engine charges fuel for what filters and methods make, for most of them when it is made. Those here
//! can make texts that are far longer than what they are given, so they are paid for before they run.

use minijinja::value::Rest;
use minijinja::{Environment, Error as JinjaError, State, Value};
use minijinja_contrib::pycompat;

use super::template_functions::printed_bytes;
use super::template_percent::FILTER;

/// The engine's own filters under other names: `format` and `join` are paid for first.
const ENGINE_FORMAT: &str = "__engine_format";
const ENGINE_JOIN: &str = "__engine_join";
/// Bytes that a unit of fuel pays for, as in the engine.
const BYTES_PER_FUEL: u64 = 64;

/// Adds the methods of Python's strings, lists and maps, and what [`super::template_percent`] writes.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.set_unknown_method_callback(method);
    environment.add_filter(ENGINE_FORMAT, minijinja::filters::format);
    environment.add_filter("format", format);
    environment.add_filter(ENGINE_JOIN, minijinja::filters::join);
    environment.add_filter("join", join);
    environment.add_filter(FILTER, percent);
}

fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, JinjaError> {
    match (value.as_str(), name) {
        (Some(text), "format") => pay(state, formatted_bytes(text, '{', args)?)?,
        (Some(_), "join") => pay(state, all_bytes(args)?)?,
        _ => {}
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

fn format(state: &mut State, text: &Value, args: Rest<Value>) -> Result<Value, JinjaError> {
    if let Some(text) = text.as_str() {
        pay(state, formatted_bytes(text, '%', &args)?)?;
    }
    let args: Vec<Value> = std::iter::once(text.clone())
        .chain(args.iter().cloned())
        .collect();
    state.apply_filter(ENGINE_FORMAT, &args)
}

fn join(state: &mut State, values: &Value, args: Rest<Value>) -> Result<Value, JinjaError> {
    pay(state, printed_bytes(values)?)?;
    let args: Vec<Value> = std::iter::once(values.clone())
        .chain(args.iter().cloned())
        .collect();
    state.apply_filter(ENGINE_JOIN, &args)
}

/// `text % operand`: a tuple is a list of arguments.
fn percent(state: &mut State, text: &Value, operand: Value) -> Result<Value, JinjaError> {
    let args = match operand.is_tuple() {
        true => operand.try_iter()?.collect(),
        false => vec![operand],
    };
    format(state, text, Rest(args))
}

fn pay(state: &State, bytes: u64) -> Result<(), JinjaError> {
    state.consume_fuel(bytes / BYTES_PER_FUEL)
}

/// The most bytes that a text with fields, each begun by `mark`, can become: every field is as wide as the
/// numbers in it say, and may hold all arguments.
fn formatted_bytes(text: &str, mark: char, args: &[Value]) -> Result<u64, JinjaError> {
    let args = all_bytes(args)?;
    let mut bytes = text.len() as u64;
    for field in text.split(mark).skip(1) {
        let digits = spec(field, mark).split(|c: char| !c.is_ascii_digit());
        let numbers = digits.filter(|digits| !digits.is_empty());
        // what is no number at all is refused when it is read
        let widths = numbers.map(|digits| digits.parse().unwrap_or(u64::MAX));
        bytes = widths.chain([args]).fold(bytes, u64::saturating_add);
    }
    Ok(bytes)
}

/// The beginning of a field that tells width and precision.
fn spec(field: &str, mark: char) -> &str {
    if mark == '{' {
        return field.split('}').next().unwrap_or_default();
    }
    let key = field.strip_prefix('(').and_then(|key| key.split_once(')'));
    let after = key.map_or(field, |(_, after)| after);
    let is_spec = |c: char| c.is_ascii_digit() || "#-+ .*".contains(c);
    let end = after.find(|c| !is_spec(c)).unwrap_or(after.len());
    &after[..end]
}

fn all_bytes(values: &[Value]) -> Result<u64, JinjaError> {
    let mut bytes: u64 = 0;
    for value in values {
        bytes = bytes.saturating_add(printed_bytes(value)?);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_format_can_become() {
        let bytes = |text, mark| formatted_bytes(text, mark, &[Value::from("four")]).unwrap();
        assert_eq!(bytes("no field 999", '{'), 12);
        assert_eq!(bytes("a{}b 999", '{'), 8 + 4);
        assert_eq!(bytes("{:>70}{0:5.90f}", '{'), 15 + 70 + 5 + 90 + 2 * 4);
        assert_eq!(bytes("{:99999999999999999999}", '{'), u64::MAX);
        assert_eq!(bytes("%s 999", '%'), 6 + 4);
        assert_eq!(bytes("%(a1)-70.8s 999", '%'), 15 + 78 + 4);
        assert_eq!(bytes("%%", '%'), 2 + 2 * 4);
    }
}
