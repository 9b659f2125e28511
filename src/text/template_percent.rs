//! `'%s of %d' % (a, b)` in templates: Python's formatting by an operator, which the engine has for numbers
//! alone. Where a text in quotes stands on the left, a filter takes the operator's place.

use std::ops::Range;

/// The filter that is written: it is applied to what stands on the left, and its argument is what stands on
/// the right.
pub(super) const FILTER: &str = "__percent";
/// The longest operand on the right, in bytes: what is behind the text may be looked through again.
const MAX_OPERAND: usize = 1024;

/// The same template with `('text' | FILTER(operand))` for `'text' % operand`. Lines and blanks stay.
pub(super) fn as_filters(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = String::with_capacity(source.len());
    let (mut at, mut copied) = (0, 0);
    // what ends the tag that this is in, and the braces that are open in it
    let mut tag: Option<&[u8]> = None;
    let mut braces = 0u32;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let Some(end) = tag else {
            if rest.starts_with(b"{#") {
                at = behind(source, at, "#}");
            } else if is_raw(rest) {
                at = behind(source, at, "endraw");
            } else if rest.starts_with(b"{%") || rest.starts_with(b"{{") {
                tag = Some(if rest[1] == b'%' { b"%}" } else { b"}}" });
                (braces, at) = (0, at + 2);
            } else {
                at += 1;
            }
            continue;
        };
        match rest[0] {
            _ if braces == 0 && rest.starts_with(end) => {
                tag = None;
                at += end.len();
            }
            b'\'' | b'"' => {
                let text = at..quoted(bytes, at).unwrap_or(bytes.len());
                at = text.end;
                if let Some(Range { start, end }) = operation(bytes, at) {
                    out.push_str(&source[copied..text.start]);
                    let (text, operand) = (&source[text.start..start], &source[start + 1..end]);
                    out.push_str(&format!("({text}|{FILTER}({operand}))"));
                    (at, copied) = (end, end);
                }
            }
            b'{' => (braces, at) = (braces + 1, at + 1),
            b'}' => (braces, at) = (braces.saturating_sub(1), at + 1),
            _ => at += 1,
        }
    }
    out.push_str(&source[copied..]);
    out
}

/// Where the next `mark` after `at` ends, or the source.
fn behind(source: &str, at: usize, mark: &str) -> usize {
    let found = source[at..].find(mark);
    found.map_or(source.len(), |found| at + found + mark.len())
}

fn is_raw(tag: &[u8]) -> bool {
    let inner = tag.strip_prefix(b"{%");
    let inner = inner.map(|inner| inner.strip_prefix(b"-").unwrap_or(inner).trim_ascii_start());
    inner.is_some_and(|inner| inner.starts_with(b"raw"))
}

/// Where the text in quotes that begins at `at` ends; `None` if it does not.
fn quoted(bytes: &[u8], at: usize) -> Option<usize> {
    let mut end = at + 1;
    while *bytes.get(end)? != bytes[at] {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    Some(end + 1)
}

/// The `%` that follows at `at` and its operand, with all that binds this one tighter.
fn operation(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let percent = blanks(bytes, at);
    if bytes.get(percent) != Some(&b'%') || bytes.get(percent + 1) == Some(&b'}') {
        return None;
    }
    let start = blanks(bytes, percent + 1);
    let bytes = &bytes[..bytes.len().min(start + MAX_OPERAND)];
    let signed = match bytes.get(start)? {
        b'-' | b'+' => blanks(bytes, start + 1),
        _ => start,
    };
    let mut end = match bytes.get(signed)? {
        b'\'' | b'"' => quoted(bytes, signed)?,
        b'(' | b'[' | b'{' => bracketed(bytes, signed)?,
        _ => word(bytes, signed)?,
    };
    loop {
        let next = blanks(bytes, end);
        end = match bytes.get(next) {
            Some(b'(' | b'[') => bracketed(bytes, next)?,
            Some(b'.' | b'|') => word(bytes, blanks(bytes, next + 1))?,
            Some(_) => return Some(percent..end),
            None => return None,
        };
    }
}

fn blanks(bytes: &[u8], mut at: usize) -> usize {
    while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
        at += 1;
    }
    at
}

/// Where the name or number that begins at `at` ends; `None` if there is none.
fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_' || !byte.is_ascii();
    let len = bytes.get(at..)?.iter().take_while(is_word).count();
    (len > 0).then_some(at + len)
}

/// Where the bracket that opens at `at` is closed; `None` if it is not.
fn bracketed(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut open = 0u32;
    loop {
        at = match bytes.get(at)? {
            b'\'' | b'"' => quoted(bytes, at)?,
            byte => {
                match byte {
                    b'(' | b'[' | b'{' => open += 1,
                    b')' | b']' | b'}' => open -= 1,
                    _ => {}
                }
                at + 1
            }
        };
        if open == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_in_tags_and_their_operands() {
        for (source, expected) in [
            ("{{ '%s' % x }}", "{{ ('%s' |__percent( x)) }}"),
            (
                "{%- set a = \"%d\\\"\"%(n, m.k[0])-%}",
                "{%- set a = (\"%d\\\"\"|__percent((n, m.k[0])))-%}",
            ),
            (
                "{{ a ~ '%s'\n% f(x).y | upper ~ b }}",
                "{{ a ~ ('%s'\n|__percent( f(x).y | upper)) ~ b }}",
            ),
            (
                "{{ '%s' % é if '}}' % -1.5 else {'a': {'%': '%%' % {}}} }}",
                "{{ ('%s' |__percent( é)) if ('}}' |__percent( -1.5)) else {'a': {'%': ('%%' |__percent( {}))}} }}",
            ),
        ] {
            assert_eq!(as_filters(source), expected);
        }
    }

    #[test]
    fn all_else_stays() {
        let long = format!("{{{{ '%s' % {} }}}}", "x".repeat(MAX_OPERAND));
        for source in [
            "'%s' % x",
            "{# '%s' % x #}{{ 3 % 2 }}{% set a = '100' %}{% set b = 'x'%}",
            "{%- raw %}{{ '%s' % x }}{% endraw %}",
            "{{ '%s' % }}{{ '%s' %",
            "{{ '%s' % (a",
            "{{ '%s' % 'a",
            "{{ 'open % x",
            "{{ '%s' % x",
            "{",
            "{{",
            "{{ '\\",
            "{{ a % 'b' }}",
            &long,
        ] {
            assert_eq!(as_filters(source), source);
        }
    }

    #[test]
    fn a_source_of_nothing_else_is_read_in_time() {
        let start = std::time::Instant::now();
        as_filters(&format!("{{{{ {}", "'' % (".repeat(170_000)));
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
