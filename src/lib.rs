//! nelumbo: a portable GPU inference runtime for large language models.

pub mod error;
pub mod gpu;
pub mod kernels;
pub mod kv;
pub mod quant;

pub use error::{Error, Result};
