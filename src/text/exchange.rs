//! Tokenizers of byte-level BPE from one layout of files to the other: a GGUF's as a `tokenizer.json`,
//! and back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
};

use super::pre_tokenizers;
use super::prevalidate::check;
use super::tokenizer::{Inner, Tokenizer};
use super::vocab::{TokenType, Vocab, VocabKind};
use crate::error::{Error, Result};

/// Texts that every rule of cutting into words cuts in a way of its own: letters of many scripts and
/// cases, marks, digits, endings, blanks, breaks, and what programs and chats hold.
const PROBES: &[&str] = &[
    "Hello's WORLD camelCase 1234567 ½x it'S we'LL THEY'VE i'm",
    "'strange reader'smith we'llama they'velvet I'dear don'tell you'really I'Must",
    "x  12   3\n 4 \n  5   a1  b22   c333    4444",
    "a  b   c    d\t\te\n\nf \n g\r\n\r\nh   \n",
    "x;\n\ny!?(a).b a!\n\nb a$b a+b<=c^d~e|f`g 3.14 1,000,000 12 345",
    "été naïve Ünïcödé ǅ ʰ ß Σς данные мир 東京タワー世界 한국어 한국 ไทย हिन्दी नमस्ते ქართული \u{10D0}",
    "🌸👩\u{200d}🚀 e\u{301} ab\u{93F}c …。，、।",
    "https://a.b/c?d=e&f=%20 snake_case kebab-case <|im_end|> <tag/> /path//to\\x \u{a0}y",
    "#include <x.h>\n\tif (a[0] == 'b') { return \"c\"; } // 0x1F 1e-9\n",
    "一二三123四五 ABC漢字かなカナ １２３ ⅷ ②",
];

impl Tokenizer {
    /// The tokenizer as the text of a `tokenizer.json`; `None` for the pieces of a SentencePiece model in a
    /// GGUF file, whose ties no such file can tell.
    pub fn to_json(&self) -> Option<String> {
        let Inner::Library(inner) = &self.inner else {
            return None;
        };
        let mut root = serde_json::to_value(inner).expect("a tokenizer is plain data");
        root["decoder"] = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
        });
        if let [bos] = self.prefix[..] {
            let name = self.token_text(bos);
            let special = json!({"SpecialToken": {"id": name, "type_id": 0}});
            let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
            root["post_processor"] = json!({
                "type": "TemplateProcessing",
                "single": [special, text("A")],
                "pair": [special, text("A"), special, text("B")],
                "special_tokens": {&name: {"id": name, "ids": [bos], "tokens": [name]}},
            });
        }
        Some(serde_json::to_string_pretty(&root).expect("a tokenizer is plain data"))
    }
}

impl Vocab {
    /// The vocabulary of a `tokenizer.json` as a GGUF file tells it; `tokenizer` is what was built from it.
    /// The rule by which texts are cut into words is given the first name whose rule cuts a few pages of
    /// odd texts alike.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for anything but byte-level BPE by a rule that has a name; as
    /// [`Tokenizer::from_json`] for a file that is wrong.
    pub fn from_json(json: &[u8], tokenizer: &Tokenizer, path: &Path) -> Result<Vocab> {
        let checked = check(json, path)?;
        let root = &checked.root;
        let model = &root["model"];
        let refuse = |what: &str, found: &Value, supported: &str| {
            let found: String = found.to_string().chars().take(200).collect();
            Err(Error::Unsupported {
                path: path.to_owned(),
                what: format!("{what}, for a GGUF file,"),
                found,
                supported: supported.to_owned(),
            })
        };
        let is_plain = ["continuing_subword_prefix", "end_of_word_suffix"]
            .iter()
            .all(|field| model[*field].as_str().unwrap_or("").is_empty());
        let is_bytes = !model["byte_fallback"].as_bool().unwrap_or(false);
        if model["type"] != "BPE" || !is_plain || !is_bytes {
            let supported = "BPE over bytes, without prefixes, suffixes and fallback";
            return refuse("model.type", &model["type"], supported);
        }
        let nfc = match &root["normalizer"] {
            Value::Null => false,
            normalizer if normalizer["type"] == "NFC" => true,
            other => return refuse("normalizer", other, "none, NFC"),
        };
        let ignore_merges = model["ignore_merges"].as_bool().unwrap_or(false);
        let pre = pre_tokenizer(&root["pre_tokenizer"], path)?;
        let known = pre.and_then(|pre| {
            let cut = cuts(&pre)?;
            pre_tokenizers::all().find(|known| {
                (known.nfc, known.ignore_merges) == (nfc, ignore_merges)
                    && cuts(&known.pre_tokenizer()).is_some_and(|own| own == cut)
            })
        });
        let Some(known) = known else {
            let supported = pre_tokenizers::supported();
            let supported = format!("rules that go by one of the names {supported}");
            return refuse("pre_tokenizer", &root["pre_tokenizer"], &supported);
        };
        let mut token_types = vec![TokenType::Normal; checked.tokens.len()];
        for token in root["added_tokens"].as_array().into_iter().flatten() {
            let special = token["special"].as_bool().unwrap_or(false);
            let id = token["id"].as_u64().expect("ids were checked") as usize;
            token_types[id] = match special {
                true => TokenType::Control,
                false => TokenType::UserDefined,
            };
        }
        let merge = |merge: &Value| match merge {
            Value::Array(pair) => {
                let side = |i: usize| pair[i].as_str().expect("merges were checked");
                format!("{} {}", side(0), side(1))
            }
            text => text.as_str().expect("merges were checked").to_owned(),
        };
        let merges = model["merges"].as_array().into_iter().flatten();
        Ok(Vocab {
            kind: VocabKind::ByteLevel,
            tokens: checked.tokens,
            token_types,
            merges: merges.map(merge).collect(),
            pre: known.name().to_owned(),
            bos: tokenizer.bos(),
            eos: tokenizer.eos(),
            add_bos: Some(tokenizer.add_bos()),
            ..Vocab::default()
        })
    }
}

/// The file's own rule; `None` where it puts a blank in front of texts, which no name tells of.
fn pre_tokenizer(value: &Value, path: &Path) -> Result<Option<PreTokenizerWrapper>> {
    if value.is_null() || value.to_string().contains("\"add_prefix_space\":true") {
        return Ok(None);
    }
    catch_unwind(|| serde_json::from_value(value.clone()))
        .map_err(|_| Error::field(path, "pre_tokenizer", "the tokenizers library failed on it"))?
        .map(Some)
        .map_err(|e| Error::field(path, "pre_tokenizer", e.to_string()))
}

/// Where the probes are cut; `None` where that fails.
fn cuts(pre: &PreTokenizerWrapper) -> Option<Vec<(usize, usize)>> {
    let mut all = Vec::new();
    for probe in PROBES {
        // an expression that takes too many steps panics
        let cut = catch_unwind(AssertUnwindSafe(|| {
            let mut pieces = PreTokenizedString::from(*probe);
            pre.pre_tokenize(&mut pieces).ok()?;
            let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
            Some(splits.iter().map(|split| split.1).collect::<Vec<_>>())
        }));
        all.extend(cut.ok()??);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::super::pre_tokenizers::Pre;
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn rules_with_other_cuts_are_told_apart_by_the_probes() {
        let mut seen: BTreeMap<_, &Pre> = BTreeMap::new();
        for pre in pre_tokenizers::all() {
            let cut = cuts(&pre.pre_tokenizer()).unwrap();
            let rule = (cut, pre.nfc, pre.ignore_merges);
            let Some(other) = seen.insert(rule, pre) else {
                continue;
            };
            // the one is the other, written in another way
            let same = ("deepseek-r1-qwen", "bailingmoe");
            assert_eq!((other.name(), pre.name()), same, "they cut alike");
        }
    }
}
