//! What a tuning is measured by: matrices of the model's own shapes, several of each so that caches
//! do not flatter it, for one token and for many.

use crate::error::{Error, Result};
use crate::gpu::{DType, Gpu, Recorder, Tensor};
use crate::kernels::matmul::{self, Norm};
use crate::kernels::matmul_output::{MlpKind, Out};
use crate::kernels::numbers::Data;
use crate::kernels::{Activations, Tuning};
use crate::quant::weights::SHARD_ROWS;
use crate::quant::{Format, GROUP, Weights};
use std::sync::Arc;

/// Prompt tokens that matter as much as one decoded token.
const PROMPT_SHARE: f64 = 8.0;
/// Measurements of each, of which the fastest counts: other programs only ever slow one down.
const ROUNDS: usize = 6;
/// Fewer do not count.
const LEAST_ROUNDS: usize = 3;
/// Seconds that a single measurement takes at least, so that what surrounds a submit is little of it.
const SPAN: f64 = 0.004;
/// Dispatches of a submit at most.
const MOST_DISPATCHES: usize = 2000;

/// What tunings of a model depend on, beside the adapter.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Width of the residual stream; a multiple of 4.
    pub hidden: usize,
    /// Width between gate and down; a multiple of 4.
    pub intermediate: usize,
    /// Rows of the head.
    pub vocab: usize,
    /// How many layers there are.
    pub layers: usize,
    /// How weights are packed.
    pub format: &'static Format,
}

/// Why a candidate is out.
#[derive(Debug)]
pub enum Dropped {
    /// It does not compile or run.
    Failed(Error),
    /// Its results are not those of the same numerics.
    Differs(&'static str),
    /// The time was over before it was measured.
    Late,
}

impl From<Error> for Dropped {
    fn from(error: Error) -> Dropped {
        Dropped::Failed(error)
    }
}

/// The two largest matrices of a layer, gate and up, and down, or as many of their rows as are
/// measured. Both are followed by a gate: an ending costs next to nothing, but a compilation.
pub type Layer = [Weights; 2];

/// Layers with inputs of one kind of activations, and room for results.
struct Place {
    layers: Vec<Layer>,
    tokens: usize,
    /// Records that each matrix reads.
    inputs: [Tensor; 2],
    /// Records of its results.
    outputs: [Tensor; 2],
}

impl Place {
    fn new(gpu: &Gpu, layers: &[Layer], tokens: usize, activations: Activations) -> Result<Place> {
        let [first, second] = &layers[0];
        let mut data = Data::new(9);
        let mut input = |columns: usize| {
            let x = data.normal(tokens * columns);
            let rows = x.chunks(columns).flat_map(|row| row.chunks(GROUP));
            let squares: Vec<f32> = rows.map(|g| g.iter().map(|v| v * v).sum()).collect();
            let words = activations.pack(&x, columns, Some(&squares));
            let tensor = gpu.tensor("input", DType::U32, &activations.dims(tokens, columns))?;
            gpu.upload(&tensor, 0, bytemuck::cast_slice(&words))?;
            Ok::<Tensor, Error>(tensor)
        };
        let inputs = [input(first.columns)?, input(second.columns)?];
        let output = |rows| gpu.tensor("output", DType::U32, &activations.dims(tokens, rows / 2));
        Ok(Place {
            outputs: [output(first.rows)?, output(second.rows)?],
            layers: layers.to_vec(),
            tokens,
            inputs,
        })
    }

    fn record(&self, rec: &mut Recorder, tuning: &Tuning, layers: usize, tokens: usize) {
        let norm = Some(Norm { eps: 1e-5 });
        for layer in &self.layers[..layers] {
            for ((weights, x), act) in layer.iter().zip(&self.inputs).zip(&self.outputs) {
                let kind = MlpKind::SwiGlu;
                let out = Out::Gated { act, kind };
                matmul::record(rec, tuning, weights, x, tokens, norm, None, out);
            }
        }
    }

    fn dispatches(&self) -> usize {
        let shards = self.layers.iter().flatten().map(|w| w.shards.len());
        shards.sum()
    }

    /// What the first layer makes of the first `tokens`: a row for each.
    fn rows(&self, rec: &mut Recorder, tuning: &Tuning, tokens: usize) -> Result<Vec<Vec<u32>>> {
        let gpu = rec.gpu().clone();
        self.record(rec, tuning, 1, tokens);
        rec.submit()?;
        let mut rows = vec![Vec::new(); tokens];
        for tensor in &self.outputs {
            let words: Vec<u32> = gpu.download_as(tensor)?;
            let width = tensor.shape()[1];
            for (row, words) in rows.iter_mut().zip(words.chunks(width)) {
                row.extend_from_slice(words);
            }
        }
        Ok(rows)
    }
}

/// Activations and lanes: what bits depend on.
type Numerics = (Activations, u32);
/// Words of each token, of one token and of many, in turn for each place.
type Rows = Vec<Vec<Vec<u32>>>;

/// What each kind of numerics computes, as the first tuning of its kind did.
#[derive(Default)]
struct Bits(Vec<(Numerics, Rows)>);

impl Bits {
    /// Holds rows of one token and of many, in turn for each place, against each other and against
    /// what was computed before with the same numerics.
    fn hold(&mut self, numerics: Numerics, found: Rows) -> Result<(), Dropped> {
        if found.chunks(2).any(|pair| pair[0][0] != pair[1][0]) {
            return Err(Dropped::Differs("between one token and the first of many"));
        }
        match self.0.iter().find(|(of, _)| *of == numerics) {
            Some((_, expected)) if *expected != found => Err(Dropped::Differs(
                "from other choices with the same numerics",
            )),
            Some(_) => Ok(()),
            None => {
                self.0.push((numerics, found));
                Ok(())
            }
        }
    }
}

/// A device of one's own with scratch matrices.
pub struct Bench<'a> {
    gpu: Arc<Gpu>,
    rec: Recorder,
    /// Of the model's widths, and of ragged ones.
    layers: [Vec<Layer>; 2],
    tokens: [usize; 2],
    places: Vec<(Activations, [Place; 2])>,
    bits: Bits,
    clock: &'a dyn Fn() -> f64,
    late: &'a dyn Fn() -> bool,
}

impl<'a> Bench<'a> {
    /// Matrices on `gpu`. `clock` tells seconds, `late` whether the time is over.
    ///
    /// # Errors
    /// What the device reports, [`Error::OutOfMemory`] among it.
    pub fn new(
        gpu: Arc<Gpu>,
        shape: &Shape,
        clock: &'a dyn Fn() -> f64,
        late: &'a dyn Fn() -> bool,
    ) -> Result<Bench<'a>> {
        // all of a small model's layers, and never much of a large one's
        let (most_all, most_one) = if gpu.is_software() {
            (16 << 20, 16 << 20)
        } else {
            (256 << 20, 64 << 20)
        };
        let own = layer(&gpu, shape, most_one)?;
        let bytes: u64 = own.iter().map(Weights::size_bytes).sum();
        let count = ((most_all / bytes) as usize).clamp(1, shape.layers.max(1));
        let mut layers = vec![own];
        while layers.len() < count {
            layers.push(layer(&gpu, shape, most_one)?);
        }
        let ragged = Shape {
            hidden: 100,
            intermediate: 52,
            ..*shape
        };
        let ragged = vec![layer(&gpu, &ragged, most_one)?];
        gpu.flush_uploads()?;
        Ok(Bench {
            rec: Recorder::new(&gpu)?,
            tokens: [if gpu.is_software() { 8 } else { 64 }, 9],
            gpu,
            layers: [layers, ragged],
            places: Vec::new(),
            bits: Bits::default(),
            clock,
            late,
        })
    }

    /// Whether the device is still what it was.
    pub fn is_sound(&self) -> bool {
        self.gpu.check().is_ok()
    }

    /// Compiles `tuning` and holds its bits against those of the same numerics, which the first
    /// tuning of each kind sets; and those of one token against the first of many.
    ///
    /// # Errors
    /// Why it is out.
    pub fn check(&mut self, tuning: &Tuning) -> Result<(), Dropped> {
        let index = self.place(tuning.activations)?;
        let Bench {
            gpu,
            rec,
            places,
            late,
            ..
        } = self;
        let places = &places[index].1;
        rec.begin_notes();
        for tokens in [1, places[0].tokens] {
            places[0].record(rec, tuning, 1, tokens);
        }
        let variants = rec.take_notes();
        gpu.prepare(&variants)?;
        let mut bits = Vec::new();
        // the ragged one first: drivers that compile at the first dispatch do it with little work
        for place in places.iter().rev() {
            for tokens in [1, place.tokens] {
                if late() {
                    return Err(Dropped::Late);
                }
                bits.push(place.rows(rec, tuning, tokens)?);
            }
        }
        self.bits.hold((tuning.activations, tuning.lanes), bits)
    }

    /// Seconds that both take, turn by turn, so that what else the machine does meets both.
    ///
    /// # Errors
    /// [`Dropped::Late`] when the time ends too early; what the device reports.
    pub fn compare(&mut self, one: &Tuning, other: &Tuning) -> Result<[f64; 2], Dropped> {
        let mut seconds = [[f64::INFINITY; 2]; 2];
        let mut counts = [[0; 2]; 2];
        for round in 0..=ROUNDS {
            for (which, tuning) in [one, other].into_iter().enumerate() {
                let place = self.place(tuning.activations)?;
                for (which_tokens, many) in [false, true].into_iter().enumerate() {
                    if (self.late)() {
                        let enough = round > LEAST_ROUNDS;
                        return enough.then(|| scores(&seconds)).ok_or(Dropped::Late);
                    }
                    let place = &self.places[place].1[0];
                    let tokens = if many { place.tokens } else { 1 };
                    let count = &mut counts[which][which_tokens];
                    let start = (self.clock)();
                    for _ in 0..(*count).max(1) {
                        place.record(&mut self.rec, tuning, place.layers.len(), tokens);
                    }
                    self.rec.submit()?;
                    self.gpu.wait()?;
                    let took = (self.clock)() - start;
                    if *count == 0 {
                        // the first only tells how many are worth measuring
                        let most = (MOST_DISPATCHES / place.dispatches()).max(1);
                        *count = ((SPAN / took.max(1e-6)).ceil() as usize).clamp(1, most);
                    } else {
                        let best = &mut seconds[which][which_tokens];
                        let each = if many {
                            PROMPT_SHARE / tokens as f64
                        } else {
                            1.0
                        };
                        *best = best.min(took / *count as f64 * each);
                    }
                }
            }
        }
        Ok(scores(&seconds))
    }

    /// Where things for `activations` lie, made when they are first asked for.
    fn place(&mut self, activations: Activations) -> Result<usize> {
        if let Some(at) = self.places.iter().position(|(of, _)| *of == activations) {
            return Ok(at);
        }
        let place = |i: usize| Place::new(&self.gpu, &self.layers[i], self.tokens[i], activations);
        let both = [place(0)?, place(1)?];
        self.places.push((activations, both));
        Ok(self.places.len() - 1)
    }
}

/// A decoded token and the prompt tokens that matter as much.
fn scores(seconds: &[[f64; 2]; 2]) -> [f64; 2] {
    seconds.map(|[one, many]| one + many)
}

/// A layer of `shape`, of whose matrices `most` bytes are there.
///
/// # Errors
/// What the device reports, [`Error::OutOfMemory`] among it.
pub fn layer(gpu: &Gpu, shape: &Shape, most: u64) -> Result<Layer> {
    let cut = |label, rows: usize, columns: usize| {
        let (bytes, _) = shape.format.matrix_bytes(SHARD_ROWS, columns);
        let fits = (most / bytes).max(1) as usize * SHARD_ROWS;
        matrix(gpu, shape.format, label, rows.min(fits), columns)
    };
    // a gate takes blocks of four rows in pairs
    let down = shape.hidden.next_multiple_of(8);
    Ok([
        cut("gate_up", 2 * shape.intermediate, shape.hidden)?,
        cut("down", down, shape.intermediate)?,
    ])
}

/// A matrix of the format, filled with what is no zero.
///
/// # Errors
/// What the device reports, [`Error::OutOfMemory`] among it.
pub fn matrix(
    gpu: &Gpu,
    format: &'static Format,
    label: &str,
    rows: usize,
    columns: usize,
) -> Result<Weights> {
    let weights = Weights::allocate(gpu, label, format, rows, columns)?;
    fill(gpu, &weights)?;
    Ok(weights)
}

/// The same few rows over and over: what they are does not matter, but they are no zeros.
fn fill(gpu: &Gpu, weights: &Weights) -> Result<()> {
    let (columns, scale) = (weights.columns, 1.0 / (weights.columns as f32).sqrt());
    let mut values = Data::new(7).normal(SHARD_ROWS * columns);
    values.iter_mut().for_each(|v| *v *= scale);
    let (quants, scales) = weights.format.pack_rows(&values, columns);
    for shard in &weights.shards {
        for ((_, tensor), pattern) in shard.bindings().zip([&quants, &scales]) {
            let bytes = tensor.size_bytes() as usize;
            for at in (0..bytes).step_by(pattern.len()) {
                let length = pattern.len().min(bytes - at);
                gpu.upload(tensor, at as u64, &pattern[..length])?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bits_are_seen_and_other_numerics_are_others() {
        let rows = |first: u32, second: u32| {
            let many = vec![vec![first, 1], vec![second, 1]];
            vec![vec![vec![first, 1]], many]
        };
        let mut bits = Bits::default();
        let (f32, q8) = ((Activations::F32, 8), (Activations::Q8, 8));
        assert!(bits.hold(f32, rows(5, 6)).is_ok());
        assert!(bits.hold(f32, rows(5, 6)).is_ok());
        let differs = |result| match result {
            Err(Dropped::Differs(how)) => how,
            other => panic!("{other:?}"),
        };
        assert!(differs(bits.hold(f32, rows(5, 7))).starts_with("from other choices"));
        assert!(bits.hold(q8, rows(5, 7)).is_ok());
        assert!(bits.hold((Activations::F32, 4), rows(4, 7)).is_ok());
        let mut alone = rows(5, 6);
        alone[0][0][1] = 2;
        assert!(differs(bits.hold(f32, alone)).starts_with("between one token"));
    }
}
