//! Which model is planned: files, whose headers are read, or a shape that is built in.

use std::ffi::OsStr;
use std::path::Path;

use nelumbo::formats;
use nelumbo::formats::hf::CONFIG_NAME;
use nelumbo::model::shapes::{BUILT_IN, BuiltIn, config_of_json};
use nelumbo::model::{self, Config};

use crate::args::GlobalArgs;
use crate::exit::Failure;
use crate::models;

/// What `reference` is called, and its sizes. A path that exists wins, then a local model, then a
/// built-in shape; nothing is downloaded.
pub fn of(reference: &OsStr, global: &GlobalArgs) -> Result<(String, Config), Failure> {
    let path = Path::new(reference);
    let name = reference.to_string_lossy();
    if !path.exists()
        && let Some(built_in) = BuiltIn::find(&name)
    {
        // a model of this name that is here has its own headers
        let config = match models::resolve_local(reference, global) {
            Ok(local) => of_files(&local.path)?,
            Err(_) => built_in.config(),
        };
        return Ok((name.into_owned(), config));
    }
    let local =
        models::resolve_local(reference, global).map_err(|failure| match failure.code() {
            3 => {
                let names: Vec<&str> = BUILT_IN.iter().map(|shape| shape.name).collect();
                Failure::Model(format!("{failure}\nbuilt-in shapes: {}", names.join(", ")))
            }
            _ => failure,
        })?;
    let config = of_files(&local.path)?;
    let name = local.path.file_name().unwrap_or(local.path.as_os_str());
    Ok((name.to_string_lossy().into_owned(), config))
}

/// The sizes that files tell: a config.json by itself will do.
fn of_files(path: &Path) -> Result<Config, Failure> {
    let inside = path.join(CONFIG_NAME);
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        return Ok(config_of_json(path)?);
    }
    if inside.exists() {
        return Ok(config_of_json(&inside)?);
    }
    let files = formats::open(path)?;
    let family = model::family(&files)?;
    Ok((family.config)(&files)?)
}
