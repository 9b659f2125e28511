//! Bad input and bad surroundings, by the names that the catalogue of them has: `l` rows are about the
//! command line and are here, `e` rows about the environment.

mod environment;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
#[cfg(unix)]
use std::process::Command;

use support::{Ended, World, closed_port, finish, model};

fn run(args: &[&str]) -> Ended {
    World::new().nelumbo(&closed_port(), args)
}

/// A short answer, and nothing on stderr that nobody has to know.
fn short(model: &Path) -> [&str; 7] {
    let model = model.to_str().unwrap();
    ["run", "-q", "-n", "2", "hello", "-m", model]
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
        cases.push(short(Path::new(path)).to_vec());
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
        let ended = finish(&mut world.in_shell("exec \"$@\" <&-", &["run", "m"]));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("no prompt"), "{}", ended.stderr);
    }
}

/// `/dev/full` takes nothing: what is printed is lost, and that is told instead of half of it.
#[cfg(target_os = "linux")]
#[test]
fn l6_a_full_disk_behind_stdout_is_an_error_and_no_panic() {
    let world = World::new();
    let lines = world.path("lines.txt");
    fs::write(&lines, "hello\n").unwrap();
    let mut cases = vec![
        vec!["version", "--json"],
        vec!["completions", "bash"],
        vec!["chat", "--help"],
        vec!["ls", "--json"],
        vec!["devices", "--json"],
    ];
    let path = model();
    if let Some(path) = path.as_deref().and_then(Path::to_str) {
        let run = short(Path::new(path));
        cases.push(run.to_vec());
        cases.push([&run[..], &["--format", "json"]].concat());
        cases.push(vec!["chat", "-q", "-n", "4", "-m", path]);
        cases.push(vec!["show", path, "--json"]);
        cases.push(vec!["tokenize", path, "hello"]);
        cases.push(vec![
            "bench", "-q", "-p", "8", "-n", "2", "-r", "1", "-m", path,
        ]);
    }
    for args in cases {
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let lines = fs::File::open(&lines).unwrap();
        let ended = finish(world.command(&args).stdin(lines).stdout(full));
        assert_eq!(ended.code, Some(6), "{args:?}: {}", ended.stderr);
        let message = "error: stdout: No space left on device";
        assert!(ended.stderr.contains(message), "{args:?}: {}", ended.stderr);
    }
}

/// No file may become longer than 512 bytes: what a full disk is to a program.
#[cfg(target_os = "linux")]
#[test]
fn l6_a_conversation_that_the_disk_cannot_hold_leaves_the_file_as_it_was() {
    let Some(model) = model() else { return };
    let world = World::new();
    let file = world.path("talk.json");
    fs::write(&file, "before").unwrap();
    let lines = format!("{}\n/save -f {}\n", "word ".repeat(200), file.display());
    fs::write(world.path("lines.txt"), lines).unwrap();
    let line = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    let args = ["chat", "-q", "-n", "2", "-m", model.to_str().unwrap()];
    let mut command = world.in_shell(line, &args);
    command.stdin(fs::File::open(world.path("lines.txt")).unwrap());
    let ended = finish(&mut command);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(ended.stderr.contains("talk.json: "), "{}", ended.stderr);
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    let left = fs::read_dir(world.path("")).unwrap();
    let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let partial: Vec<String> = names.filter(|name| name.contains("partial")).collect();
    assert!(partial.is_empty(), "{partial:?}");
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
    let _ = Command::new("sh").args(["-c", &script]).status();
    stdout.read_to_end(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(!stderr.contains("error"), "{stderr}");
    // what came before the first of the two is there, and by far not all
    assert!((1..4000).contains(&said.len()), "{} bytes", said.len());
}
