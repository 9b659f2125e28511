//! Tiny seeded models: real shapes, random weights, made in memory in milliseconds. For tests and
//! benches that must not download anything.

use super::config::{Config, NormKind, QkNorm};
use super::tensors::{LayerNames, Names, bias_of};
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
    prefix: "",
    embedding: "embedding",
    positions: "positions",
    final_norm: "norm",
    head: "head",
    layer: LayerNames {
        prefix: "layers.",
        attn_norm: "attn_norm",
        qkv: &["q", "k", "v"],
        q_norm: "q_norm",
        k_norm: "k_norm",
        o: "o",
        attn_norm_after: "attn_norm_after",
        mlp_norm: "mlp_norm",
        gate_up: &["gate", "up"],
        down: "down",
        mlp_norm_after: "mlp_norm_after",
    },
    settings: &[],
    ignored: &[],
    pairs_adjacent: false,
    transposed: false,
    norm_plus: 0.0,
};

/// Random weights for `config`, whatever it computes, of a scale that keeps activations near 1; the same
/// for a seed everywhere.
///
/// # Errors
/// None for a configuration whose sizes fit into memory.
pub fn checkpoint(config: &Config, seed: u64) -> Result<Checkpoint> {
    let mut parts = Parts {
        data: Data::new(seed),
        parts: Vec::new(),
    };
    let (h, q, kv, i) = (
        config.hidden_size,
        config.q_width(),
        config.kv_width(),
        config.intermediate_size,
    );
    parts.matrix(NAMES.embedding(), config.vocab_size, h);
    if !config.tied_head {
        parts.matrix(NAMES.head.to_owned(), config.vocab_size, h);
    }
    let names = &NAMES.layer;
    let [gate, up] = [names.gate_up[0], names.gate_up[1]];
    let layers = || 0..config.num_layers;
    let at = |layer: usize, name: &str| NAMES.in_layer(layer, name);
    for layer in layers() {
        for (name, rows, columns) in [
            (names.qkv[0], q, h),
            (names.qkv[1], kv, h),
            (names.qkv[2], kv, h),
            (names.o, h, q),
            (gate, i, h),
            (up, i, h),
            (names.down, h, i),
        ] {
            if name != gate || config.mlp.is_gated() {
                parts.matrix(at(layer, name), rows, columns);
            }
        }
    }
    let places = config.norm_places;
    parts.norm(NAMES.final_norm(), h);
    for layer in layers().filter(|_| places.before) {
        parts.norm(at(layer, names.attn_norm), h);
        parts.norm(at(layer, names.mlp_norm), h);
    }
    // what comes from here on changes nothing of what models without it are drawn
    for layer in layers().filter(|_| places.after) {
        parts.norm(at(layer, names.attn_norm_after), h);
        parts.norm(at(layer, names.mlp_norm_after), h);
    }
    if let Some(kind) = config.qk_norm {
        let (q, k) = match kind {
            QkNorm::Head => (config.head_dim, config.head_dim),
            QkNorm::Whole => (q, kv),
        };
        for layer in layers() {
            parts.norm(at(layer, names.q_norm), q);
            parts.norm(at(layer, names.k_norm), k);
        }
    }
    let biases = config.biases;
    for layer in layers() {
        for (name, len, is_there) in [
            (names.qkv[0], q, biases.qkv),
            (names.qkv[1], kv, biases.qkv),
            (names.qkv[2], kv, biases.qkv),
            (names.o, h, biases.o),
            (gate, i, biases.mlp && config.mlp.is_gated()),
            (up, i, biases.mlp),
            (names.down, h, biases.mlp),
        ] {
            if is_there {
                parts.bias(bias_of(&at(layer, name)), len);
            }
        }
    }
    if config.norm == NormKind::Layer {
        parts.bias(bias_of(&NAMES.final_norm()), h);
        for layer in layers().filter(|_| places.before) {
            parts.bias(bias_of(&at(layer, names.attn_norm)), h);
            parts.bias(bias_of(&at(layer, names.mlp_norm)), h);
        }
    }
    if config.learned_positions {
        parts.matrix(NAMES.positions(), config.max_position_embeddings, h);
    }
    Checkpoint::from_parts(PathBuf::from("synthetic"), parts.parts)
}

/// Tensors as they are drawn.
struct Parts {
    data: Data,
    parts: Vec<(String, Vec<usize>, Encoding, Vec<u8>)>,
}

impl Parts {
    fn matrix(&mut self, name: String, rows: usize, columns: usize) {
        let scale = 1.0 / (columns as f32).sqrt();
        let values = self.data.normal(rows * columns);
        let bytes = values
            .iter()
            .flat_map(|v| half::f16::from_f32(v * scale).to_le_bytes())
            .collect();
        let shape = vec![rows, columns];
        self.parts.push((name, shape, Encoding::F16, bytes));
    }

    fn vector(&mut self, name: String, len: usize, of: impl Fn(f32) -> f32) {
        let values = self.data.normal(len);
        let bytes = values.iter().flat_map(|&v| of(v).to_le_bytes()).collect();
        self.parts.push((name, vec![len], Encoding::F32, bytes));
    }

    fn norm(&mut self, name: String, len: usize) {
        self.vector(name, len, |v| 1.0 + 0.1 * v);
    }

    fn bias(&mut self, name: String, len: usize) {
        self.vector(name, len, |v| 0.3 * v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{Biases, MlpKind, NormPlaces};
    use crate::model::tensors::TensorMap;

    /// Every combination has the tensors that it needs, and no others.
    #[test]
    fn whatever_is_computed_has_its_tensors() {
        let mut seen = 0;
        for bits in 0..1 << 8 {
            let bit = |i: usize| bits >> i & 1 == 1;
            let config = Config {
                tied_head: bit(0),
                norm: if bit(1) {
                    NormKind::Layer
                } else {
                    NormKind::Rms
                },
                norm_places: NormPlaces {
                    before: bit(2),
                    after: !bit(2) || bit(3),
                },
                qk_norm: match (bit(3), bit(4)) {
                    (false, _) => None,
                    (true, false) => Some(QkNorm::Head),
                    (true, true) => Some(QkNorm::Whole),
                },
                biases: Biases {
                    qkv: bit(5),
                    o: bit(6),
                    mlp: bit(6) != bit(5),
                },
                mlp: if bit(7) {
                    MlpKind::Gelu
                } else {
                    MlpKind::GeGlu
                },
                learned_positions: bit(6),
                max_position_embeddings: 64,
                ..tiny()
            };
            let checkpoint = checkpoint(&config, 3).unwrap();
            let map = TensorMap::new(&config, &NAMES, &checkpoint).unwrap();
            let used = map.sources().len();
            assert_eq!(used, checkpoint.tensors().len(), "{config:?}");
            seen += used;
        }
        assert!(seen > 256 * 15);
    }
}
