//! From a model's files to a decoder on the device.
//!
//! A family is a difference, not a second forward pass: [`llama`] says how its configuration and
//! its tensors are spelled, and [`decoder`] does the rest. [`Family`] is what a family must tell.

pub mod budget;
pub mod config;
pub mod convert;
mod copy_page;
pub mod decoder;
mod defaults;
pub mod fields;
mod layer_pass;
pub mod llama;
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
pub use load::{LoadOptions, Model};
pub use numerics::Numerics;
pub use on_host::OnHost;
pub use room::Bounds;
pub use texts::Texts;
pub use tune::Tuned;

use crate::error::{Error, Result};
use crate::formats::ModelFiles;

/// What one model family has of its own.
pub struct Family {
    /// `architectures[0]` in a config.json.
    pub hf_names: &'static [&'static str],
    /// `general.architecture` in a GGUF file.
    pub gguf_names: &'static [&'static str],
    /// Reads the configuration from whatever the files hold.
    pub config: fn(&ModelFiles) -> Result<Config>,
    /// How its tensors are named in the files, and whether they are stored permuted.
    pub names: fn(&ModelFiles) -> tensors::Names,
    /// The names of its tensors in a directory, and in a GGUF file.
    pub layouts: (tensors::Names, tensors::Names),
}

/// Every family this build knows.
pub static FAMILIES: &[Family] = &[llama::LLAMA];

/// The family of a model, by the name its files give.
///
/// # Errors
/// [`Error::Unsupported`] naming the architecture and those that would work.
pub fn family(files: &ModelFiles) -> Result<&'static Family> {
    let (path, field, found) = match files {
        ModelFiles::Gguf(gguf) => {
            let metadata = &gguf.metadata;
            (
                metadata.path(),
                "general.architecture",
                metadata.architecture()?.to_owned(),
            )
        }
        ModelFiles::HuggingFace(dir) => {
            let path = dir.config_path.as_path();
            let names = fields::Fields::new(path, &dir.config).strings("architectures");
            match names.as_deref() {
                Ok([one]) => (path, "architectures", one.clone()),
                other => {
                    let found = match other {
                        Ok(names) => format!("is {names:?}"),
                        Err(_) => "is missing, or no array of strings".to_owned(),
                    };
                    let problem = format!("{found}, expected one of {}", supported(files));
                    return Err(Error::field(path, "architectures", problem));
                }
            }
        }
    };
    let names_of = |family: &Family| names_in(files, family);
    FAMILIES
        .iter()
        .find(|f| names_of(f).contains(&found.as_str()))
        .ok_or_else(|| Error::Unsupported {
            path: path.to_owned(),
            what: format!("architecture ({field})"),
            found,
            supported: supported(files),
        })
}

/// The names of a family in files of this layout.
fn names_in(files: &ModelFiles, family: &Family) -> &'static [&'static str] {
    match files {
        ModelFiles::Gguf(_) => family.gguf_names,
        ModelFiles::HuggingFace(_) => family.hf_names,
    }
}

/// All of them, comma separated.
fn supported(files: &ModelFiles) -> String {
    let names = FAMILIES.iter().flat_map(|f| names_in(files, f)).copied();
    names.collect::<Vec<_>>().join(", ")
}
