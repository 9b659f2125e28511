//! Every variant by the compiler of a browser: Tint, from Dawn's package for Node, without a device.
//! It refuses what naga lets pass: barriers and subgroup operations in control flow that is not
//! uniform, extensions that are not enabled, more workgroup memory than WebGPU promises.
//!
//! Needs `node`; fetches the package by `npm ci` at its first run. Where either is missing it says so
//! and skips, which `REQUIRE_GPU=1` makes a failure.

use nelumbo::gpu::{Target, Variant};
use nelumbo::kernels::ALL;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Shaders that Tint must refuse, and a word of its complaint: otherwise nothing was checked.
const REFUSED: [(&str, &str, &str); 3] = [
    (
        "barrier in control flow that is not uniform",
        "uniform",
        "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(64) fn control(@builtin(local_invocation_index) lane: u32) {
            if (lane < 7u) { workgroupBarrier(); }
            y[lane] = lane;
        }",
    ),
    (
        "subgroup operation that is not enabled",
        "subgroup",
        "@group(0) @binding(0) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(64) fn control(@builtin(local_invocation_index) lane: u32) {
            y[lane] = subgroupShuffleXor(lane, 1u);
        }",
    ),
    (
        "workgroup memory over the limit",
        "16384",
        "override LEN: u32 = 4097u;
        @group(0) @binding(0) var<storage, read_write> y: array<u32>;
        var<workgroup> shared_words: array<u32, LEN>;
        @compute @workgroup_size(64) fn control(@builtin(local_invocation_index) lane: u32) {
            shared_words[lane] = lane;
            workgroupBarrier();
            y[lane] = shared_words[63u - lane];
        }",
    ),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tint")
}

/// Runs a command; on failure, what it was and the end of what it said.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let start = said.len().saturating_sub(2000);
    let end: String = said
        .char_indices()
        .filter(|(i, _)| *i >= start)
        .map(|(_, c)| c)
        .collect();
    Err(format!("{command:?}: {}: {end}", output.status))
}

/// Node and the package are there, or why not.
fn prepare() -> Result<(), String> {
    run(Command::new("node").arg("--version"))?;
    if folder().join("node_modules/webgpu/index.js").exists() {
        return Ok(());
    }
    let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
    let install = [
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--prefix",
    ];
    run(Command::new(npm).args(install).arg(folder())).map(|_| ())
}

fn manifest(temp: &Path, variants: &[Variant]) -> Vec<Value> {
    let mut files: HashMap<String, PathBuf> = HashMap::new();
    let mut file = |text: String| {
        let path = temp.join(format!("{}.wgsl", files.len()));
        files
            .entry(text)
            .or_insert_with_key(|text| {
                std::fs::write(&path, text).unwrap();
                path
            })
            .clone()
    };
    let mut entries: Vec<Value> = variants
        .iter()
        .map(|variant| {
            json!({
                "name": variant.to_string(),
                "file": file(variant.compose(Target::Web)),
                "entry": variant.kernel.name,
                "constants": variant.overrides().collect::<HashMap<&str, u32>>(),
            })
        })
        .collect();
    for (name, _, text) in REFUSED {
        entries.push(json!({ "name": name, "file": file(text.to_owned()), "entry": "control", "constants": {} }));
    }
    entries
}

#[test]
fn tint_accepts_every_variant() {
    if let Err(why) = prepare() {
        let required = std::env::var("REQUIRE_GPU").is_ok_and(|v| v == "1");
        assert!(!required, "REQUIRE_GPU=1 and no Tint: {why}");
        println!("skipped: {why}");
        return;
    }
    // browsers have no 64-bit integers: there the other form is taken; nor cooperative matrices
    let mut variants: Vec<Variant> = ALL.iter().flat_map(|entry| (entry.variants)()).collect();
    variants.retain(|v| !v.all_parts().any(|p| p.int64) && !v.uses_coop());
    let temp = tempfile::tempdir().unwrap();
    let list = temp.path().join("manifest.json");
    let entries = manifest(temp.path(), &variants);
    std::fs::write(&list, serde_json::to_vec(&entries).unwrap()).unwrap();
    let said = run(Command::new("node")
        .arg(folder().join("check-wgsl.mjs"))
        .arg(&list))
    .unwrap();
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(report["features"], json!(["subgroups", "shader-f16"]));
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), entries.len());

    let (ours, controls) = results.split_at(variants.len());
    let mut problems = Vec::new();
    for (variant, result) in variants.iter().zip(ours) {
        for error in result["errors"].as_array().unwrap() {
            let line = error["line"].as_u64().unwrap_or(0) as usize;
            let place = match line {
                0 => String::new(),
                _ => {
                    let (part, line) = variant.locate(Target::Web, line);
                    format!("shaders/{part}:{line}: ")
                }
            };
            problems.push(format!("{variant}: {place}{}", error["message"]));
        }
    }
    assert!(
        problems.is_empty(),
        "{} problems\n{}",
        problems.len(),
        problems.join("\n")
    );
    for ((name, word, _), result) in REFUSED.iter().zip(controls) {
        let complaint = result["errors"].to_string();
        assert!(
            complaint.contains(word),
            "Tint let a {name} pass: {complaint}"
        );
    }
    println!("{} pipelines by Tint ({})", variants.len(), report["node"]);
}
