//! How the program meets wrong arguments, odd bytes and closed pipes. No model, no device.

mod support;

use std::process::Stdio;

use support::{World, closed_port, finish};

/// Runs without a network; the exit code and stderr.
fn run(args: &[&str]) -> (Option<i32>, String) {
    let ended = World::new().nelumbo(&closed_port(), args);
    assert_eq!(ended.stdout, "", "{args:?}");
    (ended.code, ended.stderr)
}

#[test]
fn help_is_not_an_error_and_tells_the_environment() {
    let world = World::new();
    for args in [
        &["--help"][..],
        &["--version"],
        &["help", "run"],
        &["run", "-h"],
    ] {
        let ended = world.nelumbo(&closed_port(), args);
        assert_eq!(
            (ended.code, ended.stderr.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
    let mut command = world.command(&["run", "--help"]);
    let help = finish(command.env("NELUMBO_SYSTEM", "my-secret")).stdout;
    assert!(!help.contains("my-secret"));
    let mut command = world.command(&["pull", "--help"]);
    let help = finish(command.env("NELUMBO_HF_TOKEN", "my-secret")).stdout;
    assert!(help.contains("NELUMBO_HF_TOKEN") && !help.contains("my-secret"));
    let help = world.nelumbo(&closed_port(), &["run", "--help"]).stdout;
    for part in [
        "NELUMBO_CTX_SIZE",
        "NELUMBO_CACHE",
        "--max-model-len",
        "-ctk",
        "-m MODEL",
        "-ngl",
    ] {
        assert!(help.contains(part), "{part}");
    }
}

#[test]
fn wrong_usage_ends_with_2_and_names_the_flag() {
    for (args, part) in [
        (&["run", "m", "--ctx-sise", "5"][..], "'--ctx-size'"),
        (&["run", "m", "p", "--ctx-size", "0"], "--ctx-size"),
        (&["run", "m", "p", "--ctx-size"], "--ctx-size"),
        (&["run", "m", "p", "--temp", "hot"], "--temp"),
        (&["rum"], "'run'"),
        (&["pull"], "<REF>"),
        (&["run"], "no model"),
        (&["run", "m", "p", "-p", "q"], "PROMPT and -p"),
        (
            &["run", "m", "p", "--raw", "-sys", "s"],
            "--raw and --system",
        ),
        (&["run", "m", "p", "--logprobs", "3"], "--format json"),
        (&["run", "m"], "stdin is empty"),
        (&["pull", "hf:r"], "USER/REPO"),
        (&["pull", "pypi:p"], "PROJECT==VERSION"),
        (&["pull", "https://h.example/m#x"], "sha256"),
        (&["rm", "hf:r", "-y"], "USER/REPO"),
        (&["run", "m", "-f", "-"], "stdin is empty"),
    ] {
        let (code, stderr) = run(args);
        assert_eq!(code, Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
}

#[test]
fn the_environment_is_checked_as_flags_are() {
    let world = World::new();
    let mut command = world.command(&["run", "m", "p"]);
    let ended = finish(command.env("NELUMBO_TOP_P", "2"));
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("--top-p"), "{}", ended.stderr);
}

#[test]
fn a_missing_model_is_named() {
    let (code, stderr) = run(&["run", "no/such.gguf", "hello"]);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(
        stderr.contains("error: no/such.gguf") && stderr.contains("smollm2-135m"),
        "{stderr}"
    );
    // a file where a folder should be
    let world = World::new();
    std::fs::write(world.path("file"), "x").unwrap();
    let path = world.path("file").join("m");
    let ended = finish(world.command(&["run"]).arg(&path).arg("hello"));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("os error"), "{}", ended.stderr);
    let (code, stderr) = run(&["run", "-m", "no/such.gguf", "hello", "there", "-ngl", "99"]);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("-ngl"), "{stderr}");
}

#[test]
fn a_missing_prompt_file_is_an_io_error() {
    let (code, stderr) = run(&["run", "m", "-f", "no-such.txt"]);
    assert_eq!(code, Some(6), "{stderr}");
    assert!(stderr.contains("no-such.txt"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn bytes_that_are_no_text_are_fine_in_paths_and_told_in_prompts() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let odd = OsStr::from_bytes(b"caf\xe9.gguf");
    let world = World::new();

    let ended = finish(world.command(&["run"]).arg(odd).arg("hello"));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("caf"), "{}", ended.stderr);

    for args in [
        &["run", "m"][..],
        &["run", "m", "-p"],
        &["run", "m", "p", "-sys"],
    ] {
        let ended = finish(world.command(args).arg(odd));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("not valid UTF-8"), "{}", ended.stderr);
    }
}

#[test]
fn closed_pipes_end_quietly() {
    let world = World::new();
    for args in [&["run", "--help"][..], &["ls", "--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = finish(world.command(args).stdout(writer));
        assert_eq!(
            (ended.code, ended.stderr.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = finish(
        world
            .command(&["run", "m"])
            .stderr(writer)
            .stdout(Stdio::null()),
    );
    assert_eq!(ended.code, Some(2));
}
