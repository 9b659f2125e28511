//! `nelumbo rm`.

use std::fs;

use crate::support::hub::{self, Repo, gguf, sha256, sharded, split_gguf};
use crate::support::server::{Reply, Server};
use crate::support::{Ended, World, closed_port};
use crate::{NO_SUCH, SIZE, body, world};

fn rm(world: &World, args: &[&str]) -> Ended {
    world.nelumbo(&closed_port(), &[&["rm"], args].concat())
}

fn pull(world: &World, url: &str, reference: &str) {
    let ended = world.nelumbo(url, &["pull", reference]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_named_model_goes_with_all_its_traces() {
    let world = world(NO_SUCH);
    let server = Server::start(|request, _| Reply::file(&body(), request));
    pull(&world, &server.url, "tiny");
    let ended = rm(&world, &["tiny"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("-y"), "{}", ended.stderr);
    assert_eq!(world.state(), "ready");

    let ended = rm(&world, &["tiny", "-y"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.trim_end(), "deleted tiny:q8_0, freed 300.0 kB");
    assert!(!world.tiny("").exists());
    let ended = rm(&world, &["tiny:q8_0", "-y"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
}

#[test]
fn an_unfinished_download_goes_too_unless_somebody_writes_it() {
    let world = world(NO_SUCH);
    fs::create_dir_all(world.tiny("")).unwrap();
    fs::write(world.tiny("tiny.gguf.partial"), &body()[..1000]).unwrap();
    let lock = fs::File::create(world.tiny("tiny.gguf.lock")).unwrap();
    lock.lock().unwrap();
    let ended = rm(&world, &["tiny", "-y"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert_eq!(world.state(), "partial");
    drop(lock);
    let ended = rm(&world, &["tiny", "-y"]);
    assert!(ended.stdout.contains("freed 1.0 kB"), "{}", ended.stdout);
    assert!(!world.tiny("").exists());
}

#[test]
fn a_blob_that_another_revision_uses_stays() {
    let world = World::new();
    let (both, first) = (gguf(64_000, 1), gguf(32_000, 2));
    let main = Repo::new(&[("a-Q4_K_M.gguf", both.clone()), ("b-Q8_0.gguf", first)]);
    let other = Repo {
        revision: "v1",
        commit: "4444444444444444444444444444444444444444",
        ..Repo::new(&[("old-Q4_K_M.gguf", both.clone())])
    };
    let server = hub::start(vec![main, other]);
    for reference in ["u/r:Q4_K_M", "u/r:Q8_0", "u/r@v1"] {
        pull(&world, &server.url, reference);
    }
    let blob = world.hub("models--u--r/blobs").join(sha256(&both));

    let ended = rm(&world, &["u/r", "-y"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    for name in ["u/r:Q4_K_M\n", "u/r:Q8_0\n", "u/r:Q4_K_M@v1\n"] {
        assert!(ended.stderr.contains(name), "{name}: {}", ended.stderr);
    }
    let ended = rm(&world, &["u/r:Q4_K_M", "-y"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("freed 0 B"), "{}", ended.stdout);
    assert!(
        ended.stderr.contains("another revision"),
        "{}",
        ended.stderr
    );
    assert!(blob.exists());
    assert_eq!(world.state_of("u/r:Q4_K_M@v1"), "ready");

    let ended = rm(&world, &["u/r@v1", "-y"]);
    assert!(ended.stdout.contains("freed 64.0 kB"), "{}", ended.stdout);
    assert!(!blob.exists());
    assert_eq!(world.state_of("u/r:Q8_0"), "ready");
    let ended = rm(&world, &["hf:u/r", "-y"]);
    assert!(ended.stdout.contains("freed 32.0 kB"), "{}", ended.stdout);
    assert!(!world.hub("models--u--r").exists());
}

#[test]
fn parts_go_together_finished_or_not() {
    let world = World::new();
    let parts = split_gguf("m-Q8_0", 3, 640_000);
    let repo = Repo {
        files: parts.clone(),
        ..Repo::new(&[])
    };
    let last = parts[2].0.clone();
    let server = Server::start(move |request, _| {
        if request.path.ends_with(&last) {
            let reply = hub::answer(std::slice::from_ref(&repo), request);
            // enough to be an unfinished file, and then a refusal
            return match request.range_start() {
                None => reply.cut_after(100_000),
                Some(_) => Reply::new(404, b""),
            };
        }
        hub::answer(std::slice::from_ref(&repo), request)
    });
    let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert_eq!(world.state_of("u/r:Q8_0"), "partial");
    let ended = rm(&world, &["u/r:q8_0", "-y"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("freed 1.4 MB"), "{}", ended.stdout);
    assert!(!world.hub("models--u--r").exists());
}

#[test]
fn what_came_before_the_weights_goes_with_them() {
    let world = World::new();
    let repo = Repo {
        files: sharded(),
        ..Repo::new(&[])
    };
    let server = Server::start(move |request, _| {
        let reply = hub::answer(std::slice::from_ref(&repo), request);
        let is_first = request.path.ends_with("1-of-00002.safetensors");
        match (is_first, request.range_start()) {
            (false, _) => reply,
            (true, None) => reply.cut_after(10_000),
            (true, Some(_)) => Reply::new(404, b""),
        }
    });
    let ended = world.nelumbo(&server.url, &["pull", "u/r"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert_eq!(world.state_of("u/r:safetensors"), "partial");
    let ended = rm(&world, &["u/r", "-y"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!world.hub("models--u--r").exists());
}

#[test]
fn downloads_go_by_their_reference_and_files_of_ones_own_never() {
    let world = World::new();
    let server = Server::start(|request, _| Reply::file(&body(), request));
    let url = format!("{}/m.gguf", server.url);
    pull(&world, &closed_port(), &url);
    let ended = rm(&world, &[&url, "-y"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(world.listed().is_empty());

    let own = world.path("own.gguf");
    fs::write(&own, gguf(SIZE, 1)).unwrap();
    let ended = rm(&world, &[own.to_str().unwrap(), "-y"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(own.exists());
}
