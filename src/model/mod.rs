//! From a model's files to a decoder on the device.
//!
//! A family is a difference, not a second forward pass: [`families`] say how configuration and tensors
//! are spelled and what is computed otherwise, and [`decoder`] does the rest. [`Family`] is what a family
//! must tell.

pub mod budget;
pub mod config;
pub mod convert;
mod copy_page;
pub mod decoder;
mod defaults;
mod draft;
pub mod families;
pub mod fields;
pub mod keys;
mod layer_pass;
mod layout;
pub mod load;
mod numerics;
pub mod on_host;
pub mod origin;
pub mod plan;
pub mod reference;
pub mod roofline;
mod room;
pub mod rope;
mod rotation;
mod scratch;
pub mod self_check;
pub mod shapes;
pub mod step;
pub mod submits;
pub mod synthetic;
pub mod tensors;
pub mod texts;
pub mod tune;
pub mod warm;
pub mod weights;

pub use budget::MemoryLimit;
pub use config::Config;
pub use decoder::{Decoder, DecoderOptions};
pub use defaults::SamplingDefaults;
pub use draft::Beside;
pub use families::{FAMILIES, Family, family};
pub use load::{LoadOptions, Model};
pub use numerics::Numerics;
pub use on_host::OnHost;
pub use room::Bounds;
pub use texts::{TemplateSources, Texts};
pub use tune::Tuned;
