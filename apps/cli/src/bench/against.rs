//! `nelumbo bench --against FILE`: rows of this run beside those of an earlier one.
//!
//! A peer is a row with the same model, test, depth and settings; adapter, driver and program may be
//! others, and where they are it is told. Whether a peer was slower or faster is decided by the samples
//! of both ([`Movement`]).

mod kind;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::format;
use super::stats::{Movement, mean};
use crate::exit::Failure;
use crate::reading;
pub use kind::{KERNELS, Kind, MODELS};

/// No file of results is longer.
const MAX_BYTES: u64 = 64 << 20;

/// What figures depend on beside the key.
const SURROUNDINGS: [&str; 11] = [
    "adapter_name",
    "adapter_type",
    "backend",
    "driver",
    "driver_info",
    "build_commit",
    "build_profile",
    "wgpu_version",
    "os",
    "cpu_info",
    "clock",
];

/// An earlier run.
#[derive(Debug)]
pub struct Baseline {
    path: PathBuf,
    kind: &'static Kind,
    rows: HashMap<Vec<String>, Value>,
}

/// What became of one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Against {
    /// `same`, `faster`, `slower` or `no peer`.
    pub verdict: &'static str,
    /// Means of the samples, in the rows' own unit.
    pub old: Option<f64>,
    pub new: f64,
    /// The new speed over the old one.
    pub ratio: Option<f64>,
    /// By how much that may be off from 1 by chance.
    pub noise: Option<f64>,
    /// Surroundings that are others: before, and now.
    pub differs: BTreeMap<&'static str, [Value; 2]>,
}

impl Baseline {
    /// Reads the file, and checks all of it.
    ///
    /// # Errors
    /// [`Failure::Io`]; [`Failure::Usage`] where it is no file of such rows, by row and field.
    pub fn read(path: &Path, kind: &'static Kind) -> Result<Baseline, Failure> {
        let file = File::open(path).map_err(Failure::io(path))?;
        let text = reading::read_text(file, path, MAX_BYTES)?;
        let shown = path.display();
        let wrong = |what: String| Failure::Usage(format!("--against: {shown}: {what}"));
        let mut rows = HashMap::new();
        let all = parse(&text).map_err(wrong)?;
        for (number, row) in all.into_iter().enumerate() {
            let number = number + 1;
            if !row.is_object() {
                return Err(wrong(format!("row {number} is no JSON object")));
            }
            let other = if kind.speed { &KERNELS } else { &MODELS };
            if row.get(kind.title).is_none() && row.get(other.title).is_some() {
                let (has, wants) = (other.name, kind.name);
                return Err(wrong(format!("has {has}, this run has {wants}")));
            }
            let at = |problem: String| wrong(format!("row {number}: {problem}"));
            let key = kind.key_of(&row).map_err(at)?;
            kind.samples_of(&row).map_err(at)?;
            // of equals the last one, as in a file that is appended to
            rows.insert(key, row);
        }
        if rows.is_empty() {
            return Err(wrong("has no rows".to_owned()));
        }
        Ok(Baseline {
            path: path.to_owned(),
            kind,
            rows,
        })
    }

    /// Holds a row of this run against its peer.
    ///
    /// # Panics
    /// When the row lacks what rows have.
    pub fn compare(&self, row: &impl Serialize) -> Against {
        let row = serde_json::to_value(row).expect("a row is plain data");
        let key = self.kind.key_of(&row).expect("a row of ours");
        let new = self.kind.samples_of(&row).expect("a row of ours");
        let Some(peer) = self.rows.get(&key) else {
            return Against {
                verdict: "no peer",
                old: None,
                new: mean(&new),
                ratio: None,
                noise: None,
                differs: BTreeMap::new(),
            };
        };
        let old = self.kind.samples_of(peer).expect("checked when read");
        let moved = if self.kind.speed {
            Movement::between(&old, &new)
        } else {
            // times: what was before over what is now is a speed
            Movement::between(&new, &old)
        };
        let changed = SURROUNDINGS.into_iter().filter_map(|field| {
            let (old, new) = (peer.get(field)?, row.get(field)?);
            (old != new).then(|| (field, [old.clone(), new.clone()]))
        });
        Against {
            verdict: match moved.direction() {
                None => "same",
                Some(true) => "faster",
                Some(false) => "slower",
            },
            old: Some(mean(&old)),
            new: mean(&new),
            ratio: Some(moved.ratio),
            noise: Some(moved.noise),
            differs: changed.collect(),
        }
    }

    /// The table of a comparison, rows by name, with what is to be known about it below.
    pub fn table(&self, rows: &[(String, &Against)]) -> String {
        let (scale, unit) = self.kind.shown;
        let figure = |value: Option<f64>| match value {
            Some(value) => format!("{:.2}", value / scale),
            None => "-".to_owned(),
        };
        let cells = rows.iter().map(|(name, row)| {
            let noise = |noise| format!("± {:.1} %", 100.0 * noise);
            vec![
                name.clone(),
                figure(row.old),
                figure(Some(row.new)),
                row.ratio.map_or("-".to_owned(), |r| format!("{r:.3}")),
                row.noise.map_or("-".to_owned(), noise),
                row.verdict.to_owned(),
            ]
        });
        let columns = [
            self.kind.title.to_owned(),
            format!("old {unit}"),
            format!("new {unit}"),
            "speed".to_owned(),
            "noise".to_owned(),
            "verdict".to_owned(),
        ];
        let mut text = format::table(&columns, &[0, 5], &cells.collect::<Vec<_>>());
        for note in self.notes(rows.iter().map(|(_, row)| *row)) {
            text += &format!("\n{note}");
        }
        text
    }

    /// What makes a comparison less than it seems.
    fn notes<'a>(&self, rows: impl Iterator<Item = &'a Against> + Clone) -> Vec<String> {
        let shown = self.path.display();
        let plain = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let differences: BTreeSet<String> = rows
            .clone()
            .flat_map(|row| &row.differs)
            .map(|(field, [old, new])| {
                format!(
                    "note: {field}: {} in {shown}, {} now",
                    plain(old),
                    plain(new)
                )
            })
            .collect();
        let mut notes: Vec<String> = differences.into_iter().collect();
        let found = rows.filter(|row| row.old.is_some()).count();
        let left = self.rows.len().saturating_sub(found);
        if left > 0 {
            notes.push(format!(
                "note: {left} of the rows in {shown} have no peer in this run"
            ));
        }
        notes
    }

    /// What `--check` says of the rows.
    ///
    /// # Errors
    /// [`Failure::Wrong`] where something is slower.
    pub fn check<'a>(&self, rows: impl Iterator<Item = &'a Against>) -> Result<(), Failure> {
        let (slower, all) = rows.fold((0, 0), |(slower, all), row| {
            (slower + usize::from(row.verdict == "slower"), all + 1)
        });
        if slower == 0 {
            return Ok(());
        }
        Err(Failure::Wrong(format!(
            "{slower} of {all} rows are slower than in {}, beyond the noise",
            self.path.display()
        )))
    }
}

/// The rows of an array, or of objects line by line; else what is wrong.
fn parse(text: &str) -> Result<Vec<Value>, String> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    let lines = text
        .lines()
        .zip(1..)
        .filter(|(line, _)| !line.trim().is_empty());
    lines
        .map(|(line, number)| {
            serde_json::from_str(line).map_err(|error| {
                format!("line {number} is neither a row nor the beginning of an array: {error}")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::row::tests::sample;
    use super::*;

    fn baseline(text: &str, kind: &'static Kind) -> Result<Baseline, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.json");
        std::fs::write(&path, text).unwrap();
        Baseline::read(&path, kind).map_err(|failure| {
            assert_eq!(failure.code(), 2);
            failure.to_string()
        })
    }

    #[test]
    fn peers_are_found_by_model_test_and_settings() {
        let new = sample();
        let old = serde_json::to_value(sample()).unwrap();
        let at = |change: fn(&mut Value)| {
            let mut row = old.clone();
            change(&mut row);
            let baseline = baseline(&json!([row]).to_string(), &MODELS).unwrap();
            baseline.compare(&new)
        };
        let same = at(|_| ());
        assert_eq!((same.verdict, same.ratio), ("same", Some(1.0)));
        assert!(same.differs.is_empty() && same.old == Some(new.avg_ts));
        assert_eq!(
            at(|row| row["samples_ts"] = json!([90, 91, 92])).verdict,
            "slower"
        );
        assert_eq!(
            at(|row| row["samples_ts"] = json!([2, 2, 2.1])).verdict,
            "faster"
        );
        // rows from before there was a choice had the default
        let older = at(|row| drop(row.as_object_mut().unwrap().remove("numerics")));
        assert_eq!(older.verdict, "same");
        for change in [
            (|row: &mut Value| row["n_depth"] = json!(0)) as fn(&mut Value),
            |row| row["test"] = json!("tg11 @ d512"),
            |row| row["type_k"] = json!("f32"),
            |row| row["model_filename"] = json!("other.gguf"),
            |row| row["numerics"] = json!("fast"),
        ] {
            let lonely = at(change);
            assert_eq!((lonely.verdict, lonely.ratio), ("no peer", None));
        }
        let moved = at(|row| {
            row["driver"] = json!("older");
            row["build_commit"] = json!("feedbeef");
        });
        assert_eq!(moved.verdict, "same");
        let names: Vec<&str> = moved.differs.keys().copied().collect();
        assert_eq!(names, ["build_commit", "driver"]);
        assert_eq!(moved.differs["driver"], [json!("older"), json!("drv")]);
    }

    #[test]
    fn times_of_kernels_are_compared_the_other_way_round() {
        let row = |ns: &[f64]| json!({ "case": "matmul 1x2", "checked": false, "samples_ns": ns });
        let old = baseline(&row(&[100.0, 101.0, 99.0]).to_string(), &KERNELS).unwrap();
        let slower = old.compare(&row(&[200.0, 201.0, 199.0]));
        assert_eq!(slower.verdict, "slower");
        assert!((slower.ratio.unwrap() - 0.5).abs() < 1e-9, "{slower:?}");
        assert_eq!(old.compare(&row(&[50.0, 51.0, 49.0])).verdict, "faster");
        let failure = old.check([&slower].into_iter()).unwrap_err();
        assert_eq!(failure.code(), 7);
        assert!(failure.to_string().contains("1 of 1"), "{failure}");
        let table = old.table(&[("matmul 1x2".to_owned(), &slower)]);
        assert!(
            table.contains("| 0.500 |") && table.contains("slower"),
            "{table}"
        );
    }

    #[test]
    fn lines_and_arrays_are_read_and_what_is_neither_is_told_by_row_and_field() {
        let row = serde_json::to_value(sample()).unwrap();
        let lines = format!("{row}\n\n{row}\n");
        assert_eq!(baseline(&lines, &MODELS).unwrap().rows.len(), 1);
        let without = |field: &str| {
            let mut row = row.clone();
            row.as_object_mut().unwrap().remove(field);
            json!([row]).to_string()
        };
        let with = |field: &str, value: Value| {
            let mut other = row.clone();
            other[field] = value;
            json!([row, other]).to_string()
        };
        for (text, part) in [
            (String::new(), "no rows"),
            ("[]".to_owned(), "no rows"),
            ("{".to_owned(), "line 1"),
            ("| model |".to_owned(), "line 1"),
            ("[1".to_owned(), "line 1 column 2"),
            ("[1]".to_owned(), "row 1 is no JSON object"),
            (without("test"), "row 1: \"test\" is missing"),
            (without("samples_ts"), "row 1: \"samples_ts\" is missing"),
            (
                with("samples_ts", json!([1, -1])),
                "row 2: \"samples_ts\" is no list",
            ),
            (
                with("samples_ts", json!([])),
                "row 2: \"samples_ts\" is no list",
            ),
            (
                with("samples_ts", json!("x")),
                "row 2: \"samples_ts\" is no list",
            ),
            (with("n_batch", json!([1])), "row 2: \"n_batch\" is neither"),
            (
                json!([{ "case": "matmul" }]).to_string(),
                "rows of --kernels",
            ),
        ] {
            let problem = baseline(&text, &MODELS).unwrap_err();
            assert!(problem.contains(part), "{text}: {problem}");
            assert!(problem.contains("old.json"), "{problem}");
        }
        let absent = Baseline::read(Path::new("/nowhere/at/all.json"), &MODELS).unwrap_err();
        assert_eq!(absent.code(), 6);
    }
}
