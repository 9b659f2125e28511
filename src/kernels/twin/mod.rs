//! Dispatches on the host: every kernel's twin, and what can be done with it.
//!
//! A twin reads what a dispatch would read and tells what it must write, with how far each element may
//! be off. So it can take a device's place ([`Host`]), take the place of single kernels that a driver
//! gets wrong ([`Replace`]), and say of a real step, dispatch by dispatch, whether it was right
//! ([`Watch`]). In f64 where there is arithmetic, and by the formula, not by the shader's order.
//!
//! A kernel's twin is in its own file; those of `matmul` and `attention`, which two kernels each have, are
//! here, with what several share: exact values of endings, rows of weights, pages, runs, and threads.

pub(crate) mod attention;
pub(crate) mod endings;
mod interpret;
pub(crate) mod kv;
pub(crate) mod matmul;
pub(crate) mod packed;
pub(crate) mod parallel;
pub(crate) mod runs;

use super::ALL;
use super::case::{Expect, Judge};
use crate::error::Result;
use crate::gpu::{Call, Kernel};
use crate::kv::KvFormat;
use half::f16;
pub use interpret::{Host, Replace, Watch, Watched, watch};

/// What a kernel writes, in pieces. They are told before anything is written.
pub type Twin = fn(&mut Call<'_>, Effort) -> Result<Vec<Piece>>;

/// What is asked of a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Values; bounds may be anything.
    Values,
    /// Values with bounds.
    Bounds,
}

/// Consecutive words of a tensor that a dispatch writes.
pub struct Piece {
    /// The name it is bound under.
    pub tensor: &'static str,
    /// The first word.
    pub at: usize,
    /// What the host would write.
    pub words: Vec<u32>,
    /// What else is right.
    pub expect: Expect,
}

impl Piece {
    /// Exactly these words.
    pub fn exact(tensor: &'static str, at: usize, words: Vec<u32>) -> Piece {
        let expect = Expect::Bytes(bytemuck::cast_slice(&words).to_vec());
        Piece {
            tensor,
            at,
            words,
            expect,
        }
    }

    /// f32 from word `at` on: values, each with its bound.
    pub fn f32(tensor: &'static str, at: usize, exact: Vec<(f64, f64)>) -> Piece {
        let words = exact.iter().map(|v| (v.0 as f32).to_bits()).collect();
        let (values, bound) = exact.into_iter().unzip();
        Piece {
            tensor,
            at,
            words,
            expect: Expect::F32 { values, bound },
        }
    }

    /// Keys or values as the cache stores them, an even number of them: exact values with bounds, to
    /// which rounding to `format` comes.
    pub fn stored(
        tensor: &'static str,
        at: usize,
        format: KvFormat,
        exact: Vec<(f64, f64)>,
    ) -> Piece {
        if format == KvFormat::F32 {
            return Piece::f32(tensor, at, exact);
        }
        let half = |v: &(f64, f64)| f16::from_f64(v.0.clamp(-65504.0, 65504.0)).to_bits();
        let pair = |v: &[(f64, f64)]| u32::from(half(&v[0])) | u32::from(half(&v[1])) << 16;
        let words = exact.chunks_exact(2).map(pair).collect();
        Piece::judged(tensor, at, words, move |bytes| {
            let found = bytes
                .chunks_exact(2)
                .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64());
            for (i, (found, &(exact, bound))) in found.zip(&exact).enumerate() {
                // f16 keeps 11 bits; WGSL leaves open in which direction it rounds
                let exact = exact.clamp(-65504.0, 65504.0);
                let bound = bound + exact.abs() / 1024.0 + 2f64.powi(-24);
                let distance = (found - exact).abs();
                if distance.is_nan() || distance > bound {
                    return Err(format!(
                        "element {i} is {found:e}, expected {exact:e} +- {bound:e}"
                    ));
                }
            }
            Ok(())
        })
    }

    /// Words of which `judge` says whether others would do as well; it is given bytes.
    pub fn judged(
        tensor: &'static str,
        at: usize,
        words: Vec<u32>,
        judge: impl Fn(&[u8]) -> Result<(), String> + Send + Sync + 'static,
    ) -> Piece {
        Piece {
            tensor,
            at,
            words,
            expect: Expect::Judge(Box::new(judge) as Judge),
        }
    }
}

/// The twin of a kernel.
pub fn of(kernel: &Kernel) -> Twin {
    let entry = ALL.iter().find(|entry| entry.kernel.name == kernel.name);
    entry.expect("every kernel is in the registry").twin
}
