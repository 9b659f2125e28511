//! GGUF headers and tensor records: rows M3, M21, M22 and M25 to M30 of the catalogue.

use std::io;
use std::path::Path;
use std::sync::Arc;

use nelumbo::formats::write::GgufWriter;
use nelumbo::formats::{Encoding, Gguf, ReadAt};
use nelumbo::{Error, Result};

use crate::{memory, refused};

const F32: u32 = 0;

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
        .tensor("q5_0", &[1, 32], Encoding::Q5_0, &[7; 22])
        .tensor("q5_1", &[1, 32], Encoding::Q5_1, &[7; 24])
        .tensor("q2_k", &[1, 256], Encoding::Q2K, &[7; 84])
        .tensor("q3_k", &[2, 256], Encoding::Q3K, &[7; 220])
        .tensor("q4_k", &[1, 256], Encoding::Q4K, &[7; 144])
        .tensor("q5_k", &[1, 512], Encoding::Q5K, &[7; 352])
        .tensor("q6_k", &[1, 256], Encoding::Q6K, &[7; 210])
        .tensor("q8_k", &[1, 256], Encoding::Q8K, &[7; 292])
        .tensor("q8_0", &[2, 2, 32], Encoding::Q8_0, &[7; 136])
}

/// A header of the given counts, with nothing behind it.
pub fn header(version: u32, num_tensors: u64, num_keys: u64) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(num_tensors.to_le_bytes());
    bytes.extend(num_keys.to_le_bytes());
    bytes
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
    let expected = [
        "norm", "half", "brain", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k",
        "q6_k", "q8_k", "q8_0",
    ];
    assert_eq!(names, expected);
    let blocks = 72 + 60 + 22 + 24 + 136;
    let k_quants = 84 + 220 + 144 + 352 + 210 + 292;
    let total = gguf.checkpoint.total_bytes();
    assert_eq!(total, 12 + 20 + 20 + blocks + k_quants);
}

#[test]
fn version_2_and_other_alignments_are_read() {
    let mut bytes = valid().finish();
    bytes[4] = 2;
    assert_eq!(read(bytes).unwrap().checkpoint.names().len(), 14);
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
    let grouped: Vec<_> = Encoding::all().filter(|e| e.group_size() > 1).collect();
    assert_eq!(grouped.len(), 11);
    for encoding in grouped {
        let (id, size) = (encoding.gguf_type(), encoding.group_size());
        // A row and a half, twice: the elements make whole groups, the rows do not.
        for row in [size + size / 2, size - 1, 1] {
            let bytes = GgufWriter::new().raw_tensor("w", &[row as u64, 2], id, 0, &[0; 2048]);
            let error = refused(
                read(bytes.finish()),
                &[
                    "bad.gguf: tensor w: ",
                    &format!("rows of {row} elements"),
                    encoding.name(),
                    &format!("groups of {size}"),
                ],
            );
            assert!(matches!(error, Error::Tensor { .. }));
        }
    }
}

#[test]
fn m26_a_last_group_that_is_cut() {
    for encoding in Encoding::all() {
        let (size, bytes) = (encoding.group_size(), encoding.group_bytes());
        let shape = [3, size as u64];
        let with = |len: usize| {
            let dimensions = [shape[1], shape[0]];
            let data = vec![0; len];
            let file = GgufWriter::new()
                .raw_tensor("w", &dimensions, encoding.gguf_type(), 0, &data)
                .finish();
            // The writer pads; what is asked for is a file that ends within the last group.
            let end = file.len() - (len.next_multiple_of(32) - len);
            read(file[..end].to_vec())
        };
        with(3 * bytes).unwrap();
        let error = refused(
            with(3 * bytes - 1),
            &["bad.gguf: tensor w: ", "1 are missing"],
        );
        assert!(matches!(error, Error::Tensor { .. }), "{}", encoding.name());
    }
}

#[test]
fn m28_types_without_a_decoder() {
    for (id, name) in [
        (9, "Q8_1"),
        (16, "IQ2_XXS"),
        (39, "MXFP4"),
        (27, "I64"),
        (4_000_000, "unknown type 4000000"),
    ] {
        let bytes = GgufWriter::new().raw_tensor("w", &[256], id, 0, &[0; 256]);
        let error = refused(
            read(bytes.finish()),
            &[
                "bad.gguf",
                "tensor w",
                name,
                "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, F64, BF16",
            ],
        );
        assert!(matches!(error, Error::Unsupported { .. }));
    }
}

#[test]
fn a_file_is_called_by_its_type_or_by_what_it_holds() {
    let mixed = |keys: GgufWriter| {
        let bytes = keys
            .tensor("norm", &[256], Encoding::F32, &[0; 1024])
            .tensor("a", &[8, 256], Encoding::Q4K, &[0; 8 * 144])
            .tensor("b", &[2, 256], Encoding::Q6K, &[0; 2 * 210])
            .tensor("c", &[1, 256], Encoding::Q4K, &[0; 144])
            .finish();
        read(bytes).unwrap()
    };
    let typed = |number| mixed(GgufWriter::new().u32("general.file_type", number));
    for (number, name) in [
        (15, "Q4_K_M"),
        (14, "Q4_K_S"),
        (1024 + 15, "Q4_K_M"),
        (0, "F32"),
        (32, "BF16"),
        (7, "Q8_0"),
        (12, "Q3_K_M"),
    ] {
        assert_eq!(typed(number).quantisation().unwrap(), Some(name));
    }
    // By the bytes: neither the number of tensors nor the last one decides.
    for unknown in [typed(999), mixed(GgufWriter::new())] {
        assert_eq!(unknown.quantisation().unwrap(), Some("Q4_K"));
    }
    let expected = [
        (Encoding::F32, 1024),
        (Encoding::Q4K, 9 * 144),
        (Encoding::Q6K, 2 * 210),
    ];
    assert_eq!(typed(15).encodings(), expected);
    let text = mixed(GgufWriter::new().string("general.file_type", "Q4_K_M"));
    refused(text.quantisation(), &["bad.gguf: general.file_type: "]);
    let empty = read(GgufWriter::new().finish()).unwrap();
    assert_eq!(empty.quantisation().unwrap(), None);
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

/// Arrays whose form in memory is larger than in the file.
#[test]
fn m22_records_are_limited_whatever_the_file_holds() {
    for (num_tensors, num_keys, field) in [(65_537, 0, "tensor count"), (0, 65_537, "key count")] {
        let mut bytes = header(3, num_tensors, num_keys);
        bytes.resize(65_537 * 64, 0);
        refused(read(bytes), &["bad.gguf", field, "65537", "at most 65536"]);
    }
}

/// A large file of which only the front has been written; the rest reads as zeros.
struct Sparse {
    front: Vec<u8>,
    len: u64,
}

impl ReadAt for Sparse {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let front = self.front.get(offset as usize..).unwrap_or_default();
        let written = front.len().min(buf.len());
        buf[..written].copy_from_slice(&front[..written]);
        buf[written..].fill(0);
        Ok(())
    }
}

#[test]
fn tensors_may_lie_beyond_what_keys_may_take() {
    let front = GgufWriter::new()
        .u32("k", 1)
        .raw_tensor("large", &[1 << 20, 1 << 10], F32, 0, &[])
        .finish();
    let len = front.len() as u64 + (4 << 30);
    let sparse = |len| {
        let front = front.clone();
        Gguf::read(Path::new("bad.gguf"), Arc::new(Sparse { front, len }))
    };
    assert_eq!(sparse(len).unwrap().checkpoint.total_bytes(), 4 << 30);
    refused(sparse(len - 3), &["tensor large: ", "3 are missing"]);
}

#[test]
fn m23_keys_are_limited_whatever_the_file_holds() {
    let front = GgufWriter::new().array("k", 0, 1 << 28, &[]).finish();
    let sparse = Sparse {
        front,
        len: 1 << 40,
    };
    let (result, peak) = memory::peak(|| Gguf::read(Path::new("bad.gguf"), Arc::new(sparse)));
    refused(
        result,
        &["bad.gguf: k: ", "268435456", "256 MiB that keys may take"],
    );
    assert!(peak < 1 << 20, "{peak}");
}
