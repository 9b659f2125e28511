//! Paths and directories: rows M1, M2, M14 to M16 and M20 of the catalogue, and the JSON files.

use std::fs;
use std::path::{Path, PathBuf};

use nelumbo::formats::write::{GgufWriter, write_safetensors};
use nelumbo::formats::{Encoding, HfDir, ModelFiles, open};
use nelumbo::{Error, Result};

use crate::refused;

/// A directory with these files.
fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(dir.path().join(name), content).unwrap();
    }
    dir
}

fn index(map: &[(&str, &str)]) -> String {
    let map: serde_json::Map<_, _> = map
        .iter()
        .map(|&(tensor, shard)| (tensor.to_owned(), shard.into()))
        .collect();
    serde_json::json!({"metadata": {"total_size": 8}, "weight_map": map}).to_string()
}

/// A safetensors file with tensors of one f32 each, which is the number given.
fn shard(path: PathBuf, tensors: &[(&str, f32)]) {
    let values: Vec<_> = tensors.iter().map(|(_, x)| x.to_le_bytes()).collect();
    let parts: Vec<_> = tensors
        .iter()
        .zip(&values)
        .map(|((name, _), bytes)| (*name, [1].as_slice(), Encoding::F32, bytes.as_slice()))
        .collect();
    write_safetensors(&path, &parts).unwrap();
}

fn sharded(map: &[(&str, &str)]) -> tempfile::TempDir {
    let index = index(map);
    dir(&[
        ("config.json", "{}"),
        ("model.safetensors.index.json", &index),
    ])
}

fn opened(path: &Path) -> Result<HfDir> {
    match open(path)? {
        ModelFiles::HuggingFace(dir) => Ok(dir),
        ModelFiles::Gguf(_) => panic!("{} was opened as GGUF", path.display()),
    }
}

#[test]
fn one_file_of_weights() {
    let dir = dir(&[("config.json", r#"{"hidden_size": 3}"#)]);
    shard(dir.path().join("model.safetensors"), &[("w", 4.0)]);
    let model = opened(dir.path()).unwrap();
    assert_eq!(model.config["hidden_size"], 3);
    assert_eq!(model.config_path, dir.path().join("config.json"));
    assert_eq!(model.dir, dir.path());
    assert_eq!(model.checkpoint.path(), dir.path());
    let mut row = Vec::new();
    let w = model.checkpoint.require("w").unwrap();
    model.checkpoint.read_rows(w, 0..1, &mut row).unwrap();
    assert_eq!(row, [4.0]);
}

#[test]
fn shards_are_joined() {
    let dir = sharded(&[("a", "one.safetensors"), ("b", "two.safetensors")]);
    shard(dir.path().join("one.safetensors"), &[("a", 1.0)]);
    shard(
        dir.path().join("two.safetensors"),
        &[("b", 2.0), ("extra", 3.0)],
    );
    let checkpoint = opened(dir.path()).unwrap().checkpoint;
    let mut row = Vec::new();
    for (name, value) in [("a", 1.0), ("b", 2.0), ("extra", 3.0)] {
        let info = checkpoint.require(name).unwrap();
        checkpoint.read_rows(info, 0..1, &mut row).unwrap();
        assert_eq!(row, [value], "{name}");
    }
    let b = checkpoint.file_of(checkpoint.require("b").unwrap());
    assert_eq!(b, dir.path().join("two.safetensors"));
}

#[test]
fn a_gguf_is_opened_by_itself_or_by_its_directory() {
    let dir = dir(&[("README.md", "")]);
    let file = dir.path().join("tiny.gguf");
    let bytes = GgufWriter::new().string("general.architecture", "llama");
    fs::write(&file, bytes.finish()).unwrap();
    for path in [&file, dir.path()] {
        let ModelFiles::Gguf(gguf) = open(path).unwrap() else {
            panic!("{} was not opened as GGUF", path.display());
        };
        assert_eq!(gguf.metadata.path(), file);
    }
    fs::write(dir.path().join("other.gguf"), "").unwrap();
    refused(open(dir.path()), &["several", "other.gguf, tiny.gguf"]);
}

#[test]
fn m1_paths_that_cannot_be_opened() {
    let dir = dir(&[("file", "")]);
    let missing = dir.path().join("missing");
    let text = missing.display().to_string();
    let reason = fs::metadata(&missing).unwrap_err().to_string();
    let error = refused(open(&missing), &[&text, &reason]);
    assert!(matches!(error, Error::ModelNotFound { .. }));
    let beyond = dir.path().join("file").join("x");
    let reason = fs::metadata(&beyond).unwrap_err().to_string();
    refused(open(&beyond), &[&beyond.display().to_string(), &reason]);
    refused(HfDir::open(&dir.path().join("file")), &["file"]);
}

#[cfg(unix)]
#[test]
fn m1_a_pipe_does_not_block() {
    let dir = dir(&[("config.json", "{}")]);
    let socket = dir.path().join("model.gguf");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    refused(open(&socket), &["model.gguf", "not a regular file"]);
}

#[test]
fn m1_a_safetensors_file_is_named_instead_of_its_directory() {
    let dir = dir(&[("config.json", "{}")]);
    let file = dir.path().join("model.safetensors");
    shard(file.clone(), &[("w", 1.0)]);
    let advice = format!("pass {}", dir.path().display());
    refused(open(&file), &["by its directory", &advice]);
}

#[test]
fn m2_no_weights() {
    let empty = dir(&[]);
    let place = format!("no .safetensors or .gguf in {}", empty.path().display());
    refused(open(empty.path()), &[&place, "nothing"]);
    let config = dir(&[("config.json", "{}"), ("tokenizer.json", "{}")]);
    let error = refused(open(config.path()), &["no .safetensors or .gguf"]);
    assert!(error.to_string().ends_with("config.json, tokenizer.json"));
    let no_config = dir(&[("a.safetensors", "")]);
    refused(
        open(no_config.path()),
        &["a.safetensors without config.json"],
    );
    let other_name = dir(&[("config.json", "{}"), ("a.safetensors", "")]);
    refused(
        open(other_name.path()),
        &["no model.safetensors and no model.safetensors.index.json"],
    );
    let many: Vec<String> = (10..30).map(|i| format!("file{i}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "")).collect();
    refused(open(dir(&many).path()), &["file19 and 10 more"]);
}

#[test]
fn m14_a_shard_is_absent() {
    let dir = sharded(&[("a", "one.safetensors"), ("b", "two.safetensors")]);
    shard(dir.path().join("one.safetensors"), &[("a", 1.0)]);
    let error = refused(open(dir.path()), &["two.safetensors: tensor b: "]);
    assert!(matches!(error, Error::Tensor { .. }));
}

#[test]
fn m15_shard_names_that_lead_out() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("x.safetensors");
    shard(target.clone(), &[("w", 1.0)]);
    let absolute = target.display().to_string();
    for name in [
        absolute.as_str(),
        "../x.safetensors",
        "sub/x.safetensors",
        "..\\x.safetensors",
        "C:x.safetensors",
        "..",
        ".",
        "",
        "x\0.safetensors",
        "x\u{1b}[2J.safetensors",
    ] {
        let dir = sharded(&[("w", name)]);
        let error = refused(open(dir.path()), &["index.json: weight_map.w: "]);
        assert!(matches!(error, Error::Field { .. }), "{name:?}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn m15_links_stay_in_the_directory_or_in_the_cache() {
    use std::os::unix::fs::symlink;

    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("x.safetensors");
    fs::write(&target, "never read").unwrap();
    let dir = sharded(&[("w", "one.safetensors")]);
    symlink(&target, dir.path().join("one.safetensors")).unwrap();
    refused(
        open(dir.path()),
        &["weight_map.w: ", "leads out of the directory"],
    );

    // A link within the directory is as good as a file.
    let dir = sharded(&[("w", "one.safetensors")]);
    shard(dir.path().join("real"), &[("w", 1.0)]);
    symlink("real", dir.path().join("one.safetensors")).unwrap();
    open(dir.path()).unwrap();

    // The hub's cache: snapshots/REVISION/name -> ../../blobs/DIGEST.
    let cache = tempfile::tempdir().unwrap();
    let model = cache.path().join("models--org--name");
    let snapshot = model.join("snapshots").join("0123");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(model.join("blobs")).unwrap();
    fs::write(snapshot.join("config.json"), "{}").unwrap();
    let list = index(&[("w", "one.safetensors")]);
    fs::write(snapshot.join("model.safetensors.index.json"), list).unwrap();
    shard(model.join("blobs").join("abcd"), &[("w", 1.0)]);
    let link = snapshot.join("one.safetensors");
    symlink("../../blobs/abcd", &link).unwrap();
    open(&snapshot).unwrap();

    // Another model's blobs are not this model's.
    let other = cache.path().join("models--org--other").join("blobs");
    fs::create_dir_all(&other).unwrap();
    shard(other.join("abcd"), &[("w", 1.0)]);
    fs::remove_file(&link).unwrap();
    symlink("../../../models--org--other/blobs/abcd", &link).unwrap();
    refused(open(&snapshot), &["weight_map.w: ", "leads out"]);
}

#[test]
fn m16_tensors_and_shards_disagree() {
    let map = [("a", "one.safetensors"), ("b", "two.safetensors")];
    let both = sharded(&map);
    shard(
        both.path().join("one.safetensors"),
        &[("a", 1.0), ("b", 1.0)],
    );
    shard(both.path().join("two.safetensors"), &[("b", 2.0)]);
    refused(
        open(both.path()),
        &["two.safetensors: tensor b: ", "one.safetensors"],
    );
    let neither = sharded(&map);
    shard(neither.path().join("one.safetensors"), &[("a", 1.0)]);
    shard(neither.path().join("two.safetensors"), &[("c", 1.0)]);
    refused(
        open(neither.path()),
        &[
            "two.safetensors: tensor b: ",
            "not in this file",
            "index.json",
        ],
    );
    let swapped = sharded(&map);
    shard(swapped.path().join("one.safetensors"), &[("b", 1.0)]);
    shard(swapped.path().join("two.safetensors"), &[("a", 1.0)]);
    refused(
        open(swapped.path()),
        &[
            "one.safetensors: tensor a: ",
            "not in this file but in",
            "two.safetensors",
        ],
    );
    let index = r#"{"weight_map":{"w":"one.safetensors","w":"two.safetensors"}}"#;
    let twice = dir(&[
        ("config.json", "{}"),
        ("model.safetensors.index.json", index),
    ]);
    refused(
        open(twice.path()),
        &["index.json", "tensor w appears twice"],
    );
}

#[test]
fn m16_an_index_that_is_no_index() {
    let many: Vec<_> = (0..1001)
        .map(|i| (format!("t{i}"), format!("s{i}")))
        .collect();
    let many: Vec<_> = many.iter().map(|(t, s)| (t.as_str(), s.as_str())).collect();
    refused(open(sharded(&many).path()), &["weight_map", "1001", "1000"]);
    for text in [
        "",
        "[]",
        "{}",
        r#"{"weight_map":[]}"#,
        r#"{"weight_map":{"w":1}}"#,
    ] {
        let dir = dir(&[
            ("config.json", "{}"),
            ("model.safetensors.index.json", text),
        ]);
        refused(
            open(dir.path()),
            &["model.safetensors.index.json: ", "line 1 column"],
        );
    }
}

#[test]
fn m20_pickled_weights_are_never_opened() {
    let dir = dir(&[("config.json", "{}")]);
    // A directory of that name: opening it as a file would fail in another way.
    fs::create_dir(dir.path().join("pytorch_model.bin")).unwrap();
    let error = refused(
        open(dir.path()),
        &["pytorch_model.bin", "run code", "convert"],
    );
    assert!(matches!(error, Error::ModelNotFound { .. }));
    let file = dir.path().join("model.pth");
    fs::write(&file, "").unwrap();
    refused(open(&file), &["model.pth", "run code", "convert"]);
}

#[test]
fn c1_json_files_are_limited_and_located() {
    let files = [
        ("config.json", "\u{feff}{\"a\": 1}"),
        ("bad.json", "{\n  \"a\": 1,\n}"),
        ("text.txt", "\u{feff}hello"),
    ];
    let dir = dir(&files);
    shard(dir.path().join("model.safetensors"), &[("w", 1.0)]);
    fs::write(dir.path().join("latin1.txt"), b"caf\xe9").unwrap();
    let model = opened(dir.path()).unwrap();
    assert_eq!(model.config["a"], 1);
    assert_eq!(model.read_json("missing.json").unwrap(), None);
    assert_eq!(model.read_text("missing.txt").unwrap(), None);
    assert_eq!(model.read_text("text.txt").unwrap().unwrap(), "hello");
    refused(
        model.read_json("bad.json"),
        &["bad.json: ", "line 3 column 1"],
    );
    refused(model.read_text("latin1.txt"), &["latin1.txt: ", "byte 3"]);
    refused(model.read_text("../x"), &["../x", "separator"]);

    for (name, limit) in [("long.json", 4 << 20), ("tokenizer.json", 64 << 20)] {
        let file = fs::File::create(dir.path().join(name)).unwrap();
        file.set_len(limit + 1).unwrap();
        let result = model.read_text(name);
        refused(result, &[name, &format!("{limit} bytes")]);
        file.set_len(limit).unwrap();
        let text = model.read_text(name).unwrap().unwrap();
        assert_eq!(text.len() as u64, limit);
    }
    fs::remove_file(dir.path().join("config.json")).unwrap();
    refused(HfDir::open(dir.path()), &["no config.json"]);
}
