//! The whole forward pass on the CPU in f64, over the weights as the device sees them.
//!
//! Plain, and as fast as that goes on all cores: it is what the device is held against. It reads the same [`TensorMap`] as the
//! loader and shares no arithmetic with the kernels.

mod layer;
mod matrix;

use super::config::Config;
use super::tensors::{Rows, TensorMap, Vector};
use crate::error::Result;
use crate::quant::Format;
use layer::{Layer, Linear, Norm, capped};
use matrix::Matrix;

/// A model on the CPU.
pub struct Reference {
    config: Config,
    embedding: Matrix,
    /// `[position][hidden_size]`.
    positions: Option<Matrix>,
    layers: Vec<Layer>,
    final_norm: Norm,
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
    /// Reads all weights and rounds matrices as `format` does. The configuration is that of a context; see
    /// [`Config::for_context`].
    ///
    /// # Errors
    /// What reading reports.
    pub fn load(config: &Config, map: &TensorMap, format: &Format) -> Result<Reference> {
        let read = |rows: &Rows, format: Option<&Format>| -> Result<Matrix> {
            let (_, columns) = rows.shape();
            let mut values = Vec::new();
            rows.for_each(map.checkpoint, |_, piece| {
                match format {
                    Some(format) => values.extend(format.round_trip(piece, columns)),
                    None => values.extend_from_slice(piece),
                }
                Ok(())
            })?;
            Ok(Matrix { columns, values })
        };
        let matrix = |rows: &Rows| read(rows, Some(format));
        let vector = |vector: &Option<Vector>| {
            let values = vector.as_ref().map(|vector| vector.read(map.checkpoint));
            values.transpose()
        };
        let linear = |rows: &Rows, bias: &Option<Vector>| -> Result<Linear> {
            Ok(Linear {
                matrix: matrix(rows)?,
                bias: vector(bias)?,
            })
        };
        let norm = |weight: &Vector, bias: &Option<Vector>| -> Result<Norm> {
            Ok(Norm {
                weight: weight.read(map.checkpoint)?,
                bias: vector(bias)?,
            })
        };
        let positions = map.positions.as_ref().map(|rows| read(rows, None));
        Ok(Reference {
            config: config.clone(),
            embedding: matrix(&map.embedding)?,
            positions: positions.transpose()?,
            layers: map
                .layers
                .iter()
                .map(|l| {
                    Ok(Layer {
                        attn_norm: norm(&l.attn_norm, &l.attn_norm_bias)?,
                        qkv: linear(&l.qkv, &l.qkv_bias)?,
                        q_norm: vector(&l.q_norm)?,
                        k_norm: vector(&l.k_norm)?,
                        o: linear(&l.o, &l.o_bias)?,
                        attn_norm_after: vector(&l.attn_norm_after)?,
                        mlp_norm: norm(&l.mlp_norm, &l.mlp_norm_bias)?,
                        gate_up: linear(&l.gate_up, &l.gate_up_bias)?,
                        down: linear(&l.down, &l.down_bias)?,
                        mlp_norm_after: vector(&l.mlp_norm_after)?,
                    })
                })
                .collect::<Result<_>>()?,
            final_norm: norm(&map.final_norm, &map.final_norm_bias)?,
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
        let first = past.first().map_or(0, |past| past.keys.len());
        let mut hidden: Vec<Vec<f64>> = (first..)
            .zip(tokens)
            .map(|(position, &id)| self.embedded(id, position))
            .collect();
        for (index, (layer, past)) in self.layers.iter().zip(past).enumerate() {
            layer.apply(&self.config, index, past, &mut hidden);
            each(index, &hidden);
        }
        self.final_norm.of(&self.config, &hidden)
    }

    /// What a token begins as.
    fn embedded(&self, id: u32, position: usize) -> Vec<f64> {
        let scale = f64::from(self.config.embedding_scale);
        let row = self.embedding.row(id as usize).iter();
        let mut hidden: Vec<f64> = row.map(|&v| f64::from(v) * scale).collect();
        if let Some(positions) = &self.positions {
            for (hidden, &v) in hidden.iter_mut().zip(positions.row(position)) {
                *hidden += f64::from(v);
            }
        }
        hidden
    }

    /// Logits of what [`Reference::hidden`] and [`Reference::forward`] return: `[..][vocab_size]`.
    pub fn head(&self, hidden: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        let (scale, cap) = (self.config.logit_scale, self.config.logit_cap);
        let mut logits = head.times(hidden);
        for logit in logits.iter_mut().flatten() {
            *logit = capped(*logit * f64::from(scale), cap);
        }
        logits
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
