//! Checks of a tokenizer.json beyond its vocabulary: normalizer, pre-tokenizer, post-processor and
//! decoder, before the crate sees them.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use crate::error::{Error, Result};

/// The longest regular expression in it, in bytes.
const MAX_REGEX_BYTES: usize = 16 << 10;

/// How many times longer a normalizer may make a text. Known models replace a space by three bytes, a
/// few of them twice; a chain of long replacements would take all memory for a prompt of a few bytes.
const MAX_GROWTH: u64 = 256;

/// Refuses a normalizer whose replacements, applied one after the other, could blow a text up.
pub(super) fn check_growth(normalizer: &Value, path: &Path) -> Result<()> {
    let growth = growth(normalizer);
    if growth <= MAX_GROWTH {
        return Ok(());
    }
    let problem =
        format!("can make a text {growth} times longer, at most {MAX_GROWTH} times are allowed");
    Err(Error::field(path, "normalizer", problem))
}

/// The product of what every replacement and prefix can multiply the length by.
fn growth(part: &Value) -> u64 {
    let inserted = |field: &str| part[field].as_str().map_or(0, str::len) as u64;
    let own = match part["type"].as_str() {
        // an empty match inserts the text beside a byte that stays
        Some("Replace") => inserted("content").saturating_add(1),
        Some("Prepend") => inserted("prepend").saturating_add(1),
        _ => 1,
    };
    let inner = part["normalizers"].as_array().into_iter().flatten();
    inner.fold(own, |product, part| product.saturating_mul(growth(part)))
}

/// Checks a normalizer, pre-tokenizer, post-processor or decoder and everything in it. JSON's own depth
/// limit of 128 bounds the recursion.
pub(super) fn check_part(
    part: &Value,
    field: &str,
    ids: &HashMap<String, u32>,
    path: &Path,
) -> Result<()> {
    let fail =
        |name: &str, problem: String| Err(Error::field(path, format!("{field}.{name}"), problem));
    match part {
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                check_part(item, &format!("{field}[{i}]"), ids, path)?;
            }
        }
        Value::Object(map) => {
            match part["type"].as_str() {
                Some("FixedLength") if part["length"].as_u64().is_none_or(|len| len == 0) => {
                    return fail("length", format!("{}, expected 1 or more", part["length"]));
                }
                Some("Precompiled") => {
                    if let Some(problem) = base64_problem(&part["precompiled_charsmap"]) {
                        return fail("precompiled_charsmap", problem);
                    }
                }
                Some("TemplateProcessing") => check_template_processing(part, field, ids, path)?,
                Some("BertProcessing" | "RobertaProcessing") => {
                    for name in ["sep", "cls"] {
                        let token = part[name][0].as_str().unwrap_or_default();
                        if ids.get(token).map(|&id| u64::from(id)) != part[name][1].as_u64() {
                            return fail(
                                name,
                                format!("{} is no token of model.vocab", part[name]),
                            );
                        }
                    }
                }
                _ => {}
            }
            for (key, value) in map {
                if key == "Regex"
                    && value
                        .as_str()
                        .is_some_and(|regex| regex.len() > MAX_REGEX_BYTES)
                {
                    return fail(
                        "Regex",
                        format!("longer than the allowed {MAX_REGEX_BYTES} bytes"),
                    );
                }
                check_part(value, &format!("{field}.{key}"), ids, path)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Every token that the template names is declared, and what is declared is in the vocabulary.
fn check_template_processing(
    part: &Value,
    field: &str,
    ids: &HashMap<String, u32>,
    path: &Path,
) -> Result<()> {
    let declared = &part["special_tokens"];
    for (which, i, piece) in ["single", "pair"].iter().flat_map(|which| {
        part[*which]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .map(move |(i, piece)| (which, i, piece))
    }) {
        if let Some(name) = piece["SpecialToken"]["id"].as_str()
            && declared.get(name).is_none()
        {
            let field = format!("{field}.{which}[{i}]");
            return Err(Error::field(
                path,
                field,
                format!("\"{name}\" is not among its special_tokens"),
            ));
        }
    }
    for (name, token) in declared.as_object().into_iter().flatten() {
        for id in token["ids"].as_array().into_iter().flatten() {
            // Ids have no gaps, which is checked last of all.
            if id.as_u64().is_none_or(|id| id >= ids.len() as u64) {
                let field = format!("{field}.special_tokens[\"{name}\"].ids");
                return Err(Error::field(
                    path,
                    field,
                    format!("{id} is no token of model.vocab"),
                ));
            }
        }
    }
    Ok(())
}

/// What is wrong with a string of standard base64 with padding.
fn base64_problem(value: &Value) -> Option<String> {
    let Some(text) = value.as_str() else {
        return Some("missing, or no string".to_owned());
    };
    let body = text.trim_end_matches('=');
    if let Some(bad) = body
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || *c == '+' || *c == '/'))
    {
        return Some(format!("{bad:?} does not occur in base64"));
    }
    if text.len() % 4 != 0 || text.len() - body.len() > 2 {
        return Some(format!(
            "{} characters with {} of padding are no valid base64",
            text.len(),
            text.len() - body.len()
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn t5_a_normalizer_may_not_blow_a_text_up() {
        let replace = |content: &str| json!({"type": "Replace", "pattern": {"String": "h"}, "content": content});
        let chain = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
        let check = |value: &Value| check_growth(value, Path::new("tokenizer.json"));
        let usual = chain(vec![
            json!({"type": "Prepend", "prepend": "\u{2581}"}),
            replace("\u{2581}"),
        ]);
        assert!(check(&usual).is_ok());
        assert!(check(&Value::Null).is_ok());
        let bomb = chain(vec![replace(&"h".repeat(60)); 5]);
        let error = check(&bomb).unwrap_err().to_string();
        assert!(error.starts_with("tokenizer.json: normalizer: "), "{error}");
        assert!(check(&json!({"type": "Prepend", "prepend": "x".repeat(10_000_000)})).is_err());
        assert!(
            check(&chain(vec![bomb; 40])).is_err(),
            "the product saturates"
        );
    }
}
