//! Which tensor is the head.

use super::{Names, PIECE_VALUES};
use crate::error::Result;
use crate::formats::checkpoint::Checkpoint;

/// Whether the embedding serves as the head. `told` is what the configuration says, but a head that is
/// stored and differs from the embedding is used: somebody trained it.
///
/// # Errors
/// [`Error::Tensor`](crate::Error::Tensor) when the embedding is missing; what reading reports.
pub fn embedding_is_head(checkpoint: &Checkpoint, names: &Names, told: bool) -> Result<bool> {
    let Some(head) = checkpoint.get(names.head).filter(|_| told) else {
        return Ok(told);
    };
    let embedding = checkpoint.require(&names.embedding())?;
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
            names.embedding()
        );
    }
    Ok(same)
}
