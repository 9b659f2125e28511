//! `nelumbo bench`: its results with a real model, and what it refuses. `NELUMBO_TEST_MODEL` names the
//! model file, as in `run.rs`.

mod support;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use support::{Ended, World, finish, model};

/// One at a time, so that they do not wait for each other's kernels to be compiled.
fn bench(model: &Path, args: &[&str]) -> Ended {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    finish(World::new().command(&["bench"]).arg(model).args(args))
}

#[test]
fn rows_are_complete_and_agree_with_themselves() {
    let Some(model) = model() else { return };
    let args = ["-p", "8", "-n", "2", "-d", "0,4", "-r", "1", "-c", "64"];
    let ended = bench(&model, &[&args[..], &["-o", "json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let rows: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["test"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["pp8", "tg2", "pp8 @ d4", "tg2 @ d4"]);
    let wanted = "build_commit build_version wgpu_version os cpu_info adapter_name adapter_vendor \
                  adapter_type backend driver driver_info model_filename model_type model_size \
                  model_n_params n_batch n_ubatch type_k type_v numerics n_parallel n_prompt n_gen \
                  n_depth test warmup reps avg_ns stddev_ns avg_ts stddev_ts samples_ns samples_ts bytes_moved \
                  roofline_pct peak_bytes adapter commit";
    for row in &rows {
        for key in wanted.split_whitespace() {
            assert!(!row[key].is_null(), "{key} of {row}");
        }
        let number = |key: &str| row[key].as_f64().unwrap();
        for key in [
            "avg_ts",
            "avg_ns",
            "bytes_moved",
            "roofline_pct",
            "peak_stream_bytes_s",
        ] {
            assert!(number(key) > 0.0, "{key} of {row}");
        }
        let tokens = number("n_prompt") + number("n_gen");
        let from_time = tokens * 1e9 / row["samples_ns"][0].as_f64().unwrap();
        assert!((from_time / number("avg_ts") - 1.0).abs() < 1e-9, "{row}");
        assert_eq!(row["adapter"], row["adapter_name"]);
        assert_eq!(row["commit"], row["build_commit"]);
        assert_eq!(row["stddev_ts"].as_f64(), Some(0.0), "of one sample");
        // nothing can be faster than its bytes; twice, since other programs slow a peak as well
        assert!(number("roofline_pct") < 200.0, "{row}");
        assert!(number("peak_bytes") > number("model_size"), "{row}");
    }
    let bytes = |i: usize| rows[i]["bytes_moved"].as_f64().unwrap();
    let size = rows[0]["model_size"].as_f64().unwrap();
    // a step reads all weights once, a deeper one more keys; eight tokens of a prompt are one step
    assert!(
        bytes(1) > 1.9 * size && bytes(1) < 2.1 * size,
        "{}",
        bytes(1)
    );
    assert!(bytes(3) > bytes(1) && bytes(0) < bytes(1));
    assert!(
        ended.stderr.contains("wgpu ")
            && ended.stderr.contains("GB/s")
            && ended.stderr.contains("tuning default (act=f32"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_profile_tells_every_kernel_of_a_prompt_and_of_a_step() {
    let Some(model) = model() else { return };
    let args = [
        "--profile",
        "-p",
        "20",
        "-b",
        "16",
        "-c",
        "64",
        "-o",
        "json",
        "-q",
    ];
    let ended = bench(&model, &args);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let object: Value = serde_json::from_str(&ended.stdout).unwrap();
    let runs = object["runs"].as_array().unwrap();
    assert_eq!(
        (&runs[0]["run"], &runs[1]["run"]),
        (&"prefill".into(), &"decode".into())
    );
    for (run, steps) in runs.iter().zip([2.0, 1.0]) {
        let rows = run["rows"].as_array().unwrap();
        let sum = |kernel: &str, key: &str| -> f64 {
            let of = rows.iter().filter(|row| row["kernel"] == kernel);
            of.map(|row| row[key].as_f64().unwrap()).sum()
        };
        // four matrices a layer, and the head once
        let layers = sum("attention", "count") / steps;
        assert!(
            layers >= 1.0 && sum("attention", "per_layer") == 1.0,
            "{run}"
        );
        assert_eq!(sum("matmul", "count"), 4.0 * layers * steps + 1.0, "{run}");
        let all: f64 = rows
            .iter()
            .map(|row| row["total_ns"].as_f64().unwrap())
            .sum();
        assert!(
            all > 0.0 && all == run["total_ns"].as_f64().unwrap(),
            "{run}"
        );
    }
}

#[test]
fn a_trace_has_every_dispatch_within_its_step_and_its_run() {
    let Some(model) = model() else { return };
    let world = World::new();
    let trace = world.path("trace.json");
    let args = ["-p", "20", "-b", "16", "-c", "64", "-q", "-o", "trace"];
    let mut command = world.command(&["bench", "--profile"]);
    // more than a pipe holds
    let command = command
        .arg(model)
        .args(args)
        .stdout(fs::File::create(&trace).unwrap());
    let ended = finish(command);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let file: Value = serde_json::from_str(&fs::read_to_string(&trace).unwrap()).unwrap();
    assert_eq!(file["otherData"]["dropped_dispatches"], 0);
    let events = file["traceEvents"].as_array().unwrap();
    let of = |category: &str| -> Vec<&Value> {
        events.iter().filter(|e| e["cat"] == category).collect()
    };
    let number = |value: &Value| value.as_f64().unwrap();
    let begin = |event: &Value| number(&event["ts"]);
    let end = |event: &Value| number(&event["ts"]) + number(&event["dur"]);
    // microseconds with three decimals: sums of them differ in the last bits
    let within = |inner: &Value, outer: &Value| {
        begin(inner) >= begin(outer) - 1e-3 && end(inner) <= end(outer) + 1e-3
    };
    let (runs, steps, dispatches) = (of("run"), of("step"), of("dispatch"));
    let names = |events: &[&Value]| -> Vec<String> {
        let name = |event: &&Value| event["name"].as_str().unwrap().to_owned();
        events.iter().map(name).collect()
    };
    assert_eq!(names(&runs), ["prefill", "decode"]);
    assert_eq!(
        names(&steps),
        ["prefill step", "prefill step", "decode step"]
    );
    let tokens = |step: usize| number(&steps[step]["args"]["tokens"]);
    assert_eq!((tokens(0), tokens(1), tokens(2)), (16.0, 4.0, 1.0));
    assert_eq!(steps[2]["args"]["position"], 20);
    assert!(end(runs[0]) <= begin(runs[1]) + 1e-3);
    for step in &steps {
        let home = runs.iter().filter(|run| within(step, run)).count();
        assert_eq!(home, 1, "{step}");
    }
    for dispatch in &dispatches {
        assert!(number(&dispatch["dur"]) >= 0.0, "{dispatch}");
        assert!(
            steps.iter().any(|step| within(dispatch, step)),
            "{dispatch}"
        );
        let args = &dispatch["args"];
        assert_eq!(args["kernel"], dispatch["name"]);
        assert!(
            args["variant"]
                .as_str()
                .unwrap()
                .starts_with(args["kernel"].as_str().unwrap())
        );
        assert!(number(&args["bound_bytes"]) > 0.0, "{dispatch}");
        assert!(
            !args["tensors"].as_object().unwrap().is_empty(),
            "{dispatch}"
        );
    }
    for pair in dispatches.windows(2) {
        assert!(
            end(pair[0]) <= begin(pair[1]) + 1e-3,
            "{} {}",
            pair[0],
            pair[1]
        );
    }
    for run in &runs {
        let own: Vec<&&Value> = dispatches.iter().filter(|d| within(d, run)).collect();
        let sum: f64 = own.iter().map(|d| number(&d["dur"])).sum();
        assert_eq!(
            own.len() as f64,
            number(&run["args"]["dispatches"]),
            "{run}"
        );
        assert!(
            sum > 0.0 && sum <= number(&run["args"]["wall_us"]),
            "{sum} us of {run}"
        );
    }
}

/// A line of `--kernels` with two cases.
const KERNELS: [&str; 4] = [
    "bench",
    "--kernels",
    "attention 9/3x64 f16 [(511, 1)]",
    "-r",
];

#[test]
fn kernels_are_timed_without_a_model_and_compared_with_an_earlier_run() {
    if model().is_none() {
        return; // there is no adapter either
    }
    let world = World::new();
    let run = |args: &[&str]| finish(&mut world.command(&[&KERNELS[..], args].concat()));
    let ended = run(&["3", "-o", "json", "-q"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let mut rows: Vec<Value> = serde_json::from_str(&ended.stdout).unwrap();
    assert!(!rows.is_empty());
    let wanted = "case kernel dispatches min_ns median_ns samples_ns bytes flops roofline_ns \
                  roofline_pct bound peak_stream_bytes_s peak_fma_flops peak_dot4_ops dispatch_s clock \
                  checked adapter_name backend driver driver_info commit reps";
    for row in &rows {
        for key in wanted.split_whitespace() {
            assert!(!row[key].is_null(), "{key} of {row}");
        }
        assert!(
            row["case"]
                .as_str()
                .unwrap()
                .starts_with("attention 9/3x64 ")
        );
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 3);
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("min_ns") > 0.0 && number("roofline_ns") > 0.0);
    }
    // the same run a hundred times as fast, by another driver, and a case that is no more
    for row in &mut rows {
        let samples = row["samples_ns"].as_array_mut().unwrap();
        for sample in samples {
            *sample = (sample.as_f64().unwrap() / 100.0).into();
        }
        row["driver_info"] = "of yesterday".into();
    }
    let mut gone = rows[0].clone();
    gone["case"] = "attention that is no more".into();
    let old = world.path("old.json");
    fs::write(&old, Value::from([rows, vec![gone]].concat()).to_string()).unwrap();
    let old = old.to_str().unwrap();

    let checked = run(&["3", "--against", old, "--check"]);
    assert_eq!(checked.code, Some(7), "{}", checked.stderr);
    assert!(checked.stderr.contains("error: "), "{}", checked.stderr);
    for part in [
        "roofline us",
        "| verdict",
        "| slower",
        "note: driver_info: of yesterday in ",
        "note: 1 of the rows in ",
    ] {
        let found = checked.stdout.contains(part);
        assert!(found, "{part}: {}", checked.stdout);
    }
    let rows = run(&["3", "--against", old, "-o", "jsonl"]);
    assert_eq!(rows.code, Some(0), "{}", rows.stderr);
    for line in rows.stdout.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let against = &row["against"];
        assert_eq!(against["verdict"], "slower", "{row}");
        assert!(against["ratio"].as_f64().unwrap() < 0.5, "{row}");
        assert_eq!(against["differs"]["driver_info"][0], "of yesterday");
        assert_eq!(against["differs"].as_object().unwrap().len(), 1);
    }

    let nothing = finish(&mut world.command(&["bench", "--kernels", "attention of nobody"]));
    assert_eq!(nothing.code, Some(2));
    assert!(nothing.stderr.contains("of nobody"), "{}", nothing.stderr);
}

#[test]
fn a_file_that_is_no_earlier_run_is_refused_before_anything_is_loaded() {
    let world = World::new();
    for (text, code, part) in [
        (Some("| model | size |\n"), 2, "line 1"),
        (
            Some("[{\"test\": \"pp8\"}]"),
            2,
            "row 1: \"model_filename\" is missing",
        ),
        (Some("[{\"case\": \"x\"}]"), 2, "rows of --kernels"),
        (None, 6, "old.json"),
    ] {
        let old = world.path("old.json");
        match text {
            Some(text) => fs::write(&old, text).unwrap(),
            None => fs::remove_file(&old).unwrap(),
        }
        let args = ["bench", "m", "--against", old.to_str().unwrap()];
        let ended = finish(&mut world.command(&args));
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        let named = ended.stderr.contains("old.json") && ended.stderr.contains(part);
        assert!(named, "{part}: {}", ended.stderr);
    }
}

#[test]
fn tests_of_a_model_are_compared_with_an_earlier_run() {
    let Some(model) = model() else { return };
    let world = World::new();
    let args = ["-p", "4", "-n", "0", "-r", "2", "-c", "64", "-q"];
    let first = bench(&model, &[&args[..], &["-o", "jsonl"]].concat());
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let old = world.path("old.jsonl");
    let mut row: Value = serde_json::from_str(first.stdout.trim()).unwrap();
    row["samples_ts"] = serde_json::json!([1e6, 1.01e6]);
    fs::write(&old, format!("{row}\n")).unwrap();
    let against = ["-d", "0,4", "--against", old.to_str().unwrap(), "--check"];
    let ended = bench(&model, &[&args[..], &against].concat());
    assert_eq!(ended.code, Some(7), "{}{}", ended.stdout, ended.stderr);
    let verdicts: Vec<&str> = ended
        .stdout
        .lines()
        .skip_while(|line| !line.contains("verdict"))
        .filter_map(|line| line.trim_end_matches(" |").rsplit("| ").next())
        .map(str::trim)
        .collect();
    assert_eq!(verdicts[2..4], ["slower", "no peer"], "{}", ended.stdout);
}

#[test]
fn wrong_usage_ends_with_2_and_names_the_flag() {
    for (args, part) in [
        (&["bench", "m", "-p", "abc"][..], "--n-prompt"),
        (&["bench", "m", "-p", ""], "--n-prompt"),
        (&["bench", "m", "-d", "1,,2"], "--n-depth"),
        (&["bench", "m", "-n", "9-1"], "--n-gen"),
        (&["bench", "m", "-r", "0"], "--repetitions"),
        (&["bench", "m", "-o", "xml"], "--output"),
        (&["bench", "m", "-np", "2"], "one sequence at a time"),
        (&["bench", "m", "-p", "0", "-n", "0"], "nothing to time"),
        (&["bench", "m", "--profile", "-o", "csv"], "--profile"),
        (&["bench", "m", "-o", "trace"], "--profile"),
        (&["bench", "m", "--check"], "--against"),
        (&["bench", "m", "--kernels"], "--kernels"),
        (&["bench", "--kernels", "--profile"], "--kernels"),
        (&["bench", "m", "--profile", "--against", "x"], "--profile"),
        (&["bench", "m", "-ctk", "f32"], "--cache-type-v"),
        (&["bench", "m", "-m", "n"], "two models"),
        (&["bench"], "no model"),
    ] {
        let ended = finish(&mut World::new().command(args));
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    let mut command = World::new().command(&["bench", "m"]);
    let ended = finish(command.env("NELUMBO_N_DEPTH", "x"));
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("--n-depth"), "{}", ended.stderr);
}

#[test]
fn a_depth_beyond_the_context_is_refused_before_anything_is_timed() {
    for args in [
        &["bench", "m", "-d", "999999", "-c", "64"][..],
        &["bench", "m", "-p", "65", "-c", "64"],
        &["bench", "m", "--profile", "-p", "64", "-c", "64"],
    ] {
        let ended = finish(&mut World::new().command(args));
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(2), ""),
            "{args:?}"
        );
        assert!(ended.stderr.contains("--ctx-size"), "{}", ended.stderr);
    }
    // how long a context is where none is asked for, only the model tells
    let Some(model) = model() else { return };
    let ended = bench(&model, &["-d", "999999"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(
        ended.stderr.contains("there are 8192") && !ended.stderr.contains("warming up"),
        "{}",
        ended.stderr
    );
}
