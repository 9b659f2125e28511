//! Lists of token counts: `512`, `128,256`, `0-512+256`, and these joined by commas.

use crate::values::MAX_CONTEXT;

/// More values than this in one list are a slip of the fingers.
const MOST_VALUES: usize = 64;

/// A list with at least one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts(pub Vec<usize>);

/// Reads a list; says what is wrong with it.
pub fn counts(text: &str) -> Result<Counts, String> {
    let mut values = Vec::new();
    for item in text.split(',') {
        let (first, last, step) = range(item.trim())?;
        for value in (first..=last).step_by(step) {
            if values.len() == MOST_VALUES {
                return Err(format!("more than {MOST_VALUES} values"));
            }
            values.push(value);
        }
    }
    Ok(Counts(values))
}

/// `first-last+step`, `first-last` or one value, as first, last and step.
fn range(item: &str) -> Result<(usize, usize, usize), String> {
    let Some((first, rest)) = item.split_once('-') else {
        let value = count(item)?;
        return Ok((value, value, 1));
    };
    let (last, step) = match rest.split_once('+') {
        Some((last, step)) => (last, count(step)?),
        None => (rest, 1),
    };
    let (first, last) = (count(first)?, count(last)?);
    if first > last {
        return Err(format!("\"{item}\" runs from {first} down to {last}"));
    }
    if step == 0 {
        return Err(format!("\"{item}\" has a step of 0"));
    }
    Ok((first, last, step))
}

fn count(text: &str) -> Result<usize, String> {
    let expected = || format!("\"{text}\" is not in 0..={MAX_CONTEXT}, nor FIRST-LAST+STEP");
    let value: usize = text.parse().map_err(|_| expected())?;
    if value > MAX_CONTEXT as usize {
        return Err(expected());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<usize> {
        counts(text).unwrap().0
    }

    #[test]
    fn lists_and_ranges() {
        assert_eq!(read("512"), [512]);
        assert_eq!(read("0, 512"), [0, 512]);
        assert_eq!(read("0-512+256"), [0, 256, 512]);
        assert_eq!(read("1-3"), [1, 2, 3]);
        assert_eq!(read("128-300+100,7"), [128, 228, 7]);
        assert_eq!(read("5-5+9"), [5]);
        assert_eq!(read("1-64").len(), MOST_VALUES);
    }

    #[test]
    fn what_is_no_list_is_told() {
        for (text, part) in [
            ("", "\"\""),
            ("abc", "abc"),
            ("1,,2", "\"\""),
            ("1,", "\"\""),
            ("-1", "\"\""),
            ("1-", "\"\""),
            ("9-1", "down"),
            ("1-9+0", "step"),
            ("1-9+x", "\"x\""),
            ("1-2-3", "2-3"),
            ("1-65", "more than 64"),
            ("0-16777216", "more than 64"),
            ("16777217", "16777217"),
            ("99999999999999999999", "99999"),
            ("1.5", "1.5"),
        ] {
            let problem = counts(text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}
