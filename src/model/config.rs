//! What a decoder must know of a model, whatever files it came from.

use crate::error::{Error, Result};
use crate::model::rope::Rope;
use std::path::Path;

/// The widest hidden state: no model comes near, and its number of columns is exact as f32.
const MAX_HIDDEN: usize = 1 << 17;

/// The shape of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The name the files give the architecture.
    pub architecture: String,
    /// Decoder layers.
    pub num_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of a head; 32 to 256.
    pub head_dim: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// The longest sequence the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// The head is the embedding.
    pub tied_head: bool,
}

/// How a file spells the fields that [`Config::check`] complains of.
#[derive(Clone, Copy)]
pub struct Spelling {
    /// `num_heads`.
    pub num_heads: &'static str,
    /// `num_kv_heads`.
    pub num_kv_heads: &'static str,
    /// `head_dim`.
    pub head_dim: &'static str,
    /// `hidden_size`.
    pub hidden_size: &'static str,
    /// `intermediate_size`.
    pub intermediate_size: &'static str,
    /// `rms_norm_eps`.
    pub rms_norm_eps: &'static str,
}

impl Config {
    /// Rows of the fused projection: queries, then keys, then values of all heads.
    pub fn qkv_rows(&self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
    }

    /// Width of all query heads.
    pub fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of all key heads.
    pub fn kv_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Rows and columns of a layer's matrices: queries, keys and values; output; gate and up; down.
    pub fn layer_matrices(&self) -> [(usize, usize); 4] {
        [
            (self.qkv_rows(), self.hidden_size),
            (self.hidden_size, self.q_width()),
            (2 * self.intermediate_size, self.hidden_size),
            (self.hidden_size, self.intermediate_size),
        ]
    }

    /// Weights of the matrices of one layer.
    pub(super) fn layer_params(&self) -> usize {
        let sizes = self.layer_matrices().map(|(rows, columns)| rows * columns);
        sizes.iter().sum()
    }

    /// All weights; an embedding that is the head as well counts once.
    pub fn num_params(&self) -> u64 {
        let layers = self.num_layers * (self.layer_params() + 2 * self.hidden_size);
        let tables = if self.tied_head { 1 } else { 2 };
        (layers + self.hidden_size + tables * self.vocab_size * self.hidden_size) as u64
    }

    /// Refuses shapes the kernels are not made for.
    ///
    /// # Errors
    /// [`Error::Field`] with the field as the file spells it.
    pub fn check(&self, path: &Path, spelling: &Spelling) -> Result<()> {
        let wrong = |field: &str, problem: String| Err(Error::field(path, field, problem));
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let (q, kv) = (self.num_heads, self.num_kv_heads);
            return wrong(
                spelling.num_kv_heads,
                format!(
                    "is {kv}, which does not divide {} = {q}",
                    spelling.num_heads
                ),
            );
        }
        if !(32..=256).contains(&self.head_dim) || !self.head_dim.is_multiple_of(8) {
            return wrong(
                spelling.head_dim,
                format!(
                    "is {}, expected a multiple of 8 from 32 to 256",
                    self.head_dim
                ),
            );
        }
        if self.hidden_size > MAX_HIDDEN || !self.hidden_size.is_multiple_of(4) {
            return wrong(
                spelling.hidden_size,
                format!(
                    "is {}, expected a multiple of 4 up to {MAX_HIDDEN}",
                    self.hidden_size
                ),
            );
        }
        if !self.intermediate_size.is_multiple_of(4) {
            return wrong(
                spelling.intermediate_size,
                format!("is {}, expected a multiple of 4", self.intermediate_size),
            );
        }
        if self.rms_norm_eps.is_nan() || self.rms_norm_eps <= 0.0 || self.rms_norm_eps > 1.0 {
            return wrong(
                spelling.rms_norm_eps,
                format!(
                    "is {}, expected a number above 0, up to 1",
                    self.rms_norm_eps
                ),
            );
        }
        if self.rms_norm_eps < f32::MIN_POSITIVE {
            log::warn!(
                "{}: {}: is denormal and may count as 0",
                path.display(),
                spelling.rms_norm_eps
            );
        }
        self.rope.check(path, self.head_dim)
    }
}
