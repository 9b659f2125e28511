//! The keys of GGUF files: rows M23, M24 and M31 of the catalogue.

use nelumbo::Error;
use nelumbo::formats::write::GgufWriter;

use crate::gguf::{header, read, valid};
use crate::{memory, refused};

const ARRAY: u32 = 9;

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

/// All thirteen types of values, each alone and, but for the array, in an array.
#[test]
fn every_type_is_read_alone_and_in_arrays() {
    let text = |s: &str| [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat();
    let values: [(u32, Vec<u8>); 12] = [
        (0, vec![7]),
        (1, vec![7]),
        (2, 7u16.to_le_bytes().to_vec()),
        (3, 7i16.to_le_bytes().to_vec()),
        (4, 7u32.to_le_bytes().to_vec()),
        (5, 7i32.to_le_bytes().to_vec()),
        (6, 7f32.to_le_bytes().to_vec()),
        (7, vec![1]),
        (8, text("seven")),
        (10, 7u64.to_le_bytes().to_vec()),
        (11, 7i64.to_le_bytes().to_vec()),
        (12, 7f64.to_le_bytes().to_vec()),
    ];
    for (kind, bytes) in values {
        for len in [0, 1, 3] {
            let file = GgufWriter::new()
                .raw("one", kind, &bytes)
                .array("many", kind, len, &bytes.repeat(len))
                .u32("behind", 1);
            let metadata = read(file.finish()).unwrap().metadata;
            assert_eq!(metadata.u32("behind").unwrap(), 1, "type {kind}");
            match kind {
                6 | 12 => {
                    assert_eq!(metadata.f32("one").unwrap(), 7.0);
                    assert_eq!(metadata.f32s("many").unwrap(), vec![7.0; len]);
                }
                7 => {
                    assert!(metadata.bool("one").unwrap());
                    assert_eq!(metadata.bools("many").unwrap(), vec![true; len]);
                }
                8 => {
                    assert_eq!(metadata.string("one").unwrap(), "seven");
                    assert_eq!(metadata.strings("many").unwrap(), vec!["seven"; len]);
                }
                _ => {
                    assert_eq!(metadata.u32("one").unwrap(), 7, "type {kind}");
                    assert_eq!(metadata.i32s("many").unwrap(), vec![7; len], "type {kind}");
                }
            }
        }
    }
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
