//! Finding the tensors of a layer, and how its matrices lie in them.

use super::{LayerMap, LayerNames, Names, Rows, Slice, Turned, Vector, bias_of};
use crate::error::{Error, Result};
use crate::formats::checkpoint::{Checkpoint, TensorInfo};
use crate::model::config::{Config, NormKind, QkNorm};
use std::collections::HashSet;

/// What holds gate and up, or up alone.
pub(super) fn gate_up_names(config: &Config, l: &LayerNames) -> &'static [&'static str] {
    match config.mlp.is_gated() {
        true => l.gate_up,
        false => &l.gate_up[l.gate_up.len() - 1..],
    }
}

/// A dimension, and the fields it follows from.
#[derive(Clone, Copy)]
pub(super) struct Dim(pub usize, pub &'static str);

/// Finds tensors, and remembers which.
pub(super) struct Finder<'m, 'a> {
    config: &'m Config,
    names: &'m Names,
    checkpoint: &'a Checkpoint,
    used: HashSet<String>,
}

impl<'m, 'a> Finder<'m, 'a> {
    pub fn new(config: &'m Config, names: &'m Names, checkpoint: &'a Checkpoint) -> Self {
        Finder {
            config,
            names,
            checkpoint,
            used: HashSet::new(),
        }
    }

    /// Takes a tensor for used, whether it is there or not.
    pub fn is_known(&mut self, name: &str) {
        self.used.insert(name.to_owned());
    }

    /// The tensors of layer `index`.
    pub fn layer(&mut self, index: usize) -> Result<LayerMap<'a>> {
        let (c, l) = (self.config, &self.names.layer);
        let hidden = Dim(c.hidden_size, "hidden_size");
        let q = Dim(c.q_width(), "heads * head_dim");
        let kv = Dim(c.kv_width(), "KV heads * head_dim");
        let inner = Dim(c.intermediate_size, "intermediate_size");
        let turned = self.turned(index);
        let turn = |mut slices: Vec<Slice<'a>>| {
            (slices[0].turned, slices[1].turned) = (turned, turned);
            Rows::concat(slices)
        };
        let mlp = |mut slices: Vec<Slice<'a>>| match slices.len() {
            2 => {
                let up = slices.remove(1);
                Rows::Interleave(slices.remove(0), up)
            }
            _ => Rows::concat(slices),
        };
        let gate_up = gate_up_names(c, l);
        let both = [inner, inner];
        let both = if c.mlp.is_gated() {
            &both[..]
        } else {
            &both[..1]
        };
        let (attn_norm, mlp_norm) = (self.full(index, l.attn_norm), self.full(index, l.mlp_norm));
        let (q_norm, k_norm) = match c.qk_norm {
            Some(QkNorm::Whole) => (q, kv),
            _ => (Dim(c.head_dim, "head_dim"), Dim(c.head_dim, "head_dim")),
        };
        Ok(LayerMap {
            q_norm: self.head_norm(index, l.q_norm, q_norm)?,
            k_norm: self.head_norm(index, l.k_norm, k_norm)?,
            attn_norm: self.norm_before(&attn_norm, hidden)?,
            attn_norm_bias: self.bias_before(&attn_norm)?,
            qkv: turn(self.slices(index, l.qkv, &[q, kv, kv], Some(hidden))?),
            qkv_bias: self.bias(c.biases.qkv, index, l.qkv, &[q, kv, kv], turn)?,
            o: Rows::concat(self.slices(index, &[l.o], &[hidden], Some(q))?),
            o_bias: self.bias(c.biases.o, index, &[l.o], &[hidden], Rows::concat)?,
            attn_norm_after: self.norm_after(index, l.attn_norm_after)?,
            mlp_norm: self.norm_before(&mlp_norm, hidden)?,
            mlp_norm_bias: self.bias_before(&mlp_norm)?,
            gate_up: mlp(self.slices(index, gate_up, both, Some(hidden))?),
            gate_up_bias: self.bias(c.biases.mlp, index, gate_up, both, mlp)?,
            down: Rows::concat(self.slices(index, &[l.down], &[hidden], Some(inner))?),
            down_bias: self.bias(c.biases.mlp, index, &[l.down], &[hidden], Rows::concat)?,
            mlp_norm_after: self.norm_after(index, l.mlp_norm_after)?,
        })
    }

    /// What becomes of the order of rows in heads of queries and keys.
    fn turned(&self, layer: usize) -> Option<Turned> {
        let head_dim = self.config.head_dim;
        let rotated = self.config.rope_of(layer).rotated(head_dim);
        let is_needed = rotated > 0 && !self.names.pairs_adjacent;
        is_needed.then_some(Turned { head_dim, rotated })
    }

    fn full(&self, index: usize, name: &str) -> String {
        self.names.in_layer(index, name)
    }

    fn find(&mut self, name: String, shape: &[usize], because: &str) -> Result<&'a TensorInfo> {
        let info = self.checkpoint.expect_shape(&name, shape, because)?;
        self.used.insert(name);
        Ok(info)
    }

    /// All rows of a tensor of a layer; a vector without `columns`.
    fn slice(&mut self, name: String, rows: Dim, columns: Option<Dim>) -> Result<Slice<'a>> {
        let is_transposed = self.names.transposed || columns.is_none();
        let info = match columns {
            None => self.find(name, &[rows.0], rows.1)?,
            Some(columns) => {
                let (first, last) = match self.names.transposed {
                    true => (columns, rows),
                    false => (rows, columns),
                };
                let because = format!("{}, {}", first.1, last.1);
                self.find(name, &[first.0, last.0], &because)?
            }
        };
        Ok(Slice {
            info,
            rows: 0..rows.0,
            transposed: is_transposed,
            turned: None,
        })
    }

    /// The rows of several matrices with the same columns: a tensor of a layer for each, or one of all.
    fn slices(
        &mut self,
        index: usize,
        names: &[&str],
        rows: &[Dim],
        columns: Option<Dim>,
    ) -> Result<Vec<Slice<'a>>> {
        if names.len() == rows.len() {
            let each = names.iter().zip(rows);
            return each
                .map(|(name, &rows)| self.slice(self.full(index, name), rows, columns))
                .collect();
        }
        assert_eq!(names.len(), 1, "{} matrices in {names:?}", rows.len());
        let all = Dim(rows.iter().map(|dim| dim.0).sum(), "rows of all parts");
        let whole = self.slice(self.full(index, names[0]), all, columns)?;
        let mut start = 0;
        let part = |dim: &Dim| {
            let rows = start..start + dim.0;
            start = rows.end;
            Slice {
                rows,
                ..whole.clone()
            }
        };
        Ok(rows.iter().map(part).collect())
    }

    /// The biases of matrices, in the order that `order` gives their rows.
    fn bias(
        &mut self,
        is_there: bool,
        index: usize,
        weights: &[&str],
        rows: &[Dim],
        order: impl Fn(Vec<Slice<'a>>) -> Rows<'a>,
    ) -> Result<Option<Vector<'a>>> {
        if !is_there {
            return Ok(None);
        }
        let names: Vec<String> = weights.iter().map(|weight| bias_of(weight)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let rows = order(self.slices(index, &names, rows, None)?);
        Ok(Some(vector(rows, 0.0)))
    }

    pub fn norm(&mut self, name: &str, dim: Dim) -> Result<Vector<'a>> {
        let slice = self.slice(name.to_owned(), dim, None)?;
        Ok(self.weight(Rows::concat(vec![slice])))
    }

    /// The weight of a norm of queries or keys, in the order of their rows.
    fn head_norm(&mut self, index: usize, name: &str, dim: Dim) -> Result<Option<Vector<'a>>> {
        if self.config.qk_norm.is_none() {
            return Ok(None);
        }
        let slice = Slice {
            turned: self.turned(index),
            ..self.slice(self.full(index, name), dim, None)?
        };
        Ok(Some(self.weight(Rows::concat(vec![slice]))))
    }

    /// The weight of a norm.
    fn weight(&self, rows: Rows<'a>) -> Vector<'a> {
        vector(rows, self.names.norm_plus)
    }

    fn norm_before(&mut self, name: &str, dim: Dim) -> Result<Vector<'a>> {
        match self.config.norm_places.before {
            true => self.norm(name, dim),
            false => Ok(Vector::ones(dim.0)),
        }
    }

    fn norm_after(&mut self, index: usize, name: &str) -> Result<Option<Vector<'a>>> {
        let hidden = Dim(self.config.hidden_size, "hidden_size");
        match self.config.norm_places.after {
            true => self.norm(&self.full(index, name), hidden).map(Some),
            false => Ok(None),
        }
    }

    /// The bias of a norm before attention or MLP.
    fn bias_before(&mut self, weight: &str) -> Result<Option<Vector<'a>>> {
        match self.config.norm_places.before {
            true => self.norm_bias(weight),
            false => Ok(None),
        }
    }

    /// The bias of a norm.
    pub fn norm_bias(&mut self, weight: &str) -> Result<Option<Vector<'a>>> {
        if self.config.norm != NormKind::Layer {
            return Ok(None);
        }
        let hidden = Dim(self.config.hidden_size, "hidden_size");
        let slice = self.slice(bias_of(weight), hidden, None)?;
        Ok(Some(vector(Rows::concat(vec![slice]), 0.0)))
    }

    /// A table of the model's own, which is stored row by row in any case.
    pub fn table(&mut self, name: String, rows: Dim, columns: Dim) -> Result<Rows<'a>> {
        let because = format!("{}, {}", rows.1, columns.1);
        let info = self.find(name, &[rows.0, columns.0], &because)?;
        Ok(Rows::Concat(vec![Slice {
            info,
            rows: 0..rows.0,
            transposed: false,
            turned: None,
        }]))
    }

    /// Tells of tensors that nobody asked for; the bias of a weight that is used would change the result.
    pub fn look_at_unused(&self) -> Result<()> {
        let (checkpoint, names) = (self.checkpoint, self.names);
        let known = |name: &str| {
            self.used.contains(name)
                || names.settings.iter().any(|ending| name.ends_with(ending))
                || names.ignored.iter().any(|part| name.contains(part))
        };
        let unused: Vec<&str> = checkpoint.names().filter(|name| !known(name)).collect();
        let is_bias = |name: &&&str| {
            let stem = name.strip_suffix(".bias");
            stem.is_some_and(|stem| self.used.contains(&format!("{stem}.weight")))
        };
        if let Some(&bias) = unused.iter().find(is_bias) {
            let problem = format!(
                "is there, but {} computes no such bias",
                self.config.architecture
            );
            return Err(Error::tensor(checkpoint.path(), bias, problem));
        }
        if let Some(first) = unused.first() {
            log::warn!(
                "{}: {} tensors are not used, {first} the first",
                checkpoint.path().display(),
                unused.len()
            );
        }
        Ok(())
    }
}

/// The values of matrices of one column.
fn vector(rows: Rows<'_>, plus: f32) -> Vector<'_> {
    Vector {
        len: rows.shape().0,
        rows: Some(rows),
        plus,
    }
}
