//! `nelumbo simulate`: what it foretells, the same each time, and what it refuses. A machine that flags
//! describe needs no adapter.

mod support;

use std::fs;
use std::time::Instant;

use serde_json::Value;
use support::{Ended, World, finish};

/// A card with 80 GB and a model of 8 billion weights.
const MACHINE: [&str; 8] = [
    "simulate",
    "llama-3.1-8b",
    "--bandwidth",
    "2000",
    "--tops",
    "300",
    "-q",
    "-c",
];

fn simulate(world: &World, args: &[&str]) -> Ended {
    finish(&mut world.command(&[&MACHINE[..], &["4096"], args].concat()))
}

fn object(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr, "");
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn ten_thousand_requests_take_seconds_and_pages_hold_twice_what_contiguous_memory_does() {
    let world = World::new();
    let start = Instant::now();
    let args = [
        "--requests",
        "10000",
        "-o",
        "json",
        "--slo",
        "ttft:2000,tpot:50",
    ];
    let result = object(&simulate(&world, &args));
    println!("{:.1} s", start.elapsed().as_secs_f64());
    let runs = result["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    let wanted = "memory chunk pool_tokens max_parallel batch_size duration completed refused \
                  request_throughput output_throughput total_token_throughput request_goodput steps \
                  preemptions largest_chunk mean_running_while_others_wait most_running waste \
                  mean_ttft_ms median_ttft_ms p50_ttft_ms p95_ttft_ms p99_ttft_ms p99_tpot_ms p99_itl_ms p99_e2el_ms";
    for run in runs {
        for key in wanted.split_whitespace() {
            assert!(!run[key].is_null(), "{key} of {run}");
        }
        assert_eq!(run["completed"], 10_000);
    }
    let number = |run: usize, key: &str| runs[run][key].as_f64().unwrap();
    let at_once = |run| number(run, "mean_running_while_others_wait");
    assert_eq!(runs[0]["memory"], "pages");
    assert!(at_once(0) >= 2.0 * at_once(1), "{result}");
    assert!(at_once(0) >= at_once(2) && number(1, "most_running") <= 16.0);
    assert!(number(0, "waste") < 0.04 && number(1, "waste") > 0.5);
    assert!(number(0, "output_throughput") > number(1, "output_throughput"));
    assert_eq!(result["requests"], 10_000);
    assert_eq!(result["slo"]["tpot_ms"], 50.0);
}

#[test]
fn a_sweep_has_a_row_for_each_and_the_pacer_is_near_the_best() {
    let world = World::new();
    let args = [
        "--requests",
        "1500",
        "--slo",
        "ttft:1500,itl:40",
        "--max-itl",
        "40",
        "--prompt-len",
        "lognormal:600:1",
        "--pool",
        "131072",
        "--sweep",
        "chunk=16,32,64,128,256,512,1024,2048,auto",
    ];
    // below what the machine serves, at it, and beyond, where queues only grow
    for rate in ["8", "12", "14", "16"] {
        let json = object(&simulate(
            &world,
            &[&args[..], &["--rate", rate, "-o", "json"]].concat(),
        ));
        let runs = json["runs"].as_array().unwrap();
        let goodput = |chunk: &str| {
            let run = runs
                .iter()
                .find(|run| run["chunk"] == chunk && run["memory"] == "pages");
            run.unwrap()["request_goodput"].as_f64().unwrap()
        };
        let fixed = ["16", "32", "64", "128", "256", "512", "1024", "2048"].map(goodput);
        println!("{rate} a second: {fixed:?} {}", goodput("auto"));
        let best = fixed.into_iter().fold(0.0, f64::max);
        let worst = fixed.into_iter().fold(f64::MAX, f64::min);
        assert!(goodput("auto") >= 0.8 * best, "{rate}: {fixed:?}");
        assert!(best > 0.5 && worst < 0.8 * best, "{rate}: {fixed:?}");
    }
    let args = [&args[..], &["--rate", "12"]].concat();
    let json = object(&simulate(&world, &[&args[..], &["-o", "json"]].concat()));
    // the same words, the same results
    let again = object(&simulate(&world, &[&args[..], &["-o", "json"]].concat()));
    assert_eq!(again, json);
    let other = object(&simulate(
        &world,
        &[&args[..], &["-o", "json", "--seed", "1"]].concat(),
    ));
    assert_ne!(other["runs"], json["runs"]);

    let table = simulate(&world, &args);
    assert_eq!(table.code, Some(0), "{}", table.stderr);
    for part in [
        "goodput/s",
        "|  auto |",
        " 2048 |",
        "| pages ",
        "waste %",
        "ttft within 1500 ms",
    ] {
        assert!(table.stdout.contains(part), "{part}: {}", table.stdout);
    }
    let picture = simulate(&world, &[&args[..], &["-o", "svg"]].concat());
    assert!(
        picture.stdout.starts_with("<svg") && picture.stdout.contains("--max-itl, pool 131072")
    );
    assert_eq!(
        picture.stdout.matches("<circle").count(),
        8 + 2,
        "{}",
        picture.stdout
    );
}

#[test]
fn a_recorded_trace_is_simulated_as_it_was() {
    let world = World::new();
    let trace = world.path("trace.jsonl");
    let line = |at: f64, prompt, output, rest: &str| {
        format!(
            "{{\"arrival_s\":{at},\"prompt_tokens\":{prompt},\"output_tokens\":{output}{rest}}}\n"
        )
    };
    let shared = ",\"prefix_group\":\"sys\",\"prefix_tokens\":960";
    let text = line(9.0, 1000, 8, shared) + &line(0.0, 1000, 8, shared) + &line(4.0, 9000, 8, "");
    fs::write(&trace, text).unwrap();
    let path = trace.to_str().unwrap();
    let result = object(&simulate(&world, &["--trace", path, "-o", "json"]));
    let run = &result["runs"][0];
    // one is longer than the context; of the third, 960 tokens were computed before
    assert_eq!((&run["completed"], &run["refused"]), (&2.into(), &1.into()));
    assert_eq!(run["computed_tokens"], 2000 - 960 + 14);
    assert!(run["duration"].as_f64().unwrap() > 9.0);

    for (text, part) in [
        (line(1.0, 0, 8, ""), "line 1: \"prompt_tokens\" is 0"),
        (line(1.0, 5, 8, "") + "oops\n", "line 2: "),
        (
            line(1.0, 5, 8, ",\"prefix_tokens\":3"),
            "line 1: \"prefix_tokens\"",
        ),
        ("\n".to_owned(), "no requests"),
    ] {
        fs::write(&trace, text).unwrap();
        let ended = simulate(&world, &["--trace", path]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
        let named = ended.stderr.contains("trace.jsonl") && ended.stderr.contains(part);
        assert!(named, "{part}: {}", ended.stderr);
    }
    let ended = simulate(&world, &["--trace", "/nowhere/at/all"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
}

#[test]
fn what_cannot_be_simulated_ends_with_2_and_names_the_flag() {
    let world = World::new();
    for (args, part) in [
        (&["--requests", "0"][..], "--requests"),
        (&["--requests", "5000000"], "--requests"),
        (&["--rate", "-1"], "--rate"),
        (&["--prompt-len", "9-1"], "--prompt-len"),
        (&["--output-len", "lognormal:0:1"], "--output-len"),
        (&["--slo", "ttft:x"], "--slo"),
        (&["--max-itl", "0"], "--max-itl"),
        (&["--sweep", "chunk=x"], "--sweep"),
        (&["--sweep", "chunk=auto"], "--max-itl"),
        (&["--sweep", "pool=5"], "pool"),
        (&["--batch-size", "8"], "--batch-size"),
        (&["--pool", "3"], "--pool"),
        (&["--pool", "64", "--gpu-memory", "5GiB"], "--gpu-memory"),
        (&["--trace", "x", "--rate", "4"], "--rate"),
        (&["--requests", "1000000", "--prompt-len", "4000"], "tokens"),
        (&["-o", "csv"], "--output"),
    ] {
        let ended = simulate(&world, args);
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
    let half = finish(&mut world.command(&["simulate", "llama-3.1-8b", "--bandwidth", "1008"]));
    assert_eq!(half.code, Some(2), "{}", half.stderr);
    assert!(half.stderr.contains("--tops"), "{}", half.stderr);
    let unknown = finish(&mut world.command(&[
        "simulate",
        "no-such-model",
        "--bandwidth",
        "1",
        "--tops",
        "1",
    ]));
    assert_eq!(unknown.code, Some(3), "{}", unknown.stderr);
    let small = simulate(&world, &["--gpu-memory", "6GiB"]);
    assert_eq!(small.code, Some(5), "{}", small.stderr);
    assert!(small.stderr.contains("--gpu-memory"), "{}", small.stderr);
    let fits = simulate(&world, &["--gpu-memory", "24GiB", "--requests", "20"]);
    assert_eq!(fits.code, Some(0), "{}", fits.stderr);
}
