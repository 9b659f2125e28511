//! nelumbo: a portable GPU inference runtime for large language models.
//!
//! Every layer of a model is WGSL on wgpu: Vulkan first, Metal and DX12 from the same shaders. A
//! [`Model`] is loaded from a GGUF file or a Hugging Face directory; an [`engine::EngineCore`] turns
//! requests into tokens, step by step.
//!
//! ```no_run
//! use nelumbo::engine::{EngineCore, Event, Request};
//! use nelumbo::{LoadOptions, Model};
//!
//! let model = Model::load("model.gguf".as_ref(), &LoadOptions::default(), &mut |_, _| ())?;
//! let (texts, mut engine) = (model.texts, EngineCore::new(model.decoder)?);
//! engine.submit(Request {
//!     tokens: texts.tokenizer.encode_raw("The sky is")?,
//!     max_tokens: 16,
//!     end_tokens: texts.end_tokens.clone(),
//!     ..Request::default()
//! })?;
//! while !engine.is_idle() {
//!     for event in engine.step()? {
//!         if let Event::Token { token, .. } = event {
//!             print!("{}", String::from_utf8_lossy(texts.tokenizer.token_bytes(token)));
//!         }
//!     }
//! }
//! # Ok::<(), nelumbo::Error>(())
//! ```
//!
//! # How it is built
#![doc = include_str!("ARCHITECTURE.md")]
#![warn(missing_docs)]
#![warn(clippy::print_stdout)]

pub mod error;
mod planted;
pub mod text;

pub mod gpu;

pub mod formats;
pub mod kv;
pub mod quant;

pub mod kernels;

pub mod model;

pub mod engine;

pub use error::{Error, Result};
pub use model::{LoadOptions, Model};
