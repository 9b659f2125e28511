//! nelumbo: a portable GPU inference runtime for large language models.
//!
//! Every layer of a model is WGSL on wgpu: Vulkan first, Metal and DX12 from the same shaders. A
//! [`Model`] is loaded from a GGUF file or a Hugging Face directory; an [`engine::Engine`] serves
//! requests with it, many at a time, on a thread of its own.
//!
//! ```no_run
//! use nelumbo::engine::{Engine, EngineOptions, Event, Request};
//! use nelumbo::{LoadOptions, Model};
//!
//! let model = Model::load("model.gguf".as_ref(), &LoadOptions::default(), &mut |_, _| ())?;
//! let engine = Engine::start(model, EngineOptions::default())?;
//! let texts = engine.texts();
//! let handle = engine.submit(Request {
//!     tokens: texts.tokenizer.encode_raw("The sky is")?,
//!     max_tokens: 16,
//!     end_tokens: texts.end_tokens.clone(),
//!     ..Request::default()
//! })?;
//! for event in &handle {
//!     match event? {
//!         Event::Token { token, .. } => {
//!             print!("{}", String::from_utf8_lossy(texts.tokenizer.token_bytes(token)));
//!         }
//!         Event::Finished { reason, .. } => println!(" ({})", reason.name()),
//!         Event::Failed { failure, .. } => return Err(failure.into()),
//!     }
//! }
//! println!("{:?} to the first token", handle.stats().and_then(|stats| stats.ttft()));
//! engine.shutdown()?;
//! # Ok::<(), nelumbo::Error>(())
//! ```
//!
//! The same handle is an async stream: `while let Some(event) = handle.next().await`. Whoever has no
//! threads drives an [`engine::EngineCore`], step by step.
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
