//! Models split over several GGUF files: row M30 of the catalogue.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nelumbo::formats::write::GgufWriter;
use nelumbo::formats::{Encoding, Gguf, ModelFiles, ReadAt, open};
use nelumbo::{Error, Result};

use crate::refused;

/// What the keys of a part say, as other writers write them: of 16 bits, and signed.
fn keys(file: GgufWriter, number: u16, count: u16, num_tensors: i32) -> GgufWriter {
    file.raw("split.no", 2, &number.to_le_bytes())
        .raw("split.count", 2, &count.to_le_bytes())
        .i32("split.tensors.count", num_tensors)
}

fn value(file: GgufWriter, name: &str, value: f32) -> GgufWriter {
    file.tensor(name, &[1], Encoding::F32, &value.to_le_bytes())
}

/// Three parts with four tensors; settings are in the first, which has no tensors.
fn parts() -> [GgufWriter; 3] {
    let first = GgufWriter::new().string("general.architecture", "llama");
    let second = value(keys(GgufWriter::new(), 1, 3, 4), "a", 1.0);
    let third = value(keys(GgufWriter::new(), 2, 3, 4), "c", 3.0);
    [
        keys(first, 0, 3, 4),
        value(second, "b", 2.0),
        value(third, "d", 4.0),
    ]
}

fn name(number: usize) -> String {
    format!("m-q4_k-0000{number}-of-00003.gguf")
}

/// A directory with these parts, and their paths.
fn written(parts: [GgufWriter; 3]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (1..=3)
        .map(|number| dir.path().join(name(number)))
        .collect();
    for (path, part) in paths.iter().zip(parts) {
        fs::write(path, part.finish()).unwrap();
    }
    (dir, paths)
}

/// The parts with one replaced, opened by the first and by the last.
fn with(idx: usize, part: GgufWriter, expected: &[&str]) {
    let mut parts = parts();
    parts[idx] = part;
    let (_dir, paths) = written(parts);
    // Opened by the part that is wrong, a file can only be held against its name.
    for path in [&paths[0], &paths[2]] {
        if *path != paths[idx] {
            refused(Gguf::open(path), expected);
        }
    }
}

#[test]
fn any_part_opens_all_and_so_does_the_directory() {
    let (dir, paths) = written(parts());
    for path in paths.iter().map(PathBuf::as_path).chain([dir.path()]) {
        let ModelFiles::Gguf(gguf) = open(path).unwrap() else {
            panic!("{} was not opened as GGUF", path.display());
        };
        assert_eq!(gguf.metadata.architecture().unwrap(), "llama");
        assert_eq!(gguf.metadata.path(), paths[0]);
        let checkpoint = &gguf.checkpoint;
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        let mut row = Vec::new();
        for (name, value, file) in [("a", 1.0, 1), ("b", 2.0, 1), ("c", 3.0, 2), ("d", 4.0, 2)] {
            let info = checkpoint.require(name).unwrap();
            checkpoint.read_rows(info, 0..1, &mut row).unwrap();
            assert_eq!(row, [value], "{name}");
            assert_eq!(checkpoint.file_of(info), paths[file], "{name}");
        }
        checkpoint.check_unchanged().unwrap();
    }
    // Another model beside them: which one is meant has to be said.
    fs::copy(&paths[0], dir.path().join("other.gguf")).unwrap();
    refused(open(dir.path()), &["several GGUF files", "other.gguf"]);
    fs::rename(
        dir.path().join("other.gguf"),
        dir.path().join("other-00001-of-00003.gguf"),
    )
    .unwrap();
    refused(open(dir.path()), &["several GGUF files", "other-00001"]);
}

#[test]
fn parts_from_any_source() {
    let source = |part: GgufWriter| Arc::new(part.finish()) as Arc<dyn ReadAt>;
    let read = |order: [usize; 3]| {
        let mut files = parts().map(source).map(Some);
        Gguf::read_parts(order.map(|i| (PathBuf::from(name(i + 1)), files[i].take().unwrap())))
    };
    assert_eq!(read([0, 1, 2]).unwrap().checkpoint.names().len(), 4);
    refused(
        read([0, 2, 1]),
        &["00003-of-00003.gguf: split.no: is 2, expected 1 here"],
    );
    let [_, part, _] = parts();
    let error = refused(
        Gguf::read(Path::new("bad.gguf"), source(part)),
        &["bad.gguf", "split.count", "\"3\"", "all parts"],
    );
    assert!(matches!(error, Error::Unsupported { .. }));
    let whole = value(GgufWriter::new(), "a", 1.0);
    Gguf::read_parts([(PathBuf::from("one"), source(whole))]).unwrap();
}

#[test]
fn m30_a_count_of_one_is_a_whole_file() {
    let read = |file: GgufWriter| Gguf::read(Path::new("one.gguf"), Arc::new(file.finish()));
    for count in [0, 1] {
        let file = value(keys(GgufWriter::new(), 0, count, 1), "a", 1.0);
        assert_eq!(read(file).unwrap().checkpoint.names().len(), 1);
    }
}

#[test]
fn m30_missing_parts_are_named() {
    let (_dir, paths) = written(parts());
    fs::remove_file(&paths[1]).unwrap();
    for opened in [0, 2] {
        let file = format!("{}: split.count: is 3, but ", name(opened + 1));
        let missing = format!("{} is missing", name(2));
        let error = refused(Gguf::open(&paths[opened]), &[&file, &missing]);
        assert!(matches!(error, Error::Field { .. }));
    }
    fs::remove_file(&paths[0]).unwrap();
    let both = format!("{}, {} are missing", name(1), name(2));
    refused(Gguf::open(&paths[2]), &[&both]);
}

#[test]
fn m30_names_and_keys_disagree() {
    let (dir, paths) = written(parts());
    let renamed = |to: &str| -> Result<Gguf> {
        let path = dir.path().join(to);
        fs::copy(&paths[1], &path).unwrap();
        Gguf::open(&path)
    };
    for (to, parts) in [
        (
            "m.gguf",
            ["m.gguf: split.count: is 3", "NAME-00002-of-00003.gguf"],
        ),
        (
            "m-00002-of-00004.gguf",
            ["split.count: is 3", "name says 4"],
        ),
        (
            "m-00003-of-00003.gguf",
            ["split.no: is 1", "name says part 3"],
        ),
        (
            "m-00000-of-00003.gguf",
            ["split.no: is 1", "name says part 0"],
        ),
    ] {
        refused(renamed(to), &parts);
    }
}

#[test]
fn m30_keys_of_parts_disagree() {
    let new = GgufWriter::new;
    with(1, new(), &[&name(2), "split.count: is 1, but", "3 parts"]);
    with(
        1,
        keys(new(), 1, 4, 4),
        &[&name(2), "split.count: is 4, but", "3 parts"],
    );
    with(
        1,
        keys(new(), 2, 3, 4),
        &[&name(2), "split.no: is 2, expected 1"],
    );
    with(
        1,
        keys(new(), 3, 3, 4),
        &[&name(2), "split.no: is 3, expected 0 to 2"],
    );
    let no_number = new().u32("split.count", 3);
    with(1, no_number, &[&name(2), "split.no: is missing"]);
    with(
        1,
        keys(new(), 1, 3, 5),
        &[&name(2), "split.tensors.count: is 5, but 4 in", &name(1)],
    );
    let uncounted = new().u32("split.no", 1).u32("split.count", 3);
    with(
        1,
        uncounted,
        &[&name(2), "split.tensors.count: is missing, but 4"],
    );
    let text = new().string("split.count", "3");
    with(1, text, &[&name(2), "split.count: is a string"]);
    // A tensor less than all say there are.
    let short = value(keys(new(), 1, 3, 4), "a", 1.0);
    with(
        1,
        short,
        &[&name(1), "split.tensors.count: is 4, the parts hold 3"],
    );
    with(0, keys(new(), 0, 3, -1), &["split.tensors.count: ", "-1"]);
    with(
        0,
        new().u32("split.count", 1001),
        &[&name(1), "split.count: is 1001", "1000"],
    );
}

#[test]
fn m30_a_tensor_in_two_parts() {
    let twice = value(keys(GgufWriter::new(), 1, 3, 4), "d", 1.0);
    with(1, twice, &[&name(3), "tensor d: appears in", &name(2)]);
    let twice = value(value(keys(GgufWriter::new(), 1, 3, 4), "a", 1.0), "a", 2.0);
    with(1, twice, &[&name(2), "tensor a: appears twice"]);
}

#[test]
fn m30_a_part_that_is_damaged() {
    let (_dir, paths) = written(parts());
    let bytes = fs::read(&paths[2]).unwrap();
    let third = format!("{}: ", name(3));
    fs::write(&paths[2], &bytes[..bytes.len() - 29]).unwrap();
    refused(
        Gguf::open(&paths[0]),
        &[&third, "tensor d", "1 are missing"],
    );
    fs::write(&paths[2], "GGUF").unwrap();
    refused(Gguf::open(&paths[0]), &[&third, "4 bytes"]);
    fs::remove_file(&paths[2]).unwrap();
    fs::create_dir(&paths[2]).unwrap();
    refused(Gguf::open(&paths[0]), &[&third, "not a regular file"]);
}
