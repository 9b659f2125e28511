//! Every family against what another implementation computes with a tiny model of it: the forward pass on
//! the CPU, from a directory in either spelling of its settings and from a GGUF file. The models are in
//! `tests/fixtures/families`, drawn such that leaving out any part of a family changes its logits.

mod device;
mod refusals;
mod rewritten;

use nelumbo::formats::{self, Checkpoint, ModelFiles, safetensors};
use nelumbo::model::reference::Reference;
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Config, FAMILIES, family};
use nelumbo::quant::Format;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// The largest difference of a logit, as a share of the range of all: what f32 in norms and scores leaves.
const BOUND: f64 = 1e-5;

/// The folder of a fixture.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/families")
        .join(name)
}

/// All fixtures by name.
fn fixtures() -> Vec<String> {
    let entries = fs::read_dir(folder("")).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().join("expected.json").exists());
    let mut names: Vec<String> = folders
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A directory like that of a fixture with another config.json.
fn directory(fixture: &str, config: &Value) -> TempDir {
    let made = tempfile::tempdir().unwrap();
    for name in [
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        fs::copy(folder(fixture).join(name), made.path().join(name)).unwrap();
    }
    fs::write(made.path().join("config.json"), config.to_string()).unwrap();
    made
}

/// Configuration and forward pass of files, for contexts of `context` tokens.
fn open(path: &Path, context: usize) -> (Config, Reference) {
    let files = formats::open(path).unwrap();
    let family = family(&files).unwrap();
    let config = (family.config)(&files).unwrap_or_else(|e| panic!("{e}"));
    let config = config.for_context(context);
    let names = (family.names)(&files);
    let map = TensorMap::new(&config, &names, files.checkpoint()).unwrap_or_else(|e| panic!("{e}"));
    let f16 = Format::from_name("f16").unwrap();
    let reference = Reference::load(&config, &map, f16).unwrap();
    (config, reference)
}

/// A text, and what is to be computed from it.
struct Case {
    name: String,
    config: String,
    is_in_gguf: bool,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    /// Of each position of the prompt.
    logits: Vec<Vec<f64>>,
}

fn cases(fixture: &str) -> Vec<Case> {
    let path = folder(fixture).join("expected.safetensors");
    let logits: Checkpoint = safetensors::read(&path, Arc::new(fs::read(&path).unwrap())).unwrap();
    let ids = |value: &Value| -> Vec<u32> {
        let ids = value.as_array().unwrap().iter();
        ids.map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let expected = json(&folder(fixture).join("expected.json"));
    let case = |case: &Value| {
        let name = case["name"].as_str().unwrap();
        let info = logits.require(name).unwrap();
        let mut values = Vec::new();
        logits.read_rows(info, 0..info.rows(), &mut values).unwrap();
        let rows = values.chunks(info.columns());
        Case {
            name: name.to_owned(),
            config: case["config"].as_str().unwrap().to_owned(),
            is_in_gguf: case["gguf"].as_bool().unwrap(),
            prompt: ids(&case["prompt"]),
            greedy: ids(&case["greedy"]),
            logits: rows
                .map(|row| row.iter().map(|&v| f64::from(v)).collect())
                .collect(),
        }
    };
    let cases: Vec<Case> = expected["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(case)
        .collect();
    assert!(cases.len() >= 2, "{fixture}: a short text and a long one");
    cases
}

/// The largest difference of a logit, as a share of the range of all.
fn apart(exact: &[Vec<f64>], found: &[Vec<f64>]) -> f64 {
    assert_eq!(exact.len(), found.len());
    let all = || exact.iter().flatten();
    let low = all().copied().fold(f64::MAX, f64::min);
    let high = all().copied().fold(f64::MIN, f64::max);
    let pairs = exact.iter().zip(found).flat_map(|(exact, found)| {
        assert_eq!(exact.len(), found.len());
        exact.iter().zip(found)
    });
    let largest = pairs
        .map(|(exact, found)| (exact - found).abs())
        // unlike max, this keeps a NaN
        .fold(0.0, |a, b| if b <= a { a } else { b });
    largest / (high - low)
}

/// Holds the model at `path` against a case.
fn compare(what: &str, path: &Path, case: &Case) {
    let context = case.prompt.len() + case.greedy.len();
    let (_, reference) = open(path, context);
    let found = reference.logits(&case.prompt);
    let apart = apart(&case.logits, &found);
    println!("{what}, {}: within {apart:.1e} of the range", case.name);
    assert!(apart <= BOUND, "{what}, {}: {apart:e}", case.name);
    let mut text = case.prompt.clone();
    for (at, &expected) in case.greedy.iter().enumerate() {
        let hidden = reference.hidden(&text);
        let logits = reference.head(&hidden[hidden.len() - 1..]).remove(0);
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        assert_eq!(
            best,
            Some(expected as usize),
            "{what}, {}: token {at}",
            case.name
        );
        text.push(expected);
    }
}

#[test]
fn every_family_has_a_fixture() {
    let known: Vec<String> = fixtures()
        .iter()
        .map(|name| json(&folder(name).join("config.json"))["architectures"][0].to_string())
        .collect();
    for family in FAMILIES {
        let name = format!("\"{}\"", family.hf_names[0]);
        assert!(known.contains(&name), "no fixture of {name}");
    }
}

/// Leaving out any part of a family would be noticed.
#[test]
fn every_part_of_a_family_matters() {
    for name in fixtures() {
        let expected = json(&folder(&name).join("expected.json"));
        let effects = expected["effects"].as_array().unwrap();
        assert!(!effects.is_empty(), "{name}");
        for effect in effects {
            let differs = effect["differs"].as_f64().unwrap();
            assert!(differs > 5.0 * BOUND, "{name}: {effect}");
        }
    }
}

#[test]
fn directories_compute_what_transformers_does() {
    for name in fixtures() {
        for case in cases(&name) {
            let made = directory(&name, &json(&folder(&name).join(&case.config)));
            compare(&name, made.path(), &case);
        }
    }
}

#[test]
fn the_newer_spelling_of_settings_means_the_same() {
    for name in fixtures() {
        let newer = json(&folder(&name).join("config.v5.json"));
        let made = directory(&name, &newer);
        for case in cases(&name).iter().filter(|c| c.config == "config.json") {
            compare(&format!("{name}, newer settings"), made.path(), case);
        }
    }
}

#[test]
fn gguf_files_compute_the_same() {
    let mut compared = 0;
    for name in fixtures() {
        for case in cases(&name).iter().filter(|case| case.is_in_gguf) {
            let path = folder(&name).join("model.gguf");
            compare(&format!("{name}.gguf"), &path, case);
            compared += 1;
        }
    }
    assert!(compared >= 2 * FAMILIES.len(), "{compared}");
}

/// The files of a fixture, as a directory and as a GGUF file.
fn both(name: &str) -> [ModelFiles; 2] {
    [folder(name), folder(name).join("model.gguf")].map(|path| formats::open(&path).unwrap())
}
