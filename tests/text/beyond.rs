//! Tokens that a model has no rows for: tokenizers that serve several models name some.

use super::common::{fixture, json};
use nelumbo::model::{OnHost, Texts};
use nelumbo::{Result, formats};
use serde_json::{Value, json};
use std::fs;

/// Gemma 3 with more added tokens than rows.
fn open(tokens: &[Value], rows: usize) -> Result<(OnHost, Texts)> {
    let folder = tempfile::tempdir().unwrap();
    let from = fixture("families/gemma3");
    for name in ["model.safetensors", "config.json", "tokenizer_config.json"] {
        fs::copy(from.join(name), folder.path().join(name)).unwrap();
    }
    let mut tokenizer = json(&from.join("tokenizer.json"));
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    for (id, token) in (rows..).zip(tokens) {
        let mut all = json!({"id": id, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
        all["content"] = token["content"].clone();
        all["special"] = token["special"].clone();
        added.push(all);
    }
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let texts = Texts::load(&formats::open(folder.path())?)?;
    Ok((OnHost::open(folder.path())?, texts))
}

#[test]
fn special_tokens_beyond_the_models_rows_are_left_out() {
    let config = json(&fixture("families/gemma3/config.json"));
    let rows = usize::try_from(config["vocab_size"].as_u64().unwrap()).unwrap();
    let image = json!({"content": "<image_soft_token>", "special": true});
    let second = json!({"content": "<|box|>", "special": false});
    let (host, all) = open(&[image.clone(), second], rows).unwrap();
    let tokenizer = &host.texts.tokenizer;
    assert_eq!(all.tokenizer.vocab_size(), rows + 2);
    assert_eq!(tokenizer.vocab_size(), rows);
    for name in ["<image_soft_token>", "<|box|>"] {
        assert!(all.tokenizer.token_id(name).is_some());
        assert_eq!(tokenizer.token_id(name), None);
        let ids = tokenizer.encode_raw(name).unwrap();
        let bytes = ids.iter().flat_map(|&id| tokenizer.token_bytes(id));
        assert!(bytes.eq(name.as_bytes()), "{ids:?}");
    }
    assert!(
        tokenizer
            .control_ids()
            .iter()
            .all(|&id| (id as usize) < rows)
    );
    let same =
        |text| tokenizer.encode_raw(text).unwrap() == all.tokenizer.encode_raw(text).unwrap();
    assert!(same("<|begin|>Hello there<|end|>"));
    // what is text would be missed
    for text in ["more", "<think>"] {
        let error = open(
            &[image.clone(), json!({"content": text, "special": false})],
            rows,
        );
        let error = error.err().unwrap().to_string();
        let problem = format!(
            "vocab_size: is {rows}, but the tokenizer has {} tokens",
            rows + 2
        );
        assert!(error.contains(&problem), "{error}");
    }
}
