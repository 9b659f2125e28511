//! `nelumbo plan`: figures to the byte, verdicts and their codes, with an adapter and without.
//! `NELUMBO_TEST_MODEL` names the model file, as in `run.rs`.

mod support;

use std::fs;

use serde_json::{Value, json};
use support::{Ended, World, finish, model};

/// What the Vulkan loader and EGL read; with these they find nothing.
const NO_DRIVERS: [(&str, &str); 3] = [
    ("VK_ICD_FILENAMES", "/nonexistent"),
    ("VK_DRIVER_FILES", "/nonexistent"),
    ("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent"),
];

/// `nelumbo plan` on a machine without an adapter.
fn plan(args: &[&str]) -> Ended {
    let world = World::new();
    finish(world.command(&[&["plan"], args].concat()).envs(NO_DRIVERS))
}

fn object(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn the_terabyte_of_keys_and_values_is_counted_to_the_byte() {
    let ended = plan(&[
        "llama-3.1-405b",
        "--attention",
        "mha",
        "--ctx-size",
        "131072",
        "--users",
        "1",
        "-ctk",
        "f16",
        "-ctv",
        "f16",
        "-o",
        "json",
    ]);
    let plan = object(&ended);
    assert_eq!(plan["kv_bytes"], 1_082_331_758_592_u64);
    for (key, value) in [
        ("model", json!("llama-3.1-405b")),
        ("attention", json!("mha")),
        ("ctx_size", json!(131_072)),
        ("users", json!(1)),
        ("weights_format", json!("q8")),
        ("kv_dtype", json!("f16")),
        ("kv_bytes_per_token", json!(8_257_536)),
        // weights are those of the model that there is
        ("params", json!(405_853_388_800_u64)),
        ("pages", json!(8192)),
        ("fits", json!(false)),
        ("memory_source", json!("host")),
        ("decode_tok_s", json!(null)),
    ] {
        assert_eq!(plan[key], value, "{key} of {plan}");
    }
    let wanted = "params weight_bytes weight_scale_bytes weight_bytes_by_format page_bytes \
                  scratch_bytes total_bytes memory_bytes reason max_ctx_size max_users runs_here";
    for key in wanted.split_whitespace() {
        assert!(!plan[key].is_null(), "{key} of {plan}");
    }
    assert!(ended.stderr.contains("no adapter"), "{}", ended.stderr);
}

#[test]
fn a_verdict_is_no_error_unless_it_is_asked_for() {
    let args = ["llama-3.1-8b", "--memory", "6GiB", "-q"];
    let ended = plan(&args);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.contains("does not fit"), "{}", ended.stdout);
    let ended = plan(&[&args[..], &["--check"]].concat());
    assert_eq!(ended.code, Some(5));
    assert!(
        ended.stdout.contains("does not fit"),
        "the plan comes first"
    );
    assert!(ended.stderr.contains("llama-3.1-8b"), "{}", ended.stderr);
    let ended = plan(&["llama-3.1-8b", "--gpu-memory", "64GiB", "--check", "-q"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for part in ["fits: it takes", "as given", "pages", "8.03 B parameters"] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
}

#[test]
fn speeds_follow_from_rates_that_are_given() {
    let args = ["--bandwidth", "4800", "--gpu-memory", "80GB", "-o", "json"];
    let of = |more: &[&str]| object(&plan(&[&["llama-3.1-8b"], &args[..], more].concat()));
    let by_memory = of(&[]);
    let bound = by_memory["decode_tok_s_bound"].as_f64().unwrap();
    assert!((580.0..610.0).contains(&bound), "{by_memory}");
    assert_eq!(by_memory["ttft_s"], json!(null));
    assert_eq!(by_memory["memory_source"], "given");
    let both = of(&["--tops", "100"]);
    let ttft = both["ttft_s"].as_f64().unwrap();
    assert!((0.07..0.1).contains(&ttft), "{both}");
    let f16 = of(&["--weights", "f16"])["decode_tok_s_bound"]
        .as_f64()
        .unwrap();
    assert!(bound / f16 > 1.8, "{bound} {f16}");
}

#[test]
fn what_names_no_model_or_makes_no_sense_is_refused() {
    for (args, code, part) in [
        (&["llama-9"][..], 3, "built-in shapes: llama-3.1-8b"),
        (&["llama-3.1-8b", "-ctk", "f32"], 2, "--cache-type-v"),
        (&["llama-3.1-8b", "-c", "1"], 2, "--ctx-size"),
        (&["llama-3.1-8b", "--users", "0"], 2, "--users"),
        (&["llama-3.1-8b", "--bandwidth", "-1"], 2, "--bandwidth"),
        (&["llama-3.1-8b", "--tops", "1"], 2, "--bandwidth"),
        (&["llama-3.1-8b", "--backend", "gl"], 4, "no usable GPU"),
        (&[], 2, "MODEL"),
    ] {
        let ended = plan(args);
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}

#[test]
fn a_configuration_is_enough() {
    let world = World::new();
    let path = world.path("model/config.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let config = |architecture: &str| {
        let config = json!({
            "architectures": [architecture], "hidden_size": 1024, "intermediate_size": 3072,
            "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 151_936, "max_position_embeddings": 40_960, "tie_word_embeddings": true,
        });
        fs::write(&path, config.to_string()).unwrap();
    };
    // the second has no norms of heads: two vectors of 128 in each of 28 layers
    for (architecture, runs_here, params) in [
        ("Qwen3ForCausalLM", true, 596_049_920),
        ("CohereForCausalLM", false, 596_049_920 - 28 * 2 * 128),
    ] {
        config(architecture);
        for path in [&path, &world.path("model")] {
            let args = [path.to_str().unwrap(), "-o", "json", "-q"];
            let plan = object(&plan(&args));
            assert_eq!(plan["params"], params, "{plan}");
            assert_eq!(plan["runs_here"], runs_here, "{plan}");
            assert_eq!(plan["ctx_size"], 8192, "{plan}");
        }
    }
    fs::write(&path, "{\"hidden_size\": 3}").unwrap();
    let ended = plan(&[path.to_str().unwrap()]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("config.json"), "{}", ended.stderr);
}

#[test]
fn a_file_is_planned_from_its_headers_with_the_adapter_that_is_here() {
    let Some(model) = model() else { return };
    let world = World::new();
    let model = model.to_str().unwrap();
    let args = ["plan", model, "-c", "2048", "-np", "2", "-o", "json"];
    let ended = finish(&mut world.command(&args));
    let plan = object(&ended);
    assert_eq!(plan["weight_bytes"], 143_025_408, "{plan}");
    assert_eq!(plan["kv_bytes"], 2 * 2048 * 23_040, "{plan}");
    assert_eq!(
        (&plan["fits"], &plan["runs_here"]),
        (&json!(true), &json!(true))
    );
    for key in [
        "decode_tok_s",
        "decode_tok_s_all",
        "ttft_s",
        "bandwidth_bytes_s",
    ] {
        assert!(
            plan[key].as_f64().is_some_and(|value| value > 0.0),
            "{key} of {plan}"
        );
    }
    let speed = |key: &str| plan[key].as_f64().unwrap();
    assert!(speed("decode_tok_s") > speed("decode_tok_s_full"), "{plan}");
    // what was measured is kept: the second plan says the same
    let args = [&args[..], &["--measure", "off"]].concat();
    let again = object(&finish(&mut world.command(&args)));
    let again = again["decode_tok_s"].as_f64().unwrap();
    assert!(
        (again / speed("decode_tok_s") - 1.0).abs() < 1e-6,
        "{again}: {plan}"
    );
}
