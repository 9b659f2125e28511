//! Building a tokenizer from `tokenizer.json` and `tokenizer_config.json`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::PreTokenizerWrapper;

use super::control::{looks_like_control, special_tokens};
use super::prevalidate::{Checked, check};
use super::token_table::{Alphabet, Entry, TokenTable};
use super::tokenizer::{Inner, Parts};
use crate::error::{Error, Result};

/// Checks the files and builds the parts of their tokenizer. `path` is that of `tokenizer.json`.
pub(super) fn build(json: &[u8], config: Option<&Value>, path: &Path) -> Result<Parts> {
    let Checked {
        mut root,
        tokens,
        unknown,
    } = check(json, path)?;
    let alphabet = alphabet(&root);
    // Decoding is done from the token table.
    root["decoder"] = Value::Null;

    special_by_config(&mut root, config, &tokens);
    let mut table = TokenTable::default();
    let mut added: Vec<Option<bool>> = vec![None; tokens.len()];
    for token in root["added_tokens"].as_array_mut().into_iter().flatten() {
        let id = token["id"].as_u64().and_then(|id| usize::try_from(id).ok());
        let special = token["special"].as_bool().unwrap_or(false);
        let id = id.filter(|&id| id < added.len()).expect("ids were checked");
        added[id] = Some(special);
        let guarded = special || looks_like_control(&tokens[id]);
        token["special"] = Value::Bool(guarded);
        if guarded {
            token["normalized"] = Value::Bool(false);
        }
    }
    for (id, token) in tokens.iter().enumerate() {
        let is_unknown = unknown.is_some_and(|unknown| unknown as usize == id);
        let entry = match added[id] {
            Some(true) => Entry::Control(token),
            Some(false) => Entry::Literal(token),
            None if is_unknown => Entry::Control(token),
            None => Entry::Normal(token),
        };
        table.push(&entry, alphabet);
    }

    let inner = catch_unwind(AssertUnwindSafe(|| {
        serde_json::from_value::<tokenizers::Tokenizer>(root)
    }))
    .map_err(|_| Error::file(path, "the tokenizers library failed on this file"))?
    .map_err(|e| Error::file(path, format!("is no tokenizer: {e}")))?;
    for (id, token) in tokens
        .iter()
        .enumerate()
        .filter(|&(id, _)| added[id].is_some())
    {
        let found = inner.token_to_id(token);
        if found.map(|found| found as usize) != Some(id) {
            return Err(Error::field(
                path,
                "added_tokens",
                format!("\"{token}\" got the id {found:?} instead of {id}"),
            ));
        }
    }

    let prefix = prefix(&inner, path)?;
    let named = |name: &str| config_token(config, name, &inner, path);
    let only = if let [bos] = prefix[..] {
        Some(bos)
    } else {
        None
    };
    let bos = named("bos_token")?.or(only);
    let eos = named("eos_token")?;
    let wanted = config
        .and_then(|config| config.get("add_bos_token"))
        .and_then(Value::as_bool);
    if let Some(wanted) = wanted
        && wanted == prefix.is_empty()
    {
        log::warn!(
            "{}: add_bos_token is {wanted} in tokenizer_config.json, the post-processor here says {}: it decides",
            path.display(),
            !wanted
        );
    }
    Ok(Parts {
        guarded: special_tokens(&inner),
        inner: Inner::Library(Box::new(inner)),
        table,
        prefix,
        bos,
        eos,
        unknown,
    })
}

/// What the configuration says begins and ends texts is special, whatever the tokenizer says of it.
fn special_by_config(root: &mut Value, config: Option<&Value>, tokens: &[String]) {
    for name in ["bos_token", "eos_token"] {
        let named = config.and_then(|config| token_name(&config[name]));
        let Some(id) = named.and_then(|text| tokens.iter().position(|token| token == text)) else {
            continue;
        };
        if !root["added_tokens"].is_array() {
            root["added_tokens"] = json!([]);
        }
        let added = root["added_tokens"]
            .as_array_mut()
            .expect("it was made one");
        match added.iter_mut().find(|token| token["id"] == json!(id)) {
            Some(token) => token["special"] = json!(true),
            None => added.push(json!({
                "id": id, "content": tokens[id], "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })),
        }
    }
}

/// The text of a token in `tokenizer_config.json`: a string, or an object with `content`.
fn token_name(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// How the vocabulary writes bytes, from the parts that undo or do it.
fn alphabet(root: &Value) -> Alphabet {
    fn mentions(value: &Value, kind: &str) -> bool {
        match value {
            Value::Object(map) => {
                map.get("type").is_some_and(|t| t == kind)
                    || map.values().any(|v| mentions(v, kind))
            }
            Value::Array(items) => items.iter().any(|item| mentions(item, kind)),
            _ => false,
        }
    }
    // A post-processor of that name merely moves offsets.
    if ["pre_tokenizer", "decoder", "normalizer"]
        .iter()
        .any(|part| mentions(&root[part], "ByteLevel"))
    {
        return Alphabet::ByteLevel;
    }
    let byte_fallback = root["model"]["byte_fallback"].as_bool().unwrap_or(false);
    Alphabet::Metaspace { byte_fallback }
}

/// What the post-processor puts in front of a text, found by trying.
fn prefix(inner: &tokenizers::Tokenizer, path: &Path) -> Result<Vec<u32>> {
    let encode = |add_special| {
        catch_unwind(AssertUnwindSafe(|| inner.encode_fast("a", add_special)))
            .map_err(|_| Error::file(path, "the tokenizers library failed on the text \"a\""))?
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|e| Error::file(path, format!("cannot encode the text \"a\": {e}")))
    };
    let plain = encode(false)?;
    let processed = encode(true)?;
    let len = processed
        .windows(plain.len().max(1))
        .position(|window| window == plain)
        .unwrap_or(0);
    Ok(processed[..len].to_vec())
}

/// The id of a token named in `tokenizer_config.json`.
fn config_token(
    config: Option<&Value>,
    name: &str,
    inner: &tokenizers::Tokenizer,
    path: &Path,
) -> Result<Option<u32>> {
    let Some(value) = config
        .and_then(|config| config.get(name))
        .filter(|value| !value.is_null())
    else {
        return Ok(None);
    };
    let field = format!("{name} (tokenizer_config.json)");
    let Some(text) = token_name(value) else {
        return Err(Error::field(
            path,
            field,
            format!("{value}, expected a string or an object with \"content\""),
        ));
    };
    match inner.token_to_id(text) {
        Some(id) => Ok(Some(id)),
        None => Err(Error::field(
            path,
            field,
            format!("\"{text}\" is no token of this file"),
        )),
    }
}

/// `pre` with every space that is put in front of the first word alone taken away; `None` when there
/// is none.
pub(super) fn without_first(
    pre: &PreTokenizerWrapper,
) -> serde_json::Result<Option<PreTokenizerWrapper>> {
    fn replace(value: &mut Value) -> bool {
        match value {
            Value::Object(map) => {
                let mut changed = false;
                for (key, value) in map {
                    if key == "prepend_scheme" && value == "first" {
                        *value = "never".into();
                        changed = true;
                    } else {
                        changed |= replace(value);
                    }
                }
                changed
            }
            Value::Array(items) => items
                .iter_mut()
                .fold(false, |changed, item| replace(item) | changed),
            _ => false,
        }
    }
    let mut value = serde_json::to_value(pre)?;
    if !replace(&mut value) {
        return Ok(None);
    }
    serde_json::from_value(value).map(Some)
}
