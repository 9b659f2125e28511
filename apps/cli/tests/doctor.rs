//! `nelumbo doctor`, and what a run does on an adapter that computes wrongly: the tests' own program has
//! faults that can be planted in its shaders.

mod support;

use std::process::Command;

use serde_json::Value;
use support::{Ended, World, finish, model};

/// With the self-check, as users have it.
fn command(world: &World, args: &[&str], fault: &str) -> Command {
    let mut command = world.command(args);
    command.env("NELUMBO_SELF_CHECK", "1");
    if !fault.is_empty() {
        command.env("NELUMBO_FAULT", fault);
    }
    command
}

fn doctor(world: &World, args: &[&str], fault: &str) -> Ended {
    let args = [&["doctor", "--backend", "vulkan"], args].concat();
    finish(&mut command(world, &args, fault))
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"))
}

/// Whether there is an adapter to look at; else what `doctor` says of that is held to be right.
fn is_there(ended: &Ended) -> bool {
    if ended.code != Some(4) {
        return true;
    }
    assert!(std::env::var_os("REQUIRE_GPU").is_none(), "{ended:?}");
    assert!(ended.stdout.contains("hint"), "{ended:?}");
    false
}

#[test]
fn an_adapter_that_is_right_is_told_and_remembered() {
    let world = World::new();
    let first = doctor(&world, &["--json"], "");
    if !is_there(&first) {
        return;
    }
    assert_eq!((first.code, first.stderr.as_str()), (Some(0), ""));
    let report = json(&first);
    for key in [
        "version", "system", "cores", "shape", "default", "hints", "kept", "adapters",
    ] {
        assert!(report.get(key).is_some(), "{key}: {report:#}");
    }
    let default = report["default"].as_u64().unwrap();
    let adapters = report["adapters"].as_array().unwrap();
    let used = adapters.iter().find(|a| a["index"] == default).unwrap();
    assert_eq!(
        (&used["default"], &used["usable"]),
        (&true.into(), &true.into())
    );
    assert!(
        used["reason"]
            .as_str()
            .unwrap()
            .starts_with("used by default")
    );
    assert!(used["limits"]["binding_bytes"].as_u64().unwrap() >= 1 << 20);
    let check = &used["self_check"];
    assert_eq!(
        (&check["verdict"], &check["cached"]),
        (&"right".into(), &false.into())
    );
    assert!(check["cases"].as_u64().unwrap() > 20, "{check:#}");
    assert_eq!(used["kept"]["self_check"], false);

    let second = json(&doctor(&world, &["-o", "json"], ""));
    let used = second["adapters"].as_array().unwrap();
    let used = used.iter().find(|a| a["index"] == default).unwrap();
    assert_eq!(used["self_check"]["cached"], true);
    assert_eq!(used["kept"]["self_check"], true);
    assert_eq!(
        second["kept"]["files"]["selfcheck"]["count"],
        adapters.len()
    );

    let text = doctor(&world, &[], "").stdout;
    for part in [
        "used by default",
        "limits",
        "self-check  right, as an earlier run found",
        "default",
        "cache",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for line in text.lines() {
        // a folder has the name that it has
        let fits = line.chars().count() <= 100 || line.contains('/');
        assert!(fits, "{line}");
    }
}

#[test]
fn an_adapter_that_is_wrong_ends_with_7_and_names_the_kernel() {
    let world = World::new();
    let ended = doctor(&world, &["--json"], "attention-heads");
    if !is_there(&ended) {
        return;
    }
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("the self-check failed"),
        "{}",
        ended.stderr
    );
    let report = json(&ended);
    for adapter in report["adapters"].as_array().unwrap() {
        let check = &adapter["self_check"];
        assert_eq!(check["verdict"], "wrong");
        let wrong = check["wrong"].as_array().unwrap();
        assert_eq!(wrong.len(), 1, "{check:#}");
        assert_eq!(wrong[0]["kernel"], "attention");
        let problem = wrong[0]["problem"].as_str().unwrap();
        assert!(problem.contains("expected"), "{problem}");
        assert!(!wrong[0]["variants"].as_array().unwrap().is_empty());
    }
    // that is not remembered, and is not what the healthy driver is told to have done
    let healthy = json(&doctor(&world, &["--json"], ""));
    for adapter in healthy["adapters"].as_array().unwrap() {
        let check = &adapter["self_check"];
        assert_eq!(
            (&check["verdict"], &check["cached"]),
            (&"right".into(), &false.into())
        );
    }
    let text = doctor(&world, &[], "attention-heads").stdout;
    assert!(
        text.contains("WRONG") && text.contains("attention "),
        "{text}"
    );
}

#[test]
fn without_a_check_it_only_looks() {
    let ended = doctor(
        &World::new(),
        &["--json", "--self-check", "off"],
        "attention-heads",
    );
    if !is_there(&ended) {
        return;
    }
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for adapter in json(&ended)["adapters"].as_array().unwrap() {
        assert_eq!(adapter["self_check"], Value::Null);
    }
}

#[test]
fn a_fault_that_is_none_is_told_before_anything_starts() {
    let ended = doctor(&World::new(), &[], "no-such-fault");
    if !is_there(&ended) {
        return;
    }
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("\"no-such-fault\""),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.contains("residual-lost"), "{}", ended.stderr);
}

#[test]
#[cfg(target_os = "linux")]
fn where_nothing_can_be_used_it_ends_with_4_and_says_what_would_help() {
    let world = World::new();
    let mut command = command(&world, &["doctor", "--backend", "metal"], "");
    let ended = finish(&mut command);
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("none: nothing can be used"),
        "{}",
        ended.stdout
    );
    assert!(ended.stderr.contains("--backend metal"), "{}", ended.stderr);
}

/// No adapter is needed: nothing is said of those that nobody asked for, nor of what no run of it leaves.
#[test]
fn the_processor_is_described_where_it_is_asked_for() {
    let ended = finish(&mut command(
        &World::new(),
        &["doctor", "--backend", "cpu"],
        "",
    ));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(
        ended.stdout.contains("--backend cpu asks for it"),
        "{ended:?}"
    );
    for not_so in ["no GPU", "hint", "no tuning", "not measured", "WRONG"] {
        assert!(!ended.stdout.contains(not_so), "{not_so}: {}", ended.stdout);
    }
}

#[test]
fn a_models_own_shape_is_checked() {
    let Some(model) = model() else { return };
    let ended = doctor(&World::new(), &[model.to_str().unwrap(), "--json"], "");
    if !is_there(&ended) {
        return;
    }
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let report = json(&ended);
    assert_eq!(
        report["shape"],
        model.file_name().unwrap().to_str().unwrap()
    );
    for adapter in report["adapters"].as_array().unwrap() {
        assert_eq!(adapter["self_check"]["verdict"], "right");
    }
}

/// The real model: on an adapter with a fault the answer is that of a healthy one, and it is told.
#[test]
fn a_run_in_safe_mode_says_so_and_answers_the_same() {
    let Some(model) = model() else { return };
    let world = World::new();
    let run = |self_check: &str, fault: &str| {
        let args = [
            "run",
            "--format",
            "json",
            "--raw",
            "-p",
            "The capital of France is",
            "-n",
            "6",
            "--temp",
            "0",
            "--backend",
            "vulkan",
            "--ctx-size",
            "512",
            "-m",
        ];
        let mut command = command(&world, &args, fault);
        finish(command.env("NELUMBO_SELF_CHECK", self_check).arg(&model))
    };
    let healthy = run("1", "");
    if !is_there(&healthy) {
        return;
    }
    let expected = json(&healthy);
    assert_eq!(expected["safe_mode"], Value::Array(Vec::new()));
    let broken = json(&run("0", "attention-heads"));
    assert_ne!(
        broken["token_ids"], expected["token_ids"],
        "the fault changes nothing"
    );
    assert_eq!(broken["safe_mode"], Value::Array(Vec::new()));
    let safe = run("1", "attention-heads");
    assert_eq!(safe.code, Some(0), "{}", safe.stderr);
    let told = safe.stderr.matches("computes attention wrongly").count();
    assert_eq!(told, 1, "{}", safe.stderr);
    let answer = json(&safe);
    assert_eq!(answer["token_ids"], expected["token_ids"]);
    let safe_mode = answer["safe_mode"].as_array().unwrap();
    assert_eq!(safe_mode.len(), 1, "{safe_mode:?}");
    assert_eq!(
        (&safe_mode[0]["kernel"], &safe_mode[0]["instead"]),
        (&"attention".into(), &"host".into())
    );
}
