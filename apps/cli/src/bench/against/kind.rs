//! What rows of results are known by, so that one of this run finds its peer of an earlier one.

use serde_json::Value;

/// What rows of a kind are known by, and what is compared.
#[derive(Debug)]
pub struct Kind {
    /// In words, with the flag that makes them.
    pub name: &'static str,
    /// Peers have the same in each of these.
    key: &'static [&'static str],
    /// What was added to rows later, and what older ones without it had.
    since: &'static [(&'static str, &'static str)],
    samples: &'static str,
    /// Whether more is better.
    pub speed: bool,
    /// What figures are divided by for tables, and their unit there.
    pub shown: (f64, &'static str),
    /// What rows are called in tables.
    pub title: &'static str,
}

/// Rows of models.
pub const MODELS: Kind = Kind {
    name: "rows of tests of a model",
    key: &[
        "model_filename",
        "model_type",
        "test",
        "n_depth",
        "n_batch",
        "type_k",
        "type_v",
        "n_parallel",
        "numerics",
    ],
    since: &[("numerics", "canonical")],
    samples: "samples_ts",
    speed: true,
    shown: (1.0, "t/s"),
    title: "test",
};

/// Rows of kernels.
pub const KERNELS: Kind = Kind {
    name: "rows of --kernels",
    key: &["case", "checked"],
    since: &[],
    samples: "samples_ns",
    speed: false,
    shown: (1e3, "us"),
    title: "case",
};

impl Kind {
    /// What tells `row` from others.
    ///
    /// # Errors
    /// The field that is missing or no value.
    pub fn key_of(&self, row: &Value) -> Result<Vec<String>, String> {
        let field = |&name: &&str| {
            let older = self.since.iter().find(|(field, _)| *field == name);
            match (row.get(name), older) {
                (Some(Value::String(text)), _) => Ok(text.clone()),
                (Some(value @ (Value::Number(_) | Value::Bool(_))), _) => Ok(value.to_string()),
                (Some(_), _) => Err(format!("\"{name}\" is neither a text nor a number")),
                (None, Some((_, value))) => Ok((*value).to_owned()),
                (None, None) => Err(format!("\"{name}\" is missing")),
            }
        };
        self.key.iter().map(field).collect()
    }

    /// What was measured.
    ///
    /// # Errors
    /// Where that is no list of numbers.
    pub fn samples_of(&self, row: &Value) -> Result<Vec<f64>, String> {
        let name = self.samples;
        let values = row
            .get(name)
            .ok_or_else(|| format!("\"{name}\" is missing"))?;
        let is_sample = |value: &Value| value.as_f64().filter(|v| v.is_finite() && *v > 0.0);
        let samples: Option<Vec<f64>> = values
            .as_array()
            .map(|values| values.iter().map(is_sample).collect())
            .unwrap_or_default();
        samples
            .filter(|samples| !samples.is_empty())
            .ok_or_else(|| format!("\"{name}\" is no list of numbers above 0"))
    }
}
