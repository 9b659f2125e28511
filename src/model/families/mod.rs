//! Families: how models are told apart, and what each has of its own.
//!
//! ```text
//! mod         the registry, and which family files belong to
//! standard    what all read alike, and the settings that are refused where a family does not compute them
//! settings    config.json or the keys of a GGUF file, read by a pair of names
//! ropes       rotary embeddings and their scalings
//! layers      which layers have a window
//! names       the usual names of tensors
//! llama, ...  a file for each family: its names, and what it computes besides
//! ```

mod gemma2;
mod gemma3;
mod gpt2;
mod granite;
mod layers;
mod llama;
mod mistral;
mod names;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod ropes;
mod settings;
mod smollm3;
mod standard;

use super::config::Config;
use super::fields::Fields;
use super::tensors::Names;
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
    /// How its tensors are named in the files, and how they are stored.
    pub names: fn(&ModelFiles) -> Names,
    /// The names of its tensors in a directory, and in a GGUF file, where one layout can be written from
    /// the other.
    pub layouts: Option<(Names, Names)>,
}

/// Every family this build knows.
pub static FAMILIES: &[Family] = &[
    llama::LLAMA,
    mistral::MISTRAL,
    qwen2::QWEN2,
    qwen3::QWEN3,
    gemma2::GEMMA2,
    gemma3::GEMMA3,
    phi3::PHI3,
    smollm3::SMOLLM3,
    olmo2::OLMO2,
    granite::GRANITE,
    gpt2::GPT2,
];

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
            let names = Fields::new(path, &dir.config).strings("architectures");
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
