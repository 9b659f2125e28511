//! How the build knows its commit.

#[path = "../commit.rs"]
mod commit;

use std::fs;

const ID: &str = "0123456789abcdef0123456789abcdef01234567";

/// A folder with these files.
fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

#[test]
fn the_commit_is_found_however_git_keeps_it() {
    let head = (".git/HEAD", "ref: refs/heads/a/b\n");
    let packed = format!(
        "# pack-refs\n{} refs/heads/a\n{ID} refs/heads/a/b\n",
        "9".repeat(40)
    );
    let id = format!("{ID}\n");
    let shared = [
        (".git/worktrees/w/HEAD", "ref: refs/heads/a/b"),
        (".git/worktrees/w/commondir", "../.."),
        (".git/refs/heads/a/b", &id),
        ("w/.git", "gitdir: ../.git/worktrees/w\n"),
    ];
    for (files, root, watched) in [
        (vec![head, (".git/refs/heads/a/b", id.as_str())], "", 2),
        (vec![head, (".git/packed-refs", packed.as_str())], "", 2),
        (vec![(".git/HEAD", id.as_str())], "", 1),
        (shared.to_vec(), "w", 2),
    ] {
        let folder = tree(&files);
        let found = commit::head(&folder.path().join(root));
        assert_eq!(found.commit, ID[..12], "{files:?}");
        assert_eq!(found.files.len(), watched, "{files:?}: {:?}", found.files);
        assert!(found.files.iter().all(|file| file.is_file()));
    }
}

#[test]
fn without_a_commit_it_is_unknown() {
    for files in [
        vec![("README.md", "")],
        vec![(".git", "no such line")],
        vec![(".git", "gitdir: /nowhere/at/all")],
        vec![(".git/HEAD", "ref: refs/heads/new")],
        vec![(
            ".git/HEAD",
            "not hexadecimal, but of more than forty letters",
        )],
        vec![(".git/HEAD", "0123")],
    ] {
        let folder = tree(&files);
        assert_eq!(commit::head(folder.path()).commit, "unknown", "{files:?}");
    }
}
