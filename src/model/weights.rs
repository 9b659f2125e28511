//! A model's weights: packed, and put on the device piece by piece.

use super::tensors::{LayerMap, NonFinite, Rows, TensorMap, Vector};
use crate::error::{Error, Result};
use crate::formats::checkpoint::Checkpoint;
use crate::gpu::{DType, Gpu, Tensor};
use crate::quant::{Format, Weights};

/// A model's weights on the device. Clones share them.
#[derive(Clone)]
pub struct ModelWeights {
    /// `[vocab_size, hidden_size]`.
    pub embedding: Weights,
    /// `[max_position_embeddings, hidden_size]` f32, where positions are learned.
    pub positions: Option<Tensor>,
    /// One for each layer.
    pub layers: Vec<LayerWeights>,
    /// `[hidden_size]` f32.
    pub final_norm: Tensor,
    /// `[hidden_size]` f32.
    pub final_norm_bias: Option<Tensor>,
    /// The head, unless it is the embedding.
    pub head: Option<Weights>,
}

/// A layer's weights on the device; see [`LayerMap`]. What a model does not have is `None`.
#[derive(Clone)]
pub struct LayerWeights {
    /// `[hidden_size]` f32: ones where attention is given the residual stream as it is.
    pub attn_norm: Tensor,
    /// `[hidden_size]` f32.
    pub attn_norm_bias: Option<Tensor>,
    /// Fused projection.
    pub qkv: Weights,
    /// `[qkv_rows]` f32.
    pub qkv_bias: Option<Tensor>,
    /// `[head_dim]` f32, or `[q_width]`; as the rows, with rotated pairs adjacent.
    pub q_norm: Option<Tensor>,
    /// `[head_dim]` f32, or `[kv_width]`; the same.
    pub k_norm: Option<Tensor>,
    /// Output projection.
    pub o: Weights,
    /// `[hidden_size]` f32.
    pub o_bias: Option<Tensor>,
    /// `[hidden_size]` f32.
    pub attn_norm_after: Option<Tensor>,
    /// `[hidden_size]` f32: ones where the MLP is given the residual stream as it is.
    pub mlp_norm: Tensor,
    /// `[hidden_size]` f32.
    pub mlp_norm_bias: Option<Tensor>,
    /// Gate and up, blocks of four rows alternating; up alone where there is no gate.
    pub gate_up: Weights,
    /// A value for each of its rows, f32.
    pub gate_up_bias: Option<Tensor>,
    /// Down projection.
    pub down: Weights,
    /// `[hidden_size]` f32.
    pub down_bias: Option<Tensor>,
    /// `[hidden_size]` f32.
    pub mlp_norm_after: Option<Tensor>,
}

impl LayerWeights {
    /// Its vectors, as those of [`LayerMap`].
    fn vectors(&self) -> [Option<&Tensor>; 12] {
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

    /// Its matrices, in the order in which they are multiplied with.
    fn matrices(&self) -> [&Weights; 4] {
        [&self.qkv, &self.o, &self.gate_up, &self.down]
    }
}

impl ModelWeights {
    /// Room for everything in `map`, all zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] naming what.
    pub fn allocate(gpu: &Gpu, map: &TensorMap, format: &'static Format) -> Result<ModelWeights> {
        let matrix = |label: &str, source: &Rows| {
            let (rows, columns) = source.shape();
            Weights::allocate(gpu, label, format, rows, columns)
        };
        let vector = |label: &str, v: &Vector| gpu.tensor(label, DType::F32, &[v.len]);
        let opt = |label: &str, v: &Option<Vector>| {
            let tensor = v.as_ref().map(|v| vector(label, v));
            tensor.transpose()
        };
        let layer = |map: &LayerMap| {
            Ok(LayerWeights {
                attn_norm: vector("attn_norm", &map.attn_norm)?,
                attn_norm_bias: opt("attn_norm_bias", &map.attn_norm_bias)?,
                qkv: matrix("qkv", &map.qkv)?,
                qkv_bias: opt("qkv_bias", &map.qkv_bias)?,
                q_norm: opt("q_norm", &map.q_norm)?,
                k_norm: opt("k_norm", &map.k_norm)?,
                o: matrix("o", &map.o)?,
                o_bias: opt("o_bias", &map.o_bias)?,
                attn_norm_after: opt("attn_norm_after", &map.attn_norm_after)?,
                mlp_norm: vector("mlp_norm", &map.mlp_norm)?,
                mlp_norm_bias: opt("mlp_norm_bias", &map.mlp_norm_bias)?,
                gate_up: matrix("gate_up", &map.gate_up)?,
                gate_up_bias: opt("gate_up_bias", &map.gate_up_bias)?,
                down: matrix("down", &map.down)?,
                down_bias: opt("down_bias", &map.down_bias)?,
                mlp_norm_after: opt("mlp_norm_after", &map.mlp_norm_after)?,
            })
        };
        let positions = map.positions.as_ref().map(|rows| {
            let (rows, columns) = rows.shape();
            gpu.tensor("positions", DType::F32, &[rows, columns])
        });
        let head = map.head.as_ref().map(|head| matrix("head", head));
        Ok(ModelWeights {
            embedding: matrix("embedding", &map.embedding)?,
            positions: positions.transpose()?,
            layers: map.layers.iter().map(layer).collect::<Result<_>>()?,
            final_norm: vector("final_norm", &map.final_norm)?,
            final_norm_bias: opt("final_norm_bias", &map.final_norm_bias)?,
            head: head.transpose()?,
        })
    }

    /// Reads, packs and uploads everything in `map`, for which these weights were allocated;
    /// `progress` is told bytes done and bytes in all, in packed bytes. With `strict`, weights that are
    /// NaN or infinite are an error; otherwise a warning tells of them.
    ///
    /// # Errors
    /// What reading and the device report; [`Error::Tensor`] with `strict`.
    pub fn fill(
        &self,
        gpu: &Gpu,
        map: &TensorMap,
        strict: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let mut loader = Loader {
            gpu,
            strict,
            checkpoint: map.checkpoint,
            done: 0,
            total: map.packed_bytes(self.embedding.format),
            progress,
        };
        loader.matrix(&map.embedding, &self.embedding)?;
        if let (Some(rows), Some(tensor)) = (&map.positions, &self.positions) {
            loader.table(rows, tensor)?;
        }
        for (layer, weights) in map.layers.iter().zip(&self.layers) {
            loader.layer(layer, weights)?;
        }
        loader.vector(Some(&map.final_norm), Some(&self.final_norm))?;
        let bias = (map.final_norm_bias.as_ref(), self.final_norm_bias.as_ref());
        loader.vector(bias.0, bias.1)?;
        if let (Some(head), Some(weights)) = (&map.head, &self.head) {
            loader.matrix(head, weights)?;
        }
        map.checkpoint.check_unchanged()?;
        gpu.flush_uploads()
    }

    /// Drops what would be logits of ids from `vocab_size` on.
    pub fn truncate_vocab(&mut self, vocab_size: usize) {
        self.head
            .as_mut()
            .unwrap_or(&mut self.embedding)
            .truncate_rows(vocab_size);
    }

    /// What the hidden state is multiplied with in the end.
    pub fn head(&self) -> &Weights {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The weight of the norm that the embedding goes through.
    pub fn first_norm(&self) -> &Tensor {
        self.layers
            .first()
            .map_or(&self.final_norm, |l| &l.attn_norm)
    }

    /// The weight of the norm that follows layer `index`.
    pub fn norm_after(&self, index: usize) -> &Tensor {
        let next = self.layers.get(index + 1);
        next.map_or(&self.final_norm, |l| &l.attn_norm)
    }

    /// Everything on the device.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        fn layer(l: &LayerWeights) -> impl Iterator<Item = &Tensor> {
            let matrices = l.matrices().into_iter().flat_map(Weights::tensors);
            matrices.chain(l.vectors().into_iter().flatten())
        }
        let tables = [Some(&self.embedding), self.head.as_ref()];
        let tables = tables.into_iter().flatten().flat_map(Weights::tensors);
        let layers = self.layers.iter().flat_map(layer);
        let beside = [self.final_norm_bias.as_ref(), self.positions.as_ref()];
        let beside = beside.into_iter().flatten();
        tables.chain(layers).chain([&self.final_norm]).chain(beside)
    }

    /// Bytes on the device.
    pub fn size_bytes(&self) -> u64 {
        self.tensors().map(Tensor::size_bytes).sum()
    }
}

struct Loader<'a> {
    gpu: &'a Gpu,
    checkpoint: &'a Checkpoint,
    strict: bool,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Loader<'_> {
    fn layer(&mut self, map: &LayerMap, weights: &LayerWeights) -> Result<()> {
        for (vector, tensor) in map.vectors().into_iter().zip(weights.vectors()) {
            self.vector(vector, tensor)?;
        }
        for (rows, matrix) in map.matrices().into_iter().zip(weights.matrices()) {
            self.matrix(rows, matrix)?;
        }
        Ok(())
    }

    fn matrix(&mut self, source: &Rows, weights: &Weights) -> Result<()> {
        let columns = weights.columns;
        let non_finite = source.for_each(self.checkpoint, |first_row, values| {
            weights.write_rows(self.gpu, first_row, values)?;
            let rows = values.len() / columns;
            let (quants, scales) = weights.format.matrix_bytes(rows, columns);
            self.done += quants + scales;
            (self.progress)(self.done, self.total);
            Ok(())
        })?;
        self.tell(non_finite)
    }

    /// Values that are no numbers.
    fn tell(&self, non_finite: NonFinite) -> Result<()> {
        for (info, count) in non_finite.0 {
            let problem = format!("{count} values are NaN or infinite");
            let error = Error::tensor(self.checkpoint.file_of(info), &info.name, problem);
            if self.strict {
                return Err(error);
            }
            log::warn!("{error}");
        }
        Ok(())
    }

    /// The table of positions, which stays f32.
    fn table(&mut self, rows: &Rows, tensor: &Tensor) -> Result<()> {
        let (_, columns) = rows.shape();
        let non_finite = rows.for_each(self.checkpoint, |first_row, values| {
            let at = 4 * (first_row * columns) as u64;
            self.gpu.upload(tensor, at, bytemuck::cast_slice(values))
        })?;
        self.tell(non_finite)
    }

    fn vector(&mut self, vector: Option<&Vector>, tensor: Option<&Tensor>) -> Result<()> {
        let (Some(vector), Some(tensor)) = (vector, tensor) else {
            return Ok(());
        };
        let values = vector.read(self.checkpoint)?;
        self.gpu.upload(tensor, 0, bytemuck::cast_slice(&values))
    }
}
