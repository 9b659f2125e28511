//! The tensors of a model, each of the shape that the configuration implies.

use super::find::{Dim, Finder, gate_up_names};
use super::{LayerNames, Names, Rows, Vector, bias_of};
use crate::error::{Error, Result};
use crate::formats::checkpoint::{Checkpoint, TensorInfo};
use crate::model::config::{Config, NormKind};
use crate::quant::Format;
use std::collections::HashSet;

/// The tensors of a model in its files.
pub struct TensorMap<'a> {
    /// The files.
    pub checkpoint: &'a Checkpoint,
    /// `[vocab_size, hidden_size]`.
    pub embedding: Rows<'a>,
    /// `[max_position_embeddings, hidden_size]`, where positions are learned.
    pub positions: Option<Rows<'a>>,
    /// One for each layer.
    pub layers: Vec<LayerMap<'a>>,
    /// `[hidden_size]`.
    pub final_norm: Vector<'a>,
    /// Its bias.
    pub final_norm_bias: Option<Vector<'a>>,
    /// The head, unless it is the embedding.
    pub head: Option<Rows<'a>>,
}

/// The tensors of a layer. What a model does not have is `None`; a norm before attention or MLP that it
/// does not have is all ones.
pub struct LayerMap<'a> {
    /// `[hidden_size]`.
    pub attn_norm: Vector<'a>,
    /// `[hidden_size]`.
    pub attn_norm_bias: Option<Vector<'a>>,
    /// `[qkv_rows, hidden_size]`: queries, keys, values; rotated pairs of Q and K are adjacent.
    pub qkv: Rows<'a>,
    /// `[qkv_rows]`, in the order of the rows.
    pub qkv_bias: Option<Vector<'a>>,
    /// `[head_dim]`, or `[q_width]`, in the order of the rows.
    pub q_norm: Option<Vector<'a>>,
    /// `[head_dim]`, or `[kv_width]`, in the order of the rows.
    pub k_norm: Option<Vector<'a>>,
    /// `[hidden_size, q_width]`.
    pub o: Rows<'a>,
    /// `[hidden_size]`.
    pub o_bias: Option<Vector<'a>>,
    /// `[hidden_size]`.
    pub attn_norm_after: Option<Vector<'a>>,
    /// `[hidden_size]`.
    pub mlp_norm: Vector<'a>,
    /// `[hidden_size]`.
    pub mlp_norm_bias: Option<Vector<'a>>,
    /// `[2 * intermediate_size, hidden_size]`: four rows of the gate, the same four of up, and so on; or
    /// `[intermediate_size, hidden_size]` without a gate.
    pub gate_up: Rows<'a>,
    /// As many, in the order of the rows.
    pub gate_up_bias: Option<Vector<'a>>,
    /// `[hidden_size, intermediate_size]`.
    pub down: Rows<'a>,
    /// `[hidden_size]`.
    pub down_bias: Option<Vector<'a>>,
    /// `[hidden_size]`.
    pub mlp_norm_after: Option<Vector<'a>>,
}

/// What part of a model a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Embedding or head.
    Table,
    /// A norm or a bias, or the table of positions.
    Vector,
    /// A matrix that activations are multiplied with.
    Matrix,
}

impl<'a> TensorMap<'a> {
    /// Finds and checks every tensor. Nothing is read but the tables already in memory.
    ///
    /// # Errors
    /// [`Error::Tensor`] for missing ones, up to ten in one message, and for a bias that is there and not
    /// computed; [`Error::WeightShape`] for wrong ones.
    pub fn new(
        config: &Config,
        names: &Names,
        checkpoint: &'a Checkpoint,
    ) -> Result<TensorMap<'a>> {
        require(config, names, checkpoint)?;
        let mut finder = Finder::new(config, names, checkpoint);
        let hidden = Dim(config.hidden_size, "hidden_size");
        let vocab = Dim(config.vocab_size, "vocab_size");
        let layers = (0..config.num_layers)
            .map(|index| finder.layer(index))
            .collect::<Result<_>>()?;
        let head = match config.tied_head {
            true => None,
            false => {
                let hidden = Dim(hidden.0, "hidden_size; not tied to the embedding");
                Some(finder.table(names.head.to_owned(), vocab, hidden)?)
            }
        };
        finder.is_known(names.head);
        let positions = config.learned_positions.then(|| {
            let rows = Dim(config.max_position_embeddings, "max_position_embeddings");
            finder.table(names.positions(), rows, hidden)
        });
        let map = TensorMap {
            checkpoint,
            embedding: finder.table(names.embedding(), vocab, hidden)?,
            positions: positions.transpose()?,
            layers,
            final_norm: finder.norm(&names.final_norm(), hidden)?,
            final_norm_bias: finder.norm_bias(&names.final_norm())?,
            head,
        };
        finder.look_at_unused()?;
        Ok(map)
    }

    /// Bytes of all packed matrices on the device.
    pub fn packed_bytes(&self, format: &Format) -> u64 {
        let of = |rows: &Rows| {
            let (rows, columns) = rows.shape();
            let (weights, scales) = format.matrix_bytes(rows, columns);
            weights + scales
        };
        let layers: u64 = self
            .layers
            .iter()
            .flat_map(LayerMap::matrices)
            .map(of)
            .sum();
        layers + of(&self.embedding) + self.head.as_ref().map_or(0, of)
    }

    /// Bytes of everything else on the device: norms, biases and positions, as f32.
    pub fn vector_bytes(&self) -> u64 {
        let layers = self.layers.iter().flat_map(LayerMap::vectors).flatten();
        let last = [Some(&self.final_norm), self.final_norm_bias.as_ref()];
        let vectors = layers.chain(last.into_iter().flatten());
        let positions = self.positions.as_ref().map_or((0, 0), Rows::shape);
        4 * (vectors.map(|v| v.len).sum::<usize>() + positions.0 * positions.1) as u64
    }

    /// Every tensor that the model is made of, once, in the order in which it is gone through.
    pub fn sources(&self) -> Vec<(&'a TensorInfo, Role)> {
        let mut all: Vec<(&'a TensorInfo, Role)> = Vec::new();
        let mut known = HashSet::new();
        let mut add = |rows: Option<&Rows<'a>>, role| {
            for slice in rows.into_iter().flat_map(Rows::slices) {
                if known.insert(slice.info.name.as_str()) {
                    all.push((slice.info, role));
                }
            }
        };
        add(Some(&self.embedding), Role::Table);
        add(self.positions.as_ref(), Role::Vector);
        for (rows, role) in self.layers.iter().flat_map(LayerMap::parts) {
            add(rows, role);
        }
        for vector in [Some(&self.final_norm), self.final_norm_bias.as_ref()] {
            add(vector.and_then(|v| v.rows.as_ref()), Role::Vector);
        }
        add(self.head.as_ref(), Role::Table);
        all
    }
}

impl<'a> LayerMap<'a> {
    /// Its matrices, in the order in which they are multiplied with.
    pub fn matrices(&self) -> [&Rows<'a>; 4] {
        [&self.qkv, &self.o, &self.gate_up, &self.down]
    }

    /// Its vectors, as those of [`LayerWeights`](crate::model::weights::LayerWeights).
    pub fn vectors(&self) -> [Option<&Vector<'a>>; 12] {
        [
            Some(&self.attn_norm),
            self.attn_norm_bias.as_ref(),
            self.qkv_bias.as_ref(),
            self.q_norm.as_ref(),
            self.k_norm.as_ref(),
            self.o_bias.as_ref(),
            self.attn_norm_after.as_ref(),
            Some(&self.mlp_norm),
            self.mlp_norm_bias.as_ref(),
            self.gate_up_bias.as_ref(),
            self.down_bias.as_ref(),
            self.mlp_norm_after.as_ref(),
        ]
    }

    /// All it is made of, in order.
    fn parts(&self) -> [(Option<&Rows<'a>>, Role); 16] {
        let [attn_norm, mlp_norm] = [&self.attn_norm, &self.mlp_norm].map(|v| v.rows.as_ref());
        [
            (attn_norm, Role::Vector),
            (of_vector(&self.attn_norm_bias), Role::Vector),
            (Some(&self.qkv), Role::Matrix),
            (of_vector(&self.qkv_bias), Role::Vector),
            (of_vector(&self.q_norm), Role::Vector),
            (of_vector(&self.k_norm), Role::Vector),
            (Some(&self.o), Role::Matrix),
            (of_vector(&self.o_bias), Role::Vector),
            (of_vector(&self.attn_norm_after), Role::Vector),
            (mlp_norm, Role::Vector),
            (of_vector(&self.mlp_norm_bias), Role::Vector),
            (Some(&self.gate_up), Role::Matrix),
            (of_vector(&self.gate_up_bias), Role::Vector),
            (Some(&self.down), Role::Matrix),
            (of_vector(&self.down_bias), Role::Vector),
            (of_vector(&self.mlp_norm_after), Role::Vector),
        ]
    }
}

/// That every tensor is there which the configuration needs.
fn require(config: &Config, names: &Names, checkpoint: &Checkpoint) -> Result<()> {
    let in_layer = in_layer(config, &names.layer);
    let layers = (0..config.num_layers)
        .flat_map(|index| in_layer.iter().map(move |name| names.in_layer(index, name)));
    let mut top = vec![names.embedding(), names.final_norm()];
    if config.norm == NormKind::Layer {
        top.push(bias_of(&names.final_norm()));
    }
    if config.learned_positions {
        top.push(names.positions());
    }
    let all: Vec<String> = top.into_iter().chain(layers).collect();
    checkpoint.require_all(all.iter().map(String::as_str))?;
    if config.tied_head || checkpoint.get(names.head).is_some() {
        return Ok(());
    }
    let problem = "is missing, and tie_word_embeddings is not true, so that the embedding does not \
                   stand in for it";
    Err(Error::tensor(checkpoint.path(), names.head, problem))
}

/// The names within a layer of all that has to be there.
fn in_layer(config: &Config, l: &LayerNames) -> Vec<String> {
    let places = config.norm_places;
    let gate_up = gate_up_names(config, l);
    let parts: [(&[&str], bool, bool); 10] = [
        // names, whether they are there, whether they have biases
        (
            &[l.attn_norm],
            places.before,
            config.norm == NormKind::Layer,
        ),
        (l.qkv, true, config.biases.qkv),
        (&[l.q_norm], config.qk_norm.is_some(), false),
        (&[l.k_norm], config.qk_norm.is_some(), false),
        (&[l.o], true, config.biases.o),
        (&[l.attn_norm_after], places.after, false),
        (&[l.mlp_norm], places.before, config.norm == NormKind::Layer),
        (gate_up, true, config.biases.mlp),
        (&[l.down], true, config.biases.mlp),
        (&[l.mlp_norm_after], places.after, false),
    ];
    let mut all = Vec::new();
    for (names, _, has_bias) in parts.into_iter().filter(|(_, is_there, _)| *is_there) {
        all.extend(names.iter().map(|&name| name.to_owned()));
        if has_bias {
            all.extend(names.iter().map(|name| bias_of(name)));
        }
    }
    all
}

fn of_vector<'m, 'a>(vector: &'m Option<Vector<'a>>) -> Option<&'m Rows<'a>> {
    vector.as_ref()?.rows.as_ref()
}
