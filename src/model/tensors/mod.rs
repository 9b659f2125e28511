//! A model's tensors in its files: found by name, checked against the configuration, read in pieces.
//!
//! ```text
//! Names            how a family's files call them                                names
//!   + Config -> TensorMap -> LayerMap      what is there, of which shape         map, find
//!                 |            Rows        a matrix, from one tensor or several  rows
//!                 |            Vector      norms and biases                      rows
//!                 +- embedding_is_head     which of two tables is the head       head
//! ```
//!
//! The loader and the reference on the CPU read the same descriptions. A piece has a few MiB: the host
//! never holds a whole tensor, unless it is stored transposed.

mod find;
mod head;
mod map;
mod names;
mod rows;

pub use head::embedding_is_head;
pub use map::{LayerMap, Role, TensorMap};
pub use names::{LayerNames, Names, bias_of};
pub use rows::{NonFinite, Rows, Slice, Turned, Vector};

/// f32 values decoded at once: 4 MiB.
const PIECE_VALUES: usize = 1 << 20;
