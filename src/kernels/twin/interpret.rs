//! What twins are good for: taking a device's place, or a kernel's, and judging a device.

use super::{Effort, Piece, of};
use crate::error::Result;
use crate::gpu::{Call, Interpreter, Place, Variant};

/// Runs every dispatch on the host.
pub struct Host;

impl Interpreter for Host {
    fn dispatch(&mut self, call: &mut Call<'_>) -> Result<()> {
        let pieces = of(call.variant.kernel)(call, Effort::Values)?;
        pieces
            .iter()
            .try_for_each(|piece| call.write(piece.tensor, piece.at, &piece.words))
    }
}

/// Runs some variants on the host and leaves the others to the device.
pub struct Replace {
    /// Those that the device gets wrong.
    pub variants: Vec<Variant>,
}

impl Interpreter for Replace {
    fn dispatch(&mut self, call: &mut Call<'_>) -> Result<()> {
        if self.variants.contains(&call.variant) {
            return Host.dispatch(call);
        }
        call.on_device();
        Ok(())
    }
}

/// What became of a dispatch that was watched.
pub struct Watched {
    /// Where in the step it stood.
    pub place: Place,
    /// The kernel and what was chosen of it.
    pub variant: Variant,
    /// Name and shape of each tensor.
    pub shapes: Vec<(String, Vec<usize>)>,
    /// What is wrong with what it wrote, if anything is, named by tensor.
    pub wrong: Option<String>,
}

/// Lets the device run every dispatch, and holds what it writes against the twin.
pub struct Watch<F> {
    /// Is told of each dispatch.
    pub each: F,
}

impl<F: FnMut(Watched) + Send> Interpreter for Watch<F> {
    fn dispatch(&mut self, call: &mut Call<'_>) -> Result<()> {
        let watched = watch(call, |call| {
            call.on_device();
            Ok(())
        })?;
        (self.each)(watched);
        Ok(())
    }
}

/// Lets `run` do what `call` should, and holds what is written then against the twin.
///
/// # Errors
/// What the device, or `run`, reports.
pub fn watch(
    call: &mut Call<'_>,
    run: impl FnOnce(&mut Call<'_>) -> Result<()>,
) -> Result<Watched> {
    let pieces = of(call.variant.kernel)(call, Effort::Bounds)?;
    run(call)?;
    let wrong = first_wrong(call, &pieces)?;
    let shapes = call
        .tensors()
        .map(|(n, t)| (n.to_owned(), t.shape().to_vec()));
    Ok(Watched {
        place: call.place,
        variant: call.variant,
        shapes: shapes.collect(),
        wrong,
    })
}

/// What is wrong with what is there of `pieces`. Those of a tensor come in one go.
fn first_wrong(call: &mut Call<'_>, pieces: &[Piece]) -> Result<Option<String>> {
    for of_tensor in pieces.chunk_by(|a, b| a.tensor == b.tensor) {
        let range = |piece: &Piece| piece.at..piece.at + piece.words.len();
        let ranges: Vec<_> = of_tensor.iter().map(range).collect();
        let found = call.read_ranges(of_tensor[0].tensor, &ranges)?;
        let mut rest = &found[..];
        for piece in of_tensor {
            let (own, others) = rest.split_at(piece.words.len());
            rest = others;
            if let Err(problem) = piece.expect.judge(bytemuck::cast_slice(own)) {
                let (tensor, at) = (piece.tensor, piece.at);
                return Ok(Some(format!("{tensor} from word {at}: {problem}")));
            }
        }
    }
    Ok(None)
}
