//! `nelumbo run` with a real model: what a user and a program get to see.
//!
//! `NELUMBO_TEST_MODEL` names the model file; `scripts/test.sh` sets it. Without it these
//! tests have nothing to run, which is an error where `REQUIRE_GPU` is set.

mod support;

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use serde_json::Value;
use support::{Ended, World, finish, model};

/// `nelumbo run` on the model with these arguments.
fn run(model: &PathBuf, args: &[&str]) -> Ended {
    finish(World::new().command(&["run", "-m"]).arg(model).args(args))
}

fn run_json(model: &PathBuf, args: &[&str]) -> Value {
    let ended = run(model, &[args, &["--format", "json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    serde_json::from_str(&ended.stdout).unwrap()
}

fn ids(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect()
}

/// The parts of the time to the first token are nearly all of it: how late a busy machine wakes the
/// program up, nobody tells.
fn check_first_token(timings: &Value) {
    let ms = |name: &str| timings[name].as_f64().unwrap();
    let parts = ["tokenize_ms", "queue_ms", "prefill_ms", "sample_ms"].map(ms);
    let told: f64 = parts.iter().sum();
    let all = 0.5 * ms("ttft_ms")..=ms("ttft_ms") + 1e-6;
    assert!(all.contains(&told), "{parts:?}: {told} of {all:?}");
}

#[test]
fn the_json_object_is_complete_and_agrees_with_itself() {
    let Some(model) = model() else { return };
    let args = [
        "--raw",
        "-p",
        "The capital of France is",
        "-n",
        "6",
        "--temp",
        "0",
        "--ignore-eos",
    ];
    let object = run_json(&model, &[&args[..], &["--logprobs", "5"]].concat());

    let keys: Vec<&str> = object
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "prompt_token_ids",
            "token_ids",
            "text",
            "finish_reason",
            "top_logprobs",
            "usage",
            "timings",
            "device",
            "memory",
            "numerics",
            "tuning",
            "safe_mode",
            "speculation"
        ]
    );
    let (prompt, tokens) = (ids(&object["prompt_token_ids"]), ids(&object["token_ids"]));
    assert_eq!(
        (tokens.len(), &object["finish_reason"]),
        (6, &Value::from("length"))
    );
    let usage = &object["usage"];
    assert_eq!(usage["prompt_tokens"], prompt.len());
    assert_eq!(usage["completion_tokens"], 6);
    assert_eq!(usage["total_tokens"], prompt.len() + 6);
    assert_eq!(usage["cached_tokens"], 0, "the first request finds nothing");

    let steps = object["top_logprobs"].as_array().unwrap();
    assert_eq!(steps.len(), 6);
    for (step, token) in steps.iter().zip(&tokens) {
        let step = step.as_array().unwrap();
        let logprobs: Vec<f64> = step
            .iter()
            .map(|top| top["logprob"].as_f64().unwrap())
            .collect();
        assert_eq!((step.len(), step[0]["id"].as_u64()), (5, Some(*token)));
        assert!(
            logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 0.0,
            "{logprobs:?}"
        );
        assert!(step[0]["token"].is_string());
    }
    let timed =
        "load_ms compile_ms ttft_ms tokenize_ms queue_ms prefill_ms sample_ms prefill_tok_s";
    for name in timed.split(' ').chain(["decode_tok_s"]) {
        assert!(object["timings"][name].as_f64().unwrap() > 0.0, "{name}");
    }
    check_first_token(&object["timings"]);
    for name in ["weights_bytes", "kv_bytes", "scratch_bytes", "other_bytes"] {
        assert!(object["memory"][name].as_u64().unwrap() > 0, "{name}");
    }
    assert_eq!(object["numerics"]["mode"], "canonical");
    let numerics = &object["numerics"];
    let words = ["weights", "activations", "kv"].map(|name| numerics[name].as_str().unwrap());
    assert_eq!(words, ["q8", "f32", "f16"]);
    assert!(numerics["lanes"].as_u64().unwrap() > 0);
    let tuning = &object["tuning"];
    assert_eq!(
        (&tuning["source"], &tuning["ms"]),
        (&"default".into(), &0.0.into())
    );
    for name in ["workgroup", "tile_tokens"] {
        assert!(tuning[name].as_u64().unwrap() > 0, "{name}");
    }
    assert!(tuning["subgroups"].is_boolean() && tuning["wide"].is_boolean());
    let device = &object["device"];
    assert!(!device["adapter"].as_str().unwrap().is_empty() && device["caps"].is_array());
    assert!(["vulkan", "metal", "dx12", "gl"].contains(&device["backend"].as_str().unwrap()));

    let text = run(&model, &args);
    assert_eq!(
        text.stdout,
        format!("{}\n", object["text"].as_str().unwrap())
    );
    for part in ["ttft", "prefill", "decode", "tok/s", "context"] {
        assert!(text.stderr.contains(part), "{part}: {}", text.stderr);
    }
    assert!(
        !run(&model, &[&args[..], &["-q"]].concat())
            .stderr
            .contains("tok/s")
    );
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let Some(model) = model() else { return };
    let args = [
        "-n",
        "12",
        "--temp",
        "1",
        "--top-k",
        "0",
        "--ignore-eos",
        "Tell me a story.",
    ];
    let of = |seed: &str| ids(&run_json(&model, &[&args[..], &["-s", seed]].concat())["token_ids"]);
    assert_eq!(of("7"), of("7"));
    assert_ne!(of("7"), of("8"));
}

#[test]
fn a_stop_text_never_shows() {
    let Some(model) = model() else { return };
    let args = [
        "--raw",
        "-p",
        "one two three four five six",
        "-n",
        "24",
        "--temp",
        "0",
    ];
    let whole = run_json(&model, &args)["text"].as_str().unwrap().to_owned();
    // Some characters from the middle, so that the text begins and ends inside tokens.
    let stop: String = whole
        .chars()
        .skip(whole.chars().count() / 2)
        .take(5)
        .collect();
    let cut = run_json(&model, &[&args[..], &["--stop", &stop]].concat());
    assert_eq!(cut["finish_reason"], "stop");
    assert_eq!(cut["text"], whole[..whole.find(&stop).unwrap()]);
}

#[test]
fn a_prompt_longer_than_the_context_is_told_with_both_numbers() {
    let Some(model) = model() else { return };
    let prompt = "word ".repeat(100);
    let ended = run(&model, &["--raw", "-c", "32", "-p", &prompt]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(2), ""),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("32") && ended.stderr.contains("--ctx-size"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_piped_prompt_is_read_only_without_another() {
    let Some(model) = model() else { return };
    let world = World::new();
    let file = world.path("prompt.txt");
    fs::write(&file, "Hello there\n").unwrap();
    let tokens = |args: &[&str]| {
        let mut command = world.command(&["run", "--raw", "-n", "1", "--format", "json", "-m"]);
        let ended = finish(
            command
                .arg(&model)
                .args(args)
                .stdin(fs::File::open(&file).unwrap()),
        );
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ids(&serde_json::from_str::<Value>(&ended.stdout).unwrap()["prompt_token_ids"])
    };
    assert_eq!(tokens(&[]), tokens(&["-p", "Hello there"]));
    assert_ne!(tokens(&[]), tokens(&["Goodbye"]));
}

#[test]
fn a_reader_that_leaves_ends_the_run_quietly() {
    let Some(model) = model() else { return };
    let mut command = World::new().command(&["run", "-n", "4000", "--ignore-eos", "Count.", "-m"]);
    let mut child = command.arg(&model).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_there_is() {
    let Some(model) = model() else { return };
    let mut command = World::new().command(&["run", "-n", "4000", "--ignore-eos", "Count.", "-m"]);
    let mut child = command.arg(&model).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut said = vec![0]; // the first byte, which may be a part of a character
    stdout.read_exact(&mut said).unwrap();
    support::signal(&child, "-INT");
    stdout.read_to_end(&mut said).unwrap();
    let said = String::from_utf8(said).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(said.ends_with('\n') && stderr.contains("tok/s"), "{stderr}");
}

#[test]
fn what_is_no_model_is_refused_by_name() {
    let world = World::new();
    let empty = world.path("empty-folder");
    fs::create_dir(&empty).unwrap();
    let text = world.path("letter.gguf");
    fs::write(&text, "Dear reader, this is no model at all.").unwrap();
    let mut cases = vec![(empty, "empty-folder"), (text, "letter.gguf")];
    if let Some(model) = model() {
        let cut = world.path("cut.gguf");
        let mut bytes = fs::read(model).unwrap();
        bytes.truncate(bytes.len() - 1000);
        fs::write(&cut, bytes).unwrap();
        cases.push((cut, "cut.gguf"));
    }
    for (path, name) in cases {
        let ended = run(&path, &["hello"]);
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(3), ""),
            "{name}: {}",
            ended.stderr
        );
        assert!(ended.stderr.contains(name), "{}", ended.stderr);
    }
}

#[test]
fn a_pinned_backend_that_is_not_there_never_falls_back() {
    let Some(model) = model() else { return };
    let foreign = if cfg!(target_os = "macos") {
        "dx12"
    } else {
        "metal"
    };
    let ended = run(&model, &["hello", "--backend", foreign]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(4), ""),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains(foreign), "{}", ended.stderr);
    let ended = run(&model, &["hello", "--device", "999"]);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(ended.stderr.contains("999"), "{}", ended.stderr);
}

/// Where the adapter cannot, here since it may not: an error, never the other mode.
#[test]
fn e3_the_fast_mode_is_refused_where_the_adapter_has_no_matrices() {
    let Some(model) = model() else { return };
    let world = World::new();
    for args in [
        &["run", "hello", "--numerics", "fast", "-m"][..],
        &["bench", "-p", "8", "-n", "0", "--numerics", "fast", "-m"],
    ] {
        let mut command = world.command(args);
        let ended = finish(command.arg(&model).env("NELUMBO_CAPS", "subgroup,f16"));
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(4), ""),
            "{}",
            ended.stderr
        );
        for part in ["error: adapter ", "--numerics fast", "8x8x8", "hint: "] {
            assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        }
    }
}

#[test]
fn tuning_is_measured_within_its_time_and_told() {
    let Some(model) = model() else { return };
    let args = [
        "hello",
        "-n",
        "1",
        "--autotune",
        "on",
        "--format",
        "json",
        "-v",
    ];
    let ended = run(&model, &args);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let object: Value = serde_json::from_str(&ended.stdout).unwrap();
    let tuning = &object["tuning"];
    assert_eq!(tuning["source"], "measured", "{tuning}");
    let ms = tuning["ms"].as_f64().unwrap();
    // three seconds, and one for a thread that is woken late
    assert!(ms > 1.0 && ms < 4000.0, "{tuning}");
    assert!(ended.stderr.contains("tuning: act="), "{}", ended.stderr);
    let activations = object["numerics"]["activations"].as_str().unwrap();
    assert!(["f32", "q8"].contains(&activations));

    let pinned = run_json(&model, &["hello", "-n", "1", "--activations", "q8"]);
    assert_eq!(pinned["numerics"]["activations"], "q8");
    assert_eq!(pinned["tuning"]["source"], "pinned");
}

#[test]
fn switches_of_the_environment_are_obeyed_and_change_no_token() {
    let Some(model) = model() else { return };
    let world = World::new();
    let run = |switches: &[(&str, &str)]| {
        let mut command = world.command(&["run", "--temp", "0", "-n", "2", "--format", "json"]);
        command.envs(switches.iter().copied());
        finish(command.arg("-m").arg(&model).arg("Hello"))
    };
    let object = |ended: Ended| -> Value {
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let kept = world.path("cache").join("pipelines");

    let switches = [("NELUMBO_PIPELINE_CACHE", "0"), ("NELUMBO_CHECKED", "1")];
    let checked = object(run(&switches));
    assert!(!kept.exists());
    let usual = object(run(&[]));
    assert_eq!(ids(&usual["token_ids"]), ids(&checked["token_ids"]));
    assert_eq!(usual["device"], checked["device"]);
    if usual["device"]["backend"] == "vulkan" {
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 1);
    }
    for name in ["NELUMBO_PIPELINE_CACHE", "NELUMBO_CHECKED"] {
        let ended = run(&[(name, "maybe")]);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(name), "{}", ended.stderr);
    }
}
