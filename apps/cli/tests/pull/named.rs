//! Models of the table, from the hub.

use std::fs;
use std::time::Duration;

use nelumbo::formats::Encoding;
use nelumbo::formats::write::GgufWriter;

use crate::support::World;
use crate::support::server::{Reply, Server};
use crate::{NO_SUCH, SIZE, assert_pulled, body, pull_killed_at, world};

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
        "F32",
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
    let partial = world.tiny("tiny.gguf.partial");
    pull_killed_at(&world, &server.url, "tiny", &partial, SIZE / 2);
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
