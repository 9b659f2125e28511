//! Which tunings are tried, in which order, and which one wins: values alone.
//!
//! From the default on one thing is changed at a time, the most promising first. What is faster by
//! more than a margin is kept, and the next change is made to that. Whoever measures brings times.

use crate::kernels::{Activations, Tuning};
use std::sync::Arc;

/// A change has to make things faster by more than this share: less is noise.
const MARGIN: f64 = 0.03;

/// A change that was late so often is left out. A driver that remembers what it has compiled needs
/// one run for the best so far, and one for the candidate.
pub const MOST_LATE: u32 = 3;

/// Choices that are somebody else's already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// How activations are passed.
    pub activations: bool,
    /// Lanes of a row.
    pub lanes: bool,
}

/// One thing that may be done otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Pass activations this way.
    Activations(Activations),
    /// Share a row among so many.
    Lanes(u32),
    /// Have so many invocations in a workgroup.
    Workgroup(u32),
    /// Hold so many tokens at most.
    TileTokens(u32),
    /// Use subgroups if they are not used, and the other way round.
    Subgroups,
    /// The same for wide loads.
    Wide,
}

/// What is tried, in order. Activations and lanes come first: they are part of the numerics, so what
/// is tried after them is held against bits that were computed without it. Where every invocation is
/// a CPU's SIMD lane a row is never shared.
pub fn changes(software: bool, pins: Pins) -> Vec<Change> {
    let mut all = vec![Change::Activations(Activations::Q8)];
    if software {
        all.extend([Change::TileTokens(4), Change::Wide, Change::Subgroups]);
    } else {
        all.extend([16, 4, 32, 8].map(Change::Lanes));
        all.extend([128, 256, 64].map(Change::Workgroup));
        all.extend([Change::TileTokens(4), Change::Subgroups, Change::Wide]);
    }
    all.retain(|change| match change {
        Change::Activations(_) => !pins.activations,
        Change::Lanes(_) => !pins.lanes,
        _ => true,
    });
    all
}

impl Change {
    /// `from` with the change made, first as it is wanted, then as it may be had instead.
    fn apply(self, from: Tuning) -> Vec<Tuning> {
        match self {
            Change::Activations(activations) => vec![Tuning {
                activations,
                ..from
            }],
            Change::Lanes(lanes) => [lanes > 1, false]
                .map(|subgroups| Tuning {
                    lanes,
                    workgroup: 64.max(8 * lanes),
                    subgroups,
                    wide: false,
                    ..from
                })
                .to_vec(),
            Change::Workgroup(workgroup) => vec![Tuning { workgroup, ..from }],
            Change::TileTokens(tile_tokens) => vec![Tuning {
                tile_tokens,
                ..from
            }],
            // wide loads are made for neighbours that share what they load
            Change::Subgroups => vec![Tuning {
                subgroups: !from.subgroups,
                wide: false,
                ..from
            }],
            Change::Wide if from.wide || (from.subgroups && from.lanes == 1) => vec![Tuning {
                wide: !from.wide,
                ..from
            }],
            Change::Wide => Vec::new(),
        }
    }
}

/// How far a walk has come: what is kept of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The best so far.
    pub best: Tuning,
    /// Changes that have been tried.
    pub next: usize,
    /// How often there was no time for the next one, although it was the first of its run.
    pub late: u32,
}

impl Progress {
    /// Nothing has been tried.
    pub fn from(base: Tuning) -> Progress {
        Progress {
            best: base,
            next: 0,
            late: 0,
        }
    }
}

/// Whether a tuning can be had.
pub type Possible = Arc<dyn Fn(&Tuning) -> bool + Send + Sync>;

/// A walk from the default to something better. It may take several runs: one that ends for want of
/// time is taken up where it was, and by then drivers may remember what they have compiled. What is
/// late [`MOST_LATE`] times is left out, so that every walk ends.
#[derive(Clone)]
pub struct Search {
    progress: Progress,
    changes: Vec<Change>,
    tried: Vec<Tuning>,
    judged: usize,
    /// The change that was late in earlier runs, and how often.
    late_before: (usize, u32),
    possible: Possible,
}

impl Search {
    /// On from `progress` through `changes`; what is not `possible` is not tried.
    pub fn new(progress: Progress, changes: Vec<Change>, possible: Possible) -> Search {
        Search {
            progress,
            changes,
            tried: vec![progress.best],
            judged: 0,
            late_before: (progress.next, progress.late),
            possible,
        }
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The best so far.
    pub fn best(&self) -> Tuning {
        self.progress.best
    }

    /// Whether there is nothing left to try.
    pub fn is_over(&self) -> bool {
        self.progress.next >= self.changes.len()
    }

    /// What to measure next, against the best so far.
    pub fn next_candidate(&mut self) -> Option<Tuning> {
        while let Some(change) = self.changes.get(self.progress.next) {
            self.progress.next += 1;
            self.progress.late = 0;
            let mut wanted = change.apply(self.best()).into_iter();
            let candidate = wanted.find(|t| (self.possible)(t));
            if let Some(candidate) = candidate.filter(|t| !self.tried.contains(t)) {
                self.tried.push(candidate);
                return Some(candidate);
            }
        }
        None
    }

    /// Takes `candidate` for the best if it took less than the best did, by the margin; says whether.
    pub fn judge(&mut self, candidate: Tuning, best_seconds: f64, seconds: f64) -> bool {
        self.judged += 1;
        let better = seconds < best_seconds * (1.0 - MARGIN);
        if better {
            self.progress.best = candidate;
        }
        better
    }

    /// The time is over, before the next candidate or, when it has `begun`, within it.
    pub fn out_of_time(&mut self, begun: bool) {
        let at = self.progress.next - usize::from(begun);
        let alone = begun || self.judged == 0;
        let (change, before) = self.late_before;
        let late = u32::from(alone) + if change == at { before } else { 0 };
        (self.progress.next, self.progress.late) = if late >= MOST_LATE {
            (at + 1, 0)
        } else {
            (at, late)
        };
    }
}

/// How much time is left, in seconds from the start.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    limit: f64,
    longest: f64,
}

impl Budget {
    /// `limit` seconds for everything.
    pub fn new(limit: f64) -> Budget {
        Budget {
            limit,
            longest: 0.0,
        }
    }

    /// Notes what something took.
    pub fn spent(&mut self, seconds: f64) {
        self.longest = self.longest.max(seconds);
    }

    /// Whether, at `elapsed`, there is time for one more that takes as long as the longest so far.
    pub fn allows_another(&self, elapsed: f64) -> bool {
        elapsed + self.longest <= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{f16, q8};

    const BASE: Tuning = Tuning {
        activations: Activations::F32,
        lanes: 1,
        workgroup: 8,
        tile_tokens: 8,
        subgroups: true,
        wide: true,
    };
    const GPU: Tuning = Tuning {
        lanes: 8,
        workgroup: 64,
        wide: false,
        ..BASE
    };

    /// The tunings tried and the winner, where `seconds` tells what each takes.
    fn walk(
        base: Tuning,
        changes: Vec<Change>,
        possible: fn(&Tuning) -> bool,
        seconds: impl Fn(&Tuning) -> f64,
    ) -> (Vec<Tuning>, Tuning) {
        let mut search = Search::new(Progress::from(base), changes, Arc::new(possible));
        let mut tried = Vec::new();
        while let Some(candidate) = search.next_candidate() {
            let best = search.best();
            let better = search.judge(candidate, seconds(&best), seconds(&candidate));
            assert_eq!(search.best(), if better { candidate } else { best });
            tried.push(candidate);
        }
        assert!(search.is_over());
        (tried, search.best())
    }

    #[test]
    fn a_walk_goes_on_where_the_time_was_over() {
        let all = changes(true, Pins::default());
        let run = |progress| Search::new(progress, all.clone(), Arc::new(on_q8));
        let start = Progress::from(BASE);

        // nothing was begun, too often: the first change is left out
        let mut late = start;
        for times in 1..MOST_LATE {
            let mut search = run(late);
            search.out_of_time(false);
            late = search.progress();
            assert_eq!((late.next, late.late, late.best), (0, times, BASE));
        }
        let mut search = run(late);
        search.out_of_time(false);
        let gone = search.progress();
        assert_eq!((gone.next, gone.late), (1, 0));

        // the last time it is in time
        let mut search = run(late);
        let q8 = search.next_candidate().unwrap();
        assert_eq!(q8.activations, Activations::Q8);
        assert!(search.judge(q8, 1.0, 0.5));
        search.out_of_time(false);
        let half = search.progress();
        assert_eq!((half.next, half.late, half.best), (1, 0, q8));

        // late within a candidate: tried again, then left out
        let mut late = half;
        for times in 1..MOST_LATE {
            let mut search = run(late);
            assert_eq!(search.next_candidate().unwrap().tile_tokens, 4);
            search.out_of_time(true);
            late = search.progress();
            assert_eq!((late.next, late.late, late.best), (1, times, q8));
        }
        let mut search = run(late);
        search.next_candidate().unwrap();
        search.out_of_time(true);
        assert_eq!((search.progress().next, search.progress().late), (2, 0));

        // whatever happens, it ends
        let mut progress = start;
        for _ in 0..MOST_LATE as usize * all.len() {
            let mut search = run(progress);
            assert!(!search.is_over());
            if search.next_candidate().is_some() {
                search.out_of_time(true);
            }
            progress = search.progress();
        }
        assert!(run(progress).is_over());
    }

    fn on_q8(tuning: &Tuning) -> bool {
        tuning.is_possible(&q8::Q8)
    }

    #[test]
    fn only_what_is_faster_by_more_than_the_margin_is_adopted() {
        for (q8, adopted) in [
            (0.969, true),
            (0.971, false),
            (1.0, false),
            (f64::NAN, false),
        ] {
            let of = |t: &Tuning| {
                if t.activations == Activations::Q8 {
                    q8
                } else {
                    1.0
                }
            };
            let (tried, best) = walk(BASE, changes(true, Pins::default()), on_q8, of);
            assert_eq!(best.activations == Activations::Q8, adopted, "{q8}");
            assert_eq!(tried.len(), 4, "{tried:?}");
        }
    }

    #[test]
    fn changes_are_made_to_the_best_so_far() {
        let of = |t: &Tuning| {
            let q8 = t.activations == Activations::Q8;
            match (q8, t.tile_tokens, t.wide) {
                (false, ..) => 1.0,
                (true, 4, false) => 0.3,
                (true, 4, true) => 0.5,
                (true, ..) => 0.7,
            }
        };
        let (tried, best) = walk(BASE, changes(true, Pins::default()), on_q8, of);
        let q8 = Tuning {
            activations: Activations::Q8,
            ..BASE
        };
        let tile = Tuning {
            tile_tokens: 4,
            ..q8
        };
        let narrow = Tuning {
            wide: false,
            ..tile
        };
        let alone = Tuning {
            subgroups: false,
            ..narrow
        };
        assert_eq!(tried, [q8, tile, narrow, alone]);
        assert_eq!(best, narrow);
    }

    #[test]
    fn what_is_pinned_stays() {
        let all_pins = [(true, false), (false, true), (true, true)];
        for (base, software) in [(BASE, true), (GPU, false)] {
            for (activations, lanes) in all_pins {
                let pins = Pins { activations, lanes };
                // whatever is tried is faster than what was there
                let count = std::cell::Cell::new(1.0);
                let of = |_: &Tuning| {
                    count.set(count.get() * 0.5);
                    count.get()
                };
                let (tried, _) = walk(base, changes(software, pins), on_q8, of);
                assert!(tried.len() >= 3, "{tried:?}");
                for tuning in tried {
                    assert!(!activations || tuning.activations == base.activations);
                    assert!(!(lanes || software) || tuning.lanes == base.lanes);
                }
            }
        }
    }

    #[test]
    fn nothing_impossible_is_tried_and_nothing_twice() {
        // lanes beyond 8 cannot be joined by subgroups here, and there are no wide loads
        let possible =
            |t: &Tuning| t.is_possible(&f16::F16) && !(t.subgroups && t.lanes > 8) && !t.wide;
        let (tried, best) = walk(GPU, changes(false, Pins::default()), possible, |t| {
            1.0 / f64::from(t.lanes)
        });
        assert!(tried.iter().all(possible));
        assert!(tried.iter().all(|t| t.activations == Activations::F32));
        for (i, tuning) in tried.iter().enumerate() {
            assert!(*tuning != GPU && !tried[..i].contains(tuning), "{tuning:?}");
        }
        assert_eq!(
            (best.lanes, best.workgroup, best.subgroups),
            (32, 256, false)
        );
        let lanes: Vec<u32> = tried.iter().map(|t| t.lanes).collect();
        assert_eq!(lanes[..3], [16, 4, 32]);
    }

    #[test]
    fn bits_are_compared_with_what_has_the_same_numerics() {
        let (tried, _) = walk(GPU, changes(false, Pins::default()), on_q8, |t| {
            1.0 / f64::from(t.lanes)
        });
        // once something else was changed, numerics stay
        let other = |t: &&Tuning| t.workgroup != 64.max(8 * t.lanes) || t.tile_tokens != 8;
        let first = tried.iter().position(|t| other(&t)).unwrap();
        let numerics = |t: &Tuning| (t.activations, t.lanes);
        assert!(
            tried[first..]
                .windows(2)
                .all(|w| numerics(&w[0]) == numerics(&w[1]))
        );
    }

    #[test]
    fn a_candidate_begins_only_when_it_can_end_in_time() {
        let mut budget = Budget::new(3.0);
        assert!(budget.allows_another(3.0) && !budget.allows_another(3.01));
        budget.spent(0.5);
        budget.spent(0.2);
        assert!(budget.allows_another(2.5) && !budget.allows_another(2.51));
    }
}
