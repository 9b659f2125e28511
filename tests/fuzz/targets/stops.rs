//! Bytes to characters, and stop texts, against a search in the whole text.

use super::Target;
use nelumbo::text::TextStream;

pub const TARGET: Target = Target {
    name: "stops",
    run,
    seeds,
};

/// The first byte says how many stop texts there are; each is its length and so many bytes; what follows
/// is the text, in pieces of lengths that its own bytes give.
fn run(data: &[u8]) {
    let Some((&count, mut rest)) = data.split_first() else {
        return;
    };
    let mut stops = Vec::new();
    for _ in 0..count % 5 {
        let Some((&len, more)) = rest.split_first() else {
            break;
        };
        let (stop, more) = more.split_at(usize::from(len % 9).min(more.len()));
        stops.push(String::from_utf8_lossy(stop).into_owned());
        rest = more;
    }
    let mut stream = TextStream::new(stops.clone());
    let (mut shown, mut stopped) = (String::new(), None);
    let mut left = rest;
    while let Some(&byte) = left.first() {
        let (piece, more) = left.split_at(usize::from(byte % 5 + 1).min(left.len()));
        let piece = stream.push(piece);
        assert!(stopped.is_none() || (piece.text.is_empty() && piece.stopped == stopped));
        shown.push_str(&piece.text);
        stopped = piece.stopped;
        left = more;
        if stopped.is_none() {
            no_more_than_needed(&stops, &shown, &rest[..rest.len() - left.len()]);
        }
    }
    shown.push_str(&stream.finish());
    let (expected, end) = whole(&decoded(rest), &stops);
    assert_eq!(shown, expected);
    // an unfinished character becomes a bad one only when the answer is over already
    let unfinished = rest
        .utf8_chunks()
        .last()
        .is_some_and(|chunk| !chunk.invalid().is_empty());
    assert!(
        stopped == end || (stopped.is_none() && unfinished),
        "{stopped:?}, not {end:?}"
    );
}

/// Text of bytes: one U+FFFD for each unbroken run of bytes that are no characters.
fn decoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut bad = false;
    for chunk in bytes.utf8_chunks() {
        bad &= chunk.valid().is_empty();
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() && !bad {
            text.push('\u{FFFD}');
            bad = true;
        }
    }
    text
}

/// What is not shown yet may still become a stop text, or is an unfinished character.
fn no_more_than_needed(stops: &[String], shown: &str, read: &[u8]) {
    let text = decoded(read);
    // an unfinished character at the end counts as a bad one here, and may be one or belong to a run
    let certain = text.strip_suffix('\u{FFFD}').unwrap_or(&text);
    let longest = stops.iter().map(String::len).max().unwrap_or(0);
    assert!(text.starts_with(shown), "{shown:?} of {text:?}");
    let held = certain.get(shown.len()..).unwrap_or("");
    assert!(
        held.is_empty() || held.len() < longest,
        "{held:?} of {text:?}"
    );
    let may_become = |stop: &String| stop.len() > held.len() && stop.starts_with(held);
    assert!(
        held.is_empty() || stops.iter().any(may_become),
        "{held:?} of {text:?}"
    );
}

/// The whole text at once: the first end that completes a stop text, the longest of those.
fn whole(text: &str, stops: &[String]) -> (String, Option<usize>) {
    for end in 1..=text.len() {
        let read = &text.as_bytes()[..end];
        let ends = |stop: &String| !stop.is_empty() && read.ends_with(stop.as_bytes());
        let mut found: Option<usize> = None;
        for (i, stop) in stops.iter().enumerate().filter(|(_, stop)| ends(stop)) {
            if found.is_none_or(|best| stop.len() > stops[best].len()) {
                found = Some(i);
            }
        }
        if let Some(i) = found {
            return (text[..end - stops[i].len()].to_owned(), Some(i));
        }
    }
    (text.to_owned(), None)
}

fn seeds() -> Vec<Vec<u8>> {
    let seed = |stops: &[&str], text: &[u8]| {
        let mut data = vec![stops.len() as u8];
        for stop in stops {
            data.push(stop.len() as u8);
            data.extend(stop.as_bytes());
        }
        data.extend(text);
        data
    };
    vec![
        seed(&["<end>", "abcd"], "abcabcd one <end> two".as_bytes()),
        seed(&["\u{e9}", "aab", ""], "aaa\u{e9}\u{1F300}".as_bytes()),
        seed(&["\u{FFFD}x"], b"a\xF0\x9F\xFF\xFFx\xE2\x82"),
        seed(&[], "\u{D55C}\u{AD6D}".as_bytes()),
    ]
}
