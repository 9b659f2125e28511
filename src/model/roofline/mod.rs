//! What a model takes and how long a step of it should take: one set of formulas, which planning,
//! simulating, benching, comparing and showing all call.
//!
//! | file | holds |
//! |---|---|
//! | [`sizes`] | parameters, and bytes of weights and cache in every form |
//! | [`step`] | the kernels of a step, each with its bytes, operations and dispatches |
//! | `attention` | those of attention |
//! | [`least`] | what a run of tokens cannot do without, whatever kernels do it |
//! | [`rates`] | what an adapter does of them in a second, and so the time of a step |
//! | `reckon` | how that follows from the times of a few shapes |
//! | `products` | the same of matmuls |
//! | `calibrate` | how these are measured |
//! | `kept` | how it is kept between runs |
//! | `adapter` | what is kept of an adapter, else what is measured |
//!
//! A kernel takes the longer of its bytes at the rate at which memory is read and its operations at the
//! peak of the arithmetic that it uses, over the share of that which kernels of its kind reach, plus
//! what its dispatches cost; a step costs a submit and a read-back besides. Peaks and shares are both
//! measured on the adapter: what comes out is a roofline times a measured efficiency, not a bound.
//! [`Roofline::at_best`] is the bound. All but the last three are values: no device, no clock.

mod attention;
mod calibrate;
mod kept;
pub mod least;
mod products;
pub mod rates;
mod reckon;
pub mod sizes;
pub mod step;

mod adapter;

pub use least::{Run, Work};
pub use rates::{AttentionShares, KernelCost, Roofline, Shares};
pub use reckon::Subject;
pub use sizes::{KvForm, ModelShape, WeightForm};
pub use step::{ChunkShape, KernelWork, Kind, StepShape};
