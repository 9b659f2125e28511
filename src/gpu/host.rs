//! A dispatch as the host sees it: its variant, its parameters, and tensors whose words can be read
//! and written.
//!
//! Whoever is to run, check or replace dispatches installs an [`Interpreter`] in a recorder; it is
//! asked about each dispatch in order. What was recorded before is done by the time a word is read,
//! so a run that is interpreted waits all the time. It is for devices that cannot compute, for
//! proofs, and for kernels that a driver gets wrong, not for speed.

use crate::error::Result;
use crate::gpu::Params;
use crate::gpu::host_memory::Words;
use crate::gpu::kernel::Variant;
use crate::gpu::recorder::Recorder;
use crate::gpu::tensor::Tensor;
use std::ops::Range;

/// What decides about dispatches in the device's place.
pub trait Interpreter: Send {
    /// Does what `call` should: on the host, by [`Call::on_device`], or both.
    ///
    /// # Errors
    /// What the device reports; it becomes the recorder's, and nothing more is recorded.
    fn dispatch(&mut self, call: &mut Call<'_>) -> Result<()>;
}

/// Where in a step a dispatch stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The layer, from 0; `None` outside of layers.
    pub layer: Option<usize>,
    /// The operation, as reports name it: `qkv`, `attention`, ...
    pub op: &'static str,
}

/// One dispatch.
pub struct Call<'a> {
    pub(super) rec: &'a mut Recorder,
    pub(super) tensors: &'a [(&'a str, &'a Tensor)],
    pub(super) params: &'a [u8],
    /// The kernel and what was chosen of it.
    pub variant: Variant,
    /// The grid.
    pub workgroups: [u32; 3],
    /// Where it stands.
    pub place: Place,
}

impl Recorder {
    /// From here on `interpreter` is asked about each dispatch that has work, and nothing is made ready
    /// for those that have none; `None` leaves them to whoever computes on this device.
    pub fn interpret(&mut self, interpreter: Option<Box<dyn Interpreter>>) {
        self.interpreter = interpreter.or_else(|| self.gpu().host_interpreter());
    }

    /// Says where in a step the next dispatches stand, for those who look at them one by one.
    pub fn at(&mut self, layer: Option<usize>, op: &'static str) {
        self.place = Place { layer, op };
    }

    /// [`Recorder::at`], in the same layer as before.
    pub fn at_op(&mut self, op: &'static str) {
        self.place.op = op;
    }
}

impl Call<'_> {
    /// The parameter block.
    ///
    /// # Panics
    /// When the kernel has another one.
    pub fn params<P: Params + bytemuck::AnyBitPattern>(&self) -> P {
        bytemuck::pod_read_unaligned(self.params)
    }

    /// A field of the parameter block by its name, as the word that it is; `None` where there is none.
    pub fn param(&self, name: &str) -> Option<u32> {
        let fields = self.variant.kernel.params;
        let at = 4 * fields.iter().position(|(field, _)| *field == name)?;
        let bytes = self.params.get(at..at + 4)?;
        Some(bytemuck::pod_read_unaligned(bytes))
    }

    /// Whether the variant was made with the part of that name, its path under `shaders/`.
    pub fn has_part(&self, name: &str) -> bool {
        self.variant.all_parts().any(|part| part.name == name)
    }

    /// What `override name` is set to, where it is.
    pub fn number(&self, name: &str) -> Option<u32> {
        let mut set = self.variant.overrides();
        set.find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// The tensor bound under `name`, if there is one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        let bound = self.tensors.iter().find(|(n, _)| *n == name);
        bound.map(|(_, tensor)| *tensor)
    }

    /// The tensor bound under `name`.
    ///
    /// # Panics
    /// When there is none.
    pub fn tensor(&self, name: &str) -> &Tensor {
        self.find(name)
            .unwrap_or_else(|| panic!("{} binds no {name}", self.variant))
    }

    /// Names and tensors in the shader's order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (*name, *tensor))
    }

    /// All words of the tensor bound under `name`, in place where the host computes.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read(&mut self, name: &str) -> Result<Words> {
        let words = (self.tensor(name).size_bytes() / 4) as usize;
        self.read_range(name, 0..words)
    }

    /// [`Call::read_ranges`] of one.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// When it leaves the tensor.
    pub fn read_range(&mut self, name: &str, range: Range<usize>) -> Result<Words> {
        self.read_ranges(name, std::slice::from_ref(&range))
    }

    /// The words of `ranges` of the tensor bound under `name`, one range after another; a single one in
    /// place where the host computes.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// When a range leaves the tensor.
    pub fn read_ranges(&mut self, name: &str, ranges: &[Range<usize>]) -> Result<Words> {
        self.rec.submit()?;
        self.rec.gpu().words_of(self.tensor(name), ranges)
    }

    /// Writes `words` from word `at` of the tensor bound under `name` on.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// When they leave the tensor.
    pub fn write(&mut self, name: &str, at: usize, words: &[u32]) -> Result<()> {
        self.rec.submit()?;
        let tensor = self.tensor(name).clone();
        let bytes = bytemuck::cast_slice(words);
        self.rec.gpu().upload(&tensor, 4 * at as u64, bytes)
    }

    /// Leaves it to whoever computes on this device, as if nobody had been asked.
    pub fn on_device(&mut self) {
        if let Some(mut host) = self.rec.gpu().host_interpreter() {
            if let Err(error) = host.dispatch(self) {
                self.rec.fail(error);
            }
            return;
        }
        self.rec
            .record(&self.variant, self.tensors, self.params, self.workgroups);
    }
}
