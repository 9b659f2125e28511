//! The hub's cache as other tools leave it, and caches that cannot be used.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::support::hub::{self, COMMIT, Repo, fetched, gguf, sha256, sharded};
use crate::support::{World, closed_port, finish};

/// What another tool leaves of one file, links or not; the path in the snapshot.
fn left_by_another_tool(world: &World, file: &str, bytes: &[u8], linked: bool) -> PathBuf {
    let folder = world.hub("models--u--r");
    let path = folder.join("snapshots").join(COMMIT).join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::create_dir_all(folder.join("blobs")).unwrap();
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::write(folder.join("refs/main"), COMMIT).unwrap();
    if linked {
        let blob = sha256(bytes);
        fs::write(folder.join("blobs").join(&blob), bytes).unwrap();
        let up = "../".repeat(2 + file.matches('/').count());
        symlink(format!("{up}blobs/{blob}"), &path).unwrap();
    } else {
        fs::write(&path, bytes).unwrap();
    }
    path
}

#[test]
fn what_another_tool_fetched_is_not_fetched_again() {
    for linked in [true, false] {
        let world = World::new();
        let bytes = gguf(64_000, 1);
        let path = left_by_another_tool(&world, "m-Q4_K_M.gguf", &bytes, linked);
        assert_eq!(world.state_of("u/r:Q4_K_M"), "ready");
        let offline = world.nelumbo(&closed_port(), &["pull", "u/r", "--offline"]);
        let server = hub::start(vec![Repo::new(&[("m-Q4_K_M.gguf", bytes)])]);
        let online = world.nelumbo(&server.url, &["pull", "u/r"]);
        for ended in [offline, online] {
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
            assert_eq!(ended.stdout.trim_end(), path.to_str().unwrap());
        }
        assert!(fetched(&server).is_empty());
    }
}

#[test]
fn a_damaged_file_is_seen_and_replaced() {
    let world = World::new();
    let bytes = gguf(64_000, 1);
    let path = left_by_another_tool(&world, "m-Q4_K_M.gguf", &bytes, true);
    // what is behind the link, cut
    fs::write(&path, &bytes[..60_000]).unwrap();
    assert_eq!(world.state_of("u/r:Q4_K_M"), "corrupt");
    let server = hub::start(vec![Repo::new(&[("m-Q4_K_M.gguf", bytes.clone())])]);
    let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("60000 bytes, expected 64000"),
        "{}",
        ended.stderr
    );
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(world.state_of("u/r:Q4_K_M"), "ready");
}

#[test]
fn shards_without_their_list_are_not_yet_a_model() {
    let world = World::new();
    let files = sharded();
    let there = [
        "config.json",
        "tokenizer.json",
        "model-00001-of-00002.safetensors",
    ];
    for (name, bytes) in files.iter().filter(|file| there.contains(&file.0.as_str())) {
        left_by_another_tool(&world, name, bytes, true);
    }
    assert_eq!(world.state_of("u/r:safetensors"), "partial");
    let server = hub::start(vec![Repo {
        files: files.clone(),
        ..Repo::new(&[])
    }]);
    // its configuration says too little to be run; whether that is found out needs all its files
    let ended = world.nelumbo(&server.url, &["run", "u/r", "hello"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let mut fetched = fetched(&server);
    fetched.sort();
    let missing = [
        "generation_config.json",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer_config.json",
    ];
    assert_eq!(fetched, missing);
    assert_eq!(world.state_of("u/r:safetensors"), "ready");
}

#[test]
fn only_models_are_listed() {
    let world = World::new();
    left_by_another_tool(&world, "README.md", b"#", true);
    left_by_another_tool(&world, "config.json", b"{}", true);
    left_by_another_tool(&world, "pytorch_model.bin", b"x", true);
    fs::create_dir_all(world.hub("datasets--u--d/snapshots")).unwrap();
    fs::write(world.hub("version.txt"), "1").unwrap();
    assert!(world.listed().is_empty());
    left_by_another_tool(&world, "mmproj-f16.gguf", &gguf(32_000, 1), true);
    left_by_another_tool(&world, "d/m-f16.gguf", &gguf(32_000, 2), true);
    let names: Vec<String> = world.listed().into_iter().map(|row| row.0).collect();
    assert_eq!(names, ["u/r:f16"]);
    let list = |flag| world.nelumbo(&closed_port(), &[flag]).stdout;
    assert!(list("-cl").contains("u/r:f16"));
    assert_eq!(list("-cl"), list("ls"));
}

#[test]
fn the_hubs_variables_say_where_its_cache_is() {
    let bytes = gguf(32_000, 1);
    let server = hub::start(vec![Repo::new(&[("m.gguf", bytes)])]);
    for (variable, value, expected) in [
        ("HF_HOME", "home-of-hub", "home-of-hub/hub/models--u--r"),
        ("HF_HUB_CACHE", "its-cache", "its-cache/models--u--r"),
    ] {
        let world = World::new();
        fs::create_dir_all(world.path(value)).unwrap();
        fs::write(world.path(value).join("token"), "stored\n").unwrap();
        let mut command = world.command(&["pull", "u/r"]);
        command
            .env("HF_ENDPOINT", &server.url)
            .env(variable, world.path(value));
        let ended = finish(&mut command);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let path = PathBuf::from(ended.stdout.trim_end());
        assert!(path.starts_with(world.path(expected)), "{}", path.display());
    }
    let tokens: Vec<_> = server.requests().into_iter().map(|r| r.headers).collect();
    let token = |at: usize| tokens[at].get("authorization").map(String::as_str);
    assert_eq!((token(0), token(2)), (Some("Bearer stored"), None));
}

#[test]
fn e9_a_cache_that_cannot_be_written_is_one_warning_and_no_reason_to_stop() {
    let world = World::new();
    fs::write(world.path("a-file"), b"").unwrap();
    fs::write(world.path("m.gguf"), gguf(32_000, 1)).unwrap();
    let mut command = world.command(&["run"]);
    command
        .arg(world.path("m.gguf"))
        .arg("hello")
        .env("NELUMBO_CACHE", world.path("a-file"));
    let ended = finish(&mut command);
    // the file holds no model: it is looked at nevertheless
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("general.architecture"),
        "{}",
        ended.stderr
    );
    let warnings: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with("warn"))
        .collect();
    assert_eq!(warnings.len(), 1, "{}", ended.stderr);
    assert!(warnings[0].contains("a-file"), "{}", warnings[0]);
}
