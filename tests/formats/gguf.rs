//! GGUF headers: what they may say, and rows M3 and M21 to M31 of the catalogue.

use std::path::Path;
use std::sync::Arc;

use nelumbo::formats::write::GgufWriter;
use nelumbo::formats::{Encoding, Gguf};
use nelumbo::{Error, Result};

use crate::{memory, refused};

const F32: u32 = 0;
const ARRAY: u32 = 9;

pub fn read(bytes: Vec<u8>) -> Result<Gguf> {
    Gguf::read(Path::new("bad.gguf"), Arc::new(bytes))
}

/// Every value type and encoding once.
pub fn valid() -> GgufWriter {
    GgufWriter::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .f32("llama.rope.freq_base", 10000.0)
        .bool("tokenizer.ggml.add_bos_token", true)
        .strings("tokenizer.ggml.tokens", &["a", "", "\u{120}b"])
        .i32s("tokenizer.ggml.token_type", &[1, 3, -1])
        .f32s("tokenizer.ggml.scores", &[0.5, -1.0, 0.0])
        .u64("general.big", u64::MAX)
        .tensor("norm", &[3], Encoding::F32, &[0; 12])
        .tensor("half", &[2, 5], Encoding::F16, &[0; 20])
        .tensor("brain", &[5, 2], Encoding::Bf16, &[0; 20])
        .tensor("q4_0", &[2, 64], Encoding::Q4_0, &[7; 72])
        .tensor("q4_1", &[3, 32], Encoding::Q4_1, &[7; 60])
        .tensor("q8_0", &[2, 2, 32], Encoding::Q8_0, &[7; 136])
}

/// A header of the given counts, with nothing behind it.
fn header(version: u32, num_tensors: u64, num_keys: u64) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(num_tensors.to_le_bytes());
    bytes.extend(num_keys.to_le_bytes());
    bytes
}

#[test]
fn every_value_type_comes_back() {
    let gguf = read(valid().finish()).unwrap();
    let metadata = &gguf.metadata;
    assert_eq!(metadata.architecture().unwrap(), "llama");
    assert_eq!(metadata.u32("llama.block_count").unwrap(), 2);
    assert_eq!(metadata.f32("llama.rope.freq_base").unwrap(), 10000.0);
    assert!(metadata.bool("tokenizer.ggml.add_bos_token").unwrap());
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens, ["a", "", "\u{120}b"]);
    let types = metadata.i32s("tokenizer.ggml.token_type").unwrap();
    assert_eq!(types, [1, 3, -1]);
    let scores = metadata.f32s("tokenizer.ggml.scores").unwrap();
    assert_eq!(scores, [0.5, -1.0, 0.0]);
    assert_eq!(metadata.opt_u32("llama.missing").unwrap(), None);
    assert_eq!(metadata.keys().count(), 8);
    assert!(metadata.contains("general.big"));
}

#[test]
fn integers_of_any_width_are_read_if_they_fit() {
    let widths: [(u32, &[u8], u32); 8] = [
        (0, &[200], 200),
        (1, &[100], 100),
        (2, &[0, 2], 512),
        (3, &[0, 2], 512),
        (4, &[0xff; 4], u32::MAX),
        (5, &[1, 0, 0, 0x40], 0x4000_0001),
        (10, &[1, 0, 0, 0, 0, 0, 0, 0], 1),
        (11, &[0, 0, 0, 0x80, 0, 0, 0, 0], 1 << 31),
    ];
    for (value_type, bytes, expected) in widths {
        let gguf = read(GgufWriter::new().raw("n", value_type, bytes).finish()).unwrap();
        assert_eq!(
            gguf.metadata.u32("n").unwrap(),
            expected,
            "type {value_type}"
        );
    }
    let wide = GgufWriter::new()
        .raw("n", 11, &(-5i64).to_le_bytes())
        .u64("m", 1 << 32)
        .raw("d", 12, &0.25f64.to_le_bytes());
    let metadata = read(wide.finish()).unwrap().metadata;
    refused(metadata.u32("n"), &["bad.gguf: n: ", "-5", "4294967295"]);
    refused(metadata.opt_u32("m"), &["bad.gguf: m: ", "4294967296"]);
    assert_eq!(metadata.f32("d").unwrap(), 0.25);
}

#[test]
fn integer_arrays_of_any_width_are_read_if_they_fit() {
    let bytes = GgufWriter::new()
        .array("bytes", 0, 3, &[1, 2, 255])
        .array(
            "wide",
            11,
            2,
            &[[0xff; 8], [7, 0, 0, 0, 0, 0, 0, 0]].concat(),
        )
        .array("too wide", 4, 2, &[1, 0, 0, 0, 0, 0, 0, 0x80])
        .array("bools", 7, 2, &[1, 0])
        .array("doubles", 12, 1, &1.5f64.to_le_bytes())
        .finish();
    let metadata = read(bytes).unwrap().metadata;
    assert_eq!(metadata.i32s("bytes").unwrap(), [1, 2, 255]);
    assert_eq!(metadata.i32s("wide").unwrap(), [-1, 7]);
    assert_eq!(metadata.bools("bools").unwrap(), [true, false]);
    assert_eq!(metadata.f32s("doubles").unwrap(), [1.5]);
    refused(
        metadata.i32s("too wide"),
        &["too wide", "2147483648 as element 1"],
    );
}

#[test]
fn shapes_are_turned_outermost_first() {
    let gguf = read(valid().finish()).unwrap();
    let q8_0 = gguf.checkpoint.require("q8_0").unwrap();
    assert_eq!(q8_0.shape, [2, 2, 32]);
    assert_eq!((q8_0.rows(), q8_0.columns()), (4, 32));
    let norm = gguf.checkpoint.require("norm").unwrap();
    assert_eq!((norm.rows(), norm.columns()), (1, 3));
    let names: Vec<_> = gguf.checkpoint.names().collect();
    assert_eq!(names, ["norm", "half", "brain", "q4_0", "q4_1", "q8_0"]);
    assert_eq!(gguf.checkpoint.total_bytes(), 12 + 20 + 20 + 72 + 60 + 136);
}

#[test]
fn version_2_and_other_alignments_are_read() {
    let mut bytes = valid().finish();
    bytes[4] = 2;
    assert_eq!(read(bytes).unwrap().checkpoint.names().len(), 6);
    for alignment in [8, 64, 65_536] {
        let bytes = GgufWriter::new()
            .alignment(alignment)
            .tensor("a", &[1], Encoding::F32, &1f32.to_le_bytes())
            .tensor("b", &[1], Encoding::F32, &2f32.to_le_bytes())
            .finish();
        let checkpoint = read(bytes).unwrap().checkpoint;
        let mut row = Vec::new();
        let b = checkpoint.require("b").unwrap();
        checkpoint.read_rows(b, 0..1, &mut row).unwrap();
        assert_eq!(row, [2.0], "alignment {alignment}");
    }
}

#[test]
fn m3_files_too_short_for_a_header() {
    refused(read(vec![]), &["bad.gguf: 0 bytes", "24"]);
    refused(read(b"GGUF\x03\0\0".to_vec()), &["bad.gguf: 7 bytes", "24"]);
}

#[test]
fn m21_magic_byte_order_and_version() {
    refused(read(b"GGML".repeat(8)), &["bad.gguf", "47, 47, 4d, 4c"]);
    for version in [0, 1, 4] {
        let error = refused(
            read(header(version, 0, 0)),
            &["bad.gguf", "version", &format!("\"{version}\""), "2, 3"],
        );
        assert!(matches!(error, Error::Unsupported { .. }));
    }
    let big_endian = read(header(3u32.swap_bytes(), 0, 0));
    refused(big_endian, &["big-endian, version 3", "little-endian"]);
}

#[test]
fn m22_counts_beyond_what_the_file_can_hold() {
    for (num_tensors, num_keys, field) in [
        (u64::MAX, 0, "tensor count"),
        (0, u64::MAX, "key count"),
        (65_537, 0, "tensor count"),
        (1, 0, "tensor count"),
        (0, 1, "key count"),
    ] {
        let bytes = header(3, num_tensors, num_keys);
        let (result, peak) = memory::peak(|| read(bytes));
        refused(result, &["bad.gguf", field]);
        assert!(peak < 1 << 20, "{peak} bytes for {field}");
    }
}

#[test]
fn m23_lengths_beyond_the_file() {
    let huge = (1u64 << 32).to_le_bytes();
    let array_of = |element_type: u32| [element_type.to_le_bytes().as_slice(), &huge].concat();
    for (value_type, value) in [
        (8, huge.to_vec()),
        (ARRAY, array_of(8)),
        (ARRAY, array_of(0)),
    ] {
        let bytes = GgufWriter::new()
            .raw("some.key", value_type, &value)
            .finish();
        let (result, peak) = memory::peak(|| read(bytes));
        refused(
            result,
            &["bad.gguf: some.key: ", "4294967296", "left in the file"],
        );
        assert!(peak < 1 << 20, "{peak}");
    }
    let mut bytes = header(3, 0, 1);
    bytes.extend(huge);
    bytes.resize(100, 0);
    refused(read(bytes), &["name of key 0", "4294967296"]);
}

#[test]
fn m23_a_string_array_is_limited_whatever_the_file_holds() {
    let len = (4 << 20) + 1;
    let bytes = GgufWriter::new()
        .array("k", 8, len, &vec![0; 8 * len])
        .finish();
    refused(
        read(bytes),
        &["bad.gguf: k: ", "4194305 strings", "4194304"],
    );
}

#[test]
fn m24_nested_arrays_and_unknown_types() {
    let nested = GgufWriter::new().array("k", ARRAY, 1, &[0; 16]).finish();
    refused(read(nested), &["bad.gguf: k: ", "arrays of arrays"]);
    let unknown = GgufWriter::new().raw("k", 13, &[0; 16]).finish();
    refused(read(unknown), &["bad.gguf: k: ", "type 13"]);
    let unknown = GgufWriter::new().array("k", 77, 1, &[0; 16]).finish();
    refused(read(unknown), &["bad.gguf: k: ", "type 77"]);
    let odd_bool = GgufWriter::new().raw("k", 7, &[2]).finish();
    refused(read(odd_bool), &["bad.gguf: k: ", "value 2"]);
}

#[test]
fn m24_strings_have_to_be_utf_8() {
    let mut element = 2u64.to_le_bytes().to_vec();
    element.extend([b'a', 0xff]);
    let scalar = GgufWriter::new().raw("k", 8, &element).finish();
    refused(read(scalar), &["bad.gguf: k: ", "not UTF-8 after 1 bytes"]);
    let elements = [3u64.to_le_bytes().as_slice(), b"abc", &element].concat();
    let array = GgufWriter::new().array("k", 8, 2, &elements).finish();
    refused(
        read(array),
        &["bad.gguf: k[1]: ", "not UTF-8 after 1 bytes"],
    );
}

#[test]
fn m25_alignment() {
    let key = "general.alignment";
    for value in [0u32, 4, 13, 1 << 17, 1 << 31] {
        let bytes = GgufWriter::new().u32(key, value).finish();
        refused(
            read(bytes),
            &["bad.gguf: general.alignment: ", &value.to_string()],
        );
    }
    let text = GgufWriter::new().string(key, "32").finish();
    refused(
        read(text),
        &["bad.gguf: general.alignment: ", "is a string"],
    );
    let wide = GgufWriter::new().u64(key, 1 << 32).finish();
    refused(read(wide), &["bad.gguf: general.alignment: ", "4294967296"]);
}

#[test]
fn m26_dimensions() {
    let with = |dimensions: &[u64]| {
        let bytes = GgufWriter::new().raw_tensor("blk.w", dimensions, F32, 0, &[0; 64]);
        refused(read(bytes.finish()), &["bad.gguf: tensor blk.w: "]).to_string()
    };
    assert!(with(&[]).contains("0 dimensions"));
    assert!(with(&[1; 5]).contains("5 dimensions"));
    assert!(with(&[4, 0]).contains("dimension 1 is 0"));
    assert!(with(&[-1i64 as u64]).contains("18446744073709551615"));
    assert!(with(&[(1 << 31) + 1]).contains("2147483649"));
    assert!(with(&[1 << 31, 1 << 31, 4]).contains("overflows"));
    assert!(
        with(&[1 << 31, 1 << 30]).contains("overflows"),
        "2^63 bytes"
    );
    assert!(with(&[17]).contains("4 are missing"));
}

#[test]
fn m26_offsets_follow_one_another() {
    let at = |offset| {
        let bytes = GgufWriter::new()
            .tensor("a", &[1], Encoding::F32, &[0; 4])
            .raw_tensor("b", &[1], F32, offset, &[0; 4])
            .finish();
        read(bytes)
    };
    at(32).unwrap();
    for wrong in [0, 4, 33, 64, u64::MAX - 3] {
        let offset = format!("offset {wrong}, expected 32");
        refused(at(wrong), &["bad.gguf: tensor b: ", &offset]);
    }
}

#[test]
fn m27_rows_of_broken_groups() {
    for encoding in [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q8_0] {
        let id = encoding.gguf_type();
        let bytes = GgufWriter::new().raw_tensor("w", &[48, 2], id, 0, &[0; 256]);
        refused(
            read(bytes.finish()),
            &["tensor w: ", "48", encoding.name(), "groups of 32"],
        );
    }
}

#[test]
fn m28_types_without_a_decoder() {
    for (id, name) in [
        (14, "Q6_K"),
        (16, "IQ2_XXS"),
        (39, "MXFP4"),
        (28, "F64"),
        (4_000_000, "unknown type 4000000"),
    ] {
        let bytes = GgufWriter::new().raw_tensor("w", &[256], id, 0, &[0; 256]);
        let error = refused(
            read(bytes.finish()),
            &[
                "bad.gguf",
                "tensor w",
                name,
                "F32, F16, Q4_0, Q4_1, Q8_0, BF16",
            ],
        );
        assert!(matches!(error, Error::Unsupported { .. }));
    }
}

#[test]
fn m29_names_are_unique_and_short() {
    let keys = GgufWriter::new().u32("twice", 1).u32("twice", 1).finish();
    refused(read(keys), &["bad.gguf: twice: ", "appears twice"]);
    let tensors = GgufWriter::new()
        .tensor("twice", &[1], Encoding::F32, &[0; 4])
        .tensor("twice", &[1], Encoding::F32, &[0; 4])
        .finish();
    refused(
        read(tensors),
        &["bad.gguf: tensor twice: ", "appears twice"],
    );
    let long = GgufWriter::new().tensor(&"n".repeat(65), &[1], Encoding::F32, &[0; 4]);
    refused(read(long.finish()), &["name of tensor 0", "65", "64"]);
    let long = GgufWriter::new().u32(&"k".repeat(65_536), 1);
    refused(read(long.finish()), &["name of key 0", "65536", "65535"]);
    let empty = GgufWriter::new().u32("", 1).u32("padding", 0).finish();
    refused(read(empty), &["key 0", "empty"]);
}

#[test]
fn m30_split_files() {
    let split = GgufWriter::new().raw("split.count", 2, &[3, 0]).finish();
    refused(read(split), &["bad.gguf", "split.count", "\"3\"", "merge"]);
    let whole = GgufWriter::new().raw("split.count", 2, &[1, 0]).finish();
    read(whole).unwrap();
}

#[test]
fn m31_a_required_key_is_missing_or_of_another_type() {
    let gguf = read(GgufWriter::new().u32("llama.block_count", 2).finish()).unwrap();
    let metadata = gguf.metadata;
    refused(
        metadata.architecture(),
        &["bad.gguf: general.architecture: ", "missing"],
    );
    let error = refused(
        metadata.u32("llama.context_length"),
        &["llama.context_length"],
    );
    assert!(matches!(error, Error::Field { .. }));
    let key = "llama.block_count";
    let found = "is the integer 2, expected ";
    refused(metadata.string(key), &[key, found, "a string"]);
    refused(metadata.f32(key), &[key, found, "a float"]);
    refused(metadata.bool(key), &[key, found, "a bool"]);
    refused(
        metadata.opt_strings(key),
        &[key, found, "an array of strings"],
    );
    refused(
        metadata.opt_i32s(key),
        &[key, found, "an array of integers"],
    );
    refused(metadata.opt_f32s(key), &[key, found, "an array of floats"]);
    let text = read(GgufWriter::new().string("k", "2").finish()).unwrap();
    refused(
        text.metadata.opt_u32("k"),
        &["k: is a string", "an integer"],
    );
}

/// Arrays whose form in memory is larger than in the file.
#[test]
fn m23_arrays_that_swell_stay_bounded() {
    let len = 4 << 20;
    for (element_type, element_bytes) in [(8, 8), (0, 1), (7, 1)] {
        let elements = vec![0; len * element_bytes];
        let bytes = GgufWriter::new().array("k", element_type, len, &elements);
        let bytes = bytes.finish();
        let input_bytes = bytes.len();
        let (result, peak) = memory::peak(|| read(bytes));
        result.unwrap();
        assert!(
            peak <= memory::bound(input_bytes),
            "{peak} for {input_bytes}"
        );
    }
}

#[test]
fn m23_a_numeric_array_is_not_reserved_before_it_is_there() {
    // 16 MiB of bytes, declared as 64 more than that.
    let len = 16 << 20;
    let bytes = GgufWriter::new()
        .array("k", 0, len + 64, &vec![0; len])
        .finish();
    let (result, peak) = memory::peak(|| read(bytes));
    refused(result, &["bad.gguf: k: ", "16777280"]);
    assert!(peak < 1 << 20, "{peak}");
}
