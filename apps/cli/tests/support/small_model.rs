//! A small model of our own in both layouts, for commands that read files and write others.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;

use serde_json::Value;

use crate::support::{Ended, World, closed_port, finish};
use crate::tiny_llama::TinyLlama;

/// A world with the small model in both layouts, and a text.
pub fn world() -> World {
    let world = World::new();
    fs::create_dir(world.path("dir")).unwrap();
    TinyLlama::new().write_directory(&world.path("dir"));
    let file = TinyLlama::new().gguf(|file| file).finish();
    fs::write(world.path("m.gguf"), file).unwrap();
    let text: String = (0..60)
        .map(|i| format!("hi, it is {i} times so; "))
        .collect();
    fs::write(world.path("text.txt"), text).unwrap();
    world
}

/// Runs a command in the folder of the world, where names are short.
pub fn run(world: &World, args: &[&str]) -> Ended {
    finish(
        world
            .command(args)
            .current_dir(world.path(""))
            .env("HF_ENDPOINT", closed_port()),
    )
}

pub fn json(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Names in the folder of the world that are not there at the beginning.
pub fn new_names(world: &World) -> Vec<String> {
    let known = [
        "dir", "m.gguf", "text.txt", "bin", "cache", "home", "config", "state",
    ];
    let names = fs::read_dir(world.path("")).unwrap();
    let mut names: Vec<String> = names
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| !known.contains(&name.as_str()))
        .collect();
    names.sort();
    names
}
