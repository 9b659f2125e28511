//! Which rules a model's results keep.

use crate::error::{Error, Result};
use crate::gpu::{Coop, Gpu};
use crate::kernels::{Activations, Tuning};

/// What results may depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// One order for every sum: the same bits however a text is cut into steps.
    #[default]
    Canonical,
    /// Steps of many tokens are computed by cooperative matrices, f16 operands with f32 sums. An
    /// error where the adapter has none: it is never chosen on its own, nor left on its own.
    Fast,
}

impl Numerics {
    /// The word of `--numerics`.
    pub fn name(self) -> &'static str {
        match self {
            Numerics::Canonical => "canonical",
            Numerics::Fast => "fast",
        }
    }

    /// The cooperative matrices that matmuls and attention of long steps take on `gpu`; none in canonical
    /// mode.
    ///
    /// # Errors
    /// [`Error::AdapterLacks`] where `gpu` has none, [`Error::Request`] where activations are not f32.
    pub(super) fn coop(self, gpu: &Gpu, tuning: &Tuning) -> Result<Option<Coop>> {
        if self == Numerics::Canonical {
            return Ok(None);
        }
        let Some(coop) = gpu.caps().coop else {
            let report = gpu.report();
            return Err(Error::AdapterLacks {
                adapter: format!("{} ({})", report.name, report.backend),
                what: "--numerics fast".to_owned(),
                needed: "cooperative matrices of 8x8x8 or 16x16x16, f16 with f32 sums, through \
                         Vulkan or Metal, and NELUMBO_CAPS must not take coop away"
                    .to_owned(),
            });
        };
        if tuning.activations != Activations::F32 {
            let problem = format!(
                "are {}, which --numerics fast does not read; f32 would do",
                tuning.activations.name()
            );
            return Err(Error::request("activations", problem));
        }
        Ok(Some(coop))
    }
}
