//! What a decoder must know of a model, whatever files it came from.

use crate::error::{Error, Result};
pub use crate::kernels::matmul_output::MlpKind;
pub use crate::kernels::rope::QkNorm;
use crate::model::rope::Rope;
use std::path::Path;

/// The widest hidden state: no model comes near, and its number of columns is exact as f32.
const MAX_HIDDEN: usize = 1 << 17;

/// The shape of a decoder-only transformer, and what it computes.
///
/// By default the fields after the sizes say what most families do: RMS norms before attention and MLP, no
/// biases, a gated MLP, one rotary embedding, and every token sees all before it. A family differs in a few.
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
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// The longest sequence the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// The head is the embedding.
    pub tied_head: bool,
    /// Added to the mean square, or to the variance, in every norm.
    pub norm_eps: f32,

    /// What a norm is.
    pub norm: NormKind,
    /// Where norms are.
    pub norm_places: NormPlaces,
    /// A norm of queries and keys before they are rotated.
    pub qk_norm: Option<QkNorm>,
    /// Which matrices have biases.
    pub biases: Biases,
    /// What is computed between the matrices of the MLP.
    pub mlp: MlpKind,
    /// Rotary embeddings; layers say which is theirs. At least one.
    pub ropes: Vec<Rope>,
    /// How layers differ: layer `i` is of the kind `i` modulo their number. At least one.
    pub layer_kinds: Vec<LayerKind>,
    /// Positions are a table of `max_position_embeddings` rows that are added to the embeddings.
    pub learned_positions: bool,
    /// Factor of the embeddings.
    pub embedding_scale: f32,
    /// Factor of attention scores; `None` is `1 / sqrt(head_dim)`.
    pub attention_scale: Option<f32>,
    /// Factor of what attention and MLP add to the residual stream.
    pub residual_scale: f32,
    /// Factor of the logits.
    pub logit_scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Logits become `cap * tanh(logit / cap)`, after their factor.
    pub logit_cap: Option<f32>,
}

/// What a norm is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormKind {
    /// Division by the root of the mean square, times a weight (Zhang and Sennrich, 2019).
    #[default]
    Rms,
    /// The mean subtracted, division by the standard deviation, times a weight, plus a bias (Ba, Kiros and
    /// Hinton, 2016).
    Layer,
}

/// Where a layer has norms. At least one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormPlaces {
    /// Of what attention and MLP are given.
    pub before: bool,
    /// Of what they add to the residual stream.
    pub after: bool,
}

/// Which matrices have biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The output of attention.
    pub o: bool,
    /// Both sides of the MLP.
    pub mlp: bool,
}

/// In what layers differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerKind {
    /// A token sees itself and those before it, so many in all; `None` sees all of them.
    pub window: Option<usize>,
    /// Which of [`Config::ropes`].
    pub rope: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            architecture: String::new(),
            num_layers: 0,
            hidden_size: 0,
            num_heads: 0,
            num_kv_heads: 0,
            head_dim: 0,
            intermediate_size: 0,
            vocab_size: 0,
            max_position_embeddings: 0,
            tied_head: false,
            norm_eps: 1e-5,
            norm: NormKind::Rms,
            norm_places: NormPlaces {
                before: true,
                after: false,
            },
            qk_norm: None,
            biases: Biases::default(),
            mlp: MlpKind::SwiGlu,
            ropes: vec![Rope::default()],
            layer_kinds: vec![LayerKind::default()],
            learned_positions: false,
            embedding_scale: 1.0,
            attention_scale: None,
            residual_scale: 1.0,
            logit_scale: 1.0,
            score_cap: None,
            logit_cap: None,
        }
    }
}

/// How a file spells the fields that [`Config::check`] complains of.
#[derive(Clone, Debug)]
pub struct Spelling {
    /// `num_heads`.
    pub num_heads: String,
    /// `num_kv_heads`.
    pub num_kv_heads: String,
    /// `head_dim`.
    pub head_dim: String,
    /// `hidden_size`.
    pub hidden_size: String,
    /// `intermediate_size`.
    pub intermediate_size: String,
    /// `norm_eps`.
    pub norm_eps: String,
}

impl Config {
    /// The kind of a layer.
    pub fn layer_kind(&self, layer: usize) -> LayerKind {
        self.layer_kinds[layer % self.layer_kinds.len()]
    }

    /// The rotary embedding of a layer.
    pub fn rope_of(&self, layer: usize) -> &Rope {
        &self.ropes[self.layer_kind(layer).rope]
    }

    /// Whether logits are more than a matrix times the normalised residual stream.
    pub fn finishes_logits(&self) -> bool {
        self.logit_scale != 1.0 || self.logit_cap.is_some()
    }

    /// The factor of attention scores.
    pub fn score_scale(&self) -> f64 {
        let scale = self.attention_scale.map(f64::from);
        scale.unwrap_or_else(|| 1.0 / (self.head_dim as f64).sqrt())
    }

    /// The different windows of its layers, in the order in which they come first.
    pub fn windows(&self) -> Vec<Option<usize>> {
        let groups = self.layer_groups(usize::MAX);
        groups.into_iter().map(|(window, _)| window).collect()
    }

    /// The same in a context of `context` tokens, where a window that no context exceeds is none, each with
    /// the number of its layers.
    pub fn layer_groups(&self, context: usize) -> Vec<(Option<usize>, usize)> {
        let mut groups: Vec<(Option<usize>, usize)> = Vec::new();
        for layer in 0..self.num_layers {
            let window = self.layer_kind(layer).window.filter(|&w| w < context);
            match groups.iter_mut().find(|(other, _)| *other == window) {
                Some((_, layers)) => *layers += 1,
                None => groups.push((window, 1)),
            }
        }
        groups
    }

    /// The same for a context of `context` tokens, where that decides about a factor; a window that no
    /// context exceeds is none.
    pub fn for_context(mut self, context: usize) -> Config {
        for kind in &mut self.layer_kinds {
            kind.window = kind.window.filter(|&window| window < context);
        }
        for rope in &mut self.ropes {
            rope.settle(context);
        }
        self
    }

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
            (self.mlp_rows(), self.hidden_size),
            (self.hidden_size, self.intermediate_size),
        ]
    }

    /// Rows of the first matrix of the MLP.
    pub fn mlp_rows(&self) -> usize {
        self.intermediate_size * if self.mlp.is_gated() { 2 } else { 1 }
    }

    /// Values of a layer's norms and biases, as they are in memory: a norm before that is none is ones.
    pub fn layer_vectors(&self) -> usize {
        let (h, b) = (self.hidden_size, self.biases);
        let of = |there: bool, values: usize| if there { values } else { 0 };
        let of_qk = match self.qk_norm {
            None => 0,
            Some(QkNorm::Head) => 2 * self.head_dim,
            Some(QkNorm::Whole) => self.q_width() + self.kv_width(),
        };
        2 * h
            + of(self.norm == NormKind::Layer, 2 * h)
            + of(self.norm_places.after, 2 * h)
            + of_qk
            + of(b.qkv, self.qkv_rows())
            + of(b.o, h)
            + of(b.mlp, self.mlp_rows() + h)
    }

    /// Values of the final norm, and of the table of positions where they are learned.
    pub fn other_vectors(&self) -> usize {
        let h = self.hidden_size;
        let norm = if self.norm == NormKind::Layer {
            2 * h
        } else {
            h
        };
        let positions = if self.learned_positions {
            self.max_position_embeddings
        } else {
            0
        };
        norm + positions * h
    }

    /// Weights of the matrices of one layer.
    pub(super) fn layer_params(&self) -> usize {
        let sizes = self.layer_matrices().map(|(rows, columns)| rows * columns);
        sizes.iter().sum()
    }

    /// All weights; an embedding that is the head as well counts once.
    pub fn num_params(&self) -> u64 {
        // a norm that is none is in memory only
        let ones = if self.norm_places.before {
            0
        } else {
            2 * self.hidden_size
        };
        let layers = self.num_layers * (self.layer_params() + self.layer_vectors() - ones);
        let tables = if self.tied_head { 1 } else { 2 };
        (layers + self.other_vectors() + tables * self.vocab_size * self.hidden_size) as u64
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
                &spelling.num_kv_heads,
                format!(
                    "is {kv}, which does not divide {} = {q}",
                    spelling.num_heads
                ),
            );
        }
        if !(32..=256).contains(&self.head_dim) || !self.head_dim.is_multiple_of(8) {
            return wrong(
                &spelling.head_dim,
                format!(
                    "is {}, expected a multiple of 8 from 32 to 256",
                    self.head_dim
                ),
            );
        }
        if self.hidden_size > MAX_HIDDEN || !self.hidden_size.is_multiple_of(4) {
            return wrong(
                &spelling.hidden_size,
                format!(
                    "is {}, expected a multiple of 4 up to {MAX_HIDDEN}",
                    self.hidden_size
                ),
            );
        }
        if !self.intermediate_size.is_multiple_of(4) {
            return wrong(
                &spelling.intermediate_size,
                format!("is {}, expected a multiple of 4", self.intermediate_size),
            );
        }
        if self.norm_eps.is_nan() || self.norm_eps <= 0.0 || self.norm_eps > 1.0 {
            return wrong(
                &spelling.norm_eps,
                format!("is {}, expected a number above 0, up to 1", self.norm_eps),
            );
        }
        if self.norm_eps < f32::MIN_POSITIVE {
            log::warn!(
                "{}: {}: is denormal and may count as 0",
                path.display(),
                spelling.norm_eps
            );
        }
        self.ropes
            .iter()
            .try_for_each(|rope| rope.check(path, self.head_dim))
    }
}
