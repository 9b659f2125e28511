//! Pieces by joining neighbours, the best score first, the first in the text among equals.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use super::pieces::Pieces;

/// A part of the text in a list of such parts; parts that were joined to the one before are empty.
struct Part {
    range: Range<usize>,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours whose text is a piece.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both when the pair was found; another length means that one of them has changed.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

/// Calls `each` with the pieces of a text in order, and their ids where there are any.
pub(super) fn join(pieces: &Pieces, text: &str, each: &mut impl FnMut(&str, Option<u32>)) {
    let mut parts: Vec<Part> = Vec::with_capacity(text.len());
    for (start, c) in text.char_indices() {
        let index = parts.len();
        parts.push(Part {
            range: start..start + c.len_utf8(),
            prev: index.checked_sub(1),
            next: Some(index + 1),
        });
    }
    match parts.last_mut() {
        Some(last) => last.next = None,
        None => return,
    }
    let mut joins = Joins {
        pieces,
        text,
        queue: BinaryHeap::with_capacity(parts.len()),
        halves: HashMap::new(),
    };
    for right in 1..parts.len() {
        joins.find(&parts, Some(right - 1), Some(right));
    }
    while let Some(Pair {
        left, right, len, ..
    }) = joins.queue.pop()
    {
        let (a, b) = (&parts[left].range, &parts[right].range);
        if a.is_empty() || b.is_empty() || a.len() + b.len() != len {
            continue;
        }
        let (end, next) = (b.end, parts[right].next);
        parts[right].range = end..end;
        parts[left].range.end = end;
        parts[left].next = next;
        if let Some(next) = next {
            parts[next].prev = Some(left);
        }
        joins.find(&parts, parts[left].prev, Some(left));
        joins.find(&parts, Some(left), next);
    }
    let mut at = Some(0);
    while let Some(part) = at.map(|index| &parts[index]) {
        joins.emit(&text[part.range.clone()], each);
        at = part.next;
    }
}

struct Joins<'a> {
    pieces: &'a Pieces,
    text: &'a str,
    queue: BinaryHeap<Pair>,
    /// What a piece that only leads to others was joined from.
    halves: HashMap<&'a str, (&'a str, &'a str)>,
}

impl<'a> Joins<'a> {
    /// Remembers two neighbours, if there are two and their text is a piece.
    fn find(&mut self, parts: &[Part], left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else {
            return;
        };
        let (a, b) = (&parts[left].range, &parts[right].range);
        let whole = &self.text[a.start..b.end];
        let Some((_, score, only_a_step)) = self.pieces.piece(whole) else {
            return;
        };
        let len = whole.len();
        self.queue.push(Pair {
            score,
            left,
            right,
            len,
        });
        if only_a_step {
            let halves = (&self.text[a.clone()], &self.text[b.clone()]);
            self.halves.insert(whole, halves);
        }
    }

    /// Tells a part; one that is only a step to others is taken apart again.
    fn emit(&self, part: &'a str, each: &mut impl FnMut(&str, Option<u32>)) {
        let mut left_over = vec![part];
        while let Some(part) = left_over.pop() {
            match self.pieces.piece(part) {
                Some((_, _, true)) if self.halves.contains_key(part) => {
                    let (first, second) = self.halves[part];
                    left_over.push(second);
                    left_over.push(first);
                }
                found => each(part, found.map(|(id, _, _)| id)),
            }
        }
    }
}
