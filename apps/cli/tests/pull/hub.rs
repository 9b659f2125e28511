//! References to repositories of the hub.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::hub::{
    self, COMMIT, Repo, fetched, gguf, git_blob, sha256, sharded, split_gguf,
};
use crate::support::server::{Reply, Server};
use crate::support::{Ended, World, closed_port, finish};

/// A repository of several quantisations.
fn several() -> Repo {
    Repo::new(&[
        ("README.md", b"# r".to_vec()),
        ("m-Q4_K_M.gguf", gguf(64_000, 1)),
        ("m-Q8_0.gguf", gguf(128_000, 2)),
    ])
}

fn snapshot(world: &World, commit: &str, file: &str) -> std::path::PathBuf {
    world
        .hub("models--u--r")
        .join("snapshots")
        .join(commit)
        .join(file)
}

fn assert_ok(ended: &Ended, path: &Path) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.trim_end(), path.to_str().unwrap());
}

#[test]
fn the_usual_quantisation_lands_where_other_tools_look() {
    let world = World::new();
    let server = hub::start(vec![several()]);
    let path = snapshot(&world, COMMIT, "m-Q4_K_M.gguf");
    assert_ok(&world.nelumbo(&server.url, &["pull", "u/r"]), &path);
    let bytes = gguf(64_000, 1);
    assert_eq!(fs::read(&path).unwrap(), bytes);
    let target = format!("../../blobs/{}", sha256(&bytes));
    assert_eq!(fs::read_link(&path).unwrap(), Path::new(&target));
    let folder = world.hub("models--u--r");
    assert_eq!(
        fs::read_to_string(folder.join("refs/main")).unwrap(),
        COMMIT
    );
    assert_eq!(fs::read_dir(folder.join("blobs")).unwrap().count(), 1);
    assert_eq!(fetched(&server), ["m-Q4_K_M.gguf"]);

    // what is there is not fetched again, and without a network not even asked about
    assert_ok(&world.nelumbo(&server.url, &["pull", "hf:u/r"]), &path);
    assert_eq!(server.requests().len(), 3);
    let offline = ["pull", "u/r:Q4_K_M", "--offline"];
    assert_ok(&world.nelumbo(&server.url, &offline), &path);
    assert_eq!(server.requests().len(), 3);
    let (name, state, row) = world.listed().remove(0);
    assert_eq!((name.as_str(), state.as_str()), ("u/r:Q4_K_M", "ready"));
    assert_eq!(row["source"], "hf:u/r@111111111111");
    assert_eq!(
        (&row["format"], &row["size"]),
        (&"gguf".into(), &64_000.into())
    );
}

#[test]
fn a_quantisation_or_a_file_can_be_named() {
    for reference in ["u/r:q8_0", "hf:u/r:Q8_0", "u/r:m-Q8_0.gguf", "hf:u/r@main"] {
        let world = World::new();
        let server = hub::start(vec![several()]);
        let ended = world.nelumbo(&server.url, &["pull", reference]);
        let file = match reference {
            "hf:u/r@main" => "m-Q4_K_M.gguf",
            _ => "m-Q8_0.gguf",
        };
        assert_ok(&ended, &snapshot(&world, COMMIT, file));
    }
}

#[test]
fn the_flags_of_other_tools_name_one_too() {
    let world = World::new();
    let server = hub::start(vec![several()]);
    let args = [
        "run",
        "-hfr",
        "u/r:Q4_K_M",
        "-hff",
        "m-Q8_0.gguf",
        "-hft",
        "secret",
        "hello",
    ];
    let ended = world.nelumbo(&server.url, &args);
    // it is a file without a model in it
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(snapshot(&world, COMMIT, "m-Q8_0.gguf").exists());
    assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert_eq!(request.header("authorization"), Some("Bearer secret"));
    }
    for (args, part) in [
        (&["run", "-hf", "u/r", "-m", "x", "hello"][..], "two models"),
        (&["run", "-hff", "m.gguf", "hello"], "--hf-repo"),
        (&["bench", "-hf", "r"], "USER/REPO"),
    ] {
        let ended = world.nelumbo(&server.url, args);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

#[test]
fn what_is_not_clear_is_listed_and_not_guessed() {
    let world = World::new();
    let server = hub::start(vec![Repo::new(&[
        ("m-Q5_K_M.gguf", gguf(64_000, 1)),
        ("m-Q8_0.gguf", gguf(64_000, 2)),
    ])]);
    let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    for choice in ["u/r:Q5_K_M\n", "u/r:Q8_0\n"] {
        assert!(ended.stderr.contains(choice), "{choice}: {}", ended.stderr);
    }
    let ended = world.nelumbo(&server.url, &["pull", "u/r:Q2_K"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("u/r:Q8_0"), "{}", ended.stderr);
    assert!(fetched(&server).is_empty() && !world.hub("models--u--r").exists());
}

#[test]
fn a_revision_has_its_own_files() {
    let world = World::new();
    let old = Repo {
        revision: "refs%2Fpr%2F1",
        commit: "2222222222222222222222222222222222222222",
        ..Repo::new(&[("m-Q4_K_M.gguf", gguf(32_000, 9))])
    };
    let commit = old.commit;
    let server = hub::start(vec![several(), old]);
    let path = snapshot(&world, commit, "m-Q4_K_M.gguf");
    assert_ok(
        &world.nelumbo(&server.url, &["pull", "u/r@refs/pr/1"]),
        &path,
    );
    let by_commit = format!("u/r@{commit}");
    let before = server.requests().len();
    assert_ok(&world.nelumbo(&server.url, &["pull", &by_commit]), &path);
    assert_eq!(server.requests().len(), before, "a commit does not change");
    assert_eq!(world.state_of("u/r:Q4_K_M@refs/pr/1"), "ready");
    let ended = world.nelumbo(&server.url, &["pull", "u/r:Q4_K_M", "--offline"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
}

#[test]
fn a_branch_that_moved_is_followed_by_pull() {
    let world = World::new();
    let first = hub::start(vec![several()]);
    world.nelumbo(&first.url, &["pull", "u/r"]);
    let moved = Repo {
        commit: "3333333333333333333333333333333333333333",
        ..Repo::new(&[
            ("m-Q4_K_M.gguf", gguf(64_000, 5)),
            ("m-Q8_0.gguf", gguf(64_000, 6)),
        ])
    };
    let commit = moved.commit;
    let second = hub::start(vec![moved]);
    // running takes what is there without asking
    world.nelumbo(&second.url, &["run", "u/r", "hello"]);
    assert!(second.requests().is_empty());
    let ended = world.nelumbo(&second.url, &["pull", "u/r"]);
    assert_ok(&ended, &snapshot(&world, commit, "m-Q4_K_M.gguf"));
    assert_eq!(world.state_of("u/r:Q4_K_M"), "ready");
    assert_eq!(world.state_of(&format!("u/r:Q4_K_M@{COMMIT}")), "ready");
    // a hub that does not answer is no reason not to have it
    let ended = world.nelumbo(&closed_port(), &["pull", "u/r"]);
    assert_ok(&ended, &snapshot(&world, commit, "m-Q4_K_M.gguf"));
    assert!(ended.stderr.contains("cannot be asked"), "{}", ended.stderr);
}

#[test]
fn safetensors_come_with_all_that_belongs_to_them() {
    let world = World::new();
    let files = sharded();
    let server = hub::start(vec![Repo {
        files: files.clone(),
        ..Repo::new(&[])
    }]);
    let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
    let folder = snapshot(&world, COMMIT, "config.json");
    assert_ok(&ended, folder.parent().unwrap());
    let mut fetched = fetched(&server);
    fetched.sort();
    let expected = [
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(fetched, expected);
    let config = &files.iter().find(|file| file.0 == "config.json").unwrap().1;
    let blob = world.hub("models--u--r/blobs").join(git_blob(config));
    assert_eq!(fs::read(blob).unwrap(), *config);
    let (name, state, row) = world.listed().remove(0);
    assert_eq!(
        (name.as_str(), state.as_str()),
        ("u/r:safetensors", "ready")
    );
    assert_eq!(row["quant"], "F32");

    fs::remove_file(snapshot(&world, COMMIT, "model-00002-of-00002.safetensors")).unwrap();
    assert_eq!(world.state_of("u/r:safetensors"), "partial");
    let ended = world.nelumbo(&server.url, &["pull", "u/r", "--offline"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
}

#[test]
fn all_parts_of_a_split_model_come() {
    let world = World::new();
    let parts = split_gguf("Q8_0/m", 3, 32_000);
    let server = hub::start(vec![Repo {
        files: parts.clone(),
        ..Repo::new(&[])
    }]);
    let ended = world.nelumbo(&server.url, &["pull", "u/r:Q8_0"]);
    assert_ok(&ended, &snapshot(&world, COMMIT, &parts[0].0));
    assert_eq!(fetched(&server).len(), 3);
    assert!(ended.stderr.contains("3 of 3 files"), "{}", ended.stderr);
    assert_eq!(world.state_of("u/r:Q8_0"), "ready");
    fs::remove_file(snapshot(&world, COMMIT, &parts[1].0)).unwrap();
    assert_eq!(world.state_of("u/r:Q8_0"), "partial");
}

#[test]
fn a_repository_that_cannot_be_had_is_told() {
    let world = World::new();
    let server = hub::start(vec![several()]);
    let locked = Server::start(|_, _| Reply::new(403, b"").with("X-Error-Message", "gated"));
    for (url, reference, code, part) in [
        (&server.url, "u/none", 3, "no such file or directory here"),
        (&server.url, "u/none", 3, "Repository not found"),
        (&server.url, "hf:u/r@v9", 3, "revision v9"),
        (&locked.url, "u/r", 3, "HF_TOKEN"),
        (&locked.url, "u/r", 3, "gated"),
        (&closed_port(), "hf:u/r", 6, "cannot be asked"),
    ] {
        let ended = world.nelumbo(url, &["pull", reference]);
        assert_eq!(ended.code, Some(code), "{reference}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    let pickles = hub::start(vec![Repo::new(&[
        ("config.json", b"{}".to_vec()),
        ("pytorch_model.bin", b"x".to_vec()),
    ])]);
    let ended = world.nelumbo(&pickles.url, &["pull", "u/r"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("pickled"), "{}", ended.stderr);
    assert!(fetched(&pickles).is_empty());
}

#[test]
fn bytes_come_from_elsewhere_in_parts_and_the_token_stays_at_home() {
    let world = World::new();
    let bytes = gguf(7 * 70_400, 3);
    let body = bytes.clone();
    let store = Server::start(move |request, _| {
        Reply::file(&body, request)
            .with("ETag", "\"stored\"")
            .cut_after(70_400)
    });
    let (target, checksum) = (format!("{}/blob", store.url), sha256(&bytes));
    let repo = Repo::new(&[("m.gguf", bytes)]);
    let hub = Server::start(move |request, count| match count {
        0 => Reply::new(429, b"").with("Retry-After", "1"),
        _ if request.path.starts_with("/api") => repo.answer(request).unwrap(),
        _ => Reply::new(302, b"")
            .with("Location", target.clone())
            .with("X-Linked-Etag", format!("\"{checksum}\"")),
    });
    let start = Instant::now();
    let ended = finish(
        world
            .command(&["pull", "u/r"])
            .env("HF_ENDPOINT", &hub.url)
            .env("HF_TOKEN", "secret"),
    );
    assert_ok(&ended, &snapshot(&world, COMMIT, "m.gguf"));
    assert!(start.elapsed() >= Duration::from_secs(1));
    let starts: Vec<_> = store.requests().iter().map(|r| r.range_start()).collect();
    let expected: Vec<_> = (0..7).map(|i| (i > 0).then_some(i * 70_400)).collect();
    assert_eq!(starts, expected);
    for request in store.requests() {
        assert_eq!(request.header("authorization"), None);
    }
    for request in hub.requests() {
        assert_eq!(request.header("authorization"), Some("Bearer secret"));
    }
    assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
}
