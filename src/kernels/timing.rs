//! How fast the cases of kernels are, and how fast they could be on this adapter.
//!
//! A case is dispatched in a chain within one submit, as long as a clock needs; the fastest and the
//! median of several chains count. What an adapter does at best ([`Peaks`]) tells the least time that
//! the case's bytes or operations take, whichever is more; that over the fastest time is its share of
//! the roofline, and with the cost of a dispatch it is the time that the roofline predicts. A share of
//! more than 100 % means that the case's data stays in a cache. Whoever measures brings the clock.

use super::ALL;
use super::case::Case;
use super::peaks::Peaks;
use crate::error::Result;
use crate::gpu::{Gpu, Recorder};
use serde::Serialize;
use std::sync::Arc;

/// Seconds that a chain of dispatches should take.
pub const SPAN: f64 = 0.05;
/// Dispatches of a chain at most.
const MOST_DISPATCHES: usize = 2000;

/// A case's times, and what they are a share of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timed {
    /// Kernel and case.
    pub case: String,
    /// The kernel alone.
    pub kernel: &'static str,
    /// Dispatches of a chain.
    pub dispatches: usize,
    /// Nanoseconds of a dispatch in the fastest chain.
    pub min_ns: f64,
    /// The median of the chains.
    pub median_ns: f64,
    /// All chains, in order.
    pub samples_ns: Vec<f64>,
    /// Bytes that the case has to move at least.
    pub bytes: f64,
    /// Operations that it has to do.
    pub flops: f64,
    /// Bytes a nanosecond in the fastest chain.
    pub gb_s: f64,
    /// Operations a nanosecond in the fastest chain.
    pub gflop_s: f64,
    /// What bytes or operations take at the peaks, and one dispatch.
    pub roofline_ns: f64,
    /// The same without the dispatch, as a share of the fastest time, in percent.
    pub roofline_pct: f64,
    /// `memory`, `f32` or `dot4`: whose peak.
    pub bound: &'static str,
}

/// The cases of real shapes whose name (kernel, a space, case) holds `filter` and that `gpu` can run. Making
/// cases takes longer than most filters are worth: where the first word is a kernel, those of others are
/// not made.
pub fn cases(gpu: &Gpu, filter: &str) -> Vec<Case> {
    let word = filter.split(' ').next().unwrap_or_default();
    let is_kernel = ALL.iter().any(|entry| entry.kernel.name == word);
    let all = ALL
        .iter()
        .filter(|entry| !is_kernel || entry.kernel.name == word)
        .flat_map(|entry| (entry.timings)());
    all.filter(|case| name(case).contains(filter) && case.missing(gpu.caps()).is_none())
        .collect()
}

/// What a case is called in reports.
pub fn name(case: &Case) -> String {
    format!("{} {}", case.kernel.name, case.name)
}

/// Times `case` on `gpu` in `repeats` chains. `clock` tells seconds from some beginning on.
///
/// # Errors
/// What the device reports, [`crate::Error::OutOfMemory`] among it.
///
/// # Panics
/// Without repeats.
pub fn time(
    gpu: &Arc<Gpu>,
    clock: &mut dyn FnMut() -> f64,
    peaks: &Peaks,
    case: &Case,
    repeats: usize,
) -> Result<Timed> {
    assert!(repeats > 0, "{}: no repeats", name(case));
    let tensors = case.upload(gpu)?;
    let mut rec = Recorder::new(gpu)?;
    let mut chain = |dispatches: usize| -> Result<f64> {
        let start = clock();
        (0..dispatches).for_each(|_| case.dispatch(&mut rec, &tensors));
        rec.submit()?;
        gpu.wait()?;
        Ok((clock() - start) / dispatches as f64)
    };
    chain(1)?; // compiles
    let dispatches = ((SPAN / chain(4)?.max(1e-6)) as usize).clamp(1, MOST_DISPATCHES);
    let samples = (0..repeats)
        .map(|_| Ok(chain(dispatches)?.max(1e-9)))
        .collect::<Result<Vec<f64>>>()?;
    let integers = rec
        .variants()
        .iter()
        .any(|v| v.all_parts().any(|p| p.source.contains("dot4I8Packed")));
    Ok(timed(case, peaks, dispatches, &samples, integers))
}

/// The times of `case`, in seconds, held against the peaks; of arithmetic, that on packed integers if
/// `integers`.
fn timed(case: &Case, peaks: &Peaks, dispatches: usize, samples: &[f64], integers: bool) -> Timed {
    let (flops_s, arithmetic) = if integers {
        (peaks.dot4_ops, "dot4")
    } else {
        (peaks.fma_flops, "f32")
    };
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let min = sorted[0];
    let least = peaks.least_seconds(case.bytes, case.flops, flops_s);
    let by_memory = case.bytes / peaks.stream_bytes_s >= case.flops / flops_s;
    Timed {
        case: name(case),
        kernel: case.kernel.name,
        dispatches,
        min_ns: min * 1e9,
        median_ns: sorted[sorted.len() / 2] * 1e9,
        samples_ns: samples.iter().map(|s| s * 1e9).collect(),
        bytes: case.bytes,
        flops: case.flops,
        gb_s: case.bytes / min / 1e9,
        gflop_s: case.flops / min / 1e9,
        roofline_ns: (least + peaks.dispatch_s) * 1e9,
        roofline_pct: 100.0 * least / min,
        bound: if by_memory { "memory" } else { arithmetic },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_from_the_fastest_chain_and_the_peak_that_binds() {
        let case = Case::new(ALL[0].kernel, "shape".to_owned()).work(3e6, 2e6);
        let peaks = Peaks {
            stream_bytes_s: 1e9,
            fma_flops: 1e9,
            dot4_ops: 4e9,
            dispatch_s: 1e-3,
        };
        let samples = [0.008, 0.006, 0.012];
        let floats = timed(&case, &peaks, 7, &samples, false);
        assert_eq!((floats.bound, floats.dispatches), ("f32", 7));
        assert_eq!((floats.min_ns, floats.median_ns), (6e6, 8e6));
        // three milliseconds of operations, and one of the dispatch; six were measured
        assert!((floats.roofline_ns - 4e6).abs() < 1.0, "{floats:?}");
        assert!((floats.roofline_pct - 50.0).abs() < 1e-9, "{floats:?}");
        let integers = timed(&case, &peaks, 7, &samples, true);
        assert_eq!(integers.bound, "memory");
        assert!((integers.roofline_pct - 100.0 / 3.0).abs() < 1e-9);
        assert!(floats.case.starts_with(floats.kernel) && floats.samples_ns.len() == 3);
    }
}
