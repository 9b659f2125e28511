//! Residual streams and logits as a safetensors file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use nelumbo::engine::EngineCore;
use nelumbo::engine::compare::residual_streams;
use safetensors::{Dtype, SafeTensorError, View};

use crate::exit::Failure;
use crate::models::human_bytes;
use crate::output::Numerics;

/// The name in a folder.
const FILE_NAME: &str = "layers.safetensors";

/// f32 with a shape; its bytes are made when they are written.
struct Rows {
    shape: [usize; 2],
    values: Vec<f32>,
}

impl View for &Rows {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.values
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect::<Vec<u8>>()
            .into()
    }

    fn data_len(&self) -> usize {
        4 * self.values.len()
    }
}

/// Writes `layer_00` and so on, `[tokens, hidden_size]` each, and `logits`, `[tokens, vocab_size]`; the
/// token ids and the types of weights, activations and cache are in the file's metadata. Says what it
/// wrote, and where.
///
/// # Errors
/// What the device reports, and [`Failure::Io`].
pub fn write(engine: &mut EngineCore, tokens: &[u32], to: &Path) -> Result<String, Failure> {
    let path = place(to);
    let mut logits = Vec::new();
    let streams = residual_streams(engine, tokens, &mut |_, row| logits.extend_from_slice(row))?;
    let tensor = |values: Vec<f32>| Rows {
        shape: [tokens.len(), values.len() / tokens.len()],
        values,
    };
    let digits = (streams.len().saturating_sub(1)).to_string().len().max(2);
    let mut tensors: Vec<(String, Rows)> = streams
        .into_iter()
        .enumerate()
        .map(|(layer, stream)| (format!("layer_{layer:0digits$}"), tensor(stream)))
        .collect();
    let num_layers = tensors.len();
    tensors.push(("logits".to_owned(), tensor(logits)));
    let numerics = Numerics::of(engine.decoder());
    let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let metadata = HashMap::from(
        [
            ("tokens", ids.join(" ")),
            ("weights", numerics.weights),
            ("activations", numerics.activations),
            ("kv", numerics.kv),
            ("numerics", numerics.mode),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    let views = tensors.iter().map(|(name, rows)| (name, rows));
    safetensors::serialize_to_file(views, Some(metadata), &path).map_err(|error| match error {
        SafeTensorError::IoError(source) => Failure::io(&path)(source),
        other => Failure::io(&path)(std::io::Error::other(other)),
    })?;
    let bytes: usize = tensors.iter().map(|(_, rows)| 4 * rows.values.len()).sum();
    let size = human_bytes(bytes as u64);
    Ok(format!(
        "{num_layers} layers and the logits: {} ({size})",
        path.display()
    ))
}

/// The file itself, or a file in a folder.
fn place(to: &Path) -> PathBuf {
    let is_folder = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    if is_folder {
        to.join(FILE_NAME)
    } else {
        to.to_owned()
    }
}
