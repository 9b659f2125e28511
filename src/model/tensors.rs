//! A model's tensors in its files: found by name, checked against the configuration, read in pieces.
//!
//! Fused matrices are described by where their rows come from ([`Rows`]); the loader and the
//! reference decoder on the CPU read the same descriptions. A piece has a few MiB: the host never
//! holds a whole tensor.

use super::config::Config;
use super::rotation::pairs_from_halves;
use crate::error::{Error, Result};
use crate::formats::checkpoint::{Checkpoint, TensorInfo};
use crate::formats::encoding::count_non_finite;
use crate::quant::{BLOCK_ROWS, Format};

/// f32 values decoded at once: 4 MiB.
const PIECE_VALUES: usize = 1 << 20;

/// How a family's files name their tensors.
#[derive(Clone, Copy)]
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
    /// Rows of Q and K are stored with rotated pairs adjacent, `(2i, 2i+1)`, as kernels want them;
    /// elsewhere they are halves apart, `(i, i + head_dim / 2)`.
    pub pairs_adjacent: bool,
}

/// Names within a layer: `{prefix}{index}.{name}`.
#[derive(Clone, Copy)]
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
    /// One tensor after another. The second value is the dimension of heads whose rows are brought
    /// from halves to adjacent pairs, or 0.
    Concat(Vec<(&'a TensorInfo, usize)>),
    /// Blocks of four rows: one of the first, then the same of the second.
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

    /// Calls `each(first_row, values)` for pieces in order; pieces start at multiples of 4 rows. Tells
    /// the tensors with values that are NaN or infinite, and how many there are in each.
    ///
    /// # Errors
    /// What reading reports, and what `each` does.
    pub fn for_each(
        &self,
        checkpoint: &Checkpoint,
        mut each: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<NonFinite<'_>> {
        let mut non_finite = NonFinite::default();
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
                        non_finite.count(info, &values);
                        if head_dim > 0 {
                            pairs_from_halves(&values, info.columns(), head_dim, &mut mixed);
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
                    non_finite.count(a, &values);
                    non_finite.count(b, &other);
                    mixed.clear();
                    let block = BLOCK_ROWS * a.columns();
                    for (a, b) in values.chunks(block).zip(other.chunks(block)) {
                        mixed.extend_from_slice(a);
                        mixed.extend_from_slice(b);
                    }
                    each(2 * start, &mixed)?;
                }
            }
        }
        Ok(non_finite)
    }
}

/// Tensors with values that are NaN or infinite, and how many of them.
#[derive(Default)]
pub struct NonFinite<'a>(pub Vec<(&'a TensorInfo, usize)>);

impl<'a> NonFinite<'a> {
    fn count(&mut self, info: &'a TensorInfo, values: &[f32]) {
        let count = count_non_finite(values);
        if count == 0 {
            return;
        }
        match self.0.iter_mut().find(|(known, _)| known.name == info.name) {
            Some((_, sum)) => *sum += count,
            None => self.0.push((info, count)),
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
    /// `[qkv_rows, hidden_size]`: queries, keys, values; rotated pairs of Q and K are adjacent.
    pub qkv: Rows<'a>,
    /// `[hidden_size, q_width]`.
    pub o: Rows<'a>,
    /// `[hidden_size]`.
    pub mlp_norm: &'a TensorInfo,
    /// `[2 * intermediate_size, hidden_size]`: four rows of the gate, the same four of up, and so on.
    pub gate_up: Rows<'a>,
    /// `[hidden_size, intermediate_size]`.
    pub down: Rows<'a>,
}

impl<'a> TensorMap<'a> {
    /// Finds and checks every tensor. Nothing is read but the tables already in memory.
    ///
    /// # Errors
    /// [`Error::Tensor`](crate::Error::Tensor) for missing ones, up to ten in one message;
    /// [`Error::WeightShape`](crate::Error::WeightShape) for wrong ones.
    pub fn new(
        config: &Config,
        names: &Names,
        checkpoint: &'a Checkpoint,
    ) -> Result<TensorMap<'a>> {
        require(config, names, checkpoint)?;
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

/// That every tensor is there which the configuration needs.
fn require(config: &Config, names: &Names, checkpoint: &Checkpoint) -> Result<()> {
    let l = &names.layer;
    let (qkv, mlp) = (
        [l.attn_norm, l.q, l.k, l.v, l.o],
        [l.mlp_norm, l.gate, l.up, l.down],
    );
    let in_layer = qkv.into_iter().chain(mlp);
    let layers = (0..config.num_layers).flat_map(|index| {
        let prefix = l.prefix;
        in_layer
            .clone()
            .map(move |name| format!("{prefix}{index}.{name}"))
    });
    let top = [names.embedding, names.final_norm].map(str::to_owned);
    let all: Vec<String> = top.into_iter().chain(layers).collect();
    checkpoint.require_all(all.iter().map(String::as_str))?;
    if config.tied_head || checkpoint.get(names.head).is_some() {
        return Ok(());
    }
    let problem = "is missing, and tie_word_embeddings is not true, so that the embedding does not \
                   stand in for it";
    Err(Error::tensor(checkpoint.path(), names.head, problem))
}

/// Whether the embedding serves as the head. `told` is what the configuration says, but a head that is
/// stored and differs from the embedding is used: somebody trained it.
///
/// # Errors
/// [`Error::Tensor`] when the embedding is missing; what reading reports.
pub fn embedding_is_head(checkpoint: &Checkpoint, names: &Names, told: bool) -> Result<bool> {
    let Some(head) = checkpoint.get(names.head).filter(|_| told) else {
        return Ok(told);
    };
    let embedding = checkpoint.require(names.embedding)?;
    let mut same = head.shape == embedding.shape;
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let step = (PIECE_VALUES / head.columns().max(1)).max(1);
    for start in (0..head.rows()).step_by(step) {
        if !same {
            break;
        }
        let rows = start..(start + step).min(head.rows());
        checkpoint.read_rows(head, rows.clone(), &mut a)?;
        checkpoint.read_rows(embedding, rows, &mut b)?;
        same = a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits());
    }
    if !same {
        log::warn!(
            "{}: tie_word_embeddings: is true, but the tensor {} is there and differs from {}: it is used",
            checkpoint.path().display(),
            names.head,
            names.embedding
        );
    }
    Ok(same)
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
    let pair_up = if names.pairs_adjacent {
        0
    } else {
        config.head_dim
    };
    Ok(LayerMap {
        attn_norm: find(layer.attn_norm, &[h], "hidden_size")?,
        qkv: Rows::Concat(vec![
            (find(layer.q, &[q, h], heads)?, pair_up),
            (find(layer.k, &[kv, h], kv_heads)?, pair_up),
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
