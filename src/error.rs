//! One error type for the whole library: what went wrong, in which file, at which field.
//!
//! The user's data gets an [`Error`] with fields; a bug of ours gets an assert with numbers.
//! Messages name the file and the field or tensor, the value found and the values permitted.

use std::path::{Path, PathBuf};

/// Everything that can go wrong while loading a model or answering a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No model is at the given place, or the place holds no weights.
    #[error("{}: {problem}", path.display())]
    ModelNotFound {
        /// The path as the user gave it.
        path: PathBuf,
        /// What was looked for and what was found instead.
        problem: String,
    },
    /// A file as a whole is wrong: too short, another magic, not JSON.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Found and expected.
        problem: String,
    },
    /// One named field (metadata key, JSON field, table entry) of a file is missing or wrong.
    #[error("{}: {field}: {problem}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The key as it must be spelled in the file.
        field: String,
        /// Found value and permitted range.
        problem: String,
    },
    /// One tensor of a file is missing, out of the file's bounds, or not decodable.
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    Tensor {
        /// The file that holds, or should hold, the tensor.
        path: PathBuf,
        /// The tensor's name in that file.
        tensor: String,
        /// Found and expected.
        problem: String,
    },
    /// A tensor's shape is not the one that the configuration implies.
    #[error("{}: tensor {tensor}: shape {found:?}, expected {expected:?} ({because})", path.display())]
    WeightShape {
        /// The file that holds the tensor.
        path: PathBuf,
        /// The tensor's name in that file.
        tensor: String,
        /// Outermost dimension first.
        expected: Vec<usize>,
        /// Outermost dimension first.
        found: Vec<usize>,
        /// The configuration fields that give the expected shape.
        because: String,
    },
    /// A named thing this build cannot handle: an architecture, a quantisation, a RoPE scaling.
    #[error("{}: {what} \"{found}\" is not supported (supported: {supported})", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The kind of thing, with the field's name: `architecture (general.architecture)`.
        what: String,
        /// The value found.
        found: String,
        /// The values that would work, comma separated.
        supported: String,
    },
    /// The operating system refused to read or write a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason given by the operating system.
        source: std::io::Error,
    },
    /// No adapter fits the request.
    #[error("no usable GPU adapter: {tried}\n{advice}")]
    NoAdapter {
        /// Backends asked and adapters seen.
        tried: String,
        /// What to do next.
        advice: String,
    },
    /// The adapter is there but lacks a limit or a feature that every kernel needs.
    #[error("adapter {adapter}: {limit} is {found}, needed {needed}")]
    AdapterLimit {
        /// The adapter's name.
        adapter: String,
        /// The limit's name.
        limit: String,
        /// Its value on this adapter.
        found: u64,
        /// The smallest value that works.
        needed: u64,
    },
    /// The adapter is there, but cannot do what was asked for beyond the baseline.
    #[error("adapter {adapter}: {what} is not available there: it needs {needed}")]
    AdapterLacks {
        /// The adapter's name.
        adapter: String,
        /// What was asked for, as the user spells it.
        what: String,
        /// What the adapter would have to offer.
        needed: String,
    },
    /// The plan does not fit into memory; told before anything is uploaded where possible.
    #[error("{what} needs {needed_bytes} bytes, {available_bytes} are available: {advice}")]
    DoesNotFit {
        /// Weights, KV pool or scratch.
        what: String,
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes there are.
        available_bytes: u64,
        /// The flag that helps.
        advice: String,
    },
    /// The device refused an allocation.
    #[error("the device is out of memory: {what} ({bytes} bytes)")]
    OutOfMemory {
        /// The buffer's label.
        what: String,
        /// Its size.
        bytes: u64,
    },
    /// The device is gone: driver reset, removed, or destroyed.
    #[error("the device was lost: {reason}")]
    DeviceLost {
        /// As the driver tells it.
        reason: String,
    },
    /// An error the device reported outside of any scope, or a wait that timed out.
    #[error("device error: {message}")]
    Device {
        /// As wgpu tells it.
        message: String,
    },
    /// A shader does not compile on this device.
    #[error("shader {shader}: {message}")]
    Shader {
        /// Kernel and parts.
        shader: String,
        /// The compiler's message, lines mapped back to parts.
        message: String,
    },
    /// Prompt and answer can never fit the context.
    #[error(
        "the prompt has {tokens} tokens, the context holds {limit}: shorten it or raise --ctx-size"
    )]
    RequestTooLong {
        /// Tokens of the prompt plus one for the answer.
        tokens: usize,
        /// The longest sequence that can be served.
        limit: usize,
    },
    /// A request's field is out of range.
    #[error("{field}: {problem}")]
    Request {
        /// The field as the user spells it.
        field: String,
        /// Found value and permitted range.
        problem: String,
    },
    /// The chat template cannot be compiled or refuses the messages.
    #[error("chat template: {problem}")]
    Template {
        /// With the line, where there is one.
        problem: String,
    },
    /// The tokenizer failed on a text.
    #[error("tokenizer: {problem}")]
    Tokenizer {
        /// What it said.
        problem: String,
    },
}

/// A result with the library's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A device's failure with what was under way, unless that was told already; any other error as it
    /// is.
    #[must_use]
    pub fn during(self, what: &str) -> Error {
        let tell = |text: String| {
            if text.ends_with(')') && text.contains(" (while ") {
                text
            } else {
                format!("{text} (while {what})")
            }
        };
        match self {
            Error::DeviceLost { reason } => Error::DeviceLost {
                reason: tell(reason),
            },
            Error::Device { message } => Error::Device {
                message: tell(message),
            },
            other => other,
        }
    }

    /// [`Error::File`] without ceremony.
    pub fn file(path: &Path, problem: impl Into<String>) -> Error {
        Error::File {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }

    /// [`Error::Field`] without ceremony.
    pub fn field(path: &Path, field: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Field {
            path: path.to_owned(),
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// [`Error::Tensor`] without ceremony.
    pub fn tensor(path: &Path, tensor: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Tensor {
            path: path.to_owned(),
            tensor: tensor.into(),
            problem: problem.into(),
        }
    }

    /// [`Error::Request`] without ceremony.
    pub fn request(field: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Request {
            field: field.into(),
            problem: problem.into(),
        }
    }

    /// [`Error::Io`] for a path, to be used in `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::Io {
            path: path.to_owned(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e5_a_devices_failure_names_what_was_under_way_once() {
        let lost = || Error::DeviceLost {
            reason: "it is gone".to_owned(),
        };
        let text = lost().during("loading").during("answering").to_string();
        assert_eq!(text, "the device was lost: it is gone (while loading)");
        let error = Error::Device {
            message: "no answer within 30 s".to_owned(),
        };
        assert!(
            error
                .during("loading")
                .to_string()
                .ends_with("30 s (while loading)")
        );
        let other = Error::request("a", "b").during("loading");
        assert_eq!(other.to_string(), "a: b");
    }
}
