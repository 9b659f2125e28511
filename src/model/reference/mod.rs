//! The whole forward pass on the CPU in f64, over the weights as the device sees them.
//!
//! Plain, and as fast as that goes on all cores: it is what the device is held against. It reads the same [`TensorMap`] as the
//! loader and shares no arithmetic with the kernels.

mod layer;
mod matrix;

use super::config::Config;
use super::tensors::{Rows, TensorMap};
use crate::error::Result;
use crate::formats::checkpoint::TensorInfo;
use crate::quant::Format;
use layer::{Layer, normed};
use matrix::Matrix;

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

    /// Layers of the model.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Logits of every position of `tokens`: `[tokens.len()][vocab_size]`.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        self.head(&self.hidden(tokens))
    }

    /// The same of `tokens` that come after others, of which keys and values are known, layer by layer:
    /// their positions go on from there.
    ///
    /// # Panics
    /// Without one `past` for each layer.
    pub fn logits_after(&self, past: &[Past], tokens: &[u32]) -> Vec<Vec<f64>> {
        self.head(&self.forward(&mut past.to_vec(), tokens, &mut |_, _| ()))
    }

    /// What the head is multiplied with, after the final norm: `[tokens.len()][hidden_size]`.
    pub fn hidden(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let mut nothing = vec![Past::default(); self.layers.len()];
        self.forward(&mut nothing, tokens, &mut |_, _| ())
    }

    /// [`Reference::hidden`] of tokens that come after those of `past`, one for each layer, to which they
    /// are appended. `each` is told every layer's residual stream: `[tokens.len()][hidden_size]`.
    ///
    /// # Panics
    /// Without one `past` for each layer.
    pub fn forward(
        &self,
        past: &mut [Past],
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &[Vec<f64>]),
    ) -> Vec<Vec<f64>> {
        assert_eq!(past.len(), self.layers.len(), "a past for each layer");
        let columns = self.embedding.columns;
        let row = |&id: &u32| {
            self.embedding.values[id as usize * columns..][..columns]
                .iter()
                .map(|&v| f64::from(v))
        };
        let mut hidden: Vec<Vec<f64>> = tokens.iter().map(|id| row(id).collect()).collect();
        for (index, (layer, past)) in self.layers.iter().zip(past).enumerate() {
            layer.apply(&self.config, past, &mut hidden);
            each(index, &hidden);
        }
        normed(&self.config, &hidden, &self.final_norm)
    }

    /// Logits of what [`Reference::hidden`] and [`Reference::forward`] return: `[..][vocab_size]`.
    pub fn head(&self, hidden: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        head.times(hidden)
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
