//! The rows about what the program finds around it: drivers, memory, disks, signals.

use std::fs;
#[cfg(target_os = "linux")]
use std::process::{Child, ChildStdout, Command};

use super::short;
use super::support::{World, closed_port, finish, model};

/// What the Vulkan loader and EGL read; with these they find nothing.
const NO_DRIVERS: [(&str, &str); 3] = [
    ("VK_ICD_FILENAMES", "/nonexistent"),
    ("VK_DRIVER_FILES", "/nonexistent"),
    ("__EGL_VENDOR_LIBRARY_FILENAMES", "/nonexistent"),
];

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
        for part in [
            "no usable GPU adapter",
            "mesa-vulkan-drivers",
            "--backend cpu",
        ] {
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

#[cfg(target_os = "linux")]
#[test]
fn e1_without_a_driver_the_processor_answers_where_it_is_asked_to() {
    let world = World::new();
    let run = |args: &[&str]| {
        let ended = finish(world.command(args).envs(NO_DRIVERS));
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.stderr);
        ended
    };
    let listed = run(&["devices", "--backend", "cpu", "--json"]).stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(
        (&listed[0]["backend"], &listed[0]["index"]),
        (&"cpu".into(), &serde_json::Value::Null)
    );
    let Some(model) = model() else { return };
    let args = ["run", "--backend", "cpu", "--temp", "0", "-n", "4", "-m"];
    let args = [&args[..], &[model.to_str().unwrap(), "hello"]].concat();
    let ended = run(&args);
    assert!(!ended.stdout.trim().is_empty());
    assert!(ended.stderr.contains("(cpu)"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("note:"), "{}", ended.stderr);
    let json = run(&[&args[..], &["--format", "json"]].concat()).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["device"]["backend"], &json["timings"]["compile_ms"]),
        (&"cpu".into(), &0.0.into())
    );
    assert_eq!(json["text"].as_str().unwrap().trim(), ended.stdout.trim());
}

/// Whether a GPU would be taken here.
fn has_hardware(world: &World) -> bool {
    let devices = world.nelumbo(&closed_port(), &["devices", "--json"]).stdout;
    let devices: serde_json::Value = serde_json::from_str(&devices).unwrap();
    let is_hardware = |d: &serde_json::Value| d["type"] != "software" && d["rejected"].is_null();
    devices.as_array().unwrap().iter().any(is_hardware)
}

#[test]
fn e2_with_a_cpu_adapter_alone_there_is_one_remark() {
    let Some(model) = model() else { return };
    let world = World::new();
    if has_hardware(&world) {
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

/// A disk on which no file can get a byte.
#[cfg(target_os = "linux")]
#[test]
fn e9_a_full_disk_under_the_cache_stops_nothing() {
    let Some(model) = model() else { return };
    let world = World::new();
    let line = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    let mut command = world.in_shell(line, &short(&model));
    let ended = finish(command.env("NELUMBO_AUTOTUNE", "on"));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(warnings(&ended.stderr) <= 1, "{}", ended.stderr);
    let folder = world.path("cache").join("pipelines");
    let left: Vec<_> = fs::read_dir(&folder).into_iter().flatten().collect();
    assert!(left.is_empty(), "half a file in the cache: {left:?}");
}

/// Address space that ends in the driver, in the device's memory, or before the program has begun.
#[cfg(target_os = "linux")]
#[test]
fn e6_e7_too_little_memory_ends_with_a_word_about_it() {
    let Some(model) = model() else { return };
    let world = World::new();
    let mut codes = Vec::new();
    for mib in [64, 128, 256, 512] {
        let line = format!("ulimit -v {}; exec \"$@\"", mib << 10);
        let mut command = world.in_shell(&line, &short(&model));
        let ended = finish(command.env_remove("RUST_BACKTRACE"));
        let part = match ended.code {
            // the device, with what it had no room for, how much that was, and what helps
            Some(5) => "bytes)\nhint: a smaller --ctx-size",
            // the driver does not even start
            Some(4) => "no usable GPU adapter",
            // the program itself: what the system leaves a program to say
            None => "memory allocation of",
            code => panic!("{mib} MiB: {code:?}: {}", ended.stderr),
        };
        assert!(ended.stderr.contains(part), "{mib} MiB: {}", ended.stderr);
        codes.push(ended.code);
    }
    // a driver for hardware takes more room than this for itself
    assert!(
        codes.contains(&Some(5)) || has_hardware(&world),
        "{codes:?}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn e14_64_file_descriptors_are_enough() {
    let Some(model) = model() else { return };
    let world = World::new();
    let line = "ulimit -n 64; exec \"$@\"";
    let ended = finish(&mut world.in_shell(line, &short(&model)));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

/// The program, its first byte of an answer, and where the others come from.
#[cfg(target_os = "linux")]
fn answering(mut command: Command) -> (Child, ChildStdout, Vec<u8>) {
    use std::io::Read;
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut said = vec![0];
    stdout.read_exact(&mut said).unwrap();
    (child, stdout, said)
}

#[cfg(target_os = "linux")]
#[test]
fn e12_a_stopped_program_goes_on_and_one_that_nobody_may_hang_up_too() {
    use super::support::signal;
    use std::io::Read;
    let Some(model) = model() else { return };
    let world = World::new();
    let path = model.to_str().unwrap();
    let count = [
        "run",
        "-q",
        "--temp",
        "0",
        "--ignore-eos",
        "Count.",
        "-m",
        path,
        "-n",
    ];
    let args = [&count[..], &["24"]].concat();
    let undisturbed = finish(&mut world.command(&args));
    assert_eq!(undisturbed.code, Some(0), "{}", undisturbed.stderr);

    // as the shell's Ctrl-Z and fg do, and as nohup does
    let line = "trap '' HUP; exec \"$@\"";
    let (child, mut stdout, mut said) = answering(world.in_shell(line, &args));
    signal(&child, "-STOP");
    signal(&child, "-HUP");
    std::thread::sleep(std::time::Duration::from_secs(1));
    signal(&child, "-CONT");
    stdout.read_to_end(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let args = [&count[..], &["4000"]].concat();
    assert_eq!((output.status.code(), &*stderr), (Some(0), ""));
    assert_eq!(String::from_utf8_lossy(&said), undisturbed.stdout);

    // a terminal that is closed takes the program with it, at once and without a word
    // (`env`, since tests that run under nohup hand the deaf ear for HUP on)
    let line = "exec env --default-signal=HUP \"$@\"";
    let (child, _stdout, _) = answering(world.in_shell(line, &args));
    signal(&child, "-HUP");
    let output = child.wait_with_output().unwrap();
    let status = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!((status, &output.stderr[..]), (Some(1), &b""[..]));
}
