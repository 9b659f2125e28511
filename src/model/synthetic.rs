//! Tiny seeded models: real shapes, random weights, made in memory in milliseconds. For tests and
//! benches that must not download anything.

use super::config::Config;
use super::tensors::{LayerNames, Names};
use crate::error::Result;
use crate::formats::checkpoint::Checkpoint;
use crate::formats::encoding::Encoding;
use crate::kernels::case::Data;
use std::path::PathBuf;

/// Two layers, grouped queries, 64 wide.
pub fn tiny() -> Config {
    Config {
        architecture: "synthetic".to_owned(),
        num_layers: 2,
        hidden_size: 64,
        num_heads: 6,
        num_kv_heads: 2,
        head_dim: 32,
        intermediate_size: 96,
        vocab_size: 512,
        max_position_embeddings: 2048,
        tied_head: true,
        ..Config::default()
    }
}

/// How the tensors of [`checkpoint`] are named.
pub const NAMES: Names = Names {
    embedding: "embedding",
    final_norm: "norm",
    head: "head",
    layer: LayerNames {
        prefix: "layers.",
        attn_norm: "attn_norm",
        q: "q",
        k: "k",
        v: "v",
        o: "o",
        mlp_norm: "mlp_norm",
        gate: "gate",
        up: "up",
        down: "down",
    },
    ignored: &[],
    pairs_adjacent: false,
};

/// Random weights for `config`, of a scale that keeps activations near 1; the same for a seed
/// everywhere.
///
/// # Errors
/// None for a configuration whose sizes fit into memory.
pub fn checkpoint(config: &Config, seed: u64) -> Result<Checkpoint> {
    let mut data = Data::new(seed);
    let mut parts = Vec::new();
    let mut matrix = |name: String, rows: usize, columns: usize| {
        let scale = 1.0 / (columns as f32).sqrt();
        let values = data.normal(rows * columns);
        let bytes = values
            .iter()
            .flat_map(|v| half::f16::from_f32(v * scale).to_le_bytes())
            .collect();
        parts.push((name, vec![rows, columns], Encoding::F16, bytes));
    };
    let (h, q, kv, i) = (
        config.hidden_size,
        config.q_width(),
        config.kv_width(),
        config.intermediate_size,
    );
    matrix(NAMES.embedding.to_owned(), config.vocab_size, h);
    if !config.tied_head {
        matrix(NAMES.head.to_owned(), config.vocab_size, h);
    }
    let names = &NAMES.layer;
    for layer in 0..config.num_layers {
        let at = |name: &str| format!("{}{layer}.{name}", names.prefix);
        for (name, rows, columns) in [
            (names.q, q, h),
            (names.k, kv, h),
            (names.v, kv, h),
            (names.o, h, q),
            (names.gate, i, h),
            (names.up, i, h),
            (names.down, h, i),
        ] {
            matrix(at(name), rows, columns);
        }
    }
    let mut vector = |name: String| {
        let bytes = data
            .normal(h)
            .iter()
            .flat_map(|v| (1.0 + 0.1 * v).to_le_bytes())
            .collect();
        parts.push((name, vec![h], Encoding::F32, bytes));
    };
    vector(NAMES.final_norm.to_owned());
    for layer in 0..config.num_layers {
        vector(format!("{}{layer}.{}", names.prefix, names.attn_norm));
        vector(format!("{}{layer}.{}", names.prefix, names.mlp_norm));
    }
    Checkpoint::from_parts(PathBuf::from("synthetic"), parts)
}
