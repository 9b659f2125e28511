//! A layer: attention and the MLP, each added to the residual stream.

use super::matrix::Matrix;
use super::{Past, dot};
use crate::model::config::{Config, MlpKind, NormKind, QkNorm};
use crate::quant::BLOCK_ROWS;
use std::f64::consts::FRAC_2_PI;

/// A matrix, and what is added to its products.
pub(super) struct Linear {
    pub matrix: Matrix,
    pub bias: Option<Vec<f32>>,
}

/// A norm before something, or the last.
pub(super) struct Norm {
    pub weight: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

/// A layer's weights.
pub(super) struct Layer {
    pub attn_norm: Norm,
    pub qkv: Linear,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub o: Linear,
    pub attn_norm_after: Option<Vec<f32>>,
    pub mlp_norm: Norm,
    pub gate_up: Linear,
    pub down: Linear,
    pub mlp_norm_after: Option<Vec<f32>>,
}

impl Layer {
    /// Adds what layer `index` computes to `hidden`, whose tokens come after those of `past`; theirs are
    /// appended to it.
    pub fn apply(&self, c: &Config, index: usize, past: &mut Past, hidden: &mut [Vec<f64>]) {
        let first = past.keys.len();
        let queries = self.project(c, index, past, hidden);
        let attended: Vec<Vec<f64>> = queries
            .iter()
            .enumerate()
            .map(|(row, query)| attend(c, index, past, first + row + 1, query))
            .collect();
        let out = self.o.times(&attended);
        add(c, hidden, out, self.attn_norm_after.as_deref());

        let inner: Vec<Vec<f64>> = self
            .gate_up
            .times(&given(c, hidden, &self.mlp_norm))
            .iter()
            .map(|gate_up| activated(c.mlp, gate_up))
            .collect();
        let out = self.down.times(&inner);
        add(c, hidden, out, self.mlp_norm_after.as_deref());
    }

    /// Queries; keys and values go to `past`.
    fn project(
        &self,
        c: &Config,
        index: usize,
        past: &mut Past,
        hidden: &[Vec<f64>],
    ) -> Vec<Vec<f64>> {
        let rope = c.rope_of(index);
        let frequencies = rope.frequencies(c.head_dim);
        let first = past.keys.len();
        let mut queries = self.qkv.times(&given(c, hidden, &self.attn_norm));
        for (position, qkv) in (first..).zip(&mut queries) {
            past.values.push(qkv.split_off(c.q_width() + c.kv_width()));
            let mut keys = qkv.split_off(c.q_width());
            for (rows, weight) in [(&mut *qkv, &self.q_norm), (&mut keys, &self.k_norm)] {
                if let Some(weight) = weight {
                    let width = match c.qk_norm {
                        Some(QkNorm::Whole) => rows.len(),
                        _ => c.head_dim,
                    };
                    for part in rows.chunks_mut(width) {
                        rms(c, part, weight);
                    }
                }
                for head in rows.chunks_mut(c.head_dim) {
                    rotate(head, position, &frequencies, rope.magnitude);
                }
            }
            past.keys.push(keys);
        }
        queries
    }
}

impl Linear {
    /// The product with each of `inputs`, and the bias.
    pub fn times(&self, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let mut products = self.matrix.times(inputs);
        if let Some(bias) = &self.bias {
            for product in &mut products {
                for (value, &bias) in product.iter_mut().zip(bias) {
                    *value += f64::from(bias);
                }
            }
        }
        products
    }
}

impl Norm {
    /// Each of `hidden` after it.
    pub fn of(&self, c: &Config, hidden: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let mut normed = hidden.to_vec();
        for x in &mut normed {
            if c.norm == NormKind::Layer {
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                x.iter_mut().for_each(|v| *v -= mean);
            }
            // of what the mean was taken off, the mean square is the variance
            rms(c, x, &self.weight);
            for (v, &bias) in x.iter_mut().zip(self.bias.iter().flatten()) {
                *v += f64::from(bias);
            }
        }
        normed
    }
}

/// What attention or MLP is given of the residual stream.
fn given(c: &Config, hidden: &[Vec<f64>], norm: &Norm) -> Vec<Vec<f64>> {
    match c.norm_places.before {
        true => norm.of(c, hidden),
        false => hidden.to_vec(),
    }
}

/// Adds what attention or MLP made to the residual stream.
fn add(c: &Config, hidden: &mut [Vec<f64>], out: Vec<Vec<f64>>, norm_after: Option<&[f32]>) {
    for (hidden, mut out) in hidden.iter_mut().zip(out) {
        if let Some(weight) = norm_after {
            rms(c, &mut out, weight);
        }
        for (hidden, out) in hidden.iter_mut().zip(out) {
            *hidden += f64::from(c.residual_scale) * out;
        }
    }
}

/// Divides by the root of the mean square, and multiplies with `weight`.
fn rms(c: &Config, x: &mut [f64], weight: &[f32]) {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(c.norm_eps)).sqrt();
    for (v, &w) in x.iter_mut().zip(weight) {
        *v *= scale * f64::from(w);
    }
}

/// What the heads of `query` see in the first `len` tokens, or in the window that ends there.
fn attend(c: &Config, index: usize, past: &Past, len: usize, query: &[f64]) -> Vec<f64> {
    let (d, ratio) = (c.head_dim, c.num_heads / c.num_kv_heads);
    let from = c
        .layer_kind(index)
        .window
        .map_or(0, |w| len.saturating_sub(w));
    let mut out = vec![0.0; c.q_width()];
    for head in 0..c.num_heads {
        let kv = head / ratio * d..(head / ratio + 1) * d;
        let q = &query[head * d..(head + 1) * d];
        let score =
            |key: &Vec<f64>| capped(dot(q, &key[kv.clone()]) * c.score_scale(), c.score_cap);
        let scores: Vec<f64> = past.keys[from..len].iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (weight, value) in weights.iter().zip(&past.values[from..len]) {
            for (o, v) in out[head * d..].iter_mut().zip(&value[kv.clone()]) {
                *o += weight / sum * v;
            }
        }
    }
    out
}

/// `cap * tanh(x / cap)`, where there is a cap.
pub(super) fn capped(x: f64, cap: Option<f32>) -> f64 {
    match cap.map(f64::from) {
        Some(cap) => cap * (x / cap).tanh(),
        None => x,
    }
}

/// What is between the matrices of the MLP. Blocks of rows alternate between gate and up.
fn activated(kind: MlpKind, gate_up: &[f64]) -> Vec<f64> {
    let activation = match kind {
        MlpKind::SwiGlu => silu,
        MlpKind::GeGlu => gelu,
        MlpKind::Gelu => return gate_up.iter().map(|&x| gelu(x)).collect(),
    };
    let gated = gate_up.chunks_exact(2 * BLOCK_ROWS).flat_map(|blocks| {
        let (gates, ups) = blocks.split_at(BLOCK_ROWS);
        gates.iter().zip(ups).map(|(&g, u)| activation(g) * u)
    });
    gated.collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// By the formula with tanh, which models were trained with.
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

fn rotate(head: &mut [f64], position: usize, frequencies: &[f64], magnitude: f64) {
    for (i, frequency) in frequencies.iter().enumerate() {
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (sin, cos) = (sin * magnitude, cos * magnitude);
        let (a, b) = (head[2 * i], head[2 * i + 1]);
        (head[2 * i], head[2 * i + 1]) = (a * cos - b * sin, b * cos + a * sin);
    }
}
