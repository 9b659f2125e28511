//! Where a step's time goes, by kernel: each dispatch is submitted alone and waited for.
//!
//! Times are wall clock and hold a submit each (tens of microseconds), so they compare kernels with
//! each other; a step that is not profiled is faster than their sum. `NELUMBO_PROFILE=1` turns it on
//! and the table is logged when the recorder is dropped.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Dispatches and time by variant.
#[derive(Default)]
pub(crate) struct Profile {
    rows: BTreeMap<String, (u64, Duration)>,
}

impl Profile {
    /// A profile where the environment asks for one.
    pub fn from_env() -> Option<Profile> {
        std::env::var_os("NELUMBO_PROFILE")
            .is_some_and(|v| v == "1")
            .then(Profile::default)
    }

    pub fn add(&mut self, variant: String, time: Duration) {
        let row = self.rows.entry(variant).or_default();
        row.0 += 1;
        row.1 += time;
    }

    /// The table, the most expensive variant first.
    pub fn table(&self) -> String {
        let total: Duration = self.rows.values().map(|(_, time)| *time).sum();
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
        let mut text = format!(
            "{:>8} {:>10} {:>9} {:>6}  variant\n",
            "count", "total ms", "mean us", "share"
        );
        for (variant, (count, time)) in rows {
            let share = 100.0 * time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE);
            let mean = time.as_secs_f64() * 1e6 / *count as f64;
            // writing to a String cannot fail
            let _ = writeln!(
                text,
                "{count:>8} {:>10.1} {mean:>9.1} {share:>5.1}%  {variant}",
                time.as_secs_f64() * 1e3
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_expensive_comes_first() {
        let mut profile = Profile::default();
        for (name, ms) in [("a", 1), ("b", 5), ("a", 1)] {
            profile.add(name.to_owned(), Duration::from_millis(ms));
        }
        let table = profile.table();
        let lines: Vec<&str> = table.lines().collect();
        assert!(
            lines[1].ends_with('b') && lines[1].contains("71.4%"),
            "{table}"
        );
        assert!(
            lines[2].ends_with('a') && lines[2].trim_start().starts_with('2'),
            "{table}"
        );
    }
}
