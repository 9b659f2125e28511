//! The kernels of a step, as [`Decoder::record`](crate::model::Decoder::record) and the drawing after it
//! dispatch them, each with what it cannot do without.

use super::sizes::ModelShape;
use crate::kv::PAGE_SIZE;
use crate::model::config::NormKind;

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkShape {
    /// Position of the first: tokens before it, in the cache.
    pub first_position: usize,
    /// How many.
    pub tokens: usize,
}

/// What a step computes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Of each sequence that gets one token: tokens before that.
    pub decodes: Vec<usize>,
    /// Pieces of prompts.
    pub chunks: Vec<ChunkShape>,
    /// Rows of logits, each of which a token is drawn from.
    pub head_rows: usize,
}

impl StepShape {
    /// One token after `depth` others, and the draw of the next.
    pub fn decode(depth: usize) -> StepShape {
        StepShape {
            decodes: vec![depth],
            chunks: Vec::new(),
            head_rows: 1,
        }
    }

    /// `tokens` of a prompt after `first_position` others; `is_last` ones are followed by a draw.
    pub fn chunk(first_position: usize, tokens: usize, is_last: bool) -> StepShape {
        StepShape {
            decodes: Vec::new(),
            chunks: vec![ChunkShape {
                first_position,
                tokens,
            }],
            head_rows: usize::from(is_last),
        }
    }

    /// Tokens in all.
    pub fn tokens(&self) -> usize {
        self.decodes.len() + self.chunks.iter().map(|c| c.tokens).sum::<usize>()
    }
}

/// What bounds a kernel, and whose share of its peak it reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A matrix times so many rows of activations.
    Matmul {
        /// Rows of activations, padded to whole tiles.
        tokens: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// Attention with single tokens.
    AttentionOfOne,
    /// Attention with pieces of prompts.
    AttentionOfMany,
    /// Little more than reading and writing.
    Memory,
}

/// A kernel of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelWork {
    /// `embedding`, `qkv`, `attention`, `o`, `gate_up`, `down`, `head`, `draw` and what is between.
    pub name: &'static str,
    /// How often it is recorded: once, or once a layer.
    pub times: usize,
    /// Dispatches each time.
    pub dispatches: usize,
    /// What bounds it.
    pub kind: Kind,
    /// Bytes to and from memory, each time.
    pub bytes: f64,
    /// Multiplications and additions, each time, those of padded rows included.
    pub ops: f64,
}

/// What the kernels of a step depend on beside model and step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Tokens that an invocation of matmul holds at most.
    pub tile_tokens: usize,
    /// Teams of attention with which no split is computed apart.
    pub wanted_teams: usize,
}

impl Division {
    /// Tokens that `n` are computed as: tiles hold 1, 2, 4 or 8, all alike.
    pub fn padded(&self, n: usize) -> usize {
        let tile = n.min(self.tile_tokens).next_power_of_two();
        n.next_multiple_of(tile.max(1))
    }
}

impl ModelShape {
    /// The kernels of `step`.
    pub fn kernels(&self, step: &StepShape, division: &Division) -> Vec<KernelWork> {
        let (n, c) = (step.tokens(), &self.config);
        let layers = c.num_layers;
        if n == 0 {
            return Vec::new();
        }
        let row_bytes = |columns: usize| 4.0 * n as f64 * columns as f64;
        let memory = |name, times, dispatches, bytes| KernelWork {
            name,
            times,
            dispatches,
            kind: Kind::Memory,
            bytes,
            ops: 0.0,
        };
        let hidden = row_bytes(c.hidden_size);
        let table = self.shards(c.vocab_size, c.hidden_size);
        let row = self.weights.matrix_bytes(1, c.hidden_size);
        let gathered = n as f64 * (row.0 + row.1) as f64;
        let mut all = vec![memory("embedding", 1, table, gathered + 2.0 * hidden)];
        if c.learned_positions {
            all.push(memory("add_positions", 1, 1, 3.0 * hidden));
        }
        let names = ["qkv", "o", "gate_up", "down"];
        for (name, (rows, columns)) in names.into_iter().zip(c.layer_matrices()) {
            let reads_hidden = matches!(name, "qkv" | "gate_up");
            if reads_hidden && c.norm == NormKind::Layer {
                all.push(memory("layer_norm", layers, 1, 2.0 * hidden));
            }
            all.push(self.matmul(name, layers, rows, columns, n, division));
            if !reads_hidden && c.norm_places.after {
                all.push(memory("add_norm", layers, 1, 4.0 * hidden));
            }
            if name == "qkv" {
                if self.slabs_of(step) > 1 || c.qk_norm.is_some() {
                    let bytes = 2.0 * row_bytes(c.qkv_rows());
                    all.push(memory("rope", layers, self.slabs_of(step), bytes));
                }
                self.push_attention(step, division, &mut all);
            }
        }
        if step.head_rows > 0 {
            let (rows, vocab) = (step.head_rows, c.vocab_size);
            if rows < n {
                let bytes = 8.0 * (rows * c.hidden_size) as f64;
                all.push(memory("gather_rows", 1, 1, bytes));
            }
            if c.norm == NormKind::Layer {
                all.push(memory("layer_norm", 1, 1, 2.0 * hidden));
            }
            all.push(self.matmul("head", 1, vocab, c.hidden_size, rows, division));
            if c.finishes_logits() {
                all.push(memory("finish_logits", 1, 1, 8.0 * (rows * vocab) as f64));
            }
            // logits are written by the one and read by the other
            all.push(memory("draw", 1, 2, 8.0 * (rows * vocab) as f64));
        }
        all
    }

    fn matmul(
        &self,
        name: &'static str,
        times: usize,
        rows: usize,
        columns: usize,
        n: usize,
        division: &Division,
    ) -> KernelWork {
        let (weights, scales) = self.weights.matrix_bytes(rows, columns);
        let tokens = division.padded(n);
        KernelWork {
            name,
            times,
            dispatches: self.shards(rows, columns),
            kind: Kind::Matmul { tokens, rows },
            bytes: (weights + scales) as f64,
            ops: 2.0 * (rows * columns) as f64 * tokens as f64,
        }
    }

    /// Slabs of a layer's cache that the step's contexts alone fill.
    pub(super) fn slabs_of(&self, step: &StepShape) -> usize {
        let chunks = step.chunks.iter().map(|c| c.first_position + c.tokens);
        let ends = step.decodes.iter().map(|depth| depth + 1).chain(chunks);
        let pages: usize = ends.map(|end| end.div_ceil(PAGE_SIZE)).sum();
        let bytes = pages as u64 * self.page_bytes() / (2 * self.config.num_layers.max(1)) as u64;
        bytes.div_ceil(self.max_binding.max(1)).max(1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::sizes::tests::tiny;
    use super::*;

    const DIVISION: Division = Division {
        tile_tokens: 8,
        wanted_teams: 2,
    };

    fn names(step: &StepShape) -> Vec<&'static str> {
        let kernels = tiny().kernels(step, &DIVISION);
        kernels.iter().map(|k| k.name).collect()
    }

    #[test]
    fn a_step_has_the_kernels_that_are_recorded() {
        let layer = ["qkv", "attention", "o", "gate_up", "down"];
        let with = |ends: &[&'static str]| [&["embedding"], &layer[..], ends].concat();
        assert_eq!(names(&StepShape::decode(3)), with(&["head", "draw"]));
        assert_eq!(
            names(&StepShape::chunk(0, 5, true)),
            with(&["gather_rows", "head", "draw"])
        );
        assert_eq!(names(&StepShape::chunk(0, 5, false)), with(&[]));
        assert_eq!(names(&StepShape::default()), [""; 0]);
        let both = StepShape {
            decodes: vec![1, 2],
            ..StepShape::chunk(0, 5, false)
        };
        let attention = |n: &&&str| **n == "attention";
        assert_eq!(names(&both).iter().filter(attention).count(), 2);
        // few teams of a long context leave their splits to a merge
        let apart = Division {
            wanted_teams: 2048,
            ..DIVISION
        };
        let merges = |depth, division| {
            let kernels = tiny().kernels(&StepShape::decode(depth), division);
            kernels.iter().any(|k| k.name == "attention_merge")
        };
        assert!(merges(300, &apart) && !merges(200, &apart) && !merges(300, &DIVISION));
    }

    #[test]
    fn weights_are_read_once_a_step_and_multiplied_with_every_token() {
        let shape = tiny();
        let sum = |step: &StepShape, what: fn(&KernelWork) -> f64| -> f64 {
            let kernels = shape.kernels(step, &DIVISION);
            let matmuls = kernels
                .iter()
                .filter(|k| matches!(k.kind, Kind::Matmul { .. }));
            matmuls.map(|k| k.times as f64 * what(k)).sum()
        };
        let c = &shape.config;
        let norms = (2 * c.num_layers + 1) * c.hidden_size;
        let weights = (c.num_params() as usize - norms) as f64; // tied: the head is the embedding
        let one = StepShape::decode(0);
        assert_eq!(sum(&one, |k| k.ops), 2.0 * weights);
        let bytes = (shape.weight_bytes().all - 4 * norms as u64) as f64;
        assert_eq!(sum(&one, |k| k.bytes), bytes);
        let eight = StepShape {
            decodes: vec![0; 8],
            head_rows: 8,
            ..StepShape::default()
        };
        assert_eq!(sum(&eight, |k| k.ops), 16.0 * weights);
        assert_eq!(sum(&eight, |k| k.bytes), bytes);
    }

    #[test]
    fn tiles_are_filled_up() {
        let padded = |n| DIVISION.padded(n);
        let counts = [1, 2, 3, 4, 5, 8, 9, 17].map(padded);
        assert_eq!(counts, [1, 2, 4, 4, 8, 8, 16, 24]);
        let narrow = Division {
            tile_tokens: 1,
            ..DIVISION
        };
        assert_eq!(narrow.padded(7), 7);
    }

    #[test]
    fn a_cache_beyond_a_binding_has_more_dispatches() {
        let mut shape = tiny();
        shape.max_binding = shape.page_bytes() / (2 * 2) * 64; // 64 pages of one layer's keys
        let of = |depth| {
            let kernels = shape.kernels(&StepShape::decode(depth), &DIVISION);
            let attention = kernels.iter().find(|k| k.name == "attention").unwrap();
            let has = |name: &str| kernels.iter().any(|k| k.name == name);
            (attention.dispatches, has("rope"), has("attention_merge"))
        };
        assert_eq!(of(1000), (1, false, false));
        assert_eq!(of(1500), (2, true, true));
        // two that are in a slab each need no merge
        let two = StepShape {
            decodes: vec![800; 2],
            ..StepShape::default()
        };
        let kernels = shape.kernels(&two, &DIVISION);
        let has = |name: &str| kernels.iter().any(|k| k.name == name);
        assert!(has("rope") && !has("attention_merge"));
    }
}
