//! Bad input and bad surroundings, by the names that the catalogue of them has: `l` rows are about the
//! command line, `e` rows about the environment.

mod support;

use std::fs;
use std::process::Stdio;

use support::{Ended, World, closed_port, finish, model};

/// What the Vulkan loader and EGL read; with these they find nothing.
const NO_DRIVERS: [(&str, &str); 3] = [
    ("VK_ICD_FILENAMES", "/nonexistent"),
    ("VK_DRIVER_FILES", "/nonexistent"),
    ("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent"),
];

fn run(args: &[&str]) -> Ended {
    World::new().nelumbo(&closed_port(), args)
}

/// Ends with 2, prints nothing on stdout, and names all of these.
fn refused(args: &[&str], parts: &[&str]) {
    let ended = run(args);
    assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
    assert_eq!(ended.stdout, "", "{args:?}");
    for part in parts {
        assert!(
            ended.stderr.contains(part),
            "{args:?}: {part}: {}",
            ended.stderr
        );
    }
}

#[test]
fn l1_an_unknown_flag_a_missing_value_and_a_number_with_a_suffix() {
    for command in ["run", "chat", "bench"] {
        refused(
            &[command, "m", "--ctx-sise", "5"],
            &["--ctx-sise", "'--ctx-size'"],
        );
        refused(&[command, "m", "--ctx-size"], &["--ctx-size <N>"]);
        refused(
            &[command, "m", "--ctx-size", "12GBx"],
            &["12GBx", "--ctx-size <N>"],
        );
    }
    refused(
        &["chat", "m", "--temp", "12GBx"],
        &["12GBx", "--temp <T>", "not a number"],
    );
    refused(&["show"], &["<MODEL>"]);
    refused(&["show", "m", "--tensor"], &["--tensor", "'--tensors'"]);
    refused(&["tokenize", "m", "--idz", "--ids", "x"], &["--idz"]);
    refused(&["completions", "bahs"], &["bahs", "'bash'"]);
    refused(&["chatt"], &["chatt", "'chat'"]);
}

#[test]
fn l2_a_value_out_of_range_names_flag_and_range_before_anything_loads() {
    for command in ["run", "chat", "bench"] {
        for value in ["0", "1000000000000", "-5"] {
            let parts = [value, "--ctx-size <N>", "2..=16777216"];
            // no such model: it would end with 3 if it was looked for
            refused(&[command, "no-such-model", "--ctx-size", value], &parts);
        }
        let parts = ["--batch-size <N>", "1..=65536"];
        refused(&[command, "no-such-model", "--batch-size", "0"], &parts);
    }
    for (flag, value, range) in [
        ("--temp", "101", "0..=100"),
        ("--top-k", "-1", "0..=1048576"),
        ("--top-p", "1.5", "0..=1"),
        ("--min-p", "-0.5", "0..=1"),
        ("--predict", "0", "1..=16777216"),
        ("--seed", "-2", "0..=18446744073709551615"),
    ] {
        refused(&["chat", "no-such-model", flag, value], &[flag, range]);
    }
}

#[test]
fn l3_flags_that_contradict_each_other_are_both_named() {
    refused(
        &["run", "m", "p", "--raw", "--system", "s"],
        &["--raw", "--system"],
    );
    refused(&["run", "m", "p", "-p", "q"], &["PROMPT and -p"]);
    refused(
        &["chat", "m", "-ctk", "f32"],
        &["--cache-type-k", "--cache-type-v"],
    );
    refused(&["chat", "m", "-m", "n"], &["MODEL", "-m"]);
    refused(&["bench", "m", "-m", "n"], &["MODEL", "-m"]);
    refused(
        &["tokenize", "m", "x", "--ids", "--decode"],
        &["--ids", "--decode"],
    );
}

#[cfg(target_os = "linux")]
#[test]
fn l4_a_path_may_be_any_bytes_and_a_prompt_must_be_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let odd = OsStr::from_bytes(b"caf\xe9.gguf");
    let world = World::new();
    for args in [
        &["tokenize", "m"][..],
        &["run", "m"],
        &["chat", "m", "--system"],
    ] {
        let ended = finish(world.command(args).arg(odd));
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("not valid UTF-8"),
            "{args:?}: {}",
            ended.stderr
        );
    }
    let Some(model) = model() else { return };
    let path = world.path("").join(odd);
    std::os::unix::fs::symlink(fs::canonicalize(model).unwrap(), &path).unwrap();
    let ended = finish(
        world
            .command(&["tokenize"])
            .arg(&path)
            .args(["--ids", "Hello"]),
    );
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (Some(0), "[19556]\n"),
        "{}",
        ended.stderr
    );
    let ended = finish(world.command(&["show"]).arg(&path));
    assert!(ended.stdout.contains("caf"), "{}", ended.stderr);
    let ended = finish(
        world
            .command(&["run", "-n", "1", "-m"])
            .arg(&path)
            .arg("hi"),
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn l5_a_reader_that_has_left_and_a_stdin_that_is_closed() {
    let world = World::new();
    let path = model();
    let path = path.as_deref().map_or("m", |path| path.to_str().unwrap());
    let mut cases = vec![
        vec!["version", "--json"],
        vec!["completions", "bash"],
        vec!["chat", "--help"],
    ];
    if path != "m" {
        cases.push(vec!["show", path, "--tensors"]);
        cases.push(vec!["tokenize", path, "hello"]);
        cases.push(vec!["run", "-q", "-n", "4", "-m", path, "hello"]);
    }
    for args in cases {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = finish(world.command(&args).stdout(writer));
        let silent = !ended.stderr.contains("error");
        assert_eq!(
            (ended.code, silent),
            (Some(0), true),
            "{args:?}: {}",
            ended.stderr
        );
    }
    #[cfg(unix)]
    {
        // no stdin at all: no prompt, and no panic
        let program = env!("CARGO_BIN_EXE_nelumbo");
        let mut command = world.command(&[]);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "exec \"$0\" run m <&-", program]);
        for (name, value) in command.stdin(Stdio::null()).get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let ended = finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("no prompt"), "{}", ended.stderr);
    }
}

#[cfg(unix)]
#[test]
fn l8_ctrl_c_twice_leaves_with_what_there_is() {
    use std::io::Read;
    let Some(model) = model() else { return };
    let mut command = World::new().command(&["run", "-n", "4000", "--ignore-eos", "Count.", "-m"]);
    let mut child = command.arg(&model).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut said = vec![0];
    stdout.read_exact(&mut said).unwrap();
    let script = format!("kill -INT {0}; kill -INT {0}", child.id());
    // the second may find it gone already
    let _ = std::process::Command::new("sh")
        .args(["-c", &script])
        .status();
    stdout.read_to_end(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(!said.is_empty() && !stderr.contains("error"), "{stderr}");
}

#[cfg(target_os = "linux")]
#[test]
fn e1_without_a_driver_the_program_says_how_to_get_one() {
    let world = World::new();
    let mut cases = vec![vec!["devices".to_owned()]];
    if let Some(model) = model() {
        let model = model.to_str().unwrap().to_owned();
        for args in [
            &["run", "hello", "-m"][..],
            &["run", "hello", "--backend", "vulkan", "-m"],
            &["bench", "-m"],
        ] {
            let mut args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
            args.push(model.clone());
            cases.push(args);
        }
    }
    for args in cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let ended = finish(world.command(&args).envs(NO_DRIVERS));
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(4), ""),
            "{args:?}: {}",
            ended.stderr
        );
        for part in ["no usable GPU adapter", "mesa-vulkan-drivers"] {
            assert!(
                ended.stderr.contains(part),
                "{args:?}: {part}: {}",
                ended.stderr
            );
        }
        // what was tried
        assert!(
            ended.stderr.to_lowercase().contains("vulkan"),
            "{args:?}: {}",
            ended.stderr
        );
    }
}

#[test]
fn e2_with_a_cpu_adapter_alone_there_is_one_remark() {
    let Some(model) = model() else { return };
    let world = World::new();
    let devices = world.nelumbo(&closed_port(), &["devices", "--json"]).stdout;
    let devices: serde_json::Value = serde_json::from_str(&devices).unwrap();
    let hardware = |d: &serde_json::Value| d["type"] != "software" && d["rejected"].is_null();
    if devices.as_array().unwrap().iter().any(hardware) {
        return; // here a GPU would be taken, rightly
    }
    let ended = finish(
        world
            .command(&["run", "-n", "2", "hello", "-m"])
            .arg(&model),
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let remarks = |text: &str| text.matches("note: ").count() + text.matches("warning: ").count();
    assert_eq!(remarks(&ended.stderr), 1, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("note: no GPU found"),
        "{}",
        ended.stderr
    );
}

#[test]
fn e9_a_cache_that_cannot_be_written_and_no_home_stop_nothing() {
    let Some(model) = model() else { return };
    let world = World::new();
    let file = world.path("a-file");
    fs::write(&file, "").unwrap();
    let ended = finish(
        world
            .command(&["run", "-q", "-n", "2", "hello", "-m"])
            .arg(&model)
            .env("NELUMBO_CACHE", &file),
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(warnings(&ended.stderr), 1, "{}", ended.stderr);

    let lines = world.path("lines.txt");
    fs::write(&lines, "hello\n").unwrap();
    let ended = finish(
        world
            .command(&["chat", "-q", "-n", "2", "-m"])
            .arg(&model)
            .stdin(fs::File::open(lines).unwrap())
            .env_remove("HOME")
            .env_remove("NELUMBO_CACHE")
            .env("XDG_STATE_HOME", &file)
            .env("XDG_CACHE_HOME", &file)
            .env("XDG_CONFIG_HOME", &file),
    );
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(warnings(&ended.stderr), 1, "{}", ended.stderr);
}

/// Lines of ours; the driver may complain of its own cache.
fn warnings(stderr: &str) -> usize {
    stderr
        .lines()
        .filter(|line| line.starts_with("warn: "))
        .count()
}
