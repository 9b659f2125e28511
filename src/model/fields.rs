//! Typed reading of a JSON object that came from a file: errors name file, field and range.

use crate::error::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// A JSON object of a file, or one nested in it.
#[derive(Clone)]
pub struct Fields<'a> {
    path: &'a Path,
    /// The field that holds this object, if it is nested.
    inside: Option<String>,
    value: &'a Value,
}

impl<'a> Fields<'a> {
    /// The object `value` of the file `path`.
    pub fn new(path: &'a Path, value: &'a Value) -> Fields<'a> {
        let inside = None;
        Fields {
            path,
            inside,
            value,
        }
    }

    /// The object `value` that is the field `inside` of the file `path`.
    pub fn nested(path: &'a Path, inside: &str, value: &'a Value) -> Fields<'a> {
        Fields {
            inside: Some(inside.to_owned()),
            ..Fields::new(path, value)
        }
    }

    /// The field, unless it is missing or null.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.value.get(field).filter(|v| !v.is_null())
    }

    /// An integer from 1 to `max`.
    ///
    /// # Errors
    /// [`Error::Field`] when it is missing, no integer, or out of range.
    pub fn count(&self, field: &str, max: usize) -> Result<usize> {
        self.opt_count(field, max)?
            .ok_or_else(|| self.wrong(field, "is missing"))
    }

    /// [`Fields::count`], or `None` where the field is missing or null.
    ///
    /// # Errors
    /// [`Error::Field`] when it is no integer or out of range.
    pub fn opt_count(&self, field: &str, max: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let count = value
            .as_u64()
            .map(|n| n as usize)
            .filter(|n| (1..=max).contains(n));
        count.map(Some).ok_or_else(|| {
            self.wrong(
                field,
                format!("is {}, expected an integer from 1 to {max}", brief(value)),
            )
        })
    }

    /// A finite number, or `None` where the field is missing or null.
    ///
    /// # Errors
    /// [`Error::Field`] when it is no number.
    pub fn opt_number(&self, field: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        value
            .as_f64()
            .map(Some)
            .ok_or_else(|| self.wrong(field, format!("is {}, expected a number", brief(value))))
    }

    /// A number.
    ///
    /// # Errors
    /// [`Error::Field`] when it is missing or no number.
    pub fn number(&self, field: &str) -> Result<f64> {
        self.opt_number(field)?
            .ok_or_else(|| self.wrong(field, "is missing"))
    }

    /// A number above 0, or `None` where the field is missing or null.
    ///
    /// # Errors
    /// [`Error::Field`] when it is something else.
    pub fn opt_positive(&self, field: &str) -> Result<Option<f64>> {
        let number = self.opt_number(field)?;
        match number {
            Some(number) if !is_positive(number) => {
                Err(self.wrong(field, format!("is {number}, expected a number above 0")))
            }
            number => Ok(number),
        }
    }

    /// An array of numbers; missing is an error.
    ///
    /// # Errors
    /// [`Error::Field`].
    pub fn numbers(&self, field: &str) -> Result<Vec<f32>> {
        let array = self.get(field).and_then(Value::as_array);
        let numbers = array.and_then(|a| a.iter().map(|v| Some(v.as_f64()? as f32)).collect());
        numbers.ok_or_else(|| self.wrong(field, "is missing or no array of numbers"))
    }

    /// A bool, or `None` where the field is missing or null.
    ///
    /// # Errors
    /// [`Error::Field`] when it is something else.
    pub fn opt_bool(&self, field: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        value.as_bool().map(Some).ok_or_else(|| {
            self.wrong(
                field,
                format!("is {}, expected true or false", brief(value)),
            )
        })
    }

    /// A string, or `None` where the field is missing or null.
    ///
    /// # Errors
    /// [`Error::Field`] when it is something else.
    pub fn opt_string(&self, field: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.wrong(field, format!("is {}, expected a string", brief(value))))
    }

    /// An array of strings; missing is an error.
    ///
    /// # Errors
    /// [`Error::Field`].
    pub fn strings(&self, field: &str) -> Result<Vec<String>> {
        let array = self.get(field).and_then(Value::as_array);
        let strings = array.and_then(|a| a.iter().map(|v| v.as_str().map(str::to_owned)).collect());
        strings.ok_or_else(|| self.wrong(field, "is missing or no array of strings"))
    }

    /// A nested object, or `None` where the field is missing or null.
    ///
    /// # Errors
    /// [`Error::Field`] when it is something else.
    pub fn opt_object(&self, field: &str) -> Result<Option<Fields<'a>>> {
        match self.get(field) {
            None => Ok(None),
            Some(value @ Value::Object(_)) => {
                Ok(Some(Fields::nested(self.path, &self.name_of(field), value)))
            }
            Some(other) => {
                Err(self.wrong(field, format!("is {}, expected an object", brief(other))))
            }
        }
    }

    /// An error at `field` of this object's file.
    pub fn wrong(&self, field: &str, problem: impl Into<String>) -> Error {
        Error::field(self.path, self.name_of(field), problem)
    }

    /// `field` as it is named from the whole of the file.
    pub fn name_of(&self, field: &str) -> String {
        match &self.inside {
            Some(outer) => format!("{outer}.{field}"),
            None => field.to_owned(),
        }
    }

    /// The file.
    pub fn path(&self) -> &'a Path {
        self.path
    }
}

/// Whether it can be a factor.
pub(super) fn is_positive(number: f64) -> bool {
    number > 0.0 && (number as f32).is_normal()
}

/// A value short enough for a message.
pub(super) fn brief(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 40 {
        text
    } else {
        text.chars().take(37).chain("...".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_error_names_the_field_and_what_was_found() {
        let value = json!({"a": 0, "b": -3, "c": "x", "d": 1.5, "e": null, "f": [1], "g": {}});
        let fields = Fields::new(Path::new("config.json"), &value);
        for (field, part) in [
            ("a", "is 0"),
            ("b", "is -3"),
            ("c", "\"x\""),
            ("d", "1.5"),
            ("e", "missing"),
            ("z", "missing"),
        ] {
            let error = fields.count(field, 100).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("config.json: {field}: ")) && error.contains(part),
                "{error}"
            );
        }
        assert!(
            fields.opt_bool("c").is_err()
                && fields.opt_string("d").is_err()
                && fields.strings("f").is_err()
        );
        assert!(fields.opt_object("f").is_err() && fields.opt_object("g").unwrap().is_some());
        assert_eq!(fields.opt_count("e", 9).unwrap(), None);
        let nested = fields.opt_object("g").unwrap().unwrap();
        let error = nested.number("factor").unwrap_err().to_string();
        assert_eq!(error, "config.json: g.factor: is missing");
    }
}
