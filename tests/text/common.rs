//! The small vocabularies, in both layouts.

use nelumbo::formats::ModelFiles;
use nelumbo::formats::gguf::Gguf;
use nelumbo::model::Texts;
use nelumbo::text::Tokenizer;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of `tests/fixtures/tokenizers`.
pub const VOCABULARIES: [&str; 13] = [
    "gpt2", "llama3", "qwen2", "smollm2", "tekken", "phi4", "olmo2", "granite", "llama2",
    "mistral", "phi3", "gemma", "unigram",
];

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

pub fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// One vocabulary, from a `tokenizer.json` and from the keys of a GGUF file.
pub struct Both {
    pub name: &'static str,
    pub json: Tokenizer,
    pub gguf: Texts,
    /// The added tokens with their ids, and whether the file calls them special.
    pub added: Vec<(u32, String, bool)>,
}

pub fn both(name: &'static str) -> Both {
    let folder = fixture("tokenizers").join(name);
    let path = folder.join("tokenizer.json");
    let config = json(&folder.join("tokenizer_config.json"));
    let file = json(&path);
    let added = file["added_tokens"].as_array().unwrap().iter();
    let added = added.map(|token| {
        let id = u32::try_from(token["id"].as_u64().unwrap()).unwrap();
        let text = token["content"].as_str().unwrap().to_owned();
        (id, text, token["special"].as_bool().unwrap())
    });
    let added = added.collect();
    let gguf = Gguf::open(&folder.join("vocabulary.gguf")).unwrap();
    Both {
        name,
        json: Tokenizer::from_json(&fs::read(&path).unwrap(), Some(&config), &path).unwrap(),
        gguf: Texts::load(&ModelFiles::Gguf(gguf)).unwrap(),
        added,
    }
}

impl Both {
    /// The texts of added tokens, but for runs of blanks.
    pub fn names(&self) -> Vec<String> {
        let texts = self.added.iter().map(|(_, text, _)| text);
        texts.filter(|text| !text.contains('▁')).cloned().collect()
    }

    /// The two layouts disagree about some texts, each true to its library. The tokenizers library's unigram
    /// model takes the name of a byte for the byte, which SentencePiece never does. And it finds blanks that are
    /// kept whole before blanks are written as `▁`, so a run of these that a text holds itself ends where plain
    /// blanks begin; for SentencePiece all of them are one run.
    pub fn differs_by_nature(&self, line: &str) -> bool {
        match self.name {
            "unigram" => line.contains("<0x"),
            "gemma" => line.contains("▁▁"),
            _ => false,
        }
    }

    pub fn gguf(&self) -> &Tokenizer {
        &self.gguf.tokenizer
    }
}

/// Numbers that look drawn, the same in every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// What lines are made of: the samples of every script and kind, by their names.
pub struct Samples(Vec<Vec<String>>);

impl Samples {
    pub fn load() -> Samples {
        let file = json(&fixture("tokenizers").join("samples.json"));
        let kinds = file.as_object().unwrap().values();
        let texts = |kind: &Value| {
            let texts = kind.as_array().unwrap().iter();
            texts
                .map(|text| text.as_str().unwrap().to_owned())
                .collect()
        };
        let samples = Samples(kinds.map(texts).collect());
        assert!(
            samples.0.len() >= 20,
            "{} kinds of samples",
            samples.0.len()
        );
        samples
    }

    /// A line of one to eight parts: samples, parts of them, single characters, long words, runs of blanks, names
    /// of tokens and halves of such names.
    pub fn line(&self, dice: &mut Dice, names: &[String]) -> String {
        let mut line = String::new();
        for _ in 0..=dice.below(8) {
            let kind = dice.of(&self.0);
            let sample = dice.of(kind);
            let chars: Vec<char> = sample.chars().collect();
            match dice.below(12) {
                0..=4 => line.push_str(sample),
                5 => line.extend(&chars[dice.below(chars.len())..]),
                6 => line.extend(&chars[..=dice.below(chars.len())]),
                7 => line.push(*dice.of(&chars)),
                8 => {
                    let word: String = sample.chars().filter(|c| !c.is_whitespace()).collect();
                    line.push_str(&word.repeat(1 + dice.below(12)));
                }
                9 => line.push_str(
                    &dice
                        .of(&[" ", "\n", "\t", "\r\n", "a "])
                        .repeat(1 + dice.below(40)),
                ),
                10 if !names.is_empty() => line.push_str(dice.of(names).as_str()),
                11 if !names.is_empty() => {
                    let name = dice.of(names);
                    let at = name.char_indices().nth(dice.below(name.chars().count()));
                    line.push_str(&name[at.map_or(0, |(at, _)| at)..]);
                }
                _ => line.push(' '),
            }
            if dice.below(3) == 0 {
                line.push(' ');
            }
        }
        line
    }
}
