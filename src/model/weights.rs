//! A model's tensors: checked against the configuration, fused, packed and put on the device.
//!
//! Everything is streamed in pieces of a few MiB: the host never holds a whole tensor. Fused
//! matrices are described by where their rows come from ([`Rows`]); the reference decoder on the
//! CPU reads the same descriptions.

use super::config::Config;
use crate::error::{Error, Result};
use crate::formats::checkpoint::{Checkpoint, TensorInfo};
use crate::formats::encoding::count_non_finite;
use crate::gpu::{DType, Gpu, Tensor};
use crate::quant::{Format, Weights};

/// f32 values decoded at once: 4 MiB.
const PIECE_VALUES: usize = 1 << 20;

/// How a family's files name their tensors.
pub struct Names {
    /// `[vocab_size, hidden_size]`.
    pub embedding: &'static str,
    /// `[hidden_size]`.
    pub final_norm: &'static str,
    /// `[vocab_size, hidden_size]`, unless tied.
    pub head: &'static str,
    /// Names within a layer.
    pub layer: LayerNames,
    /// Endings of tensors that are read elsewhere or not needed.
    pub ignored: &'static [&'static str],
    /// Rows of Q and K are stored with rotated pairs adjacent, `(2i, 2i+1)`, and must be put back
    /// to halves, `(i, i + head_dim / 2)`.
    pub pairs_adjacent: bool,
}

/// Names within a layer: `{prefix}{index}.{name}`.
pub struct LayerNames {
    /// Before the layer's index.
    pub prefix: &'static str,
    /// `[hidden_size]`.
    pub attn_norm: &'static str,
    /// `[num_heads * head_dim, hidden_size]`.
    pub q: &'static str,
    /// `[num_kv_heads * head_dim, hidden_size]`.
    pub k: &'static str,
    /// `[num_kv_heads * head_dim, hidden_size]`.
    pub v: &'static str,
    /// `[hidden_size, num_heads * head_dim]`.
    pub o: &'static str,
    /// `[hidden_size]`.
    pub mlp_norm: &'static str,
    /// `[intermediate_size, hidden_size]`.
    pub gate: &'static str,
    /// `[intermediate_size, hidden_size]`.
    pub up: &'static str,
    /// `[hidden_size, intermediate_size]`.
    pub down: &'static str,
}

/// Where the rows of a matrix come from.
pub enum Rows<'a> {
    /// One tensor after another. The second value is a head dimension to un-permute by, or 0.
    Concat(Vec<(&'a TensorInfo, usize)>),
    /// Row `i` of the first, then row `i` of the second.
    Interleave(&'a TensorInfo, &'a TensorInfo),
}

impl Rows<'_> {
    /// Rows and columns of the whole.
    pub fn shape(&self) -> (usize, usize) {
        match self {
            Rows::Concat(parts) => (
                parts.iter().map(|(info, _)| info.rows()).sum(),
                parts[0].0.columns(),
            ),
            Rows::Interleave(a, _) => (2 * a.rows(), a.columns()),
        }
    }

    /// Calls `each(first_row, values)` for pieces in order; pieces start at multiples of 4 rows.
    ///
    /// # Errors
    /// What reading reports, and what `each` does.
    pub fn for_each(
        &self,
        checkpoint: &Checkpoint,
        mut each: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let (mut values, mut other, mut mixed) = (Vec::new(), Vec::new(), Vec::new());
        match self {
            Rows::Concat(parts) => {
                let mut first_row = 0;
                for &(info, head_dim) in parts {
                    // whole heads where rows change places within a head, whole blocks elsewhere
                    let unit = if head_dim > 0 { head_dim } else { 4 };
                    let step = (PIECE_VALUES / info.columns() / unit).max(1) * unit;
                    for start in (0..info.rows()).step_by(step) {
                        let end = (start + step).min(info.rows());
                        checkpoint.read_rows(info, start..end, &mut values)?;
                        if head_dim > 0 {
                            halves_from_pairs(&values, info.columns(), head_dim, &mut mixed);
                            std::mem::swap(&mut values, &mut mixed);
                        }
                        each(first_row + start, &values)?;
                    }
                    first_row += info.rows();
                }
            }
            Rows::Interleave(a, b) => {
                let step = (PIECE_VALUES / 2 / a.columns() / 4).max(1) * 4;
                for start in (0..a.rows()).step_by(step) {
                    let end = (start + step).min(a.rows());
                    checkpoint.read_rows(a, start..end, &mut values)?;
                    checkpoint.read_rows(b, start..end, &mut other)?;
                    mixed.clear();
                    for (a, b) in values.chunks(a.columns()).zip(other.chunks(b.columns())) {
                        mixed.extend_from_slice(a);
                        mixed.extend_from_slice(b);
                    }
                    each(2 * start, &mixed)?;
                }
            }
        }
        Ok(())
    }
}

/// Rows of whole heads from pairs-adjacent to halves: row `s * D/2 + i` is stored as row `2 i + s`.
fn halves_from_pairs(values: &[f32], columns: usize, head_dim: usize, out: &mut Vec<f32>) {
    out.clear();
    for head in values.chunks(head_dim * columns) {
        for side in 0..2 {
            for i in 0..head_dim / 2 {
                let row = 2 * i + side;
                out.extend_from_slice(&head[row * columns..(row + 1) * columns]);
            }
        }
    }
}

/// The tensors of a model in its files, each of the shape the configuration implies.
pub struct TensorMap<'a> {
    /// The files.
    pub checkpoint: &'a Checkpoint,
    /// `[vocab_size, hidden_size]`.
    pub embedding: Rows<'a>,
    /// One for each layer.
    pub layers: Vec<LayerMap<'a>>,
    /// `[hidden_size]`.
    pub final_norm: &'a TensorInfo,
    /// The head, unless it is the embedding.
    pub head: Option<Rows<'a>>,
}

/// The tensors of a layer.
pub struct LayerMap<'a> {
    /// `[hidden_size]`.
    pub attn_norm: &'a TensorInfo,
    /// `[qkv_rows, hidden_size]`: queries, keys, values.
    pub qkv: Rows<'a>,
    /// `[hidden_size, q_width]`.
    pub o: Rows<'a>,
    /// `[hidden_size]`.
    pub mlp_norm: &'a TensorInfo,
    /// `[2 * intermediate_size, hidden_size]`: gate and up alternate.
    pub gate_up: Rows<'a>,
    /// `[hidden_size, intermediate_size]`.
    pub down: Rows<'a>,
}

impl<'a> TensorMap<'a> {
    /// Finds and checks every tensor. Nothing is read but the tables already in memory.
    ///
    /// # Errors
    /// [`Error::Tensor`] for missing ones, [`Error::WeightShape`] for wrong ones.
    pub fn new(
        config: &Config,
        names: &Names,
        checkpoint: &'a Checkpoint,
    ) -> Result<TensorMap<'a>> {
        let h = config.hidden_size;
        let whole = |name: &str, shape: &[usize], because: &str| -> Result<Rows<'a>> {
            Ok(Rows::Concat(vec![(
                checkpoint.expect_shape(name, shape, because)?,
                0,
            )]))
        };
        let vocab = [config.vocab_size, h];
        let mut layers = Vec::with_capacity(config.num_layers.min(4096));
        let mut used = vec![names.embedding.to_owned(), names.final_norm.to_owned()];
        for index in 0..config.num_layers {
            layers.push(layer_map(config, names, checkpoint, index, &mut used)?);
        }
        let head = if config.tied_head {
            None
        } else {
            Some(whole(
                names.head,
                &vocab,
                "vocab_size, hidden_size; not tied to the embedding",
            )?)
        };
        used.push(names.head.to_owned());
        warn_of_unused(checkpoint, names, &used);
        Ok(TensorMap {
            checkpoint,
            embedding: whole(names.embedding, &vocab, "vocab_size, hidden_size")?,
            layers,
            final_norm: checkpoint.expect_shape(names.final_norm, &[h], "hidden_size")?,
            head,
        })
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
            .flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down])
            .map(of)
            .sum();
        layers + of(&self.embedding) + self.head.as_ref().map_or(0, of)
    }
}

fn layer_map<'a>(
    config: &Config,
    names: &Names,
    checkpoint: &'a Checkpoint,
    index: usize,
    used: &mut Vec<String>,
) -> Result<LayerMap<'a>> {
    let (h, q, kv, i) = (
        config.hidden_size,
        config.q_width(),
        config.kv_width(),
        config.intermediate_size,
    );
    let mut find = |name: &str, shape: &[usize], because: &str| -> Result<&'a TensorInfo> {
        let full = format!("{}{index}.{name}", names.layer.prefix);
        let info = checkpoint.expect_shape(&full, shape, because)?;
        used.push(full);
        Ok(info)
    };
    let layer = &names.layer;
    let heads = "heads * head_dim, hidden_size";
    let kv_heads = "KV heads * head_dim, hidden_size";
    let unpermute = if names.pairs_adjacent {
        config.head_dim
    } else {
        0
    };
    Ok(LayerMap {
        attn_norm: find(layer.attn_norm, &[h], "hidden_size")?,
        qkv: Rows::Concat(vec![
            (find(layer.q, &[q, h], heads)?, unpermute),
            (find(layer.k, &[kv, h], kv_heads)?, unpermute),
            (find(layer.v, &[kv, h], kv_heads)?, 0),
        ]),
        o: Rows::Concat(vec![(
            find(layer.o, &[h, q], "hidden_size, heads * head_dim")?,
            0,
        )]),
        mlp_norm: find(layer.mlp_norm, &[h], "hidden_size")?,
        gate_up: Rows::Interleave(
            find(layer.gate, &[i, h], "intermediate_size, hidden_size")?,
            find(layer.up, &[i, h], "intermediate_size, hidden_size")?,
        ),
        down: Rows::Concat(vec![(
            find(layer.down, &[h, i], "hidden_size, intermediate_size")?,
            0,
        )]),
    })
}

fn warn_of_unused(checkpoint: &Checkpoint, names: &Names, used: &[String]) {
    let used: std::collections::HashSet<&str> = used.iter().map(String::as_str).collect();
    let ignored = |name: &str| names.ignored.iter().any(|ending| name.ends_with(ending));
    let unused: Vec<&str> = checkpoint
        .names()
        .filter(|n| !used.contains(n) && !ignored(n))
        .collect();
    if let Some(first) = unused.first() {
        log::warn!(
            "{}: {} tensors are not used, {first} the first",
            checkpoint.path().display(),
            unused.len()
        );
    }
}

/// A model's weights on the device.
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
pub struct LayerWeights {
    /// `[hidden_size]` f32.
    pub attn_norm: Tensor,
    /// Fused projection.
    pub qkv: Weights,
    /// Output projection.
    pub o: Weights,
    /// `[hidden_size]` f32.
    pub mlp_norm: Tensor,
    /// Gate and up, rows alternating.
    pub gate_up: Weights,
    /// Down projection.
    pub down: Weights,
}

impl ModelWeights {
    /// Reads, packs and uploads everything; `progress` is told bytes done and bytes in all, in
    /// packed bytes.
    ///
    /// # Errors
    /// What reading and the device report.
    pub fn load(
        gpu: &Gpu,
        map: &TensorMap,
        format: &'static Format,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ModelWeights> {
        let total = map.packed_bytes(format);
        let mut done = 0;
        let mut loader = Loader {
            gpu,
            checkpoint: map.checkpoint,
            format,
            done: &mut done,
            total,
            progress,
        };
        let weights = ModelWeights {
            embedding: loader.matrix("embedding", &map.embedding)?,
            layers: map
                .layers
                .iter()
                .map(|layer| loader.layer(layer))
                .collect::<Result<_>>()?,
            final_norm: loader.vector(map.final_norm)?,
            head: map
                .head
                .as_ref()
                .map(|head| loader.matrix("head", head))
                .transpose()?,
        };
        map.checkpoint.check_unchanged()?;
        gpu.flush_uploads()?;
        Ok(weights)
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

    /// Bytes on the device.
    pub fn size_bytes(&self) -> u64 {
        let layer = |l: &LayerWeights| {
            let matrices: u64 = [&l.qkv, &l.o, &l.gate_up, &l.down]
                .into_iter()
                .map(Weights::size_bytes)
                .sum();
            matrices + l.attn_norm.size_bytes() + l.mlp_norm.size_bytes()
        };
        self.embedding.size_bytes()
            + self.layers.iter().map(layer).sum::<u64>()
            + self.final_norm.size_bytes()
            + self.head.as_ref().map_or(0, Weights::size_bytes)
    }
}

struct Loader<'a> {
    gpu: &'a Gpu,
    checkpoint: &'a Checkpoint,
    format: &'static Format,
    done: &'a mut u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Loader<'_> {
    fn layer(&mut self, map: &LayerMap) -> Result<LayerWeights> {
        Ok(LayerWeights {
            attn_norm: self.vector(map.attn_norm)?,
            qkv: self.matrix("qkv", &map.qkv)?,
            o: self.matrix("o", &map.o)?,
            mlp_norm: self.vector(map.mlp_norm)?,
            gate_up: self.matrix("gate_up", &map.gate_up)?,
            down: self.matrix("down", &map.down)?,
        })
    }

    fn matrix(&mut self, label: &str, source: &Rows) -> Result<Weights> {
        let (rows, columns) = source.shape();
        let weights = Weights::allocate(self.gpu, label, self.format, rows, columns)?;
        let mut non_finite = 0;
        source.for_each(self.checkpoint, |first_row, values| {
            non_finite += count_non_finite(values);
            weights.write_rows(self.gpu, first_row, values)?;
            let (quants, scales) = self.format.matrix_bytes(values.len() / columns, columns);
            *self.done += quants + scales;
            (self.progress)(*self.done, self.total);
            Ok(())
        })?;
        if non_finite > 0 {
            log::warn!(
                "{}: {label}: {non_finite} weights are NaN or infinite",
                self.checkpoint.path().display()
            );
        }
        Ok(weights)
    }

    fn vector(&mut self, info: &TensorInfo) -> Result<Tensor> {
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
        let tensor = self.gpu.tensor(&info.name, DType::F32, &[values.len()])?;
        self.gpu.upload(&tensor, 0, bytemuck::cast_slice(&values))?;
        Ok(tensor)
    }
}

#[cfg(test)]
mod tests {
    use super::halves_from_pairs;

    #[test]
    fn pairs_become_halves() {
        // two heads of 4 rows, 1 column: stored (0a 0b 1a 1b), wanted (0a 1a 0b 1b)
        let mut out = Vec::new();
        halves_from_pairs(
            &[0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0],
            1,
            4,
            &mut out,
        );
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]);
    }
}
