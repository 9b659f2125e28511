//! What the roofline says that steps take.

use super::StepCost;
use crate::engine::plan::Chunk;
use crate::model::roofline::{ChunkShape, ModelShape, Roofline, StepShape};

/// A model on an adapter.
#[derive(Clone, Debug)]
pub struct RooflineCost {
    /// What the adapter does.
    pub roofline: Roofline,
    /// What the model takes.
    pub shape: ModelShape,
}

impl StepCost for RooflineCost {
    fn seconds(&self, chunks: &[Chunk]) -> f64 {
        self.roofline.step_seconds(&self.shape, &step_of(chunks))
    }
}

/// A step as the formulas see it.
fn step_of(chunks: &[Chunk]) -> StepShape {
    let mut step = StepShape::default();
    for chunk in chunks {
        step.head_rows += chunk.draws;
        if chunk.len == 1 {
            step.decodes.push(chunk.start);
        } else {
            step.chunks.push(ChunkShape {
                first_position: chunk.start,
                tokens: chunk.len,
            });
        }
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::RequestId;

    #[test]
    fn chunks_of_one_token_are_decodes_and_those_that_draw_have_rows() {
        let chunk = |start, len, draws| Chunk {
            id: RequestId(1),
            start,
            len,
            draws,
            proposed: 0,
        };
        let step = step_of(&[chunk(7, 1, 1), chunk(0, 20, 1), chunk(40, 30, 0)]);
        assert_eq!((&step.decodes[..], step.head_rows), (&[7][..], 2));
        let pieces: Vec<_> = step
            .chunks
            .iter()
            .map(|c| (c.first_position, c.tokens))
            .collect();
        assert_eq!(pieces, [(0, 20), (40, 30)]);
        assert_eq!(step.tokens(), 51);
    }
}
