//! What commands do to a conversation.

use super::*;

#[test]
fn l6_a_saved_conversation_comes_back_and_no_file_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my chat.json");
    let (save, load) = (
        format!("/save {}", path.display()),
        format!("/load \"{}\"", path.display()),
    );
    let lines = ["/system Be brief.", "안녕", &save, "b", &save];
    let talked = typed(&mut Echo::new(), &lines);
    assert!(
        talked.err.contains("1 turn in") && talked.err.contains("2 turns in"),
        "{}",
        talked.err
    );
    let saved = talked.conversation;

    let talked = typed(&mut Echo::new(), &["x", &load]);
    assert_eq!(talked.conversation, saved);
    // another conversation does not replace the file unless it is told to
    let talked = typed(&mut Echo::new(), &["x", &save]);
    assert!(talked.err.contains("is there already"), "{}", talked.err);
    let before = fs::read_to_string(&path).unwrap();
    assert!(before.contains("\"format\": \"nelumbo-chat\"") && before.contains("안녕"));
    let forced = format!("/save -f {}", path.display());
    typed(&mut Echo::new(), &["y", &forced]).result.unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains("1: y"));
    let talked = typed(
        &mut Echo::new(),
        &[&format!("/save {}", folder.path().display())],
    );
    assert!(talked.err.contains("is a folder"), "{}", talked.err);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    fs::write(&path, "{\"messages\": 5}").unwrap();
    let talked = typed(&mut Echo::new(), &["kept", &load]);
    assert!(
        talked.err.contains("my chat.json: messages"),
        "{}",
        talked.err
    );
    assert_eq!(talked.conversation.turns()[0].user, "kept");
}

#[test]
fn a_file_goes_in_front_of_the_next_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    fs::write(&path, "one\ntwo\n").unwrap();
    let mut echo = Echo::new();
    let read = format!("/read {}", path.display());
    let talked = typed(&mut echo, &[&read, "What?", "next"]);
    talked.result.unwrap();
    assert_eq!(echo.heard[0][0].content, "one\ntwo\n\nWhat?");
    assert_eq!(echo.heard[1][2].content, "next");
    fs::write(&path, b"ab\xff").unwrap();
    let talked = typed(&mut echo, &[&read, "/read no-such-file"]);
    assert!(
        talked.err.contains("byte 2") && talked.err.contains("no-such-file"),
        "{}",
        talked.err
    );
}

#[test]
fn a_file_beyond_the_context_is_dropped_and_the_talk_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.txt");
    fs::write(&path, "x".repeat(100)).unwrap();
    let mut echo = Echo::new();
    echo.limit = 90;
    let read = format!("/read {}", path.display());
    let talked = typed(&mut echo, &["hello", &read, "What?", "next"]);
    talked.result.unwrap();
    assert_eq!(talked.out, "1: hello\n3: next\n");
    assert_eq!(echo.heard[1][2].content, "next");
    for part in ["120 tokens", "90 tokens", "what was read is dropped"] {
        assert!(talked.err.contains(part), "{part}: {}", talked.err);
    }
    // without a file there is nothing to drop
    let talked = typed(&mut echo, &[&"x".repeat(100)]);
    assert!(!talked.err.contains("dropped"), "{}", talked.err);
    // what fails for another reason keeps it
    fs::write(&path, "one").unwrap();
    let mut echo = Echo::with([Plan::Fail(Failure::Model("gone".to_owned()))]);
    let talked = typed(&mut echo, &[&read, "What?", "again"]);
    talked.result.unwrap();
    assert_eq!(echo.heard[0][0].content, "one\n\nagain");
}

#[test]
fn settings_and_the_system_message_take_effect_at_once() {
    let mut echo = Echo::new();
    let lines = [
        "/set predict 4",
        "/set seed 7",
        "/system Be brief.",
        "hello",
        "/system",
        "/system \"\"",
        "/set tmep 1",
        "/set temp 1000",
        "/set",
        "/set top-k",
        "/set nohistory",
    ];
    let talked = typed(&mut echo, &lines);
    talked.result.unwrap();
    assert_eq!(echo.seeds, [7]);
    assert_eq!(echo.heard[0][0].role, "system");
    assert!(
        talked.out.starts_with("2: h\nBe brief.\nNAME"),
        "{}",
        talked.out
    );
    for part in [
        "predict = 4",
        "/set predict -1",
        "did you mean temp",
        "0..=100",
        "not kept",
    ] {
        assert!(talked.err.contains(part), "{part}: {}", talked.err);
    }
    assert!(
        talked.out.contains("top-k = 40 (range 0..=1048576)"),
        "{}",
        talked.out
    );
    assert_eq!(talked.conversation.system, None);
}

#[test]
fn models_and_adapters_change_under_the_conversation() {
    let mut echo = Echo::new();
    let lines = [
        "a",
        "/load other",
        "/backend",
        "/backend 1",
        "/backend",
        "/show",
        "/show template",
        "/show conversation",
        "/stats",
        "/edit",
        "/copy",
        "/help",
        "/? shortcuts",
        "/exit",
        "never",
    ];
    let talked = typed(&mut echo, &lines);
    talked.result.unwrap();
    assert_eq!(
        (echo.name.as_str(), echo.adapter.as_str()),
        ("other", "card 1")
    );
    assert_eq!(talked.settings.options.sampling.temperature, 0.25);
    for part in [
        "card 0\ncard 1\n",
        "all about echo",
        "{{ messages }}",
        "[user]\na\n[assistant]\n1: a",
        "1 answers, 1 tokens of prompts, 4 generated",
        "weights 100 B",
        "3: composed",
        "\x1b]52;c;MzogY29tcG9zZWQ=\x07",
        "/regen",
        "Ctrl-G",
    ] {
        assert!(talked.out.contains(part), "{part}: {}", talked.out);
    }
    assert_eq!(echo.heard.len(), 2);
}
