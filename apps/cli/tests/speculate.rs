//! Guesses as a user meets them: answers stay the same, figures are told, and a draft model that does not fit
//! is refused by name.

#[path = "support/small_model.rs"]
mod small_model;
mod support;
#[path = "../../../tests/faults/tiny_llama.rs"]
mod tiny_llama;

use serde_json::Value;
use small_model::{json, run, world};
use support::{Ended, World};

fn answer(world: &World, args: &[&str]) -> Ended {
    let usual = [
        "run",
        "-q",
        "m.gguf",
        "--raw",
        "-p",
        "hi, it is so; hi, it is",
        "-n",
        "40",
        "--ignore-eos",
        "--temp",
        "0",
        "-c",
        "256",
        "--allow-software",
    ];
    run(world, &[&usual[..], args].concat())
}

fn speculation(answer: &Value) -> [u64; 3] {
    let told = &answer["speculation"];
    ["proposed", "accepted", "target_passes"].map(|name| told[name].as_u64().unwrap())
}

#[test]
fn an_answer_is_the_same_whoever_guesses() {
    let world = world();
    let answer = |args: &[&str]| json(&answer(&world, &[args, &["--format", "json"]].concat()));
    let plain = answer(&["--speculate", "off"]);
    assert_eq!(speculation(&plain), [0, 0, 40]);
    // the same weights in the other layout
    let draft = [
        "--speculate",
        "draft",
        "--draft-model",
        "dir",
        "--draft-max",
        "4",
    ];
    let drafted = answer(&draft);
    let [proposed, accepted, passes] = speculation(&drafted);
    assert!(
        accepted <= proposed && accepted + passes == 40,
        "{accepted}, {passes}"
    );
    for args in [
        &["--speculate", "ngram"][..],
        &["--draft-model", "dir"],
        &[],
    ] {
        let found = answer(args);
        assert_eq!(found["token_ids"], plain["token_ids"], "{args:?}");
        let [_, accepted, passes] = speculation(&found);
        assert_eq!(accepted + passes, 40, "{args:?}");
    }
    assert_eq!(drafted["token_ids"], plain["token_ids"]);
    assert!(drafted["memory"]["other_bytes"].as_u64() > plain["memory"]["other_bytes"].as_u64());
}

#[test]
fn a_draft_with_other_tokens_is_refused_by_name() {
    let world = world();
    let path = world.path("dir").join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let (a, b) = (vocab["a"].clone(), vocab["b"].clone());
    let least = a.as_u64().min(b.as_u64()).unwrap();
    vocab.insert("a".to_owned(), b);
    vocab.insert("b".to_owned(), a);
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let ended = answer(&world, &["--draft-model", "dir"]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(2), ""),
        "{}",
        ended.stderr
    );
    for part in [
        "--draft-model: dir: ",
        &format!("token {least} is"),
        "m.gguf",
    ] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    // and not looked at where nobody would ask it
    let ended = answer(&world, &["--draft-model", "dir", "--speculate", "off"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("--draft-model has no effect"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_draft_that_does_not_fit_is_told_beside_the_model() {
    let world = world();
    let format = ["--format", "json"];
    let plain = json(&answer(&world, &format));
    let bytes: u64 = plain["memory"]
        .as_object()
        .unwrap()
        .values()
        .map(|bytes| bytes.as_u64().unwrap())
        .sum();
    // room for the model and a part of another
    let limit = format!("{:.6}MB", 1.3 * bytes as f64 / 1e6);
    let limited = |args: &[&str]| answer(&world, &[args, &["--gpu-memory", &limit]].concat());
    assert_eq!(limited(&[]).code, Some(0));
    let ended = limited(&["--draft-model", "dir"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""));
    for part in [
        "to draft, beside a model that takes",
        "--ctx-size",
        "--draft-model",
    ] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

#[test]
fn a_draft_without_a_model_says_what_to_do() {
    let world = world();
    let ended = answer(&world, &["--speculate", "draft"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("--draft-model"), "{}", ended.stderr);
    let ended = answer(&world, &["--draft-model", "nowhere.gguf"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("nowhere.gguf"), "{}", ended.stderr);
}
