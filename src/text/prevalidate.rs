//! What is checked in a `tokenizer.json` before the tokenizers crate reads it.
//!
//! The crate slices strings by lengths that it takes from the file, renumbers added tokens without an
//! error, and reports most problems without saying where. So the vocabulary, the merges and the parts
//! with numbers in them are checked here first, and every error names its field.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;

use super::prevalidate_parts::{check_growth, check_part};
use super::tokenizer::{MAX_TOKEN_BYTES, MAX_VOCAB};
use crate::error::{Error, Result};

/// The largest `tokenizer.json`, in bytes.
pub(super) const MAX_JSON_BYTES: usize = 64 << 20;

/// A checked `tokenizer.json`.
#[derive(Debug)]
pub(super) struct Checked {
    /// The file without truncation, padding, dropout and decoder, and with `model.type`.
    pub(super) root: Value,
    /// The token strings by id, without gaps.
    pub(super) tokens: Vec<String>,
    /// The id of the token for unknown characters.
    pub(super) unknown: Option<u32>,
}

/// Parses and checks the file. `path` is for errors.
pub(super) fn check(json: &[u8], path: &Path) -> Result<Checked> {
    if json.len() > MAX_JSON_BYTES {
        return Err(Error::file(
            path,
            format!("{} bytes, allowed are {MAX_JSON_BYTES}", json.len()),
        ));
    }
    let mut root: Value = serde_json::from_slice(json)
        .map_err(|e| Error::file(path, format!("is no valid JSON: {e}")))?;
    if !root.is_object() {
        return Err(Error::file(path, "is no JSON object"));
    }
    for field in ["truncation", "padding"] {
        if root.get(field).is_some_and(|value| !value.is_null()) {
            log::warn!(
                "{}: {field}: ignored, prompts are never cut or padded",
                path.display()
            );
        }
        root[field] = Value::Null;
    }
    let Some(model) = root.get_mut("model").filter(|model| model.is_object()) else {
        return Err(Error::field(path, "model", "missing, or no object"));
    };
    let kind = check_model_type(model, path)?;
    if model.get("dropout").is_some_and(|value| !value.is_null()) {
        log::warn!(
            "{}: model.dropout: ignored, prompts are encoded the same way every time",
            path.display()
        );
        model["dropout"] = Value::Null;
    }

    let ids = vocabulary(&root, &kind, path)?;
    if kind == "BPE" {
        check_merges(&root["model"], &ids, path)?;
    }
    let unknown = unknown_token(&root["model"], &ids, path)?;
    for field in ["normalizer", "pre_tokenizer", "post_processor", "decoder"] {
        if let Some(part) = root.get(field) {
            check_part(part, field, &ids, path)?;
        }
    }
    check_growth(&root["normalizer"], path)?;
    let tokens = by_id(&ids, path)?;
    if let Some(id) = tokens.iter().position(|t| t.len() > MAX_TOKEN_BYTES) {
        let len = tokens[id].len();
        let problem =
            format!("the token of id {id} has {len} bytes, allowed are {MAX_TOKEN_BYTES}");
        return Err(Error::field(path, "model.vocab", problem));
    }
    Ok(Checked {
        root,
        tokens,
        unknown,
    })
}

fn check_model_type(model: &mut Value, path: &Path) -> Result<String> {
    let kind = match model.get("type") {
        Some(Value::String(kind)) => kind.clone(),
        // Old files leave it out for BPE.
        None if model.get("merges").is_some() => "BPE".to_owned(),
        other => {
            let found = other.map_or("missing".to_owned(), Value::to_string);
            return Err(Error::field(
                path,
                "model.type",
                format!("{found}, expected \"BPE\" or \"Unigram\""),
            ));
        }
    };
    if kind != "BPE" && kind != "Unigram" {
        return Err(Error::Unsupported {
            path: path.to_owned(),
            what: "tokenizer model (model.type)".to_owned(),
            found: kind,
            supported: "BPE, Unigram".to_owned(),
        });
    }
    model["type"] = Value::String(kind.clone());
    Ok(kind)
}

/// Every token string with its id, from the model and from `added_tokens`.
fn vocabulary(root: &Value, kind: &str, path: &Path) -> Result<HashMap<String, u32>> {
    let mut ids = HashMap::new();
    match (&root["model"]["vocab"], kind) {
        (Value::Object(vocab), "BPE") => {
            for (token, id) in vocab {
                ids.insert(
                    token.clone(),
                    check_id(id, &format!("model.vocab[\"{token}\"]"), path)?,
                );
            }
        }
        (Value::Array(vocab), "Unigram") => {
            for (i, entry) in vocab.iter().enumerate() {
                let field = format!("model.vocab[{i}]");
                let Some(token) = entry[0].as_str().filter(|_| entry[1].is_number()) else {
                    return Err(Error::field(path, field, "no pair of a token and a score"));
                };
                let id = check_id(&Value::from(i), &field, path)?;
                if let Some(first) = ids.insert(token.to_owned(), id) {
                    return Err(Error::field(
                        path,
                        field,
                        format!("\"{token}\" is token {first} already"),
                    ));
                }
            }
        }
        _ => {
            return Err(Error::field(
                path,
                "model.vocab",
                format!("missing, or not of the form that {kind} needs"),
            ));
        }
    }
    let added = match root.get("added_tokens") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(added)) => added.as_slice(),
        Some(_) => return Err(Error::field(path, "added_tokens", "no array")),
    };
    for (i, token) in added.iter().enumerate() {
        let field = format!("added_tokens[{i}]");
        let Some(content) = token["content"]
            .as_str()
            .filter(|content| !content.is_empty())
        else {
            return Err(Error::field(
                path,
                format!("{field}.content"),
                "missing, or empty",
            ));
        };
        let id = check_id(&token["id"], &format!("{field}.id"), path)?;
        if let Some(first) = ids
            .insert(content.to_owned(), id)
            .filter(|&first| first != id)
        {
            return Err(Error::field(
                path,
                format!("{field}.id"),
                format!("{id}, but \"{content}\" is token {first} already"),
            ));
        }
    }
    Ok(ids)
}

fn check_id(id: &Value, field: &str, path: &Path) -> Result<u32> {
    let number = id
        .as_u64()
        .and_then(|id| u32::try_from(id).ok())
        .filter(|&id| (id as usize) < MAX_VOCAB);
    number.ok_or_else(|| {
        Error::field(
            path,
            field,
            format!("id {id}, allowed are 0 to {}", MAX_VOCAB - 1),
        )
    })
}

/// Turns the map around; refuses ids that occur twice or not at all.
fn by_id(ids: &HashMap<String, u32>, path: &Path) -> Result<Vec<String>> {
    let count = ids.values().max().map_or(0, |&id| id as usize + 1);
    if count == 0 {
        return Err(Error::field(path, "model.vocab", "empty"));
    }
    let mut tokens: Vec<Option<&str>> = vec![None; count];
    for (token, &id) in ids {
        if let Some(other) = tokens[id as usize].replace(token) {
            let (a, b) = if other < token.as_str() {
                (other, token.as_str())
            } else {
                (token.as_str(), other)
            };
            return Err(Error::field(
                path,
                "model.vocab",
                format!("id {id} belongs to both \"{a}\" and \"{b}\""),
            ));
        }
    }
    if let Some(gap) = tokens.iter().position(Option::is_none) {
        return Err(Error::field(
            path,
            "model.vocab",
            format!("id {gap} has no token, but the ids go up to {}", count - 1),
        ));
    }
    Ok(tokens.into_iter().flatten().map(str::to_owned).collect())
}

fn check_merges(model: &Value, ids: &HashMap<String, u32>, path: &Path) -> Result<()> {
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("");
    let Some(merges) = model["merges"].as_array() else {
        return Err(Error::field(path, "model.merges", "missing, or no array"));
    };
    for (i, merge) in merges.iter().enumerate() {
        let fail = |problem: String| Err(Error::field(path, format!("model.merges[{i}]"), problem));
        let pair = match merge {
            Value::String(merge) => merge
                .split_once(' ')
                .filter(|(_, right)| !right.contains(' ')),
            Value::Array(pair) if pair.len() == 2 => pair[0].as_str().zip(pair[1].as_str()),
            _ => None,
        };
        let Some((left, right)) = pair else {
            return fail(format!("{merge} is no pair of tokens"));
        };
        if let Some(lost) = [left, right]
            .into_iter()
            .find(|token| !ids.contains_key(*token))
        {
            return fail(format!("\"{lost}\" is not in model.vocab"));
        }
        // The crate cuts as many bytes off the right token, whatever these are.
        let Some(rest) = right.strip_prefix(prefix) else {
            return fail(format!(
                "\"{right}\" does not begin with model.continuing_subword_prefix \"{prefix}\""
            ));
        };
        let whole = format!("{left}{rest}");
        if !ids.contains_key(&whole) {
            return fail(format!("\"{whole}\" is not in model.vocab"));
        }
    }
    Ok(())
}

fn unknown_token(model: &Value, ids: &HashMap<String, u32>, path: &Path) -> Result<Option<u32>> {
    if let Some(token) = model["unk_token"].as_str() {
        let id = ids.get(token).copied();
        return match id {
            Some(id) => Ok(Some(id)),
            None => Err(Error::field(
                path,
                "model.unk_token",
                format!("\"{token}\" is not in model.vocab"),
            )),
        };
    }
    match &model["unk_id"] {
        Value::Null => Ok(None),
        id => {
            let len = model["vocab"].as_array().map_or(0, Vec::len);
            let found = check_id(id, "model.unk_id", path)?;
            if found as usize >= len {
                return Err(Error::field(
                    path,
                    "model.unk_id",
                    format!("{found}, but model.vocab has {len} tokens"),
                ));
            }
            Ok(Some(found))
        }
    }
}
