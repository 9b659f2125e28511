//! A layer: attention and the gated MLP, each added to the residual stream.

use super::matrix::Matrix;
use super::{Past, add, dot};
use crate::model::config::Config;
use crate::quant::BLOCK_ROWS;

/// A layer's weights.
pub(super) struct Layer {
    pub attn_norm: Vec<f32>,
    pub qkv: Matrix,
    pub o: Matrix,
    pub mlp_norm: Vec<f32>,
    pub gate_up: Matrix,
    pub down: Matrix,
}

impl Layer {
    /// Adds what the layer computes to `hidden`, whose tokens come after those of `past`; theirs are
    /// appended to it.
    pub fn apply(&self, c: &Config, past: &mut Past, hidden: &mut [Vec<f64>]) {
        let first = past.keys.len();
        let queries = self.project(c, past, hidden);
        let attended: Vec<Vec<f64>> = queries
            .iter()
            .enumerate()
            .map(|(row, query)| attend(c, past, first + row + 1, query))
            .collect();
        for (h, out) in hidden.iter_mut().zip(self.o.times(&attended)) {
            add(h, &out);
        }
        let gated: Vec<Vec<f64>> = self
            .gate_up
            .times(&normed(c, hidden, &self.mlp_norm))
            .iter()
            .map(|gate_up| gate(gate_up))
            .collect();
        for (h, out) in hidden.iter_mut().zip(self.down.times(&gated)) {
            add(h, &out);
        }
    }

    /// Queries; keys and values go to `past`.
    fn project(&self, c: &Config, past: &mut Past, hidden: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let frequencies = c.ropes[0].frequencies(c.head_dim);
        let first = past.keys.len();
        let mut queries = self.qkv.times(&normed(c, hidden, &self.attn_norm));
        for (position, qkv) in (first..).zip(&mut queries) {
            for head in qkv[..c.q_width() + c.kv_width()].chunks_mut(c.head_dim) {
                rotate(head, position, &frequencies);
            }
            past.values.push(qkv.split_off(c.q_width() + c.kv_width()));
            past.keys.push(qkv.split_off(c.q_width()));
        }
        queries
    }
}

/// What the heads of `query` see in the first `len` tokens.
fn attend(c: &Config, past: &Past, len: usize, query: &[f64]) -> Vec<f64> {
    let (d, ratio) = (c.head_dim, c.num_heads / c.num_kv_heads);
    let mut out = vec![0.0; c.q_width()];
    for head in 0..c.num_heads {
        let kv = head / ratio * d..(head / ratio + 1) * d;
        let q = &query[head * d..(head + 1) * d];
        let score = |key: &Vec<f64>| dot(q, &key[kv.clone()]) / (d as f64).sqrt();
        let scores: Vec<f64> = past.keys[..len].iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (weight, value) in weights.iter().zip(&past.values) {
            for (o, v) in out[head * d..].iter_mut().zip(&value[kv.clone()]) {
                *o += weight / sum * v;
            }
        }
    }
    out
}

/// Blocks of rows alternate between gate and up.
fn gate(gate_up: &[f64]) -> Vec<f64> {
    let gated = gate_up.chunks_exact(2 * BLOCK_ROWS).flat_map(|blocks| {
        let (gates, ups) = blocks.split_at(BLOCK_ROWS);
        let gate = |(g, u): (&f64, &f64)| g / (1.0 + (-g).exp()) * u;
        gates.iter().zip(ups).map(gate)
    });
    gated.collect()
}

/// Each of `hidden` after an RMS norm with `weight`.
pub(super) fn normed(c: &Config, hidden: &[Vec<f64>], weight: &[f32]) -> Vec<Vec<f64>> {
    let norm = |x: &Vec<f64>| {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(c.norm_eps)).sqrt();
        let scaled = x.iter().zip(weight).map(|(v, &w)| v * scale * f64::from(w));
        scaled.collect()
    };
    hidden.iter().map(norm).collect()
}

fn rotate(head: &mut [f64], position: usize, frequencies: &[f64]) {
    for (i, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (a, b) = (head[2 * i], head[2 * i + 1]);
        (head[2 * i], head[2 * i + 1]) = (a * cos - b * sin, b * cos + a * sin);
    }
}
