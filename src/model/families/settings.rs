//! A family's settings in whichever layout they are.

use crate::error::{Error, Result};
use crate::formats::Gguf;
use crate::model::fields::Fields;
use crate::model::keys::Keys;
use std::path::Path;

/// How a setting is called in config.json, and among the keys of an architecture in a GGUF file.
pub(super) type Name = (&'static str, &'static str);

/// What a family has no setting for.
pub(super) const NONE: Name = ("", "");

/// What settings are read from.
pub(super) enum Settings<'a> {
    /// A config.json, or an object in it.
    Json(Fields<'a>),
    /// The keys of a GGUF file, some of whose tensors are settings.
    Gguf(Keys<'a>, &'a Gguf),
}

impl Settings<'_> {
    /// An integer from 1 to `max`.
    ///
    /// # Errors
    /// [`Error::Field`] when it is missing, no integer, or out of range.
    pub fn count(&self, name: Name, max: usize) -> Result<usize> {
        match self {
            Settings::Json(json) => json.count(name.0, max),
            Settings::Gguf(keys, _) => keys.count(name.1, max),
        }
    }

    /// The same, or `None` where it is missing.
    ///
    /// # Errors
    /// [`Error::Field`] when it is no integer or out of range.
    pub fn opt_count(&self, name: Name, max: usize) -> Result<Option<usize>> {
        match self {
            Settings::Json(json) => json.opt_count(name.0, max),
            Settings::Gguf(keys, _) => keys.opt_count(name.1, max),
        }
    }

    /// A number above 0, or `None` where it is missing.
    ///
    /// # Errors
    /// [`Error::Field`] when it is something else.
    pub fn opt_positive(&self, name: Name) -> Result<Option<f64>> {
        match self {
            Settings::Json(json) => json.opt_positive(name.0),
            Settings::Gguf(keys, _) => keys.opt_positive(name.1),
        }
    }

    /// The same as a factor, 1 where it is missing.
    ///
    /// # Errors
    /// [`Error::Field`] when it is something else.
    pub fn factor(&self, name: Name) -> Result<f64> {
        Ok(self.opt_positive(name)?.unwrap_or(1.0))
    }

    /// The setting as the file spells it.
    pub fn name_of(&self, name: Name) -> String {
        match self {
            Settings::Json(json) => json.name_of(name.0),
            Settings::Gguf(keys, _) => keys.name_of(name.1),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            Settings::Json(json) => json.path(),
            Settings::Gguf(keys, _) => keys.metadata().path(),
        }
    }

    /// An error about a setting.
    pub fn wrong(&self, name: Name, problem: impl Into<String>) -> Error {
        Error::field(self.path(), self.name_of(name), problem)
    }

    /// An error about a setting that has a value which is not computed.
    pub fn unsupported(&self, name: Name, found: &str, supported: &str) -> Error {
        Error::Unsupported {
            path: self.path().to_owned(),
            what: self.name_of(name),
            found: found.to_owned(),
            supported: supported.to_owned(),
        }
    }
}
