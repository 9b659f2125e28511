//! `nelumbo perplexity` as a user meets it: what it prints and keeps, what it refuses, and what an
//! interruption leaves. A small model of our own.

#[path = "support/small_model.rs"]
mod small_model;
mod support;
#[path = "../../../tests/faults/tiny_llama.rs"]
mod tiny_llama;

use std::fs;

use serde_json::Value;
use small_model::{json, new_names, run, world};
use support::{Ended, World};

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
        assert!(!ended.stderr.contains("download"), "{}", ended.stderr);
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
    ] {
        let ended = run(&world, args);
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    assert_eq!(new_names(&world), [""; 0]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_base_leaves_nothing() {
    use support::{signal, wait_until};
    let world = world();
    fs::write(world.path("long.txt"), "hi, it is so; ".repeat(50_000)).unwrap();
    let args = ["perplexity", "m.gguf", "-f", "long.txt", "-c", "48"];
    let mut command = world.command(&args);
    command
        .args(["--kl-divergence-base", "b.kld"])
        .current_dir(world.path(""));
    let mut child = command.spawn().unwrap();
    let partial = world.path("b.kld.partial");
    wait_until("something is written", || {
        partial.metadata().is_ok_and(|m| m.len() > 0)
    });
    signal(&child, "-INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(new_names(&world), ["long.txt"]);
}
