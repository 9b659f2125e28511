//! Which files of a repository make a model, and which of its models is meant.

use std::collections::BTreeSet;

use super::file_names::{has_word, is_gguf_model, part, part_of, quant_word};
use crate::exit::Failure;

/// Taken where nothing is asked for.
const USUAL_QUANT: &str = "Q4_K_M";
/// How a model of safetensors is asked for where there are GGUF files too.
const SAFETENSORS: &str = "safetensors";
const CONFIG: &str = "config.json";
/// All weights of a model of safetensors, or else which shard has which.
pub const WEIGHTS: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";
/// Choices in a message.
const MAX_LISTED: usize = 50;
/// What belongs to a model of safetensors beside its weights.
const BESIDE: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    INDEX,
];

/// One model among the files of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub kind: Kind,
    /// All its files; for GGUF the parts in their order.
    pub files: Vec<String>,
    /// Parts that should be there and are not.
    pub missing: Vec<String>,
}

/// How a model is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Gguf,
    Safetensors,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Gguf => "gguf",
            Kind::Safetensors => SAFETENSORS,
        }
    }
}

impl Candidate {
    /// Whether `pick` may mean it: one of its files, or its quantisation.
    pub fn answers(&self, pick: &str) -> bool {
        self.files.iter().any(|file| file == pick) || self.is_called(pick)
    }

    /// Whether it is the one called `quant`: that stands in a file's or folder's name as a word.
    fn is_called(&self, quant: &str) -> bool {
        match self.kind {
            Kind::Safetensors => quant.eq_ignore_ascii_case(SAFETENSORS),
            Kind::Gguf => self.files.iter().any(|file| has_word(file, quant)),
        }
    }
}

/// The models among files, which are paths from the root of the repository.
pub fn candidates<'a>(files: impl IntoIterator<Item = &'a str>) -> Vec<Candidate> {
    let mut files: Vec<&str> = files.into_iter().collect();
    files.sort_unstable();
    let mut found: Vec<Candidate> = Vec::new();
    let mut split = BTreeSet::new();
    for &file in files.iter().filter(|file| is_gguf_model(file)) {
        match part_of(file) {
            None => found.push(Candidate {
                kind: Kind::Gguf,
                files: vec![file.to_owned()],
                missing: Vec::new(),
            }),
            // every part leads here; the first one that is there speaks for all
            Some((stem, count)) if split.insert((stem, count)) => {
                let (there, missing) = (1..=count)
                    .map(|number| part(stem, number, count))
                    .partition(|part| files.binary_search(&part.as_str()).is_ok());
                found.push(Candidate {
                    kind: Kind::Gguf,
                    files: there,
                    missing,
                });
            }
            Some(_) => {}
        }
    }
    found.extend(of_safetensors(&files));
    found
}

/// The model at the root that `config.json` describes.
fn of_safetensors(files: &[&str]) -> Option<Candidate> {
    let has = |name: &str| files.binary_search(&name).is_ok();
    let weights: Vec<&str> = if has(WEIGHTS) {
        vec![WEIGHTS]
    } else {
        let shard = |name: &&&str| {
            name.starts_with("model-") && name.contains("-of-") && name.ends_with(".safetensors")
        };
        files.iter().filter(shard).copied().collect()
    };
    if !has(CONFIG) || weights.is_empty() {
        return None;
    }
    let is_sharded = weights != [WEIGHTS];
    let beside = BESIDE
        .into_iter()
        .filter(|name| has(name) && (*name != INDEX || is_sharded));
    let files = std::iter::once(CONFIG).chain(beside).chain(weights);
    Some(Candidate {
        kind: Kind::Safetensors,
        files: files.map(str::to_owned).collect(),
        missing: Vec::new(),
    })
}

/// The model that is meant: the file or quantisation called `pick`; without one the usual
/// quantisation, else the only GGUF model, else that of safetensors.
///
/// `name` is the repository's, for messages.
///
/// # Errors
/// [`Failure::Model`] if there is none; [`Failure::Usage`] with the choices if several fit.
pub fn choose<'a>(
    name: &str,
    files: impl IntoIterator<Item = &'a str> + Clone,
    pick: Option<&str>,
) -> Result<Candidate, Failure> {
    let all = candidates(files.clone());
    let fitting: Vec<&Candidate> = match pick {
        Some(pick) => {
            let by_file = |c: &&Candidate| c.files.iter().any(|file| file == pick);
            let named: Vec<&Candidate> = all.iter().filter(by_file).collect();
            if named.is_empty() {
                all.iter().filter(|c| c.is_called(pick)).collect()
            } else {
                named
            }
        }
        None => {
            let ggufs: Vec<&Candidate> = all.iter().filter(|c| c.kind == Kind::Gguf).collect();
            let usual = ggufs.iter().filter(|c| c.is_called(USUAL_QUANT));
            let usual: Vec<&Candidate> = usual.copied().collect();
            match (usual.is_empty(), ggufs.is_empty()) {
                (false, _) => usual,
                (true, false) => ggufs,
                (true, true) => all.iter().collect(),
            }
        }
    };
    match fitting.as_slice() {
        [one] => Ok((*one).clone()),
        [] if all.is_empty() => Err(no_model(name, files)),
        [] => Err(Failure::Model(format!(
            "{name} has no {}; there are:\n{}",
            pick.unwrap_or("model"),
            listed(name, &all, &all.iter().collect::<Vec<_>>())
        ))),
        several => Err(Failure::Usage(format!(
            "{name} has several models that this could mean; name one:\n{}",
            listed(name, &all, several)
        ))),
    }
}

fn no_model<'a>(name: &str, files: impl IntoIterator<Item = &'a str>) -> Failure {
    let pickles: Vec<&str> = files
        .into_iter()
        .filter(|file| {
            [".bin", ".pt", ".pth", ".ckpt"]
                .iter()
                .any(|e| file.ends_with(e))
        })
        .take(3)
        .collect();
    Failure::Model(if pickles.is_empty() {
        format!("{name} has no GGUF file, and no config.json with safetensors")
    } else {
        format!(
            "{name} has only pickled weights ({}); these can run code when they are opened and are \
             not read here: look for a repository with GGUF files or safetensors",
            pickles.join(", ")
        )
    })
}

/// One reference a line.
fn listed(name: &str, all: &[Candidate], some: &[&Candidate]) -> String {
    let mut lines: Vec<String> = some
        .iter()
        .take(MAX_LISTED)
        .map(|candidate| format!("  {name}:{}", label(all, candidate)))
        .collect();
    if some.len() > MAX_LISTED {
        lines.push(format!("  and {} more", some.len() - MAX_LISTED));
    }
    lines.join("\n")
}

/// What picks this one of `all`: its quantisation, or its first file where that says too little.
pub fn label(all: &[Candidate], one: &Candidate) -> String {
    if one.kind == Kind::Safetensors {
        return SAFETENSORS.to_owned();
    }
    let file = &one.files[0];
    let called = |quant: &&str| all.iter().filter(|c| c.is_called(quant)).count() == 1;
    quant_word(file)
        .filter(called)
        .map_or_else(|| file.clone(), str::to_owned)
}

/// Whether a file is part of a model of safetensors without being weights.
pub fn is_beside_weights(file: &str) -> bool {
    file == CONFIG || BESIDE.contains(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(files: &[&str], pick: Option<&str>) -> Vec<String> {
        choose("u/r", files.iter().copied(), pick).unwrap().files
    }

    /// The exit code and message.
    fn refused(files: &[&str], pick: Option<&str>) -> (u8, String) {
        let failure = choose("u/r", files.iter().copied(), pick).unwrap_err();
        (failure.code(), failure.to_string())
    }

    const SEVERAL: &[&str] = &[
        "README.md",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "m-Q8_0.gguf",
        "m-f16.gguf",
        "mmproj-m-f16.gguf",
    ];

    #[test]
    fn the_usual_quantisation_or_the_one_asked_for() {
        assert_eq!(picked(SEVERAL, None), ["m-Q4_K_M.gguf"]);
        assert_eq!(picked(SEVERAL, Some("q8_0")), ["m-Q8_0.gguf"]);
        assert_eq!(picked(SEVERAL, Some("F16")), ["m-f16.gguf"]);
        assert_eq!(picked(SEVERAL, Some("m-Q4_K_S.gguf")), ["m-Q4_K_S.gguf"]);
        let (code, message) = refused(SEVERAL, Some("Q4_K"));
        assert_eq!(code, 3);
        assert!(message.contains("u/r:Q4_K_S\n"), "{message}");
    }

    #[test]
    fn else_the_only_gguf_else_safetensors() {
        assert_eq!(picked(&["a.gguf", "config.json"], None), ["a.gguf"]);
        let hf = [
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model.safetensors",
            "pytorch_model.bin",
            "sub/model.safetensors",
            "tokenizer.json",
        ];
        let expected = ["config.json", "tokenizer.json", "model.safetensors"];
        assert_eq!(picked(&hf, None), expected);
        let both = [&hf[..], &["m.gguf"]].concat();
        assert_eq!(picked(&both, None), ["m.gguf"]);
        assert_eq!(picked(&both, Some("safetensors")), expected);
        let shards = [
            "additional_chat_templates/tool_use.jinja",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            INDEX,
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        let mut all: Vec<String> = shards.map(str::to_owned).to_vec();
        let mut got = picked(&shards, None);
        all.sort();
        got.sort();
        assert_eq!(got, all);
    }

    #[test]
    fn a_choice_is_listed_as_it_would_be_typed() {
        let files = ["m-Q8_0.gguf", "m-F16.gguf", "x/m2-Q8_0.gguf"];
        let (code, message) = refused(&files, None);
        assert_eq!(code, 2);
        for line in ["  u/r:m-Q8_0.gguf", "  u/r:F16", "  u/r:x/m2-Q8_0.gguf"] {
            assert!(message.contains(line), "{line}: {message}");
        }
        for candidate in candidates(files) {
            let label = label(&candidates(files), &candidate);
            assert_eq!(picked(&files, Some(&label)), candidate.files, "{label}");
        }
        assert_eq!(refused(&files, Some("q8_0")).0, 2);
    }

    #[test]
    fn parts_belong_together() {
        let files = [
            "Q2_K/m-00001-of-00003.gguf",
            "Q2_K/m-00003-of-00003.gguf",
            "Q2_K/m-00002-of-00003.gguf",
            "Q8_0/m-00002-of-00002.gguf",
        ];
        let all = candidates(files);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].files.len(), 3);
        assert!(all[0].files.is_sorted() && all[0].missing.is_empty());
        assert_eq!(all[1].missing, ["Q8_0/m-00001-of-00002.gguf"]);
        assert_eq!(label(&all, &all[0]), "Q2_K");
        assert_eq!(picked(&files, Some("Q2_K")), all[0].files);
        assert_eq!(
            picked(&files, Some("Q2_K/m-00002-of-00003.gguf")),
            all[0].files
        );
    }

    #[test]
    fn endless_parts_are_no_parts_and_endless_choices_are_cut() {
        let files: Vec<String> = (0..2_000)
            .map(|i| format!("m{}-{:05}-of-99999.gguf", i % 2, i + 1))
            .collect();
        let all = candidates(files.iter().map(String::as_str));
        // no model has that many parts: each is a file of its own
        assert_eq!(all.len(), files.len());
        assert!(all.iter().all(|it| it.missing.is_empty()));
        let paths: Vec<&str> = files.iter().map(String::as_str).collect();
        let (_, message) = refused(&paths, None);
        assert_eq!(message.lines().count(), 1 + MAX_LISTED + 1);
        assert!(message.ends_with("  and 1950 more"), "{message}");
        let files: Vec<String> = (1..=1_000).map(|n| part("m", n, 1_000)).collect();
        let all = candidates(files.iter().map(String::as_str));
        assert_eq!((all.len(), &all[0].files), (1, &files));
    }

    #[test]
    fn no_model_is_told_and_pickles_are_named() {
        let (code, message) = refused(&["README.md"], None);
        assert!(code == 3 && message.contains("no GGUF"), "{message}");
        let (code, message) = refused(&["config.json", "pytorch_model.bin"], None);
        assert!(
            code == 3 && message.contains("pickled weights (pytorch_model.bin)"),
            "{message}"
        );
    }
}
