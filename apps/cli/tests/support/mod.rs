//! The built program in a small world of its own: home, cache, table of models, tools.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod hub;
pub mod server;
#[cfg(unix)]
pub mod terminal;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// No command of these tests may take longer, on a machine that has ten other things to do.
const LIMIT: Duration = Duration::from_secs(180);

/// Variables that would change what the program does.
const UNSET: &[&str] = &[
    "HF_TOKEN",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_TOKEN_PATH",
    "http_proxy",
    "HTTP_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
];

/// The real model, or `None` where there is none and none is required.
pub fn model() -> Option<PathBuf> {
    let model = std::env::var_os("NELUMBO_TEST_MODEL").map(PathBuf::from);
    assert!(
        model.is_some() || std::env::var_os("REQUIRE_GPU").is_none(),
        "NELUMBO_TEST_MODEL is not set: run scripts/test.sh"
    );
    model
}

/// A folder that stands for a machine.
pub struct World {
    folder: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl World {
    pub fn new() -> World {
        let world = World {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir_all(world.path("bin")).unwrap();
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of the model `tiny`.
    pub fn tiny(&self, name: &str) -> PathBuf {
        self.path("cache").join("models").join("tiny").join(name)
    }

    /// A table with one model `tiny` of these bytes: on the hub, then in a wheel.
    pub fn write_table(&self, body: &[u8]) {
        let sha256 = hub::sha256(body);
        let text = format!(
            "[[model]]\nname = \"tiny\"\ntag = \"q8_0\"\narchitecture = \"llama\"\nformat = \"gguf\"\n\
             quant = \"Q8_0\"\nfile = \"tiny.gguf\"\nsize = {}\nsha256 = \"{sha256}\"\nlicence = \"MIT\"\n\
             template = \"embedded\"\n\
             [[model.sources]]\nkind = \"hf\"\nrepo = \"u/r\"\nfile = \"tiny.gguf\"\n\
             [[model.sources]]\nkind = \"pypi\"\nproject = \"p\"\nversion = \"1\"\nmember = \"*.gguf\"\n",
            body.len()
        );
        let folder = self.path("config").join("nelumbo");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("models.toml"), text).unwrap();
    }

    /// `python3`, `python` and `py` as this shell script. Every call but that for pip's
    /// version is noted in `pip.calls`.
    #[cfg(unix)]
    pub fn write_python(&self, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let calls = self.path("pip.calls");
        let text = format!(
            "#!/bin/sh\ncase \"$*\" in *--version*) exit 0;; esac\necho \"$@\" >> '{}'\n\
             while [ $# -gt 0 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\n{script}\n",
            calls.display()
        );
        for name in ["python3", "python", "py"] {
            let path = self.path("bin").join(name);
            fs::write(&path, &text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// What pip was asked for.
    pub fn pip_calls(&self) -> String {
        fs::read_to_string(self.path("pip.calls")).unwrap_or_default()
    }

    /// `nelumbo` with these arguments, in this world.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nelumbo"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("NELUMBO_") {
                command.env_remove(&name);
            }
        }
        for name in UNSET {
            command.env_remove(name);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(self.path("bin")).chain(std::env::split_paths(&path));
        command
            .args(args)
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("HOME", self.path("home"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_CACHE_HOME", self.path("xdg-cache"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("APPDATA", self.path("config"))
            .env("NELUMBO_CACHE", self.path("cache"))
            .env("NO_PROXY", "*")
            // so that what a test compares does not depend on what a busy machine measured
            .env("NELUMBO_AUTOTUNE", "off")
            // nor does each small world prove anew that the kernels are right
            .env("NELUMBO_SELF_CHECK", "off")
            // what a driver has compiled is nothing of this world; by itself it would begin anew in each
            .env("MESA_SHADER_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `nelumbo` as `"$@"` of a line of shell, which can take away what a program usually has.
    #[cfg(unix)]
    pub fn in_shell(&self, line: &str, args: &[&str]) -> Command {
        let program = self.command(args);
        let mut shell = Command::new("sh");
        shell.args(["-c", line, "sh"]).arg(program.get_program());
        shell.args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        shell
    }

    /// Runs `nelumbo` with the hub at `hub`.
    pub fn nelumbo(&self, hub: &str, args: &[&str]) -> Ended {
        finish(self.command(args).env("HF_ENDPOINT", hub))
    }

    /// A path in the hub's cache.
    pub fn hub(&self, name: &str) -> PathBuf {
        self.path("xdg-cache")
            .join("huggingface")
            .join("hub")
            .join(name)
    }

    /// What `nelumbo ls` tells of each model: name, state, and all.
    pub fn listed(&self) -> Vec<(String, String, serde_json::Value)> {
        let ended = self.nelumbo(&closed_port(), &["ls", "--json"]);
        let rows: Vec<serde_json::Value> = serde_json::from_str(&ended.stdout).unwrap();
        let text = |row: &serde_json::Value, key| row[key].as_str().unwrap().to_owned();
        rows.into_iter()
            .map(|row| (text(&row, "name"), text(&row, "state"), row))
            .collect()
    }

    /// The state of one model there, or `missing`.
    pub fn state_of(&self, name: &str) -> String {
        let row = self.listed().into_iter().find(|row| row.0 == name);
        row.map_or("missing".to_owned(), |row| row.1)
    }

    /// The state of `tiny`.
    pub fn state(&self) -> String {
        self.state_of("tiny:q8_0")
    }

    /// Names in the folder of `tiny`, sorted.
    pub fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.tiny(""))
            .map(|entries| {
                entries
                    .map(|e| e.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default();
        names.sort();
        names
    }
}

/// Waits until something is so, which must be in time; `what` tells of it where it never is.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal by its name with a dash: `-INT`.
#[cfg(unix)]
pub fn signal(child: &Child, name: &str) {
    let kill = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
}

/// Runs a command to its end, which must come in time and without panic text.
pub fn finish(command: &mut Command) -> Ended {
    let start = Instant::now();
    let mut child = command.spawn().unwrap();
    // read meanwhile: a pipe holds 64 KiB, and who writes more waits until somebody reads
    let stdout = read_beside(child.stdout.take());
    let stderr = read_beside(child.stderr.take());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{command:?} ran for more than {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    assert!(
        !stderr.contains("panicked") && !stderr.contains("a bug in nelumbo"),
        "{stderr}"
    );
    Ended {
        code: status.code(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr,
    }
}

/// Reads to the end on a thread of its own; nothing where nothing is piped.
fn read_beside(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut bytes).unwrap();
        }
        bytes
    })
}

/// An address where nobody listens.
pub fn closed_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// A wheel with these members.
pub fn write_wheel(path: &Path, members: &[(&str, &[u8])]) {
    use std::io::Write;
    let mut writer = zip::ZipWriter::new(fs::File::create(path).unwrap());
    for (name, bytes) in members {
        writer
            .start_file(*name, zip::write::SimpleFileOptions::default())
            .unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap();
}
