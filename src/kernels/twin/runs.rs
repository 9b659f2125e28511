//! Elements of a tensor by their places: what lies side by side is read and written at once.

use std::ops::Range;

/// Elements from a place on.
pub(crate) type Run<T> = (usize, Vec<T>);

/// The same elements, in order of their places, in as few runs as can be. No two may overlap.
pub(crate) fn joined<T>(mut runs: Vec<Run<T>>) -> Vec<Run<T>> {
    runs.sort_by_key(|(at, _)| *at);
    let mut all: Vec<Run<T>> = Vec::new();
    for (at, values) in runs {
        match all.last_mut() {
            Some((first, before)) if *first + before.len() == at => before.extend(values),
            _ => all.push((at, values)),
        }
    }
    all
}

/// Ranges that hold the numbers of `ids`, which ascend, each number being `size` elements.
pub(crate) fn ranges(ids: impl IntoIterator<Item = usize>, size: usize) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for id in ids {
        let range = id * size..(id + 1) * size;
        match all.last_mut() {
            Some(before) if before.end == range.start => before.end = range.end,
            _ => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_is_one() {
        let runs = vec![(6, vec![6, 7]), (0, vec![0, 1]), (9, vec![9]), (2, vec![2])];
        let expected = vec![(0, vec![0, 1, 2]), (6, vec![6, 7]), (9, vec![9])];
        assert_eq!(joined(runs), expected);
        assert_eq!(ranges([1, 2, 5], 4), [4..12, 20..24]);
    }
}
