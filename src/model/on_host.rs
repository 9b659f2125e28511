//! A model as far as it takes no device: its shape, its text side, and the reference on the CPU.

use super::load::fit_vocab;
use super::reference::Reference;
use super::room::DEFAULT_CONTEXT;
use super::tensors::{Names, TensorMap};
use super::{Config, Texts, family};
use crate::error::Result;
use crate::formats::{self, ModelFiles};
use crate::quant::Format;
use std::path::Path;

/// A model's files, opened.
pub struct OnHost {
    /// Its shape.
    pub config: Config,
    /// Its text side.
    pub texts: Texts,
    names: Names,
    files: ModelFiles,
}

impl OnHost {
    /// Opens the model at `path`: a GGUF file or a Hugging Face directory.
    ///
    /// # Errors
    /// Names the file and the field.
    pub fn open(path: &Path) -> Result<OnHost> {
        let files = formats::open(path)?;
        let family = family(&files)?;
        let config = (family.config)(&files)?;
        let mut texts = Texts::load(&files)?;
        fit_vocab(&files, &mut texts, config.vocab_size)?;
        Ok(OnHost {
            config,
            texts,
            names: (family.names)(&files),
            files,
        })
    }

    /// The forward pass in f64 over weights that are rounded as `format` does; they take four bytes each.
    /// Where the context decides about a rotation, it is the one that a model is loaded with by default,
    /// unless [`Config::for_context`] was asked before.
    ///
    /// # Errors
    /// What reading reports.
    pub fn reference(&self, format: &Format) -> Result<Reference> {
        let map = TensorMap::new(&self.config, &self.names, self.files.checkpoint())?;
        let context = self.config.max_position_embeddings.min(DEFAULT_CONTEXT);
        Reference::load(&self.config.clone().for_context(context), &map, format)
    }
}
