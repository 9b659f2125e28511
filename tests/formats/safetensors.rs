//! Safetensors headers: rows M3 to M13 of the catalogue.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use nelumbo::formats::write::write_safetensors;
use nelumbo::formats::{Checkpoint, Encoding, HfDir, safetensors};
use nelumbo::{Error, Result};

use crate::{memory, refused};

pub fn read(bytes: Vec<u8>) -> Result<Checkpoint> {
    safetensors::read(Path::new("bad.safetensors"), Arc::new(bytes))
}

/// A file with this header and so many bytes of data.
pub fn file(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

fn entry(name: &str, dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

fn read_entries(entries: &[String], data_bytes: usize) -> Result<Checkpoint> {
    read(file(&format!("{{{}}}", entries.join(",")), data_bytes))
}

#[test]
fn what_is_written_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let floats: Vec<u8> = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let parts = [
        ("w", [3, 2].as_slice(), Encoding::F32, floats.as_slice()),
        ("half", &[1], Encoding::F16, &[0x00, 0x3c]),
        ("brain", &[1], Encoding::Bf16, &[0x00, 0x40]),
        ("scalar", &[], Encoding::F32, &floats[..4]),
        ("nothing", &[0, 7], Encoding::F32, &[]),
    ];
    write_safetensors(&path, &parts).unwrap();
    let checkpoint = read(std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(checkpoint.names().len(), 5);
    assert_eq!(checkpoint.total_bytes(), 24 + 2 + 2 + 4);
    let mut rows = Vec::new();
    for (name, range, expected) in [
        ("w", 1..3, [3.0, 4.0, 5.0, 6.0].as_slice()),
        ("half", 0..1, &[1.0]),
        ("brain", 0..1, &[2.0]),
        ("scalar", 0..1, &[1.0]),
        ("nothing", 0..0, &[]),
    ] {
        let info = checkpoint.require(name).unwrap();
        checkpoint.read_rows(info, range, &mut rows).unwrap();
        assert_eq!(rows, expected, "{name}");
    }
}

#[test]
fn m3_files_too_short_for_a_header() {
    refused(read(vec![]), &["bad.safetensors: 0 bytes, header needs 8"]);
    refused(
        read(vec![0; 7]),
        &["bad.safetensors: 7 bytes, header needs 8"],
    );
}

#[test]
fn m4_header_longer_than_the_file() {
    for len in [11, 1 << 40, 1u64 << 63, u64::MAX] {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend([b' '; 10]);
        let (result, peak) = memory::peak(|| read(bytes));
        refused(
            result,
            &["bad.safetensors", &len.to_string(), "10 bytes", "18"],
        );
        assert!(peak < 4096, "{peak}");
    }
}

#[test]
fn m5_header_above_the_limit_in_a_file_of_that_size() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    let mut file = File::create(dir.path().join("model.safetensors")).unwrap();
    file.write_all(&100_000_001u64.to_le_bytes()).unwrap();
    file.set_len(100_000_100).unwrap();
    let (result, peak) = memory::peak(|| HfDir::open(dir.path()));
    refused(result, &["model.safetensors", "100000001", "100000000"]);
    assert!(peak < 1 << 20, "{peak}");
}

#[test]
fn m6_header_that_is_no_object() {
    let mut bytes = file("{}", 0);
    bytes[9] = 0xff;
    refused(read(bytes), &["bad.safetensors", "not UTF-8 at byte 9"]);
    refused(
        read(file("{\"a\n\":\n  !}", 0)),
        &["bad.safetensors", "byte "],
    );
    refused(read(file("{} x", 0)), &["trailing characters", "byte 11"]);
    refused(
        read(file("[]", 0)),
        &["bad.safetensors", "expected an object", "byte "],
    );
    refused(read(file("", 0)), &["bad.safetensors", "EOF"]);
    refused(read(file("{}}", 0)), &["trailing characters", "byte 10"]);
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    refused(read(file(&deep, 0)), &["bad.safetensors: tensor a: "]);
    // Padding with spaces is how writers align the data.
    read(file("{}      ", 0)).unwrap();
}

#[test]
fn m6_the_offset_points_at_the_fault() {
    let text = "{\n \"a\": ?}";
    let fault = 8 + text.find('?').unwrap();
    refused(read(file(text, 0)), &[&format!("byte {fault} ")]);
}

#[test]
fn m7_a_key_twice() {
    let twice = entry("w", "F32", "[1]", 0, 4);
    let error = refused(
        read_entries(&[twice.clone(), twice], 4),
        &["tensor w: ", "twice"],
    );
    assert!(matches!(error, Error::Tensor { .. }));
    let metadata = r#""__metadata__":{}"#.to_owned();
    let twice = read_entries(&[metadata.clone(), metadata], 0);
    refused(twice, &["__metadata__", "twice"]);
}

#[test]
fn m8_metadata_is_text() {
    let good = r#"{"__metadata__":{"format":"pt"}}"#;
    assert_eq!(read(file(good, 0)).unwrap().names().len(), 0);
    for value in ["1", "null", "[\"a\"]", "{}"] {
        let header = format!(r#"{{"__metadata__":{{"format":"pt","v":{value}}}}}"#);
        let error = refused(
            read(file(&header, 0)),
            &["bad.safetensors: __metadata__.v: "],
        );
        assert!(matches!(error, Error::Field { .. }));
    }
    refused(
        read(file(r#"{"__metadata__":3}"#, 0)),
        &["bad.safetensors: __metadata__: "],
    );
}

#[test]
fn m9_types_that_are_not_decoded() {
    for dtype in [
        "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "I8", "I16", "I32", "I64", "U8", "U16",
        "U32", "U64", "BOOL", "C64", "Q4_0", "f32", "WHAT",
    ] {
        let error = refused(
            read_entries(&[entry("w", dtype, "[8]", 0, 8)], 8),
            &[
                "bad.safetensors",
                "tensor w",
                &format!("\"{dtype}\""),
                "F32, F16, F64, BF16",
            ],
        );
        assert!(matches!(error, Error::Unsupported { .. }));
    }
}

#[test]
fn m10_ranges_that_do_not_chain() {
    let two = |start, end, data_bytes| {
        let entries = [
            entry("a", "F32", "[2]", 0, 8),
            entry("b", "F32", "[2]", start, end),
        ];
        read_entries(&entries, data_bytes)
    };
    two(8, 16, 16).unwrap();
    refused(
        two(4, 12, 16),
        &["tensor b: ", "4..12", "overlap", "0..8 of tensor a"],
    );
    refused(
        two(0, 8, 8),
        &["tensor b: ", "0..8", "overlap", "of tensor a"],
    );
    refused(
        two(12, 20, 20),
        &["tensor b: ", "12..20", "hole", "0..8 of tensor a"],
    );
    refused(
        two(16, 8, 16),
        &["tensor b: ", "16..8", "end before they start"],
    );
    refused(
        two(8, 16, 12),
        &["tensor b: ", "8..16", "12", "4 are missing"],
    );
    refused(
        two(8, 16, 17),
        &["bad.safetensors", "1 bytes follow the last tensor"],
    );
    let late = read_entries(&[entry("a", "F32", "[2]", 4, 12)], 12);
    refused(late, &["tensor a: ", "4..12", "hole after the header"]);
    let far = read_entries(&[entry("a", "F32", "[2]", 0, u64::MAX)], 12);
    refused(far, &["tensor a: "]);
    let beyond_u64 = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551616]}}"#;
    refused(read(file(beyond_u64, 4)), &["tensor a: "]);
}

#[test]
fn m11_a_product_that_wraps_is_not_empty() {
    for shape in [
        "[4294967296,4294967296]",
        "[9223372036854775808,2]",
        "[4611686018427387904,4]",
        "[4294967296,4294967296,0]",
        "[4611686018427387904]",
    ] {
        let result = read_entries(&[entry("w", "F32", shape, 0, 0)], 0);
        refused(result, &["tensor w: ", "overflows"]);
    }
    for shape in ["[-1]", "[1.5]", "[18446744073709551616]", "\"x\"", "null"] {
        let result = read_entries(&[entry("w", "F32", shape, 0, 0)], 0);
        refused(result, &["bad.safetensors: tensor w: "]);
    }
}

#[test]
fn m12_bytes_disagree_with_the_shape() {
    let result = read_entries(&[entry("w", "F16", "[3,5]", 0, 32)], 32);
    refused(result, &["tensor w: ", "[3, 5]", "F16", "30 bytes", "32"]);
    let result = read_entries(&[entry("w", "F32", "[0,5]", 0, 4)], 4);
    refused(result, &["tensor w: ", "[0, 5]", "0 bytes", "4"]);
}

#[test]
fn m12_an_entry_without_its_fields() {
    for body in ["{}", "3", "null", r#"{"dtype":"F32","shape":[1]}"#] {
        let result = read(file(&format!("{{\"w\":{body}}}"), 4));
        refused(result, &["bad.safetensors: tensor w: ", "byte "]);
    }
}

#[test]
fn m13_cut_in_the_last_tensor() {
    let entries = [
        entry("a", "F32", "[2]", 0, 8),
        entry("z", "F32", "[2]", 8, 16),
    ];
    refused(read_entries(&entries, 11), &["tensor z: ", "5 are missing"]);
}

/// Headers whose parsed form would be many times their size.
#[test]
fn m22_headers_that_swell_stay_bounded() {
    let dimensions = format!("[{}0]", "0,".repeat(20_000_000));
    let many: Vec<_> = (0..400_000)
        .map(|i| entry(&i.to_string(), "F32", "[0]", 0, 0))
        .collect();
    for (header, problem) in [
        (
            entry("w", "F32", &dimensions, 0, 0),
            "more than 8 dimensions",
        ),
        (many.join(","), "more than 65536 tensors"),
    ] {
        let bytes = file(&format!("{{{header}}}"), 0);
        let len = bytes.len();
        let (result, peak) = memory::peak(|| read(bytes));
        refused(result, &["bad.safetensors", problem]);
        assert!(peak <= memory::bound(len), "{peak} for {len}");
        // The header's text, plus what the permitted part of it takes.
        assert!(peak <= len + (32 << 20), "{peak} for {len}");
    }
}
