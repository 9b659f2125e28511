//! `--trace FILE`: requests that were recorded.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use nelumbo::engine::simulate::arrivals::MOST_REQUESTS;
use nelumbo::engine::simulate::{Arrival, Prefix};
use serde_json::Value;

use crate::exit::Failure;
use crate::reading;

/// No trace has more bytes.
const MAX_BYTES: u64 = 256 << 20;

/// The requests of the file, in order of time.
///
/// # Errors
/// [`Failure::Io`]; [`Failure::Usage`] that names file, line and field.
pub fn read(path: &Path) -> Result<Vec<Arrival>, Failure> {
    let file = File::open(path).map_err(Failure::io(path))?;
    let text = reading::read_text(file, path, MAX_BYTES)?;
    let wrong = |problem: String| Failure::Usage(format!("--trace: {}: {problem}", path.display()));
    let mut arrivals = parse(&text).map_err(wrong)?;
    if arrivals.is_empty() {
        return Err(wrong("has no requests".to_owned()));
    }
    if arrivals.len() > MOST_REQUESTS {
        let problem = format!("has {} requests, at most {MOST_REQUESTS}", arrivals.len());
        return Err(wrong(problem));
    }
    arrivals.sort_by(|a, b| a.at.total_cmp(&b.at));
    Ok(arrivals)
}

fn parse(text: &str) -> Result<Vec<Arrival>, String> {
    // what the engine recorded is one object; its first line alone may be no whole one
    if text.trim_start().starts_with('{')
        && let Ok(Value::Object(file)) = serde_json::from_str(text)
        && let Some(events) = file.get("traceEvents")
    {
        let cut = file
            .get("otherData")
            .and_then(|other| other["dropped_steps"].as_u64());
        if let Some(steps) = cut.filter(|&steps| steps > 0) {
            return Err(format!(
                "\"dropped_steps\" is {steps}: the first steps were not kept, so not all requests are whole"
            ));
        }
        return of_engine(events);
    }
    let mut groups = BTreeMap::new();
    let lines = text
        .lines()
        .zip(1..)
        .filter(|(line, _)| !line.trim().is_empty());
    lines
        .map(|(line, number)| {
            arrival(line, &mut groups).map_err(|problem| format!("line {number}: {problem}"))
        })
        .collect()
}

fn arrival(line: &str, groups: &mut BTreeMap<String, u64>) -> Result<Arrival, String> {
    let row: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let row = row.as_object().ok_or("is no JSON object")?;
    let field = |name: &str| row.get(name).filter(|value| !value.is_null());
    let count = |name: &str| match field(name) {
        None => Ok(None),
        Some(value) => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            None => Err(format!("\"{name}\" is {value}, expected a whole number")),
            count => Ok(count),
        },
    };
    let needed = |name: &str| count(name)?.ok_or_else(|| format!("\"{name}\" is missing"));
    let at = field("arrival_s").ok_or("\"arrival_s\" is missing")?;
    let at = at
        .as_f64()
        .ok_or_else(|| format!("\"arrival_s\" is {at}, expected seconds"))?;
    let prompt_tokens = needed("prompt_tokens")?;
    let shared = count("prefix_tokens")?;
    let prefix = match (field("prefix_group"), shared) {
        (None, None) => None,
        (None, Some(_)) => return Err("\"prefix_tokens\" without \"prefix_group\"".to_owned()),
        (Some(name @ (Value::String(_) | Value::Number(_))), shared) => {
            let next = groups.len() as u64;
            Some(Prefix {
                group: *groups.entry(name.to_string()).or_insert(next),
                tokens: shared.unwrap_or(prompt_tokens),
            })
        }
        (Some(_), _) => return Err("\"prefix_group\" is neither a text nor a number".to_owned()),
    };
    let arrival = Arrival {
        at,
        prompt_tokens,
        output_tokens: needed("output_tokens")?,
        prefix,
    };
    match arrival.problem() {
        Some((field, problem)) => Err(format!("\"{field}\" {problem}")),
        None => Ok(arrival),
    }
}

/// Of the engine's own trace: a request has come when its first tokens were computed, since how long it had
/// waited is not in there.
fn of_engine(events: &Value) -> Result<Vec<Arrival>, String> {
    let events = events.as_array().ok_or("\"traceEvents\" is no list")?;
    let mut requests: BTreeMap<u64, Arrival> = BTreeMap::new();
    for (event, number) in events.iter().zip(1..) {
        let row = event["tid"].as_u64().unwrap_or(0);
        if event["cat"] != "engine" || event["ph"] != "X" || row == 0 {
            continue;
        }
        let of = |value: &Value, name: &str| {
            let number = value[name].as_f64().filter(|n| *n >= 0.0 && *n < 1e15);
            number.ok_or_else(|| {
                format!("\"traceEvents\": event {number:?}: \"{name}\" is no number")
            })
        };
        let named = |problem: String| format!("event {number}: {problem}");
        let args = &event["args"];
        let at = of(event, "ts").map_err(named)? / 1e6;
        let (start, tokens) = (
            of(args, "start").map_err(named)?,
            of(args, "tokens").map_err(named)?,
        );
        let proposed = args["proposed"].as_u64().unwrap_or(0) as usize; // none in older traces
        let proposed = proposed.min((start + tokens) as usize);
        let draws = of(args, "draws").map_err(named)? > 0.0;
        let request = requests.entry(row).or_insert(Arrival {
            at,
            prompt_tokens: 0,
            output_tokens: 0,
            prefix: None,
        });
        // what was only proposed counts where a later step has it
        let known = (start + tokens) as usize - proposed;
        if request.output_tokens == 0 {
            request.prompt_tokens = known;
        }
        if draws {
            let answered = known.saturating_sub(request.prompt_tokens);
            request.output_tokens = request.output_tokens.max(answered + 1);
        }
    }
    // who never drew a token was cancelled, or the trace was taken before
    let done = requests.into_values().filter(|r| r.output_tokens > 0);
    let arrivals: Vec<Arrival> = done.collect();
    match arrivals.iter().find_map(Arrival::problem) {
        Some((field, problem)) => Err(format!("\"traceEvents\": \"{field}\" {problem}")),
        None => Ok(arrivals),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_line() {
        let text = "{\"arrival_s\":0.5,\"prompt_tokens\":100,\"output_tokens\":7}\n\n\
                    {\"arrival_s\":1,\"prompt_tokens\":50,\"output_tokens\":1,\"prefix_group\":\"sys\",\
                    \"prefix_tokens\":32,\"user\":\"x\"}\n\
                    {\"arrival_s\":2,\"prompt_tokens\":50,\"output_tokens\":1,\"prefix_group\":\"sys\"}\n";
        let arrivals = parse(text).unwrap();
        assert_eq!((arrivals.len(), arrivals[0].prompt_tokens), (3, 100));
        assert_eq!(arrivals[1].prefix.unwrap().tokens, 32);
        assert_eq!(arrivals[2].prefix.unwrap().tokens, 50);
        assert_eq!(
            arrivals[1].prefix.unwrap().group,
            arrivals[2].prefix.unwrap().group
        );
    }

    #[test]
    fn what_is_wrong_is_told_by_line_and_field() {
        let right = "{\"arrival_s\":0,\"prompt_tokens\":5,\"output_tokens\":5}";
        let with = |change: &str| format!("{right}\n{}", change);
        for (text, part) in [
            (with("x"), "line 2: expected value"),
            (with("[]"), "line 2: is no JSON object"),
            (with("{\"prompt_tokens\":5,\"output_tokens\":5}"), "line 2: \"arrival_s\" is missing"),
            (with("{\"arrival_s\":\"now\",\"prompt_tokens\":5}"), "line 2: \"arrival_s\" is \"now\""),
            (with("{\"arrival_s\":-1,\"prompt_tokens\":5,\"output_tokens\":5}"), "line 2: \"arrival_s\" is -1"),
            (with("{\"arrival_s\":0,\"prompt_tokens\":0,\"output_tokens\":5}"), "line 2: \"prompt_tokens\" is 0"),
            (with("{\"arrival_s\":0,\"prompt_tokens\":5}"), "line 2: \"output_tokens\" is missing"),
            (with("{\"arrival_s\":0,\"prompt_tokens\":5,\"output_tokens\":1.5}"), "\"output_tokens\" is 1.5"),
            (
                with("{\"arrival_s\":0,\"prompt_tokens\":5,\"output_tokens\":9999999999}"),
                "\"output_tokens\" is 9999999999",
            ),
            (
                with("{\"arrival_s\":0,\"prompt_tokens\":5,\"output_tokens\":5,\"prefix_tokens\":3}"),
                "without \"prefix_group\"",
            ),
            (
                with("{\"arrival_s\":0,\"prompt_tokens\":5,\"output_tokens\":5,\"prefix_group\":1,\"prefix_tokens\":9}"),
                "\"prefix_tokens\" is 9",
            ),
            (
                "{\"traceEvents\":[],\"otherData\":{\"dropped_steps\":4}}".to_owned(),
                "\"dropped_steps\" is 4",
            ),
            (
                "{\"traceEvents\":[{\"cat\":\"engine\",\"ph\":\"X\",\"tid\":1,\"ts\":0,\"args\":{}}]}".to_owned(),
                "event 1",
            ),
        ] {
            let problem = parse(&text).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn what_the_engine_recorded_is_read_as_well() {
        let span = |row: u64, ts: f64, start: u64, tokens: u64, draws: u64| {
            serde_json::json!({ "cat": "engine", "ph": "X", "tid": row, "ts": ts,
                                "args": { "start": start, "tokens": tokens, "draws": draws } })
        };
        let events = serde_json::json!([
            span(0, 0.0, 0, 20, 0),
            span(4, 1e6, 0, 16, 0),
            span(4, 2e6, 16, 4, 1),
            span(5, 2e6, 0, 3, 1),
            span(4, 3e6, 20, 1, 1),
            span(6, 3e6, 0, 9, 0),
        ]);
        let arrivals = of_engine(&events).unwrap();
        let of = |a: &Arrival| (a.at, a.prompt_tokens, a.output_tokens);
        assert_eq!(
            arrivals.iter().map(of).collect::<Vec<_>>(),
            [(1.0, 20, 2), (2.0, 3, 1)]
        );
        // a step that verified four tokens, of which three were right, and the next
        let mut verified = span(7, 2e6, 10, 5, 5);
        verified["args"]["proposed"] = 4.into();
        let events = serde_json::json!([span(7, 1e6, 0, 10, 1), verified, span(7, 3e6, 14, 1, 1)]);
        let arrivals = of_engine(&events).unwrap();
        assert_eq!(arrivals.iter().map(of).collect::<Vec<_>>(), [(1.0, 10, 6)]);
    }
}
