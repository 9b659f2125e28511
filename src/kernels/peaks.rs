//! What an adapter can do at best, measured: what every other speed is a share of.
//!
//! Bytes a second that are read, operations a second in f32 and on packed 8-bit integers, and what a
//! dispatch costs that does next to nothing. Whoever measures brings the clock.

use super::{gather_rows, peaks_host, probe_dot4, probe_fma, probe_stream};
use crate::error::Result;
use crate::gpu::{DType, Gpu, Recorder, Tensor};
use std::sync::Arc;

/// Vectors that a stream reads: 128 MiB, more than caches hold, unless a binding is smaller.
const STREAM_BYTES: u64 = 128 << 20;
/// Measurements of each, of which the fastest counts: other programs only ever slow one down.
const REPEATS: usize = 8;
/// Calls in one submit at most; the longest have eight dispatches, and a submit holds 4096.
const MOST_CALLS: usize = 500;

/// The best of several measurements of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes a second, read once each from memory.
    pub stream_bytes_s: f64,
    /// Multiplications and additions a second, by `fma` in f32.
    pub fma_flops: f64,
    /// Multiplications and additions a second, by `dot4I8Packed`.
    pub dot4_ops: f64,
    /// Seconds from one dispatch to the next that waits for it.
    pub dispatch_s: f64,
}

impl Peaks {
    /// Measures. `clock` tells seconds; `span` is how many a single measurement should take (0.01
    /// for a clock as fine as microseconds): all of it takes about 50 spans and the compilation of
    /// six pipelines.
    ///
    /// # Errors
    /// What the device reports, [`crate::Error::OutOfMemory`] among it.
    pub fn measure(gpu: &Arc<Gpu>, clock: &mut dyn FnMut() -> f64, span: f64) -> Result<Peaks> {
        let mut bench = Bench {
            gpu,
            rec: Recorder::new(gpu)?,
            clock,
            span,
        };
        if gpu.is_host() {
            let dispatch_s = bench.dispatch()?;
            // twins of probes say nothing of what other twins could do
            let (stream_bytes_s, fma_flops) = peaks_host::measure(bench.clock);
            return Ok(Peaks {
                stream_bytes_s,
                fma_flops,
                dot4_ops: fma_flops, // integers are unpacked
                dispatch_s,
            });
        }
        Ok(Peaks {
            dispatch_s: bench.dispatch()?,
            stream_bytes_s: bench.stream()?,
            fma_flops: bench.fma()?,
            dot4_ops: bench.dot4()?,
        })
    }

    /// The least seconds that `bytes` from memory and `flops` at `flops_s` take.
    pub fn least_seconds(&self, bytes: f64, flops: f64, flops_s: f64) -> f64 {
        (bytes / self.stream_bytes_s).max(flops / flops_s)
    }

    /// The faster of the two arithmetics: what a matmul may use.
    pub fn matmul_flops(&self) -> f64 {
        self.fma_flops.max(self.dot4_ops)
    }
}

struct Bench<'a> {
    gpu: &'a Arc<Gpu>,
    rec: Recorder,
    clock: &'a mut dyn FnMut() -> f64,
    span: f64,
}

impl Bench<'_> {
    /// Seconds for one call of `record`, the best of several chains of them.
    fn seconds(&mut self, record: impl Fn(&mut Recorder)) -> Result<f64> {
        self.chain(1, &record)?; // compiles
        let once = self.chain(1, &record)?.max(1e-7);
        let count = ((self.span / once) as usize).clamp(1, MOST_CALLS);
        let mut best = f64::INFINITY;
        for _ in 0..REPEATS {
            best = best.min(self.chain(count, &record)? / count as f64);
        }
        Ok(best.max(1e-12))
    }

    fn chain(&mut self, count: usize, record: &impl Fn(&mut Recorder)) -> Result<f64> {
        let start = (self.clock)();
        (0..count).for_each(|_| record(&mut self.rec));
        self.rec.submit()?;
        self.gpu.wait()?;
        Ok((self.clock)() - start)
    }

    /// Every dispatch writes what the one before it has written, so that it has to wait.
    fn dispatch(&mut self) -> Result<f64> {
        let (from, to) = (self.tensor(&[1, 4])?, self.tensor(&[1, 4])?);
        let row = self.tensor(&[1])?;
        self.seconds(|rec| gather_rows::record(rec, &from, &row, 0, 1, &to))
    }

    fn stream(&mut self) -> Result<f64> {
        let bytes = STREAM_BYTES.min(self.gpu.max_binding_bytes()) & !15;
        let num_vecs = (bytes / 16) as usize;
        let x = self.tensor(&[num_vecs, 4])?;
        let ways = if self.gpu.is_software() {
            probe_stream::ON_CPU
        } else {
            probe_stream::ON_GPU
        };
        // On a GPU a single pass over x is over before the next one has begun: passes that write
        // different tensors need not wait for each other.
        let passes = if self.gpu.is_software() { 1 } else { 8 };
        let mut best: f64 = 0.0;
        for way in ways {
            let sums = (0..passes)
                .map(|_| self.tensor(&[way.invocations(num_vecs)]))
                .collect::<Result<Vec<Tensor>>>()?;
            let seconds = self.seconds(|rec| {
                for y in &sums {
                    probe_stream::record(rec, way, &x, y);
                }
            })?;
            best = best.max((passes * bytes) as f64 / seconds);
        }
        Ok(best)
    }

    fn fma(&mut self) -> Result<f64> {
        let (count, rounds) = self.arithmetic();
        let (x, y) = (self.tensor(&[count, 4])?, self.tensor(&[count, 4])?);
        let seconds = self.seconds(|rec| probe_fma::record(rec, &x, rounds, &y))?;
        Ok(probe_fma::FLOPS_A_ROUND * (count * rounds) as f64 / seconds)
    }

    fn dot4(&mut self) -> Result<f64> {
        let (count, rounds) = self.arithmetic();
        let (x, y) = (self.tensor(&[2 * count, 4])?, self.tensor(&[count, 4])?);
        let seconds = self.seconds(|rec| probe_dot4::record(rec, &x, rounds, &y))?;
        Ok(probe_dot4::OPS_A_ROUND * (count * rounds) as f64 / seconds)
    }

    /// Invocations and rounds that keep every unit of the adapter busy for a few milliseconds at most.
    fn arithmetic(&self) -> (usize, usize) {
        if self.gpu.is_software() {
            (1 << 12, 64)
        } else {
            (1 << 20, 32)
        }
    }

    /// Zeros; words are as good as floats here.
    fn tensor(&self, dims: &[usize]) -> Result<Tensor> {
        self.gpu.tensor("probe", DType::U32, dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_memory_and_arithmetic_is_the_bound() {
        let peaks = Peaks {
            stream_bytes_s: 10e9,
            fma_flops: 100e9,
            dot4_ops: 200e9,
            dispatch_s: 1e-5,
        };
        assert_eq!(peaks.matmul_flops(), 200e9);
        assert_eq!(peaks.least_seconds(10e9, 100e9, 100e9), 1.0);
        assert_eq!(peaks.least_seconds(20e9, 100e9, 100e9), 2.0);
        assert_eq!(peaks.least_seconds(1e9, 300e9, 200e9), 1.5);
    }
}
