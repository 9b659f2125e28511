//! How files name their tensors.

/// How a family's files name their tensors, and how they store them.
#[derive(Clone, Copy)]
pub struct Names {
    /// Before all names but the head's.
    pub prefix: &'static str,
    /// `[vocab_size, hidden_size]`.
    pub embedding: &'static str,
    /// `[max_position_embeddings, hidden_size]`, where positions are learned.
    pub positions: &'static str,
    /// `[hidden_size]`.
    pub final_norm: &'static str,
    /// `[vocab_size, hidden_size]`, unless tied.
    pub head: &'static str,
    /// Names within a layer.
    pub layer: LayerNames,
    /// Endings of tensors that are settings: they are read with the configuration.
    pub settings: &'static [&'static str],
    /// Parts of the names of tensors that are not needed.
    pub ignored: &'static [&'static str],
    /// Rows of Q and K are stored with rotated pairs adjacent, `(2i, 2i+1)`, as kernels want them;
    /// elsewhere they are halves apart, `(i, i + rotated / 2)`.
    pub pairs_adjacent: bool,
    /// Matrices of layers are stored as `[columns, rows]`.
    pub transposed: bool,
    /// What is added to the weights of norms as they are read: 1 where files have them without.
    pub norm_plus: f32,
}

/// Names within a layer: `{Names::prefix}{prefix}{index}.{name}`. Which of them have to be there the
/// configuration tells. A bias has its weight's name with [`bias_of`].
#[derive(Clone, Copy)]
pub struct LayerNames {
    /// Before the layer's index.
    pub prefix: &'static str,
    /// `[hidden_size]`: what attention is given is normalised.
    pub attn_norm: &'static str,
    /// Queries `[num_heads * head_dim, hidden_size]`, keys and values `[num_kv_heads * head_dim,
    /// hidden_size]`: three tensors, or one with the rows of all.
    pub qkv: &'static [&'static str],
    /// `[head_dim]`, or `[num_heads * head_dim]`.
    pub q_norm: &'static str,
    /// `[head_dim]`, or `[num_kv_heads * head_dim]`.
    pub k_norm: &'static str,
    /// `[hidden_size, num_heads * head_dim]`.
    pub o: &'static str,
    /// `[hidden_size]`: what attention adds is normalised.
    pub attn_norm_after: &'static str,
    /// `[hidden_size]`: what the MLP is given is normalised.
    pub mlp_norm: &'static str,
    /// Gate and up, `[intermediate_size, hidden_size]` each: two tensors, or one with the rows of both.
    /// The last is up where there is no gate.
    pub gate_up: &'static [&'static str],
    /// `[hidden_size, intermediate_size]`.
    pub down: &'static str,
    /// `[hidden_size]`: what the MLP adds is normalised.
    pub mlp_norm_after: &'static str,
}

impl Names {
    /// The embedding's whole name.
    pub fn embedding(&self) -> String {
        format!("{}{}", self.prefix, self.embedding)
    }

    /// The table of positions.
    pub fn positions(&self) -> String {
        format!("{}{}", self.prefix, self.positions)
    }

    /// The last norm's.
    pub fn final_norm(&self) -> String {
        format!("{}{}", self.prefix, self.final_norm)
    }

    /// That of `name` in layer `index`.
    pub fn in_layer(&self, index: usize, name: &str) -> String {
        format!("{}{}{index}.{name}", self.prefix, self.layer.prefix)
    }
}

/// The name of the bias that belongs to a weight: `q_proj.weight` has `q_proj.bias`.
pub fn bias_of(weight: &str) -> String {
    let stem = weight.strip_suffix(".weight").unwrap_or(weight);
    format!("{stem}.bias")
}
