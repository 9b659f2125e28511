//! The shape of the house: ranks of modules, who may name wgpu, no shader without a kernel, files
//! on a human scale, a test for each row of the catalogue of bad input.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules by rank: a module may name those of lower ranks, and its own. `kernels` hold their cases
/// on packed weights and pages, so `quant` and `kv` are below them.
const RANKS: &[&[&str]] = &[
    &["error", "text"],
    &["gpu"],
    &["quant", "kv", "formats"],
    &["kernels"],
    &["model"],
    &["engine"],
];

/// Modules without device, clock, channel or randomness: values that tests can run by the million.
const PURE: &[&str] = &[
    "src/engine/scheduler.rs",
    "src/engine/invariants.rs",
    "src/engine/plan.rs",
    "src/engine/ends.rs",
    "src/engine/pace.rs",
    "src/engine/pace/line.rs",
    "src/engine/pacer.rs",
    "src/engine/sequence.rs",
    "src/engine/request.rs",
    "src/engine/batch.rs",
    "src/engine/speculate/draft/choices.rs",
    "src/engine/speculate/draft/held.rs",
    "src/engine/simulate/arrivals.rs",
    "src/engine/simulate/contiguous.rs",
    "src/engine/simulate/cost.rs",
    "src/engine/simulate/figures.rs",
    "src/engine/simulate/paged.rs",
    "src/engine/simulate/run.rs",
    "src/engine/speculate/account.rs",
    "src/engine/speculate/cost.rs",
    "src/engine/speculate/drafting.rs",
    "src/engine/speculate/gain.rs",
    "src/engine/speculate/mod.rs",
    "src/engine/speculate/ngram.rs",
    "src/engine/speculate/odds.rs",
    "src/engine/speculate/options.rs",
    "src/engine/speculate/recent.rs",
    "src/engine/speculate/speculator.rs",
    "src/engine/speculate/suffix.rs",
    "src/engine/perplexity/windows.rs",
    "src/engine/perplexity/divergence.rs",
    "src/engine/perplexity/base.rs",
    "src/kv/pool.rs",
    "src/kv/prefix.rs",
    "src/kv/pages.rs",
    "src/model/budget.rs",
    "src/model/plan.rs",
    "src/model/roofline/attention.rs",
    "src/model/roofline/least.rs",
    "src/model/roofline/products.rs",
    "src/model/roofline/rates.rs",
    "src/model/roofline/sizes.rs",
    "src/model/roofline/step.rs",
    "src/model/step.rs",
    "src/model/submits.rs",
    "src/model/tune/search.rs",
];

/// The catalogue of bad input and bad surroundings: model files, configurations, tokenizers and
/// templates, the command line, the environment. How many rows each part has.
const ROWS: &[(char, usize)] = &[('m', 33), ('c', 11), ('t', 16), ('l', 10), ('e', 17)];

/// Rows that no test has yet, since nothing is there yet that they could happen to.
const ROWS_TO_COME: &[(&str, &str)] = &[
    ("l9", "there is no window"),
    ("e10", "nothing listens on a port"),
    ("e11", "nothing serves, so nothing drains"),
    ("e17", "there is no page"),
];

/// Who may ask what day it is: no timeout among them, since the day can change by any amount.
const WALL_CLOCK: &[(&str, &str)] = &[
    ("src/formats/source.rs", "whether a file changed"),
    ("apps/cli/src/date.rs", "the date in templates"),
    (
        "apps/cli/src/models/retry.rs",
        "a draw, so that not all ask again at once",
    ),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

/// Source files with their path from the root and their text.
fn sources(folder: &str, extension: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    files(&root().join(folder), extension, &mut found);
    assert!(!found.is_empty(), "no .{extension} under {folder}");
    let name = |p: &Path| {
        p.strip_prefix(root())
            .unwrap()
            .to_str()
            .unwrap()
            .replace('\\', "/")
    };
    found
        .iter()
        .map(|p| (name(p), fs::read_to_string(p).unwrap()))
        .collect()
}

/// The lines that are code: comments aside.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or(""))
}

fn rank(module: &str) -> Option<usize> {
    RANKS.iter().position(|modules| modules.contains(&module))
}

#[test]
fn modules_name_only_those_below_them() {
    let mut wrong = Vec::new();
    for (path, text) in sources("src", "rs") {
        let Some(own) = path
            .strip_prefix("src/")
            .and_then(|p| p.split(['/', '.']).next())
        else {
            continue;
        };
        let Some(own_rank) = rank(own) else { continue };
        for line in code(&text) {
            for (at, _) in line.match_indices("crate::") {
                let named = line[at + 7..]
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
                    .unwrap();
                if rank(named).is_some_and(|r| r > own_rank || (r == own_rank && named != own))
                    && !peers(own, named)
                {
                    wrong.push(format!("{path}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Rank 0 holds two: text speaks of errors.
fn peers(own: &str, named: &str) -> bool {
    (own, named) == ("text", "error")
}

#[test]
fn only_gpu_names_the_graphics_libraries() {
    let wrong: Vec<String> = sources("src", "rs")
        .into_iter()
        .filter(|(path, _)| !path.starts_with("src/gpu/"))
        .filter(|(_, text)| {
            code(text)
                .any(|l| l.contains("wgpu::") || l.contains("naga::") || l.contains("use wgpu"))
        })
        .map(|(path, _)| path)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn pure_modules_have_no_clock_channel_or_device() {
    let banned = [
        "std::time",
        "Instant",
        "mpsc",
        "std::thread",
        "std::fs",
        "crate::gpu",
        "RandomState",
        "HashMap",
    ];
    let mut pure: Vec<(String, String)> = sources("src/text", "rs");
    for path in PURE {
        pure.push((
            (*path).to_owned(),
            fs::read_to_string(root().join(path)).unwrap(),
        ));
    }
    for (path, text) in pure {
        let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
        for banned in banned {
            // text may use hash maps for look-ups; schedulers may not iterate over one
            if banned == "HashMap" && path.starts_with("src/text/") || path.contains("/tests") {
                continue;
            }
            let allowed_thread = path == "src/text/chat_template.rs"
                || path.starts_with("src/text/") && banned == "std::thread";
            assert!(
                allowed_thread || !code(&text[..tests]).any(|l| l.contains(banned)),
                "{path} names {banned}"
            );
        }
    }
}

#[test]
fn files_are_on_a_human_scale() {
    let mut long = Vec::new();
    for (folder, extension) in [("src", "rs"), ("apps", "rs"), ("shaders", "wgsl")] {
        for (path, text) in sources(folder, extension) {
            if path.contains("/tests/") {
                continue;
            }
            let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
            let lines = text[..tests].lines().count();
            if lines > 400 {
                long.push(format!(
                    "{path}: {lines} lines: what second thing does it hold?"
                ));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// The rows that a test is about: the words that its name begins with.
fn rows_of(test: &str) -> impl Iterator<Item = &str> {
    test.split('_').take_while(|word| {
        let mut chars = word.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase())
            && word.len() > 1
            && chars.all(|c| c.is_ascii_digit())
    })
}

/// Names of the functions under `#[test]`, other attributes between them aside.
fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[test]").skip(1).filter_map(|after| {
        let line = after
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && !line.starts_with("#["))?;
        let name = line.strip_prefix("fn ")?;
        name.split('(').next()
    })
}

#[test]
fn every_row_of_the_catalogue_has_a_test() {
    let mut found = BTreeMap::<String, usize>::new();
    for folder in ["src", "apps", "tests"] {
        for (path, text) in sources(folder, "rs") {
            if path == "tests/tidy.rs" {
                continue; // speaks of names
            }
            for test in tests_in(&text) {
                for row in rows_of(test) {
                    *found.entry(row.to_owned()).or_default() += 1;
                }
            }
        }
    }
    found.entry("e13".to_owned()).or_default(); // below
    let mut wrong = Vec::new();
    for &(part, count) in ROWS {
        for row in (1..=count).map(|number| format!("{part}{number}")) {
            let is_to_come = ROWS_TO_COME.iter().any(|(name, _)| *name == row);
            match (found.remove(&row), is_to_come) {
                (None, false) => wrong.push(format!("{row}: no test has this row in its name")),
                (Some(count), true) => wrong.push(format!(
                    "{row}: has {count} tests, and stands among the rows to come"
                )),
                _ => {}
            }
        }
    }
    let is_ours = |row: &&String| ROWS.iter().any(|&(part, _)| row.starts_with(part));
    let beyond = found.keys().filter(is_ours);
    wrong.extend(beyond.map(|row| format!("{row}: the catalogue ends before it")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn e13_no_timeout_reads_a_clock_that_can_jump() {
    let mut seen = Vec::new();
    for folder in ["src", "apps"] {
        for (path, text) in sources(folder, "rs") {
            let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
            if code(&text[..tests]).any(|line| line.contains("SystemTime")) {
                seen.push(path);
            }
        }
    }
    let mut allowed: Vec<&str> = WALL_CLOCK.iter().map(|(path, _)| *path).collect();
    seen.sort();
    allowed.sort_unstable();
    assert_eq!(seen, allowed);
}

#[test]
fn nothing_is_left_to_do() {
    for folder in ["src", "apps", "tests", "benches"] {
        if !root().join(folder).exists() {
            continue;
        }
        for (path, text) in sources(folder, "rs") {
            for word in ["todo!(", "unimplemented!(", "dbg!(", "#[ignore"] {
                let here = code(&text).any(|l| l.contains(word));
                assert!(!here || path == "tests/tidy.rs", "{path} has {word}");
            }
        }
    }
}
