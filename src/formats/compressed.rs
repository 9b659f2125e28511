//! Weights as 8-bit integers with scales in a tensor of their own, as the compressed-tensors library
//! stores them (read along its version 0.20).
//!
//! `quantization_config` in `config.json` says how: format `int-quantized`, symmetric, a scale for each
//! row (`channel`) or for each group of a row (`group`). A module's `NAME.weight` is then I8 and
//! `NAME.weight_scale` holds floats, `[rows, 1]` or `[rows, groups]`; a weight is its code times its
//! scale. What else that library can store is refused by name. How activations should be quantised is
//! left to whoever runs the model.

use std::path::Path;

use serde_json::Value;

use super::checkpoint::Checkpoint;
use super::encoding::Encoding;
use crate::error::{Error, Result};

/// The field of `config.json`.
pub const FIELD: &str = "quantization_config";
/// The only method that is read.
pub const METHOD: &str = "compressed-tensors";
/// The format that is written.
pub const FORMAT: &str = "int-quantized";
/// What is appended to the name of a weight for that of its scales.
pub const SCALE_SUFFIX: &str = "_scale";

/// Older files have the same under this name.
const OLDER_FORMAT: &str = "naive-quantized";
const MAX_GROUP: u64 = 1 << 20;

/// How weights of a model are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scheme {
    /// Some have one scale a row.
    channel: bool,
    /// Some have a scale for so many columns.
    groups: Vec<usize>,
}

/// Reads what `config`, the content of `path`, says of quantised weights; `None` where it says that
/// there are none.
///
/// # Errors
/// [`Error::Unsupported`] and [`Error::Field`] naming the setting that is not read here.
pub fn scheme(path: &Path, config: &Value) -> Result<Option<Scheme>> {
    let Some(settings) = config.get(FIELD).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let at = At { path, field: FIELD };
    let method = settings.get("quant_method").unwrap_or(settings);
    if method != METHOD {
        return Err(at.unsupported("", method, "a model without it, compressed-tensors"));
    }
    let format = &settings["format"];
    at.one_of("format", format, &[FORMAT, OLDER_FORMAT])?;
    if !settings["quantization_status"].is_null() {
        at.one_of(
            "quantization_status",
            &settings["quantization_status"],
            &["compressed"],
        )?;
    }
    if let sparsity @ Value::Object(_) = &settings["sparsity_config"] {
        at.one_of("sparsity_config.format", &sparsity["format"], &["dense"])?;
    }
    let Value::Object(groups) = &settings["config_groups"] else {
        let problem = "is missing, or no object";
        return Err(Error::field(path, at.name("config_groups"), problem));
    };
    let mut scheme = Scheme::default();
    for (name, group) in groups {
        let field = format!("{FIELD}.config_groups.{name}");
        let at = At {
            path,
            field: &field,
        };
        if !group["format"].is_null() {
            at.one_of("format", &group["format"], &[FORMAT, OLDER_FORMAT])?;
        }
        let field = format!("{field}.weights");
        scheme.add(
            &At {
                path,
                field: &field,
            },
            &group["weights"],
        )?;
    }
    Ok(Some(scheme))
}

impl Scheme {
    fn add(&mut self, at: &At, weights: &Value) -> Result<()> {
        if !weights.is_object() {
            return Err(at.unsupported("", weights, "an object: quantised weights"));
        }
        at.one_of("type", &weights["type"], &["int"])?;
        let bits = &weights["num_bits"];
        if bits.as_u64() != Some(8) {
            return Err(at.unsupported("num_bits", bits, "8"));
        }
        for (field, neutral) in [("symmetric", true), ("dynamic", false)] {
            let value = weights.get(field).filter(|value| !value.is_null());
            if let Some(value) = value.filter(|value| value.as_bool() != Some(neutral)) {
                return Err(at.unsupported(field, value, &neutral.to_string()));
            }
        }
        if !weights["actorder"].is_null() {
            // the others store the columns in another order
            at.one_of("actorder", &weights["actorder"], &["weight", "static"])?;
        }
        at.one_of("strategy", &weights["strategy"], &["channel", "group"])?;
        if weights["strategy"] == "channel" {
            self.channel = true;
            return Ok(());
        }
        let size = &weights["group_size"];
        match size.as_u64().filter(|size| (1..=MAX_GROUP).contains(size)) {
            Some(size) => self.groups.push(size as usize),
            None => {
                let problem = format!("is {size}, expected an integer from 1 to {MAX_GROUP}");
                return Err(Error::field(at.path, at.name("group_size"), problem));
            }
        }
        Ok(())
    }

    /// Gives each tensor of codes its scales, which are no tensors of their own any more.
    ///
    /// # Errors
    /// [`Error::Tensor`] for codes whose scales are missing, of a shape that does not fit, or beside a
    /// zero point.
    pub(super) fn attach(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        let quantised: Vec<String> = checkpoint
            .tensors()
            .filter(|tensor| tensor.encoding == Encoding::I8)
            .map(|tensor| tensor.name.clone())
            .collect();
        let mut pairs = Vec::with_capacity(quantised.len());
        for name in quantised {
            let info = checkpoint.require(&name)?;
            let wrong =
                |problem: String| Err(Error::tensor(checkpoint.file_of(info), &name, problem));
            let zero = format!("{name}_zero_point");
            if checkpoint.get(&zero).is_some() {
                return wrong(format!(
                    "has a zero point, {zero}: only symmetric quantisation is supported"
                ));
            }
            let scale_name = format!("{name}{SCALE_SUFFIX}");
            let Some(scales) = checkpoint.get(&scale_name) else {
                return wrong(format!("is stored as I8, and {scale_name} is missing"));
            };
            let &[rows, columns] = info.shape.as_slice() else {
                return wrong(format!("shape {:?}, expected rows and columns", info.shape));
            };
            let fits = |groups: usize| {
                self.channel && groups == 1
                    || self.groups.iter().any(|size| size * groups == columns)
            };
            let is_float = scales.encoding != Encoding::I8;
            match *scales.shape.as_slice() {
                [scale_rows, groups] if scale_rows == rows && fits(groups) && is_float => {}
                _ => {
                    let (expected, found) = (self.shapes(rows, columns), &scales.shape);
                    let problem = format!("shape {found:?}, expected {expected} floats");
                    let path = checkpoint.file_of(scales);
                    return Err(Error::tensor(path, scale_name, problem));
                }
            }
            pairs.push((name, scale_name));
        }
        checkpoint.attach_scales(&pairs);
        Ok(())
    }

    /// The shapes that scales of a matrix may have.
    fn shapes(&self, rows: usize, columns: usize) -> String {
        let channel = self.channel.then_some(1);
        let groups = self
            .groups
            .iter()
            .filter(|size| columns.is_multiple_of(**size));
        let shapes: Vec<String> = channel
            .into_iter()
            .chain(groups.map(|size| columns / size))
            .map(|groups| format!("[{rows}, {groups}]"))
            .collect();
        match shapes.is_empty() {
            true => format!("groups that divide {columns} columns, as"),
            false => shapes.join(" or "),
        }
    }
}

/// A place in the file, for messages.
struct At<'a> {
    path: &'a Path,
    field: &'a str,
}

impl At<'_> {
    fn name(&self, field: &str) -> String {
        match field {
            "" => self.field.to_owned(),
            field => format!("{}.{field}", self.field),
        }
    }

    fn unsupported(&self, field: &str, found: &Value, supported: &str) -> Error {
        let found = match found {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Error::Unsupported {
            path: self.path.to_owned(),
            what: self.name(field),
            found: found.chars().take(60).collect(),
            supported: supported.to_owned(),
        }
    }

    fn one_of(&self, field: &str, found: &Value, supported: &[&str]) -> Result<()> {
        match found.as_str() {
            Some(text) if supported.contains(&text) => Ok(()),
            _ => Err(self.unsupported(field, found, &supported.join(", "))),
        }
    }
}
