//! The commit that a working tree is at, read from the files that Git keeps; Git itself is not
//! needed. For build scripts and benches.

use std::fs;
use std::path::{Path, PathBuf};

/// Longer files of these kinds are not Git's.
const MOST_BYTES: u64 = 16 << 20;

/// A commit, and the files that change when another one is checked out or made.
#[derive(Debug, Default, PartialEq)]
pub struct Head {
    /// The first 12 digits, or `unknown`.
    pub commit: String,
    /// Those of them that exist.
    pub files: Vec<PathBuf>,
}

/// What `root` is at: a repository's folder, or that of one of its other working trees.
pub fn head(root: &Path) -> Head {
    let mut files = Vec::new();
    let commit = find(root, &mut files).unwrap_or_else(|| "unknown".to_owned());
    Head { commit, files }
}

fn find(root: &Path, files: &mut Vec<PathBuf>) -> Option<String> {
    let dot_git = root.join(".git");
    let own = match read(&dot_git) {
        // another working tree's: a file that says where its folder is
        Some(text) => root.join(text.strip_prefix("gitdir:")?.trim()),
        None => dot_git,
    };
    let shared = match read(&own.join("commondir")) {
        Some(text) => own.join(text.trim()),
        None => own.clone(),
    };
    let mut look = |path: PathBuf| {
        let text = read(&path)?;
        files.push(path);
        Some(text)
    };
    let head = look(own.join("HEAD"))?;
    let Some(name) = head.trim().strip_prefix("ref: ") else {
        return short(&head);
    };
    let loose = look(own.join(name)).or_else(|| look(shared.join(name)));
    let packed = look(shared.join("packed-refs")).unwrap_or_default();
    let packed = || {
        let of = |line: &'_ str| {
            line.split_once(' ')
                .filter(|(_, n)| *n == name)
                .map(|l| l.0.to_owned())
        };
        packed.lines().find_map(of)
    };
    short(&loose.or_else(packed)?)
}

fn short(id: &str) -> Option<String> {
    let id = id.trim();
    let fits = id.len() >= 40 && id.bytes().all(|b| b.is_ascii_hexdigit());
    fits.then(|| id[..12].to_owned())
}

/// A small text file's content.
fn read(path: &Path) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    if !meta.is_file() || meta.len() > MOST_BYTES {
        return None;
    }
    fs::read_to_string(path).ok()
}
