//! `nelumbo compare`, and what `nelumbo run` shows of a model's inside: a tiny model on every adapter
//! that there is, healthy and with planted faults.

#[path = "../../../tests/faults/tiny_llama.rs"]
mod tiny_llama;

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use nelumbo::gpu::adapter;
use nelumbo::gpu::faults::named;
use safetensors::SafeTensors;
use serde_json::Value;
use support::{Ended, World, finish};
use tiny_llama::TinyLlama;

/// A world with a tiny model in it, or `None` where there is no adapter and none is required.
fn world() -> Option<(World, PathBuf)> {
    let usable = adapter::list()
        .iter()
        .any(|report| report.rejected.is_none());
    assert!(
        usable || std::env::var_os("REQUIRE_GPU").is_none(),
        "no adapter"
    );
    let world = World::new();
    let path = world.path("tiny.gguf");
    fs::write(&path, TinyLlama::new().gguf(|file| file).finish()).unwrap();
    usable.then_some((world, path))
}

fn compare(world: &World, model: &PathBuf, args: &[&str]) -> Ended {
    finish(
        world
            .command(&["compare"])
            .arg(model)
            .args(["-n", "12", "-g", "4"])
            .args(args),
    )
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"))
}

#[test]
fn healthy_adapters_are_right_and_the_page_holds_everything() {
    let Some((world, model)) = world() else {
        return;
    };
    let page = world.path("page.html");
    let ended = compare(
        &world,
        &model,
        &["-o", "json", "--html", page.to_str().unwrap()],
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let value = json(&ended);
    let adapters = value["adapters"].as_array().unwrap();
    assert_eq!(adapters.len(), adapter::list().len());
    for adapter in adapters {
        if adapter["verdict"] == "unavailable" {
            assert!(adapter["reason"].is_string(), "{adapter}");
            continue;
        }
        assert_eq!(adapter["verdict"], "right", "{adapter}");
        assert!(adapter["first_bad_op"].is_null());
        let names = "index name backend driver type activations numerics layers top1_agreement kl_mean kl_max \
                     greedy_tokens differing_tokens ttft_ms prefill_tok_s decode_tok_s load_ms compile_ms \
                     weights_bytes kv_bytes scratch_bytes peak_bytes dispatches_checked kernels_checked";
        for name in names.split_whitespace() {
            assert!(!adapter[name].is_null(), "{name}: {adapter}");
        }
        assert_eq!(adapter["layers"].as_array().unwrap().len(), 2);
        assert_eq!(
            (&adapter["top1_agreement"], &adapter["differing_tokens"]),
            (&1.0.into(), &0.into())
        );
        assert_eq!(adapter["greedy_tokens"], value["greedy_tokens"]);
        assert!(adapter["kl_mean"].as_f64().unwrap() < 1e-4, "{adapter}");
        assert!(
            adapter["dispatches_checked"].as_u64().unwrap() > 100,
            "{adapter}"
        );
    }
    let html = fs::read_to_string(page).unwrap();
    assert_eq!(html.matches("<svg").count(), 6);
    for part in ["NMSE", "Logits", "Prefill", "Decode"] {
        assert!(html.contains(part), "{part}");
    }
    // an SVG says by an address which language it is; nothing else may look like one
    let addresses = html.matches("://").count();
    assert_eq!(
        addresses,
        html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count()
    );
    assert!(!html.contains("src=") && !html.contains("href=") && !html.contains("<script"));
}

#[test]
fn a_planted_fault_ends_with_7_and_is_named() {
    let Some((world, model)) = world() else {
        return;
    };
    let faults = [
        "embedding-row",
        "quant-scale",
        "dropped-tail",
        "norm-mean",
        "rope-position",
        "kv-slot",
        "gate-exchanged",
        "residual-lost",
        "kv-order",
        "attention-page",
        "attention-heads",
        "gather-row",
        "penalties-turned",
        "sample-position",
        "rope-slab",
        "pack-tail",
    ];
    let mut kernels = BTreeSet::new();
    for name in faults {
        let mut command = world.command(&["compare"]);
        let args = ["-n", "4", "-g", "2", "--device", "0", "-o", "json", "-q"];
        let ended = finish(command.arg(&model).args(args).env("NELUMBO_FAULT", name));
        assert_eq!(ended.code, Some(7), "{name}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("wrong results"),
            "{name}: {}",
            ended.stderr
        );
        let adapter = &json(&ended)["adapters"][0];
        assert_eq!(adapter["verdict"], "wrong", "{name}: {adapter}");
        let bad = &adapter["first_bad_op"];
        let kernel = bad["kernel"]
            .as_str()
            .unwrap_or_else(|| panic!("{name}: {adapter}"));
        // the first that a step meets, of those it strikes
        assert_eq!(
            kernel,
            named([name]).unwrap()[0].kernels[0],
            "{name}: {bad}"
        );
        assert!(
            bad["op"].is_string() && bad["problem"].is_string(),
            "{name}: {bad}"
        );
        kernels.insert(kernel.to_owned());
    }
    assert!(kernels.len() >= 7, "{kernels:?}");
}

#[test]
fn the_table_says_which_operation_it_is() {
    let Some((world, model)) = world() else {
        return;
    };
    let mut command = world.command(&["compare"]);
    let args = ["-n", "4", "-g", "2", "--device", "0"];
    let ended = finish(
        command
            .arg(&model)
            .args(args)
            .env("NELUMBO_FAULT", "gate-sigmoid"),
    );
    assert_eq!(ended.code, Some(7), "{}", ended.stderr);
    for part in [
        "wrong",
        "first wrong operation: gate_up of layer 0 (kernel matmul)",
        "act_out",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
}

#[test]
fn wrong_usage_and_adapters_that_are_not_there() {
    for (args, code, part) in [
        (&["compare"][..], 2, "no model"),
        (&["compare", "m", "-m", "n"], 2, "two models"),
        (&["compare", "m", "-n", "0"], 2, "--tokens"),
        (&["compare", "m", "-o", "xml"], 2, "--output"),
        (&["compare", "m", "-p", "a", "-f", "b"], 2, "two texts"),
        (&["compare", "m", "-ctk", "f32"], 2, "--cache-type-v"),
        (&["compare", "--kernels", "--html", "x.html"], 2, "--html"),
        (&["compare", "m", "--kernels"], 2, "--kernels and MODEL"),
        (&["compare", "m", "--device", "99"], 4, "no adapter 99"),
        (&["compare", "m", "--device", "x"], 2, "--device"),
        (
            &["compare", "m", "--backend", "cpu", "--device", "1"],
            4,
            "no adapter 1 among 1",
        ),
    ] {
        let ended = finish(&mut World::new().command(args));
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}

/// The processor stands in no list of adapters; asked for by name it is compared alone, without a driver.
#[test]
fn the_processor_is_compared_where_it_is_asked_for() {
    let world = World::new();
    let model = world.path("tiny.gguf");
    fs::write(&model, TinyLlama::new().gguf(|file| file).finish()).unwrap();
    let cpu = ["--backend", "cpu", "-o", "json", "-q"];
    let ended = compare(&world, &model, &cpu);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let value = json(&ended);
    let adapters = value["adapters"].as_array().unwrap();
    assert_eq!(adapters.len(), 1);
    let adapter = &adapters[0];
    assert_eq!(
        (&adapter["backend"], &adapter["verdict"]),
        (&"cpu".into(), &"right".into())
    );
    assert_eq!(adapter["greedy_tokens"], value["greedy_tokens"]);
    assert!(
        adapter["dispatches_checked"].as_u64().unwrap() > 100,
        "{adapter}"
    );

    // and its kernels: a fault in a shader is none of it
    let mut command = world.command(&["compare", "--kernels"]);
    let ended = finish(command.args(cpu).env("NELUMBO_FAULT", "residual-lost"));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let adapter = &json(&ended)["adapters"][0];
    assert_eq!(
        (&adapter["backend"], &adapter["verdict"]),
        (&"cpu".into(), &"right".into())
    );
    assert!(adapter["cases"].as_u64().unwrap() > 50, "{adapter}");
}

#[test]
fn a_text_that_the_model_does_not_hold_is_refused() {
    let Some((world, model)) = world() else {
        return;
    };
    let ended = finish(
        world
            .command(&["compare"])
            .arg(&model)
            .args(["-n", "250", "-g", "7"]),
    );
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("made for 256 tokens"),
        "{}",
        ended.stderr
    );
    let ended = compare(&world, &model, &["-p", ""]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}

/// `run` on the tiny model, which has no chat template.
fn inspect(world: &World, model: &PathBuf, args: &[&str]) -> Ended {
    let fixed = [
        "--raw",
        "-p",
        "hello there",
        "--weights",
        "f16",
        "-ctk",
        "f32",
        "-ctv",
        "f32",
    ];
    finish(world.command(&["run"]).arg(model).args(fixed).args(args))
}

#[test]
fn the_forward_pass_is_shown_with_its_shapes() {
    let Some((world, model)) = world() else {
        return;
    };
    let ended = inspect(&world, &model, &["--trace-shapes"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(
        lines[0].starts_with("llama: 2 layers, 64 wide; 4 query heads and 2 key heads of 32"),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].starts_with("weights f16, activations f32, cache f32; "),
        "{}",
        lines[1]
    );
    let shown: Vec<String> = lines[2..]
        .iter()
        .map(|line| {
            line.split("  ")
                .filter(|w| !w.is_empty())
                .map(str::trim)
                .collect::<Vec<_>>()
                .join(" | ")
        })
        .collect();
    let expected = "\n\
prefill: 11 tokens at position 0
embedding | embedding | ids [11], table f16 [258, 64] -> hidden [11, 64] | a row of the table for each token
layers 0 to 1 (x 2)
qkv | matmul | [11, 64] x f16 [256, 64] -> q [11, 4, 32], k and v [11, 2, 32] | norm, product; rotated by position, keys and values into the cache
attention | attention | q [11, 4, 32], k and v [11, 2, 32] -> [11, 128] | softmax(q k / sqrt(d)) v over all tokens before
o | matmul | [11, 128] x f16 [64, 128] -> hidden [11, 64] | product, added to the residual stream
gate_up | matmul | [11, 64] x f16 [192, 64] -> [11, 96] | norm, product; silu(gate) * up
down | matmul | [11, 96] x f16 [64, 96] -> hidden [11, 64] | product, added to the residual stream
head | gather_rows | hidden [11, 64] -> [1, 64] | the tokens that get logits
head | matmul | [1, 64] x f16 [258, 64] -> logits [1, 258] | norm, product: a logit for each token of the vocabulary
draw | argmax | logits [1, 258] -> 1 candidates | the likeliest token
draw | argmax | candidates [1, 1] -> ids [1] | the likeliest token

decode: 1 token at position 11
embedding | embedding | ids [1], table f16 [258, 64] -> hidden [1, 64] | a row of the table for each token
layers 0 to 1 (x 2)
qkv | matmul | [1, 64] x f16 [256, 64] -> q [1, 4, 32], k and v [1, 2, 32] | norm, product; rotated by position, keys and values into the cache
attention | attention | q [1, 4, 32], k and v [12, 2, 32] -> [1, 128] | softmax(q k / sqrt(d)) v over all tokens before
o | matmul | [1, 128] x f16 [64, 128] -> hidden [1, 64] | product, added to the residual stream
gate_up | matmul | [1, 64] x f16 [192, 64] -> [1, 96] | norm, product; silu(gate) * up
down | matmul | [1, 96] x f16 [64, 96] -> hidden [1, 64] | product, added to the residual stream
head | matmul | [1, 64] x f16 [258, 64] -> logits [1, 258] | norm, product: a logit for each token of the vocabulary
draw | argmax | logits [1, 258] -> 1 candidates | the likeliest token
draw | argmax | candidates [1, 1] -> ids [1] | the likeliest token";
    assert_eq!(shown.join("\n"), expected, "{}", ended.stdout);
}

#[test]
fn residual_streams_are_written_and_are_those_of_the_reference() {
    let Some((world, model)) = world() else {
        return;
    };
    let folder = world.path("out");
    fs::create_dir(&folder).unwrap();
    let ended = inspect(&world, &model, &["--dump-layers", folder.to_str().unwrap()]);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), ""),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("2 layers and the logits"),
        "{}",
        ended.stderr
    );
    let bytes = fs::read(folder.join("layers.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let host = nelumbo::model::OnHost::open(&model).unwrap();
    let tokens = host.texts.tokenizer.encode_raw("hello there").unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
    assert_eq!(
        (metadata["tokens"].as_str(), metadata["weights"].as_str()),
        (ids.join(" ").as_str(), "f16")
    );
    let reference = host
        .reference(nelumbo::quant::Format::from_name("f16").unwrap())
        .unwrap();
    let values = |name: &str, columns: usize| -> Vec<f32> {
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.shape(), [tokens.len(), columns], "{name}");
        tensor
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    };
    let near = |name: &str, exact: &[Vec<f64>]| {
        let found = values(name, exact[0].len());
        let pairs = || exact.iter().flatten().zip(&found);
        let error: f64 = pairs().map(|(e, &f)| (e - f64::from(f)).powi(2)).sum();
        let size: f64 = pairs().map(|(e, _)| e * e).sum();
        assert!(error / size <= 1e-6, "{name}: NMSE {:e}", error / size);
    };
    let mut past = vec![Default::default(); 2];
    let hidden = reference.forward(&mut past, &tokens, &mut |layer, stream| {
        near(&format!("layer_{layer:02}"), stream);
    });
    let logits: Vec<Vec<f64>> = reference.head(&hidden);
    near("logits", &logits);
    assert_eq!(file.names().len(), 3);
}
