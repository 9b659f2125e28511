//! `nelumbo quantize` as a user meets it: what it prints and writes, what it refuses, how much memory it
//! takes, and what an interruption leaves. A small model of our own, and the real one where files have to
//! be large.

#[path = "support/small_model.rs"]
mod small_model;
mod support;
#[path = "../../../tests/faults/tiny_llama.rs"]
mod tiny_llama;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use small_model::{json, new_names, run, world};
use support::{World, finish, model, wait_until};

#[test]
fn a_result_is_told_tensor_by_tensor_and_runs() {
    let world = world();
    let report = json(&run(
        &world,
        &["quantize", "-q", "m.gguf", "int8", "--json"],
    ));
    assert_eq!(
        (&report["type"], &report["out"]),
        (&"int8-channel".into(), &"int8".into())
    );
    let tensors = report["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 3 + 2 * 9);
    let sum: u64 = tensors
        .iter()
        .map(|t| t["bytes_after"].as_u64().unwrap())
        .sum();
    assert_eq!(report["bytes_after"].as_u64(), Some(sum));
    for tensor in tensors {
        let codes = tensor["to"].as_str().unwrap().starts_with("INT8");
        let name = tensor["name"].as_str().unwrap();
        assert_eq!(codes, name.contains("_proj"), "{tensor}");
        let (rms, nmse) = (
            tensor["relative_rms"].as_f64().unwrap(),
            tensor["nmse"].as_f64().unwrap(),
        );
        assert!(
            (rms * rms - nmse).abs() < 1e-12 && (rms > 0.0) == codes && rms < 0.01,
            "{tensor}"
        );
    }
    let config = fs::read_to_string(world.path("int8/config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["quantization_config"]["format"], "int-quantized");
    assert_eq!(
        config["quantization_config"]["config_groups"]["group_0"]["weights"]["strategy"],
        "channel"
    );
    let shown = json(&run(&world, &["show", "int8", "--json"]));
    assert_eq!(
        (&shown["format"], &shown["unsupported"]),
        (&"safetensors".into(), &Value::Null)
    );
    // and back, with the table on stdout
    let ended = run(&world, &["quantize", "int8", "back.gguf"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for part in [
        "INT8/row  Q8_0",
        "21 tensors as q8_0",
        "relative RMS",
        "back.gguf: ",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
    assert!(ended.stderr.contains("100 %"), "{}", ended.stderr);
    assert_eq!(new_names(&world), ["back.gguf", "int8"]);
}

#[test]
fn l6_what_is_there_is_kept_unless_told_otherwise() {
    let world = world();
    fs::create_dir(world.path("photos")).unwrap();
    fs::write(world.path("photos/cat.png"), "x").unwrap();
    fs::write(world.path("empty.txt"), "").unwrap();
    for (args, part) in [
        (&["dir", "dir"][..], "the model itself"),
        (&["dir", "dir/int8"], "the model itself"),
        (&["m.gguf", "photos"], "--force"),
        (&["m.gguf", "photos", "--force"], "something else"),
        (&["m.gguf", "x.gguf", "int8-group"], "q8_0"),
        (&["m.gguf", "x", "q8_0"], "int8-channel"),
        (&["m.gguf", "x", "q4_0"], "int8-group"),
        (&["m.gguf", "x", "--check", "no.txt"], "no.txt"),
        (&["m.gguf", "x", "--check", "empty.txt"], "empty.txt"),
        (
            &["m.gguf", "x", "--max-shard-size", "0"],
            "--max-shard-size",
        ),
        (&["m.gguf", "no/x"], "no"),
        (&["m.gguf"], "<OUT>"),
    ] {
        let ended = run(&world, &[&["quantize"], args].concat());
        assert!(
            matches!(ended.code, Some(2 | 6)),
            "{args:?}: {}",
            ended.stderr
        );
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    assert_eq!(new_names(&world), ["empty.txt", "photos"]);
    for kind in ["int8-channel", "f16"] {
        let ended = run(&world, &["quantize", "-q", "dir", "out", kind, "--force"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    }
    let config = fs::read_to_string(world.path("out/config.json")).unwrap();
    assert!(!config.contains("quantization_config"), "{config}");
    assert_eq!(new_names(&world), ["empty.txt", "out", "photos"]);
}

/// No file may become longer than so many blocks of 512 bytes: what a full disk is to a program.
#[cfg(target_os = "linux")]
#[test]
fn l6_a_full_disk_under_the_result_leaves_nothing() {
    let world = world();
    let line = "trap '' XFSZ; ulimit -f 40; exec \"$@\"";
    for (out, name) in [
        ("out", "model.safetensors"),
        ("out.gguf", "out.gguf.partial"),
    ] {
        let mut shell = world.in_shell(line, &["quantize", "m.gguf", out]);
        let ended = finish(shell.current_dir(world.path("")));
        assert_eq!(ended.code, Some(6), "{}", ended.stderr);
        assert!(ended.stderr.contains(name), "{}", ended.stderr);
        assert_eq!(new_names(&world), [""; 0]);
    }
}

/// A conversion of the real model, stopped by this signal while it writes.
#[cfg(unix)]
fn interrupted(world: &World, model: &PathBuf, out: &str, signal: &str) -> Option<i32> {
    let mut command = world.command(&["quantize"]);
    command
        .arg(model)
        .arg(out)
        .arg("f16")
        .current_dir(world.path(""));
    let mut child = command.spawn().unwrap();
    let partial = world.path(&format!("{out}.partial"));
    let written = || match out.ends_with(".gguf") {
        true => partial.metadata(),
        false => partial.join("model.safetensors").metadata(),
    };
    wait_until("something is written", || {
        written().is_ok_and(|m| m.len() > 1 << 20)
    });
    support::signal(&child, signal);
    let output = child.wait().unwrap();
    assert!(
        !world.path(out).exists(),
        "it was done before it was stopped"
    );
    output.code()
}

#[cfg(unix)]
#[test]
fn l7_an_interrupted_conversion_leaves_nothing_that_loads() {
    let Some(model) = model() else { return };
    for out in ["out", "out.gguf"] {
        let world = World::new();
        assert_eq!(interrupted(&world, &model, out, "-INT"), Some(130));
        assert_eq!(new_names(&world), [""; 0], "Ctrl-C takes it away");

        // what nobody can clean up after has another name, and is no model
        assert_eq!(interrupted(&world, &model, out, "-KILL"), None);
        let partial = format!("{out}.partial");
        assert_eq!(new_names(&world), [partial.as_str()]);
        for args in [&["show", partial.as_str()][..], &["run", &partial, "hi"]] {
            let ended = run(&world, args);
            assert_eq!(ended.code, Some(3), "{args:?}: {}", ended.stderr);
        }
        // the next one begins anew
        let path = model.to_str().unwrap();
        let ended = run(&world, &["quantize", "-q", path, out, "f16"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert_eq!(new_names(&world), [out]);
    }
}

/// The result is whole by then, and stays; what is kept of the source's predictions does not.
#[cfg(unix)]
#[test]
fn l7_an_interrupted_check_leaves_the_result_alone() {
    let world = world();
    fs::write(world.path("text.txt"), "hi, it is so; ".repeat(50_000)).unwrap();
    let check = ["--check", "text.txt", "--check-chunks", "100000"];
    let mut command = world.command(&["quantize", "m.gguf", "out"]);
    command.args(check).current_dir(world.path(""));
    let mut child = command.spawn().unwrap();
    let written = |path: PathBuf| path.metadata().is_ok_and(|m| m.len() > 0);
    let partial = format!("out.{}.kld.partial", child.id());
    wait_until("something is written", || written(world.path(&partial)));
    support::signal(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(new_names(&world), ["out"]);
    assert!(written(world.path("out/config.json")));
}

/// Without an adapter that can check, what was written is told all the same.
#[test]
fn a_check_that_fails_hides_no_result() {
    let world = world();
    let mut command = world.command(&["quantize", "-q", "m.gguf", "out", "--check", "text.txt"]);
    let none = ["--backend", if cfg!(windows) { "metal" } else { "dx12" }];
    let ended = finish(command.args(none).current_dir(world.path("")));
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("21 tensors as int8-channel"),
        "{}",
        ended.stdout
    );
    assert_eq!(new_names(&world), ["out"]);
}

#[test]
fn the_environment_and_settings_tell_what_flags_do() {
    let world = world();
    let args = ["quantize", "-q", "m.gguf", "x"];
    let set = |name: &str, value: &str| {
        let mut command = world.command(&args);
        finish(command.env(name, value).current_dir(world.path("")))
    };
    let ended = set("NELUMBO_CHECK_CHUNKS", "0");
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("--check-chunks"), "{}", ended.stderr);
    let settings = "[quantize]\noutput = \"json\"\nmax-shard-size = 1\n";
    fs::write(world.path("my.toml"), settings).unwrap();
    let report = json(&set("NELUMBO_CONFIG", "my.toml"));
    assert_eq!(report["out"], "x");
    assert_eq!(new_names(&world), ["my.toml", "x"]);
}

#[test]
fn a_check_compares_the_result_with_its_source() {
    let world = world();
    let args = [
        "quantize",
        "-q",
        "dir",
        "out",
        "int8-group",
        "--check",
        "text.txt",
        "--json",
    ];
    let report = json(&run(&world, &args));
    let check = &report["check"];
    let number = |key: &str| {
        check[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key}: {check}"))
    };
    assert!(
        (number("ratio") - 1.0).abs() < 0.05 && number("mean_kl") > 0.0,
        "{check}"
    );
    assert!(
        number("mean_kl") < 0.05 && number("top1_agree") > 0.8,
        "{check}"
    );
    assert!((number("ppl_after") / number("ppl_before") / number("ratio") - 1.0).abs() < 1e-4);
    assert_eq!(new_names(&world), ["out"]);
}
