//! A model's weights: packed, and put on the device piece by piece.

use super::tensors::{LayerMap, Rows, TensorMap};
use crate::error::{Error, Result};
use crate::formats::checkpoint::{Checkpoint, TensorInfo};
use crate::formats::encoding::count_non_finite;
use crate::gpu::{DType, Gpu, Tensor};
use crate::quant::{Format, Weights};

/// A model's weights on the device. Clones share them.
#[derive(Clone)]
pub struct ModelWeights {
    /// `[vocab_size, hidden_size]`.
    pub embedding: Weights,
    /// One for each layer.
    pub layers: Vec<LayerWeights>,
    /// `[hidden_size]`.
    pub final_norm: Tensor,
    /// The head, unless it is the embedding.
    pub head: Option<Weights>,
}

/// A layer's weights on the device; see [`LayerMap`].
#[derive(Clone)]
pub struct LayerWeights {
    /// `[hidden_size]` f32.
    pub attn_norm: Tensor,
    /// Fused projection.
    pub qkv: Weights,
    /// Output projection.
    pub o: Weights,
    /// `[hidden_size]` f32.
    pub mlp_norm: Tensor,
    /// Gate and up, blocks of four rows alternating.
    pub gate_up: Weights,
    /// Down projection.
    pub down: Weights,
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
        let vector = |info: &TensorInfo| gpu.tensor(&info.name, DType::F32, &[info.columns()]);
        let layer = |map: &LayerMap| {
            Ok(LayerWeights {
                attn_norm: vector(map.attn_norm)?,
                qkv: matrix("qkv", &map.qkv)?,
                o: matrix("o", &map.o)?,
                mlp_norm: vector(map.mlp_norm)?,
                gate_up: matrix("gate_up", &map.gate_up)?,
                down: matrix("down", &map.down)?,
            })
        };
        let head = map.head.as_ref().map(|head| matrix("head", head));
        Ok(ModelWeights {
            embedding: matrix("embedding", &map.embedding)?,
            layers: map.layers.iter().map(layer).collect::<Result<_>>()?,
            final_norm: vector(map.final_norm)?,
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
        for (layer, weights) in map.layers.iter().zip(&self.layers) {
            loader.layer(layer, weights)?;
        }
        loader.vector(map.final_norm, &self.final_norm)?;
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
            let matrices = [&l.qkv, &l.o, &l.gate_up, &l.down].into_iter();
            let norms = [&l.attn_norm, &l.mlp_norm].into_iter();
            matrices.flat_map(Weights::tensors).chain(norms)
        }
        let tables = [Some(&self.embedding), self.head.as_ref()];
        let tables = tables.into_iter().flatten().flat_map(Weights::tensors);
        let layers = self.layers.iter().flat_map(layer);
        tables.chain(layers).chain([&self.final_norm])
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
        self.vector(map.attn_norm, &weights.attn_norm)?;
        self.matrix(&map.qkv, &weights.qkv)?;
        self.matrix(&map.o, &weights.o)?;
        self.vector(map.mlp_norm, &weights.mlp_norm)?;
        self.matrix(&map.gate_up, &weights.gate_up)?;
        self.matrix(&map.down, &weights.down)
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

    fn vector(&mut self, info: &TensorInfo, tensor: &Tensor) -> Result<()> {
        let mut values = Vec::new();
        self.checkpoint
            .read_rows(info, 0..info.rows(), &mut values)?;
        if count_non_finite(&values) > 0 {
            let problem = format!("{} values are NaN or infinite", count_non_finite(&values));
            return Err(Error::tensor(
                self.checkpoint.file_of(info),
                &info.name,
                problem,
            ));
        }
        self.gpu.upload(tensor, 0, bytemuck::cast_slice(&values))
    }
}
