//! Valid files with something changed in them: whatever it is, the readers answer, within bounded
//! memory, and what they accept can be read to its end.

use std::fs;

use nelumbo::Error;
use nelumbo::formats::{Checkpoint, HfDir};
use proptest::prelude::*;

use crate::{gguf, memory, safetensors};

/// One change of a file.
#[derive(Debug, Clone)]
enum Change {
    Byte(prop::sample::Index, u8),
    /// A 64-bit field, with values that sums and products trip over.
    Number(prop::sample::Index, u64),
    Cut(prop::sample::Index),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let number = prop_oneof![
        0u64..40,
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u32..64).prop_map(|bit| (1u64 << bit).wrapping_sub(1)),
        (0u64..40).prop_map(|n| u64::MAX - n),
        any::<u64>(),
    ];
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        4 => (at(), number).prop_map(|(at, number)| Change::Number(at, number)),
        1 => at().prop_map(Change::Cut),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..9))
            .prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        1 => (at(), 1usize..9).prop_map(|(at, len)| Change::Remove(at, len)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    match change {
        Change::Byte(at, byte) => bytes[at.index(len)] = *byte,
        Change::Number(at, number) => {
            let at = at.index(len);
            let end = (at + 8).min(len);
            bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
        }
        Change::Cut(at) => bytes.truncate(at.index(len)),
        Change::Insert(at, new) => {
            let at = at.index(len);
            bytes.splice(at..at, new.iter().copied());
        }
        Change::Remove(at, removed) => {
            let at = at.index(len);
            bytes.drain(at..(at + removed).min(len));
        }
    }
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        apply(&mut bytes, change);
    }
    bytes
}

/// Reads every tensor; a header that was accepted promises that this works.
fn read_all(checkpoint: &Checkpoint) {
    let mut rows = Vec::new();
    for info in checkpoint.tensors() {
        let result = checkpoint.read_rows(info, 0..info.rows(), &mut rows);
        result.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(rows.len(), info.rows() * info.columns());
    }
}

fn check(result: nelumbo::Result<Checkpoint>, peak: usize, input_bytes: usize, name: &str) {
    assert!(peak <= memory::bound(input_bytes), "{peak} bytes");
    match result {
        Ok(checkpoint) => read_all(&checkpoint),
        Err(error @ (Error::Io { .. } | Error::WeightShape { .. })) => panic!("{error}"),
        Err(error) => assert!(error.to_string().contains(name), "{error}"),
    }
}

fn valid_safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]},
        "c":{"dtype":"BF16","shape":[1,1,2],"data_offsets":[32,36]}}"#;
    safetensors::file(header, 36)
}

#[test]
fn the_files_that_are_changed_are_valid() {
    read_all(&gguf::read(gguf::valid().finish()).unwrap().checkpoint);
    read_all(&safetensors::read(valid_safetensors()).unwrap());
}

#[test]
fn every_truncation_of_a_gguf_is_refused() {
    let bytes = gguf::valid().finish();
    // The last tensor's padding may be cut off, nothing else.
    let needed = bytes.len() - (160 - 136);
    for len in 0..bytes.len() {
        let result = gguf::read(bytes[..len].to_vec());
        assert_eq!(result.is_ok(), len >= needed, "{len} of {}", bytes.len());
    }
}

#[test]
fn every_truncation_of_a_safetensors_file_is_refused() {
    let bytes = valid_safetensors();
    for len in 0..bytes.len() {
        assert!(safetensors::read(bytes[..len].to_vec()).is_err(), "{len}");
    }
}

/// `PROPTEST_CASES` asks for longer runs.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: cases.max(default.cases),
        failure_persistence: None,
        ..default
    }
}

proptest! {
    #![proptest_config(config(4000))]

    #[test]
    fn changed_gguf(changes in prop::collection::vec(change(), 1..5)) {
        let bytes = changed(gguf::valid().finish(), &changes);
        let len = bytes.len();
        let (result, peak) = memory::peak(|| gguf::read(bytes).map(|gguf| gguf.checkpoint));
        check(result, peak, len, "bad.gguf");
    }

    #[test]
    fn changed_safetensors(changes in prop::collection::vec(change(), 1..5)) {
        let bytes = changed(valid_safetensors(), &changes);
        let len = bytes.len();
        let (result, peak) = memory::peak(|| safetensors::read(bytes));
        check(result, peak, len, "bad.safetensors");
    }

    /// The header alone changes, and its length field stays right: deeper into the checks.
    #[test]
    fn changed_safetensors_header(changes in prop::collection::vec(change(), 1..4)) {
        let valid = valid_safetensors();
        let header = changed(valid[8..valid.len() - 36].to_vec(), &changes);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.resize(bytes.len() + 36, 0);
        let len = bytes.len();
        let (result, peak) = memory::peak(|| safetensors::read(bytes));
        check(result, peak, len, "bad.safetensors");
    }
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn changed_index(changes in prop::collection::vec(change(), 1..4)) {
        let index = r#"{"metadata":{},"weight_map":{"a":"m1.safetensors","b":"m1.safetensors",
            "c":"m1.safetensors"}}"#;
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
        write("config.json", b"{}");
        write("m1.safetensors", &valid_safetensors());
        write("model.safetensors.index.json", &changed(index.into(), &changes));
        let result = HfDir::open(dir.path()).map(|dir| dir.checkpoint);
        check(result, 0, 0, &dir.path().display().to_string());
    }
}
