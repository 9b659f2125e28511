//! Reading weights from a checkpoint: rows, pieces, and rows M13 and M17 to M19 of the catalogue.

use std::fs::OpenOptions;

use nelumbo::Error;
use nelumbo::formats::checkpoint::PIECE_BYTES;
use nelumbo::formats::write::GgufWriter;
use nelumbo::formats::{Checkpoint, Encoding, Gguf, count_non_finite};

use crate::{memory, refused};

fn bytes_of(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn checkpoint(parts: &[(&str, &[usize], Encoding, Vec<u8>)]) -> nelumbo::Result<Checkpoint> {
    let parts = parts.iter().map(|(name, shape, encoding, bytes)| {
        (name.to_string(), shape.to_vec(), *encoding, bytes.clone())
    });
    Checkpoint::from_parts("memory", parts)
}

#[test]
fn any_range_of_rows_is_read() {
    let values: Vec<f32> = (0..5 * 7).map(|x| x as f32).collect();
    let bytes = bytes_of(values.iter().copied());
    let checkpoint = checkpoint(&[("w", &[5, 7], Encoding::F32, bytes)]).unwrap();
    let info = checkpoint.require("w").unwrap();
    let mut rows = vec![9.0; 1000];
    for start in 0..=5 {
        for end in start..=5 {
            checkpoint.read_rows(info, start..end, &mut rows).unwrap();
            assert_eq!(rows, values[start * 7..end * 7], "{start}..{end}");
        }
    }
}

#[test]
fn tensors_beyond_one_piece_are_read_in_pieces() {
    // 7 rows that are no divisor of a piece, of groups that are none either.
    let (rows, columns) = (7, 33 * 32 * 1024);
    let groups = rows * columns / 32;
    let mut bytes = vec![0; groups * 34];
    for (group_idx, group) in bytes.chunks_exact_mut(34).enumerate() {
        group[1] = 0x3c; // scale 1
        group[2] = (group_idx % 127) as u8;
        group[33] = (group_idx % 113) as u8;
    }
    assert!(bytes.len() > 6 * PIECE_BYTES / 4);
    let checkpoint = checkpoint(&[("w", &[rows, columns], Encoding::Q8_0, bytes)]).unwrap();
    let info = checkpoint.require("w").unwrap();
    let mut out = Vec::with_capacity(rows * columns);
    let (result, peak) = memory::peak(|| checkpoint.read_rows(info, 0..rows, &mut out));
    result.unwrap();
    assert!(peak <= PIECE_BYTES, "{peak}");
    for (group_idx, group) in out.chunks_exact(32).enumerate() {
        let found = (group[0], group[1], group[31]);
        let expected = ((group_idx % 127) as f32, 0.0, (group_idx % 113) as f32);
        assert_eq!(found, expected, "group {group_idx}");
    }
}

#[test]
#[should_panic(expected = "rows 4..6 of 5")]
fn rows_beyond_the_tensor_are_our_own_bug() {
    let parts = [("w", [5, 1].as_slice(), Encoding::F32, vec![0; 20])];
    let checkpoint = checkpoint(&parts).unwrap();
    let info = checkpoint.require("w").unwrap();
    let _ = checkpoint.read_rows(info, 4..6, &mut Vec::new());
}

#[test]
fn parts_have_to_fit_their_shapes() {
    let short = checkpoint(&[("w", &[2, 2], Encoding::F32, vec![0; 15])]);
    refused(short, &["memory: tensor w: ", "15 bytes", "[2, 2]", "16"]);
    let broken = checkpoint(&[("w", &[2, 16], Encoding::Q8_0, vec![0; 34])]);
    refused(broken, &["memory: tensor w: ", "34 bytes", "[2, 16]"]);
    let one = ("w", [1].as_slice(), Encoding::F32, vec![0; 4]);
    refused(checkpoint(&[one.clone(), one]), &["tensor w: ", "twice"]);
}

#[test]
fn m13_cut_while_loading() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    let data = bytes_of((0..64).map(|x| x as f32));
    let bytes = GgufWriter::new()
        .tensor("w", &[4, 16], Encoding::F32, &data)
        .finish();
    let len = bytes.len() as u64;
    std::fs::write(&path, bytes).unwrap();
    let checkpoint = Gguf::open(&path).unwrap().checkpoint;
    checkpoint.check_unchanged().unwrap();

    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(len - 10).unwrap();
    let info = checkpoint.require("w").unwrap();
    let mut rows = Vec::new();
    checkpoint.read_rows(info, 0..3, &mut rows).unwrap();
    assert_eq!(rows[47], 47.0);
    let result = checkpoint.read_rows(info, 3..4, &mut rows);
    refused(
        result,
        &["cut.gguf: tensor w: ", "shorter", "10 are missing"],
    );
    refused(checkpoint.check_unchanged(), &["cut.gguf", "changed"]);
}

#[test]
fn m17_missing_tensors_are_named() {
    let parts = [("here", [1].as_slice(), Encoding::F32, vec![0; 4])];
    let checkpoint = checkpoint(&parts).unwrap();
    refused(
        checkpoint.require("gone"),
        &["memory: tensor gone: ", "missing"],
    );
    checkpoint.require_all(["here"]).unwrap();
    refused(
        checkpoint.require_all(["here", "gone"]),
        &["memory: tensor gone: ", "missing"],
    );
    let wanted: Vec<String> = (0..12).map(|i| format!("w{i}")).collect();
    let result = checkpoint.require_all(wanted.iter().map(String::as_str));
    let text = refused(result, &["tensor w0: ", "12 ", "w9", "and 2 more"]).to_string();
    assert!(!text.contains("w10"), "{text}");
}

#[test]
fn m18_a_shape_that_the_config_does_not_imply() {
    let parts = [("w", [2, 3].as_slice(), Encoding::F32, vec![0; 24])];
    let checkpoint = checkpoint(&parts).unwrap();
    checkpoint.expect_shape("w", &[2, 3], "").unwrap();
    let result = checkpoint.expect_shape("w", &[3, 2], "vocab_size, hidden_size");
    let error = refused(
        result,
        &[
            "memory: tensor w: ",
            "[2, 3]",
            "[3, 2]",
            "vocab_size, hidden_size",
        ],
    );
    assert!(matches!(error, Error::WeightShape { .. }));
    refused(
        checkpoint.expect_shape("v", &[1], ""),
        &["tensor v: ", "missing"],
    );
}

#[test]
fn m19_non_finite_weights_pass_through_and_can_be_counted() {
    let values = [1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let parts = [("w", [2, 2].as_slice(), Encoding::F32, bytes_of(values))];
    let checkpoint = checkpoint(&parts).unwrap();
    let info = checkpoint.require("w").unwrap();
    let mut rows = Vec::new();
    checkpoint.read_rows(info, 0..2, &mut rows).unwrap();
    assert_eq!(count_non_finite(&rows), 3);
    checkpoint.read_rows(info, 0..1, &mut rows).unwrap();
    assert_eq!(count_non_finite(&rows), 1);
}
