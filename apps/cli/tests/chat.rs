//! `nelumbo chat` with a real model: in a pipe, and in a real terminal.

mod support;

use std::fs;

use support::{World, finish, model, wait_until};

/// A world, and the file with these lines to be piped.
fn piped(world: &World, lines: &str, args: &[&str]) -> support::Ended {
    let file = world.path("lines.txt");
    fs::write(&file, lines).unwrap();
    let mut command = world.command(&["chat", "--temp", "0", "-n", "8"]);
    let command = command.args(args).stdin(fs::File::open(&file).unwrap());
    finish(command)
}

#[test]
fn each_piped_line_is_a_turn_and_the_model_is_remembered() {
    let Some(model) = model() else { return };
    let world = World::new();
    let model = model.to_str().unwrap();
    let ended = piped(&world, "Say hello.\n\"\"\"\n안녕\n\"\"\"\n", &["-m", model]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.lines().count() >= 2, "{}", ended.stdout);
    assert!(!ended.stdout.contains('\x1b') && !ended.stderr.contains('\x1b'));
    assert_eq!(ended.stderr.matches("ttft").count(), 2, "{}", ended.stderr);
    // the second prompt begins as the first one did
    let cached = ended.stderr.matches(" cached) | decode").count();
    assert_eq!(cached, 1, "{}", ended.stderr);

    // the same answers from the model that was used last, with nothing but them on either stream
    let again = piped(&world, "Say hello.\n안녕\n", &["-q"]);
    assert_eq!((again.code, again.stderr.as_str()), (Some(0), ""));
    assert_eq!(again.stdout, ended.stdout);
}

#[test]
fn without_a_model_there_is_nobody_to_talk_to() {
    let world = World::new();
    let ended = piped(&world, "hello\n", &[]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("no model"), "{}", ended.stderr);
}

#[test]
fn l6_a_conversation_is_saved_once_and_brought_back() {
    let Some(model) = model() else { return };
    let world = World::new();
    let model = model.to_str().unwrap();
    let file = world.path("talk.json");
    let save = format!("Say hello.\n/save {}\n", file.display());
    let ended = piped(&world, &save, &["-m", model]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let saved = fs::read_to_string(&file).unwrap();
    let value: serde_json::Value = serde_json::from_str(&saved).unwrap();
    let answer = value["messages"][1]["content"].as_str().unwrap();
    assert!(!answer.is_empty());
    assert_eq!(format!("{answer}\n"), ended.stdout);

    let ended = piped(&world, &save, &["-m", model]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("is there already"),
        "{}",
        ended.stderr
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), saved);

    let load = format!("/load {}\n/show conversation\n", file.display());
    let ended = piped(&world, &load, &["-m", model]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains(answer), "{}", ended.stdout);
    let left: Vec<_> = fs::read_dir(world.path("")).unwrap().collect();
    assert!(left.iter().all(|e| {
        !e.as_ref()
            .unwrap()
            .path()
            .to_string_lossy()
            .contains("partial")
    }));
}

#[test]
fn l10_a_context_that_is_full_is_refused_with_both_numbers() {
    let Some(model) = model() else { return };
    let model = model.to_str().unwrap();
    let lines = format!("hello\n{}\n", "word ".repeat(100));
    let ended = piped(&World::new(), &lines, &["-m", model, "-c", "64"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("ttft").count(), 1, "{}", ended.stderr);
    for part in ["64 tokens", "nothing was cut", "/clear", "--ctx-size"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

#[cfg(unix)]
mod in_a_terminal {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::support::server::{Reply, Server};
    use super::support::terminal::Terminal;
    use super::*;

    const CTRL_C: &str = "\x03";
    const UP: &str = "\x1b[A";

    /// Everything that a terminal gives a program by itself.
    fn start(mut command: Command) -> Terminal {
        command.env("TERM", "xterm").env("LANG", "C.UTF-8");
        Terminal::start(command, 24, 80)
    }

    /// An editor that adds to the text it is given.
    fn editor(world: &World) -> String {
        let script = world.path("editor.sh");
        fs::write(&script, "printf ' 그리고 more' >> \"$1\"\n").unwrap();
        format!("sh {}", script.display())
    }

    #[test]
    fn a_person_talks_stops_goes_back_and_leaves() {
        let Some(model) = model() else { return };
        let world = World::new();
        let mut command = world.command(&["chat", "--temp", "0", "-n", "6", "-m"]);
        command
            .arg(&model)
            .env("EDITOR", editor(&world))
            .env_remove("VISUAL");
        let mut terminal = start(command);
        terminal.wait_for("/help lists the commands");
        terminal.wait_for(">>> ");

        // several lines, in Korean; Enter does not send before the block is closed
        terminal.press("\"\"\"\r안녕하세요\rtwo lines\"\"\"");
        terminal.wait_to_see("... 안녕하세요\n... two lines\"\"\"");
        terminal.press("\r");
        terminal.wait_for("ttft");
        terminal.wait_for(">>> ");
        terminal.press("/show conversation\r");
        terminal.wait_for("안녕하세요\r\ntwo lines\r\n[assistant]");
        terminal.wait_for(">>> ");

        // pasted lines arrive together and wait for Enter
        terminal.press("\x1b[200~/system one\n둘\x1b[201~");
        terminal.wait_to_see("둘");
        terminal.press("\r");
        terminal.wait_for("the system message is set");
        terminal.wait_for(">>> ");
        terminal.press("/system\r");
        terminal.wait_for("one\r\n둘\r\n");
        terminal.wait_for(">>> ");

        // a line goes on in an editor
        terminal.press("/system draft\x07");
        terminal.wait_to_see("/system draft 그리고 more");
        terminal.press("\r");
        terminal.wait_for("the system message is set");
        terminal.press("/system\r");
        terminal.wait_for("draft 그리고 more\r\n");
        terminal.wait_for(">>> ");

        // the line before comes back, and Ctrl-C drops it
        terminal.press(UP);
        terminal.wait_to_see(">>> /system");
        terminal.press(CTRL_C);
        terminal.wait_for("Ctrl-C again");
        terminal.wait_for(">>> ");

        // an answer without end is stopped, and another one follows
        terminal.press("/set predict -1\r");
        terminal.wait_for("predict = -1");
        terminal.press("/set ignore-eos on\r");
        terminal.wait_for("ignore-eos = on");
        terminal.wait_for(">>> ");
        terminal.press("Count to a thousand.\r");
        terminal.wait_for("\r\n"); // the line that was typed
        std::thread::sleep(std::time::Duration::from_millis(1500));
        terminal.press(CTRL_C);
        terminal.wait_for("stays in the conversation");
        terminal.wait_for(">>> ");
        terminal.press("/set predict 3\r");
        terminal.wait_for("predict = 3");
        terminal.press("And now?\r");
        terminal.wait_for("ttft");
        terminal.wait_for("at the limit");
        terminal.wait_for(">>> ");

        // the window changes in the middle of a line
        terminal.press("/system 가나다 hello wor");
        terminal.wait_to_see("hello wor");
        terminal.resize(30, 50);
        terminal.press("ld 끝\r");
        terminal.wait_for("the system message is set");
        terminal.press("/system\r");
        terminal.wait_for("가나다 hello world 끝\r\n");
        terminal.wait_for(">>> ");

        terminal.press("/undo 2\r");
        terminal.wait_for("2 turns taken back, 1 left");
        terminal.wait_for(">>> ");
        terminal.press("/exit\r");
        assert!(
            !terminal.printed().contains('\u{fffd}'),
            "{}",
            terminal.printed()
        );
        assert_eq!(terminal.end(), Some(0));

        let history = world.path("state").join("nelumbo").join("history.txt");
        let lines = fs::read_to_string(&history).unwrap();
        assert!(
            lines.contains("안녕하세요") && lines.contains("/undo 2"),
            "{lines}"
        );
        assert_eq!(
            history.metadata().unwrap().permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn l8_the_second_ctrl_c_leaves_with_130() {
        let Some(model) = model() else { return };
        let world = World::new();
        let mut command = world.command(&["run", "--ignore-eos", "-ngl", "9", "-m"]);
        command.arg(&model).env("NELUMBO_NOHISTORY", "1");
        let mut terminal = start(command);
        // `run` without a prompt is the same conversation, and says once what it has to say
        terminal.wait_for(">>> ");
        let printed = terminal.printed();
        assert_eq!(
            printed.matches("note: --gpu-layers").count(),
            1,
            "{printed}"
        );
        terminal.press("Count to a thousand.\r");
        terminal.wait_for("\r\n");
        std::thread::sleep(std::time::Duration::from_millis(1500));
        // the first stops the answer; the second may come during it or at the prompt behind it
        terminal.press(CTRL_C);
        std::thread::sleep(std::time::Duration::from_millis(300));
        terminal.press(CTRL_C);
        assert_eq!(terminal.end(), Some(130));
        let history = world.path("state").join("nelumbo").join("history.txt");
        assert_eq!(fs::read_to_string(history).unwrap_or_default(), "");
    }

    /// A download that does not get on, as part of loading another model.
    #[test]
    fn l8_ctrl_c_during_a_load_is_answered_and_the_second_leaves() {
        let Some(model) = model() else { return };
        let world = World::new();
        let server = Server::start(|_, _| Reply {
            hold: std::time::Duration::from_secs(60),
            ..Reply::new(200, b"{}").cut_after(0)
        });
        let mut command = world.command(&["chat", "-m"]);
        command.arg(&model).env("HF_ENDPOINT", &server.url);
        let mut terminal = start(command);
        terminal.wait_for(">>> ");
        terminal.press("/load hf:u/r\r");
        wait_until("the download", || !server.requests().is_empty());
        terminal.press(CTRL_C);
        terminal.wait_for("loading goes on; Ctrl-C again ends the program");
        // no matter how long that takes
        std::thread::sleep(std::time::Duration::from_millis(1200));
        terminal.press(CTRL_C);
        assert_eq!(terminal.end(), Some(130));
    }
}
