//! Pieces by the greatest sum of scores.

use std::ops::Range;

/// What a character without a piece costs beyond the worst score.
const UNKNOWN_COST: f32 = 10.0;

/// All pieces in the order of their text, for finding those that begin at a place.
#[derive(Debug)]
pub(super) struct Trie {
    /// Sorted by text, each text once.
    sorted: Vec<(String, u32)>,
    /// Where the texts with a first byte lie in `sorted`.
    first: Box<[Range<usize>; 256]>,
    /// The score of a character without a piece.
    unknown_score: f32,
}

/// The best way to a place in the text.
#[derive(Clone, Copy)]
struct Way {
    /// Where the last piece begins.
    start: usize,
    id: Option<u32>,
    score: f32,
}

impl Trie {
    /// `pieces` are what a text may become, none of them empty; `worst` is the lowest score of all.
    pub(super) fn new(mut pieces: Vec<(String, u32)>, worst: f32) -> Trie {
        pieces.sort_unstable();
        let first = std::array::from_fn(|byte| {
            let from = pieces.partition_point(|(text, _)| usize::from(text.as_bytes()[0]) < byte);
            let to = pieces.partition_point(|(text, _)| usize::from(text.as_bytes()[0]) <= byte);
            from..to
        });
        Trie {
            sorted: pieces,
            first: Box::new(first),
            unknown_score: worst - UNKNOWN_COST,
        }
    }

    /// Calls `each` with the pieces of a text in order, and their ids where there are any. Of two ways
    /// with the same sum the one counts whose last piece is longer.
    pub(super) fn best(
        &self,
        scores: &[f32],
        text: &str,
        each: &mut impl FnMut(&str, Option<u32>),
    ) {
        let mut ways: Vec<Option<Way>> = vec![None; text.len() + 1];
        let improve = |ways: &mut Vec<Option<Way>>, end: usize, way: Way| {
            if ways[end].is_none_or(|known| way.score > known.score) {
                ways[end] = Some(way);
            }
        };
        for (start, c) in text.char_indices() {
            let so_far = ways[start].map_or(0.0, |way| way.score);
            let mut alone = false;
            self.each_prefix(&text.as_bytes()[start..], |len, id| {
                let score = scores[id as usize] + so_far;
                let id = Some(id);
                improve(&mut ways, start + len, Way { start, id, score });
                alone |= len == c.len_utf8();
            });
            if !alone {
                let score = self.unknown_score + so_far;
                let id = None;
                improve(&mut ways, start + c.len_utf8(), Way { start, id, score });
            }
        }
        let mut chosen = Vec::new();
        let mut end = text.len();
        while let Some(way) = ways[end] {
            chosen.push((way.start..end, way.id));
            end = way.start;
        }
        for (range, id) in chosen.into_iter().rev() {
            each(&text[range], id);
        }
    }

    /// Calls `each` with length and id of every piece that `bytes` begin with, the shortest first.
    fn each_prefix(&self, bytes: &[u8], mut each: impl FnMut(usize, u32)) {
        let Some(&first) = bytes.first() else {
            return;
        };
        let mut range = &self.sorted[self.first[usize::from(first)].clone()];
        for depth in 1..=bytes.len() {
            // the shortest comes first: it is complete or none is
            if let Some((text, id)) = range.first()
                && text.len() == depth
            {
                each(depth, *id);
                range = &range[1..];
            }
            if range.is_empty() || depth == bytes.len() {
                return;
            }
            let byte = bytes[depth];
            let key = |(text, _): &(String, u32)| text.as_bytes()[depth];
            let from = range.partition_point(|piece| key(piece) < byte);
            let len = range[from..].partition_point(|piece| key(piece) == byte);
            range = &range[from..from + len];
        }
    }
}
