//! Typed reading of a GGUF file's keys that stand under the prefix of its architecture: errors name file,
//! key and range, as those of [`Fields`](super::fields::Fields) do.

use super::fields::is_positive;
use crate::error::{Error, Result};
use crate::formats::Metadata;

/// The keys of an architecture.
#[derive(Clone)]
pub struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    /// Those of the file's own architecture.
    ///
    /// # Errors
    /// [`Error::Field`] where the file does not tell one.
    pub fn new(metadata: &'a Metadata) -> Result<Keys<'a>> {
        Ok(Keys {
            metadata,
            architecture: metadata.architecture()?,
        })
    }

    /// The key as it is spelled in the file.
    pub fn name_of(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// All keys.
    pub fn metadata(&self) -> &'a Metadata {
        self.metadata
    }

    /// Whether it is there, whatever its type.
    pub fn contains(&self, key: &str) -> bool {
        self.metadata.contains(&self.name_of(key))
    }

    /// An integer from 1 to `max`.
    ///
    /// # Errors
    /// [`Error::Field`] when it is missing, no integer, or out of range.
    pub fn count(&self, key: &str, max: usize) -> Result<usize> {
        let count = self.metadata.u32(&self.name_of(key))? as usize;
        if (1..=max).contains(&count) {
            return Ok(count);
        }
        Err(self.wrong(
            key,
            format!("is {count}, expected an integer from 1 to {max}"),
        ))
    }

    /// [`Keys::count`], or `None` where the key is missing.
    ///
    /// # Errors
    /// [`Error::Field`] when it is no integer or out of range.
    pub fn opt_count(&self, key: &str, max: usize) -> Result<Option<usize>> {
        match self.contains(key) {
            true => self.count(key, max).map(Some),
            false => Ok(None),
        }
    }

    /// A number above 0, or `None` where the key is missing.
    ///
    /// # Errors
    /// [`Error::Field`] when it is something else.
    pub fn opt_positive(&self, key: &str) -> Result<Option<f64>> {
        let number = self.metadata.opt_f32(&self.name_of(key))?;
        match number.map(f64::from) {
            Some(number) if !is_positive(number) => {
                Err(self.wrong(key, format!("is {number}, expected a number above 0")))
            }
            number => Ok(number),
        }
    }

    /// An error at `key`.
    pub fn wrong(&self, key: &str, problem: impl Into<String>) -> Error {
        Error::field(self.metadata.path(), self.name_of(key), problem)
    }
}
