//! Types of what lies in memory, and rules that are kept, by the words of the command line.

use clap::ValueEnum;

/// Weight formats in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WeightType {
    /// 8-bit integers with one scale for 32 weights
    Q8,
    /// 16-bit floats
    F16,
}

/// Types of activations between kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivationType {
    /// Whatever is faster on this adapter
    Auto,
    /// 8-bit integers with one scale for 32 values
    Q8,
    /// As computed
    F32,
}

/// Which rules results keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NumericsMode {
    /// The same bits however a text is cut into steps
    Canonical,
    /// f16 products where the adapter has cooperative matrices
    Fast,
}

/// Whether something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    #[value(alias = "1")]
    On,
    #[value(alias = "0")]
    Off,
}

/// Element types of the key and value cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheType {
    F16,
    F32,
}
