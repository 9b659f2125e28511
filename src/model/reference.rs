//! The whole forward pass on the CPU in f64, over the weights as the device sees them.
//!
//! Slow and plain: it is what the device is held against. It reads the same [`TensorMap`] as the
//! loader and shares no arithmetic with the kernels.

use super::config::Config;
use super::tensors::{Rows, TensorMap};
use crate::error::Result;
use crate::formats::checkpoint::TensorInfo;
use crate::quant::{BLOCK_ROWS, Format};

/// A model on the CPU.
pub struct Reference {
    config: Config,
    embedding: Matrix,
    layers: Vec<Layer>,
    final_norm: Vec<f32>,
    head: Option<Matrix>,
}

/// Keys, rotated, and values of one layer: `[token][kv_width]` each, as the cache has them.
#[derive(Clone, Default)]
pub struct Past {
    /// Of each token before, in order.
    pub keys: Vec<Vec<f64>>,
    /// As many.
    pub values: Vec<Vec<f64>>,
}

struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

struct Layer {
    attn_norm: Vec<f32>,
    qkv: Matrix,
    o: Matrix,
    mlp_norm: Vec<f32>,
    gate_up: Matrix,
    down: Matrix,
}

impl Reference {
    /// Reads all weights and rounds them as `format` does.
    ///
    /// # Errors
    /// What reading reports.
    pub fn load(config: &Config, map: &TensorMap, format: &Format) -> Result<Reference> {
        let matrix = |rows: &Rows| -> Result<Matrix> {
            let (_, columns) = rows.shape();
            let mut values = Vec::new();
            rows.for_each(map.checkpoint, |_, piece| {
                values.extend(format.round_trip(piece, columns));
                Ok(())
            })?;
            Ok(Matrix { columns, values })
        };
        let vector = |info: &TensorInfo| -> Result<Vec<f32>> {
            let mut values = Vec::new();
            map.checkpoint
                .read_rows(info, 0..info.rows(), &mut values)?;
            Ok(values)
        };
        Ok(Reference {
            config: config.clone(),
            embedding: matrix(&map.embedding)?,
            layers: map
                .layers
                .iter()
                .map(|l| {
                    Ok(Layer {
                        attn_norm: vector(l.attn_norm)?,
                        qkv: matrix(&l.qkv)?,
                        o: matrix(&l.o)?,
                        mlp_norm: vector(l.mlp_norm)?,
                        gate_up: matrix(&l.gate_up)?,
                        down: matrix(&l.down)?,
                    })
                })
                .collect::<Result<_>>()?,
            final_norm: vector(map.final_norm)?,
            head: map.head.as_ref().map(matrix).transpose()?,
        })
    }

    /// Logits of every position of `tokens`: `[tokens.len()][vocab_size]`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let nothing = vec![Past::default(); self.layers.len()];
        self.logits_after(&nothing, tokens)
    }

    /// The same of `tokens` that come after others, of which keys and values are known, layer by layer:
    /// their positions go on from there.
    ///
    /// # Panics
    /// Without one `past` for each layer.
    pub fn logits_after(&self, past: &[Past], tokens: &[u32]) -> Vec<Vec<f64>> {
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let hidden = self.hidden_after(past, tokens);
        hidden.iter().map(|h| head.times(h)).collect()
    }

    /// What the head is multiplied with, after the final norm: `[tokens.len()][hidden_size]`.
    pub fn hidden(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let nothing = vec![Past::default(); self.layers.len()];
        self.hidden_after(&nothing, tokens)
    }

    fn hidden_after(&self, past: &[Past], tokens: &[u32]) -> Vec<Vec<f64>> {
        assert_eq!(past.len(), self.layers.len(), "a past for each layer");
        let columns = self.embedding.columns;
        let row = |&id: &u32| {
            self.embedding.values[id as usize * columns..][..columns]
                .iter()
                .map(|&v| f64::from(v))
        };
        let mut hidden: Vec<Vec<f64>> = tokens.iter().map(|id| row(id).collect()).collect();
        for (layer, past) in self.layers.iter().zip(past) {
            self.attention(layer, past, &mut hidden);
            self.mlp(layer, &mut hidden);
        }
        hidden
            .iter()
            .map(|h| self.norm(h, &self.final_norm))
            .collect()
    }

    fn norm(&self, x: &[f64], weight: &[f32]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(self.config.rms_norm_eps)).sqrt();
        x.iter()
            .zip(weight)
            .map(|(v, &w)| v * scale * f64::from(w))
            .collect()
    }

    fn attention(&self, layer: &Layer, past: &Past, hidden: &mut [Vec<f64>]) {
        let c = &self.config;
        let (d, ratio) = (c.head_dim, c.num_heads / c.num_kv_heads);
        let frequencies = c.rope.frequencies(d);
        let (first, mut queries) = (past.keys.len(), Vec::new());
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, h) in (first..).zip(hidden.iter()) {
            let mut qkv = layer.qkv.times(&self.norm(h, &layer.attn_norm));
            for head in qkv[..c.q_width() + c.kv_width()].chunks_mut(d) {
                rotate(head, position, &frequencies);
            }
            values.push(qkv.split_off(c.q_width() + c.kv_width()));
            keys.push(qkv.split_off(c.q_width()));
            queries.push(qkv);
        }
        for (row, h) in hidden.iter_mut().enumerate() {
            let mut out = vec![0.0; c.q_width()];
            for head in 0..c.num_heads {
                let kv = head / ratio * d..(head / ratio + 1) * d;
                let q = &queries[row][head * d..(head + 1) * d];
                let score = |key: &Vec<f64>| dot(q, &key[kv.clone()]) / (d as f64).sqrt();
                let scores: Vec<f64> = past.keys.iter().chain(&keys[..=row]).map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for (weight, value) in weights.iter().zip(past.values.iter().chain(&values)) {
                    for (o, v) in out[head * d..].iter_mut().zip(&value[kv.clone()]) {
                        *o += weight / sum * v;
                    }
                }
            }
            add(h, &layer.o.times(&out));
        }
    }

    fn mlp(&self, layer: &Layer, hidden: &mut [Vec<f64>]) {
        for h in hidden {
            let gate_up = layer.gate_up.times(&self.norm(h, &layer.mlp_norm));
            let gated: Vec<f64> = gate_up
                .chunks_exact(2 * BLOCK_ROWS)
                .flat_map(|blocks| {
                    let (gates, ups) = blocks.split_at(BLOCK_ROWS);
                    let gate = |(g, u): (&f64, &f64)| g / (1.0 + (-g).exp()) * u;
                    gates.iter().zip(ups).map(gate).collect::<Vec<_>>()
                })
                .collect();
            add(h, &layer.down.times(&gated));
        }
    }
}

impl Matrix {
    fn times(&self, x: &[f64]) -> Vec<f64> {
        self.values
            .chunks(self.columns)
            .map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum())
            .collect()
    }
}

fn rotate(head: &mut [f64], position: usize, frequencies: &[f64]) {
    for (i, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (a, b) = (head[2 * i], head[2 * i + 1]);
        (head[2 * i], head[2 * i + 1]) = (a * cos - b * sin, b * cos + a * sin);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], other: &[f64]) {
    for (to, other) in to.iter_mut().zip(other) {
        *to += other;
    }
}
