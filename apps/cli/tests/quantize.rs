//! `nelumbo quantize` and `nelumbo perplexity` as a user meets them: what they print and write, what they
//! refuse, and what an interruption leaves. A small model of our own, and the real one where files have
//! to be large.

mod support;
#[path = "../../../tests/faults/tiny_llama.rs"]
mod tiny_llama;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use support::{Ended, World, closed_port, finish, model, wait_until};
use tiny_llama::TinyLlama;

/// A world with the small model in both layouts, and a text.
fn world() -> World {
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
fn run(world: &World, args: &[&str]) -> Ended {
    finish(
        world
            .command(args)
            .current_dir(world.path(""))
            .env("HF_ENDPOINT", closed_port()),
    )
}

fn json(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Names in the folder of the world that are not there at the beginning.
fn new_names(world: &World) -> Vec<String> {
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
    for (args, part) in [
        (&["dir", "dir"][..], "the model itself"),
        (&["dir", "dir/int8"], "the model itself"),
        (&["m.gguf", "photos"], "--force"),
        (&["m.gguf", "photos", "--force"], "something else"),
        (&["m.gguf", "x.gguf", "int8-group"], "q8_0"),
        (&["m.gguf", "x", "q8_0"], "int8-channel"),
        (&["m.gguf", "x", "q4_0"], "int8-group"),
        (&["m.gguf", "x", "--check", "no.txt"], "no.txt"),
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
    assert_eq!(new_names(&world), ["photos"]);
    for kind in ["int8-channel", "f16"] {
        let ended = run(&world, &["quantize", "-q", "dir", "out", kind, "--force"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    }
    let config = fs::read_to_string(world.path("out/config.json")).unwrap();
    assert!(!config.contains("quantization_config"), "{config}");
    assert_eq!(new_names(&world), ["out", "photos"]);
}

/// No file may become longer than so many blocks of 512 bytes: what a full disk is to a program.
#[cfg(target_os = "linux")]
#[test]
fn l6_a_full_disk_under_the_result_leaves_nothing() {
    let world = world();
    let line = "trap '' XFSZ; ulimit -f 40; cd \"$1\"; shift; exec \"$@\"";
    let folder = world.path("");
    for (out, name) in [
        ("out", "model.safetensors"),
        ("out.gguf", "out.gguf.partial"),
    ] {
        let args = ["quantize", "m.gguf", out];
        // the folder comes before the program, so the shell is built by hand
        let program = world.command(&args);
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", line, "sh"])
            .arg(&folder)
            .arg(program.get_program());
        shell.args(program.get_args());
        for (key, value) in program.get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        shell
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let ended = finish(&mut shell);
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
    let kill = std::process::Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    std::thread::sleep(Duration::from_millis(1));
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

/// The small model's perplexity; what the arguments do not say is as usual.
fn perplexity(world: &World, args: &[&str]) -> Ended {
    let mut all = vec!["perplexity"];
    for usual in [["-f", "text.txt"], ["-c", "48"], ["--activations", "f32"]] {
        if !args.contains(&usual[0]) {
            all.extend(usual);
        }
    }
    run(world, &[&all, args].concat())
}

#[test]
fn perplexity_is_told_with_its_error_and_against_a_base() {
    let world = world();
    let plain = json(&perplexity(
        &world,
        &["m.gguf", "-o", "json", "-q", "--chunks", "3"],
    ));
    let number =
        |report: &Value, key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key}"));
    assert_eq!(
        (&plain["windows"], &plain["window"]),
        (&3.into(), &48.into())
    );
    assert_eq!(plain["tokens_scored"], 3 * 47);
    let windows = plain["per_window_nll"].as_array().unwrap();
    let mean = windows.iter().map(|v| v.as_f64().unwrap()).sum::<f64>() / 3.0;
    assert!((mean.exp() / number(&plain, "ppl") - 1.0).abs() < 1e-9);
    assert!(number(&plain, "ppl_error") > 0.0);
    assert_eq!(
        (&plain["settings"]["weights"], &plain["settings"]["kv"]),
        (&"q8".into(), &"f16".into())
    );
    assert!(!plain["device"]["adapter"].as_str().unwrap().is_empty());

    // the base, and what is told while it is made
    let f16 = [
        "m.gguf",
        "--weights",
        "f16",
        "--kl-divergence-base",
        "f16.kld",
    ];
    let ended = perplexity(&world, &[&f16[..], &["--chunks", "3"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for part in ["predictions go to f16.kld", "3 of 3 windows", "s left"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    assert!(ended.stdout.starts_with("| model"), "{}", ended.stdout);
    let size = fs::metadata(world.path("f16.kld")).unwrap().len();
    let rows = 3 * 47 * (16 + 2 * 258 + 8);
    assert!((rows..rows + 300).contains(&size), "{size}");

    let against = |args: &[&str]| {
        let base = [
            "--kl-divergence",
            "--kl-divergence-base",
            "f16.kld",
            "-o",
            "json",
            "-q",
        ];
        perplexity(&world, &[&base[..], args].concat())
    };
    let own = json(&against(&["m.gguf", "--weights", "f16"]));
    assert!(
        number(&own, "mean_kl") < 1e-7 && number(&own, "top1_agree") == 1.0,
        "{own}"
    );
    assert!((number(&own, "ratio") - 1.0).abs() < 1e-6);
    let q8 = json(&against(&[
        "dir",
        "-ctk",
        "f32",
        "-ctv",
        "f32",
        "--activations",
        "q8",
    ]));
    assert!(
        number(&q8, "mean_kl") > 1e-6 && number(&q8, "mean_kl") < 0.05,
        "{q8}"
    );
    assert!(number(&q8, "kl_median") <= number(&q8, "kl_p99"));
    assert!(number(&q8, "kl_p99") <= number(&q8, "max_kl"));
    assert_eq!(q8["settings"]["kv"], "f32");
    let base = number(&own, "ppl");
    assert!((q8["base"]["ppl"].as_f64().unwrap() / base - 1.0).abs() < 1e-6);
    assert_eq!(q8["base"]["about"], "m.gguf: f16, f32, f16");
    // fewer windows than the base has
    let fewer = json(&against(&["m.gguf", "--chunks", "2"]));
    assert_eq!(fewer["tokens_scored"], 2 * 47);
    let ended = perplexity(
        &world,
        &[
            "m.gguf",
            "--kl-divergence",
            "--kl-divergence-base",
            "f16.kld",
        ],
    );
    assert!(
        ended.stdout.contains("same likeliest token"),
        "{}",
        ended.stdout
    );
    assert_eq!(new_names(&world), ["f16.kld"]);
    // the second half of windows alone
    let half = json(&perplexity(
        &world,
        &["m.gguf", "--score", "second-half", "-o", "json", "-q"],
    ));
    let count = half["windows"].as_u64().unwrap();
    assert_eq!(half["tokens_scored"].as_u64(), Some(count * 23));
    assert_eq!(half["scored"], "second-half");
}

#[test]
fn a_base_of_something_else_is_refused_by_file_and_field() {
    let world = world();
    let make = [
        "m.gguf",
        "--kl-divergence-base",
        "b.kld",
        "--chunks",
        "1",
        "-q",
    ];
    assert_eq!(perplexity(&world, &make).code, Some(0));
    let bytes = fs::read(world.path("b.kld")).unwrap();
    let against = |args: &[&str], part: &str, code: i32| {
        let base = ["m.gguf", "--kl-divergence", "--kl-divergence-base"];
        let ended = perplexity(&world, &[&base[..], args].concat());
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    };
    against(
        &["b.kld", "-c", "40"],
        "b.kld: window: is 48 tokens, not 40",
        3,
    );
    against(
        &["b.kld", "--score", "second-half"],
        "b.kld: first scored",
        3,
    );
    against(&["b.kld", "--chunks", "2"], "--chunks: is 2", 2);
    fs::write(
        world.path("other.txt"),
        "another text, of other words. ".repeat(9),
    )
    .unwrap();
    against(&["b.kld", "-f", "other.txt"], "b.kld: token ids", 3);
    against(&["none.kld"], "none.kld", 6);
    against(&["text.txt"], "text.txt: magic", 3);
    against(&["dir"], "dir: is not a regular file", 3);
    for (name, change) in [
        ("cut.kld", bytes[..bytes.len() - 1].to_vec()),
        ("long.kld", [&bytes[..], &[0]].concat()),
        ("short.kld", bytes[..50].to_vec()),
        ("bad.kld", [&bytes[..bytes.len() - 20], &[7; 20]].concat()),
    ] {
        fs::write(world.path(name), change).unwrap();
        against(&[name], name, 3);
    }
    // one that is there is never replaced
    let ended = perplexity(&world, &make);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("b.kld") && ended.stderr.contains("--kl-divergence"),
        "{}",
        ended.stderr
    );
    assert_eq!(fs::read(world.path("b.kld")).unwrap(), bytes);
}

#[test]
fn wrong_usage_ends_with_2_and_names_the_flag() {
    let world = world();
    for (args, part) in [
        (&["perplexity", "m.gguf"][..], "-f TEXT"),
        (&["perplexity", "-f", "text.txt"], "no model"),
        (
            &["perplexity", "m.gguf", "-f", "text.txt", "-c", "1"],
            "--ctx-size",
        ),
        (
            &["perplexity", "m.gguf", "-f", "text.txt", "-c", "10000"],
            "10000",
        ),
        (
            &["perplexity", "m.gguf", "-f", "text.txt", "--chunks", "0"],
            "--chunks",
        ),
        (
            &["perplexity", "m.gguf", "-f", "text.txt", "--chunks", "9999"],
            "--chunks: is 9999",
        ),
        (
            &["perplexity", "m.gguf", "-f", "text.txt", "--kl-divergence"],
            "--kl-divergence-base",
        ),
        (
            &[
                "perplexity",
                "m.gguf",
                "-f",
                "text.txt",
                "-c",
                "3",
                "--score",
                "second-half",
            ],
            "second-half",
        ),
        (
            &["perplexity", "m.gguf", "-f", "text.txt", "-o", "csv"],
            "--output",
        ),
        (
            &["quantize", "m.gguf", "x", "--max-shard-size", "0"],
            "--max-shard-size",
        ),
    ] {
        let ended = run(&world, args);
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    assert_eq!(new_names(&world), [""; 0]);
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
