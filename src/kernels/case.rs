//! One list of cases answers four questions: is a kernel right, how fast is it, does this adapter
//! support it, where do two backends differ.
//!
//! A case owns its inputs, the exact result with a bound per element, and its bytes and flops. Each
//! tensor is put between two guard zones; outputs are filled with a pattern that is no valid result.
//! So "wrote nothing", "wrote past the end" and "wrote to an input" are failures.

pub use super::expect::{Expect, Judge};
use super::expect::{POISON, same_bytes};
pub use super::numbers::{Data, U, dot_bound};
use super::tuning::Tuning;
use crate::error::Result;
use crate::gpu::{Caps, Coop, DType, Gpu, Kernel, Recorder, Tensor};
use std::sync::Arc;

const GUARD: u32 = 0xA5A5_5A5A;
const GUARD_BYTES: u64 = 1024;

/// One tensor of a case.
pub struct CaseTensor {
    /// Its name in the case.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub dims: Vec<usize>,
    /// Bytes before the run; `None` is poison.
    pub init: Option<Vec<u8>>,
    /// What it must hold after the run.
    pub expect: Expect,
}

impl CaseTensor {
    /// An input of any type.
    pub fn input(name: &'static str, dtype: DType, dims: &[usize], bytes: Vec<u8>) -> CaseTensor {
        assert_eq!(
            Tensor::bytes_for(dtype, dims),
            bytes.len() as u64,
            "{name}: {dims:?}"
        );
        CaseTensor {
            name,
            dtype,
            dims: dims.to_vec(),
            init: Some(bytes),
            expect: Expect::Unchanged,
        }
    }

    /// An input of floats.
    pub fn f32(name: &'static str, dims: &[usize], values: &[f32]) -> CaseTensor {
        CaseTensor::input(
            name,
            DType::F32,
            dims,
            bytemuck::cast_slice(values).to_vec(),
        )
    }

    /// An input of words.
    pub fn u32(name: &'static str, dims: &[usize], values: &[u32]) -> CaseTensor {
        CaseTensor::input(
            name,
            DType::U32,
            dims,
            bytemuck::cast_slice(values).to_vec(),
        )
    }

    /// An output of floats that starts as poison.
    pub fn output_f32(
        name: &'static str,
        dims: &[usize],
        values: Vec<f64>,
        bound: Vec<f64>,
    ) -> CaseTensor {
        assert_eq!(values.len(), bound.len(), "{name}");
        CaseTensor {
            name,
            dtype: DType::F32,
            dims: dims.to_vec(),
            init: None,
            expect: Expect::F32 { values, bound },
        }
    }

    /// An output of floats that starts as poison and must hold exactly these bits.
    pub fn output_exact(name: &'static str, dims: &[usize], values: &[f32]) -> CaseTensor {
        let mut tensor = CaseTensor::output_u32(name, dims, bytemuck::cast_slice(values));
        tensor.dtype = DType::F32;
        tensor
    }

    /// An output that must hold exactly these words.
    pub fn output_u32(name: &'static str, dims: &[usize], values: &[u32]) -> CaseTensor {
        let expect = Expect::Bytes(bytemuck::cast_slice(values).to_vec());
        CaseTensor {
            name,
            dtype: DType::U32,
            dims: dims.to_vec(),
            init: None,
            expect,
        }
    }

    /// The same tensor, holding `bytes` before the run: for kernels that work in place.
    #[must_use]
    pub fn starting_as(mut self, bytes: Vec<u8>) -> CaseTensor {
        self.init = Some(bytes);
        self
    }

    /// The same tensor, judged by `judge`.
    #[must_use]
    pub fn judged(
        mut self,
        judge: impl Fn(&[u8]) -> Result<(), String> + Send + Sync + 'static,
    ) -> CaseTensor {
        self.expect = Expect::Judge(Box::new(judge));
        self
    }
}

/// The tensors of a case on a device, by name.
pub struct Tensors(Vec<(&'static str, Tensor)>);

impl Tensors {
    /// The tensor of that name.
    ///
    /// # Panics
    /// When the case has none.
    pub fn get(&self, name: &str) -> &Tensor {
        self.find(name)
            .unwrap_or_else(|| panic!("the case has no tensor {name}"))
    }

    /// The tensor of that name, if the case has one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.0
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, tensor)| tensor)
    }
}

type Record = Box<dyn Fn(&mut Recorder, &Tensors) + Send + Sync>;

/// What one kernel must do on one shape.
pub struct Case {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// Shape and choices, in words.
    pub name: String,
    /// Smallest subgroup it needs; 0 for a case without subgroup operations.
    pub subgroup: u32,
    /// What else it needs, if it is not of the baseline.
    tuning: Option<Tuning>,
    /// Cooperative matrices it is made for.
    coop: Option<Coop>,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes that must move at least.
    pub bytes: f64,
    tensors: Vec<CaseTensor>,
    record: Record,
}

impl Case {
    /// A case without tensors; `record` is set last.
    pub fn new(kernel: &'static Kernel, name: String) -> Case {
        let record = Box::new(|_: &mut Recorder, _: &Tensors| panic!("a case records something"));
        Case {
            kernel,
            name,
            subgroup: 0,
            tuning: None,
            coop: None,
            flops: 0.0,
            bytes: 0.0,
            tensors: Vec::new(),
            record,
        }
    }

    /// With one more tensor.
    #[must_use]
    pub fn tensor(mut self, tensor: CaseTensor) -> Case {
        self.tensors.push(tensor);
        self
    }

    /// With its work: operations and bytes.
    #[must_use]
    pub fn work(mut self, flops: f64, bytes: f64) -> Case {
        (self.flops, self.bytes) = (flops, bytes);
        self
    }

    /// Only for adapters whose subgroups have at least `size` invocations.
    #[must_use]
    pub fn needs_subgroup(mut self, size: u32) -> Case {
        self.subgroup = size;
        self
    }

    /// Only for adapters that can do what `tuning` chooses.
    #[must_use]
    pub fn needs(mut self, tuning: Tuning) -> Case {
        self.tuning = Some(tuning);
        self.needs_subgroup(tuning.subgroup_needed())
    }

    /// Only for adapters with cooperative matrices of this size, and no larger subgroups.
    #[must_use]
    pub fn needs_coop(mut self, coop: Coop) -> Case {
        self.coop = Some(coop);
        self
    }

    /// How it is dispatched: by the kernel's own `record`.
    #[must_use]
    pub fn record(
        mut self,
        record: impl Fn(&mut Recorder, &Tensors) + Send + Sync + 'static,
    ) -> Case {
        self.record = Box::new(record);
        self
    }

    /// Why it cannot run with `caps`, if it cannot.
    pub fn missing(&self, caps: Caps) -> Option<String> {
        let size = caps.subgroup.unwrap_or(0);
        if size < self.subgroup {
            return Some(format!("needs subgroups of {}, has {size}", self.subgroup));
        }
        if let Some(why) = self.coop.and_then(|coop| coop.missing(caps)) {
            return Some(why);
        }
        self.tuning.as_ref()?.missing(caps)
    }

    /// Puts the tensors on `gpu`, between guards.
    ///
    /// # Errors
    /// What the device reports.
    pub fn upload(&self, gpu: &Gpu) -> Result<Tensors> {
        let tensors = self
            .tensors
            .iter()
            .map(|t| Ok((t.name, t.upload(gpu)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Tensors(tensors))
    }

    /// Records the case's dispatches.
    pub fn dispatch(&self, rec: &mut Recorder, tensors: &Tensors) {
        (self.record)(rec, tensors);
    }

    /// Runs it once and compares: the list of what is wrong, empty when all is right.
    ///
    /// # Errors
    /// What the device reports.
    pub fn run(&self, gpu: &Arc<Gpu>) -> Result<Vec<String>> {
        self.run_with(&mut Recorder::new(gpu)?)
    }

    /// [`Case::run`] with a recorder whose [`Recorder::variants`] the caller wants to see.
    ///
    /// # Errors
    /// What the device reports.
    pub fn run_with(&self, rec: &mut Recorder) -> Result<Vec<String>> {
        let gpu = rec.gpu().clone();
        let tensors = self.upload(&gpu)?;
        self.dispatch(rec, &tensors);
        rec.submit()?;
        let mut wrong = Vec::new();
        for (tensor, (_, on_device)) in self.tensors.iter().zip(&tensors.0) {
            if let Err(problem) = tensor.verify(&gpu, on_device)? {
                wrong.push(format!(
                    "{} {}: {}: {problem}",
                    self.kernel.name, self.name, tensor.name
                ));
            }
        }
        Ok(wrong)
    }
}

impl CaseTensor {
    fn upload(&self, gpu: &Gpu) -> Result<Tensor> {
        let bytes = Tensor::bytes_for(self.dtype, &self.dims).next_multiple_of(4);
        let padded = bytes.next_multiple_of(256);
        let words = (padded + 2 * GUARD_BYTES) / 4;
        let mut image = vec![GUARD; words as usize];
        let body = &mut image[GUARD_BYTES as usize / 4..][..bytes as usize / 4];
        body.fill(POISON);
        if let Some(init) = &self.init {
            bytemuck::cast_slice_mut::<u32, u8>(body)[..init.len()].copy_from_slice(init);
        }
        let whole = gpu.tensor(self.name, DType::U32, &[words as usize])?;
        gpu.upload(&whole, 0, bytemuck::cast_slice(&image))?;
        Ok(whole.window(GUARD_BYTES, self.dtype, &self.dims))
    }

    fn verify(&self, gpu: &Gpu, on_device: &Tensor) -> Result<Result<(), String>> {
        let image = gpu.download(&on_device.whole_buffer())?;
        let bytes = Tensor::bytes_for(self.dtype, &self.dims) as usize;
        let (before, rest) = image.split_at(GUARD_BYTES as usize);
        let (body, after) = rest.split_at(bytes);
        let guard = GUARD.to_le_bytes();
        let stray = |zone: &[u8]| zone.chunks_exact(4).position(|w| w != guard);
        if let Some(at) = stray(before) {
            return Ok(Err(format!(
                "wrote {} words before its start",
                GUARD_BYTES as usize / 4 - at
            )));
        }
        if let Some(at) = stray(&after[bytes.next_multiple_of(4) - bytes..]) {
            return Ok(Err(format!("wrote {} words past its end", at + 1)));
        }
        Ok(self.judge(body))
    }

    fn judge(&self, body: &[u8]) -> Result<(), String> {
        match &self.expect {
            Expect::Unchanged => same_bytes(body, self.init.as_deref().unwrap_or(&[])),
            expect => expect.judge(body),
        }
    }
}
