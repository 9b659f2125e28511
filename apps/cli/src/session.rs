//! The engine behind `nelumbo run`.

use std::path::Path;

use crate::exit::Failure;
use crate::options::RunOptions;
use crate::run::Engine;

/// Loads the model at `path` onto the adapter that the options ask for.
pub fn open(path: &Path, options: &RunOptions) -> Result<Box<dyn Engine>, Failure> {
    let _ = options;
    Err(Failure::Model(format!(
        "{}: this build has no engine",
        path.display()
    )))
}
