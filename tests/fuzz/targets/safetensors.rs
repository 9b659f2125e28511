//! A safetensors file.

use super::Target;
use nelumbo::formats::safetensors;
use std::path::Path;
use std::sync::Arc;

pub const TARGET: Target = Target {
    name: "safetensors",
    run,
    seeds,
};

const FILE: &str = "fuzzed.safetensors";

fn run(data: &[u8]) {
    match safetensors::read(Path::new(FILE), Arc::new(data.to_vec())) {
        Ok(checkpoint) => super::read_all(&checkpoint),
        Err(error) => super::names(&error, FILE),
    }
}

fn file(header: &str, len: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + len, 0x3C);
    bytes
}

fn seeds() -> Vec<Vec<u8>> {
    let types = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b":{"dtype":"F16","shape":[4],"data_offsets":[24,32]},
        "c":{"dtype":"BF16","shape":[1,1,2],"data_offsets":[32,36]}}"#;
    let refused = r#"{"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    vec![file(types, 36), file(refused, 8), file("{}", 0)]
}
