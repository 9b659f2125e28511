//! How a model's authors would have its tokens drawn.

use super::fields::{Fields, brief};
use serde_json::Value;
use std::path::Path;

/// What a `generation_config.json` says about drawing tokens; `None` where it says nothing that can be
/// used. For whoever has no wish of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// 0 keeps all.
    pub top_k: Option<usize>,
    /// 1 keeps all.
    pub top_p: Option<f32>,
    /// 0 keeps all.
    pub min_p: Option<f32>,
    /// 1 changes nothing.
    pub repeat_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Reads the fields of a `generation_config.json`. One that is out of range is left out with a
    /// warning: a model that can answer is not refused for that.
    pub(super) fn read(path: &Path, json: &Value) -> SamplingDefaults {
        let fields = Fields::new(path, json);
        let warn = |field: &str, value: &Value, expected: &str| {
            log::warn!(
                "{}: {field}: is {}, expected {expected}; the usual default is used",
                path.display(),
                brief(value)
            );
        };
        let number = |field: &str, low: f32, high: f32| {
            let value = fields.get(field)?;
            let number = value.as_f64().map(|n| n as f32);
            let usable = number.filter(|n| (low..=high).contains(n));
            if usable.is_none() {
                warn(field, value, &format!("a number from {low} to {high}"));
            }
            usable
        };
        let top_k = || {
            let value = fields.get("top_k")?;
            // some files say -1 for all
            let usable = match value.as_i64() {
                Some(-1) => Some(0),
                Some(k) => usize::try_from(k).ok(),
                None => None,
            };
            if usable.is_none() {
                warn("top_k", value, "an integer of at least 0");
            }
            usable
        };
        // without drawing the rest means nothing
        if fields.get("do_sample") == Some(&Value::Bool(false)) {
            return SamplingDefaults {
                temperature: Some(0.0),
                repeat_penalty: number("repetition_penalty", 0.01, 100.0),
                ..SamplingDefaults::default()
            };
        }
        SamplingDefaults {
            temperature: number("temperature", 0.0, 100.0),
            top_k: top_k(),
            top_p: number("top_p", 0.0, 1.0),
            min_p: number("min_p", 0.0, 1.0),
            repeat_penalty: number("repetition_penalty", 0.01, 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(json: Value) -> SamplingDefaults {
        SamplingDefaults::read(Path::new("generation_config.json"), &json)
    }

    #[test]
    fn what_is_there_and_in_range_is_taken() {
        let nothing = SamplingDefaults::default();
        assert_eq!(read(json!({"eos_token_id": 2, "top_p": null})), nothing);
        assert_eq!(
            read(
                json!({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20,
                "min_p": 0.05, "repetition_penalty": 1.1})
            ),
            SamplingDefaults {
                temperature: Some(0.6),
                top_k: Some(20),
                top_p: Some(0.9),
                min_p: Some(0.05),
                repeat_penalty: Some(1.1),
            }
        );
        assert_eq!(read(json!({"top_k": -1})).top_k, Some(0));
        let greedy = read(json!({"do_sample": false, "temperature": 0.6, "top_p": 0.9}));
        assert_eq!((greedy.temperature, greedy.top_p), (Some(0.0), None));
    }

    #[test]
    fn c11_what_is_out_of_range_is_left_out() {
        for bad in [
            json!({"temperature": -1}),
            json!({"temperature": "hot"}),
            json!({"temperature": 1e40}),
            json!({"top_p": 7}),
            json!({"top_p": true}),
            json!({"top_k": -2}),
            json!({"top_k": 1.5}),
            json!({"top_k": "all"}),
            json!({"min_p": -0.1}),
            json!({"repetition_penalty": 0}),
        ] {
            assert_eq!(read(bad.clone()), SamplingDefaults::default(), "{bad}");
        }
        let mixed = read(json!({"temperature": -1, "top_p": 0.5}));
        assert_eq!((mixed.temperature, mixed.top_p), (None, Some(0.5)));
    }
}
