//! The loop on scripts: lines go in, a model that echoes answers.

mod commands;

use std::collections::VecDeque;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use nelumbo::Error;
use nelumbo::model::SamplingDefaults;
use nelumbo::text::Message;

use super::conversation::Conversation;
use super::input::{Heard, Input, Piped};
use super::interrupts::Interrupts;
use super::repl::{Partner, Repl};
use super::screen::Screen;
use super::settings::Settings;
use crate::args::{Cli, Command};
use crate::exit::Failure;
use crate::options::RunOptions;
use crate::output::tests::sample;
use crate::output::{Answer, Usage};

/// Answers `N: MESSAGE`, where N is the number of messages; a token is a character.
struct Echo {
    limit: usize,
    /// What happens to the next answers; all is well with those behind.
    plan: VecDeque<Plan>,
    heard: Vec<Vec<Message>>,
    seeds: Vec<u64>,
    name: String,
    adapter: String,
}

/// What happens to an answer.
enum Plan {
    Whole,
    /// An interrupt after so many characters.
    Stop(usize),
    Fail(Failure),
}

impl Echo {
    fn new() -> Echo {
        Echo::with([])
    }

    fn with<const N: usize>(plan: [Plan; N]) -> Echo {
        Echo {
            limit: 1000,
            plan: plan.into(),
            heard: Vec::new(),
            seeds: Vec::new(),
            name: "echo".to_owned(),
            adapter: "card 0".to_owned(),
        }
    }
}

impl Partner for Echo {
    fn answer(
        &mut self,
        messages: &[Message],
        options: &RunOptions,
        piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stop: &AtomicBool,
    ) -> Result<Answer, Failure> {
        let stop_after = match self.plan.pop_front() {
            Some(Plan::Fail(failure)) => return Err(failure),
            Some(Plan::Stop(after)) => Some(after),
            Some(Plan::Whole) | None => None,
        };
        let tokens: usize = messages.iter().map(|m| m.content.chars().count()).sum();
        if tokens >= self.limit {
            let limit = self.limit;
            return Err(Error::RequestTooLong { tokens, limit }.into());
        }
        self.heard.push(messages.to_vec());
        self.seeds.push(options.sampling.seed);
        let whole = format!("{}: {}", messages.len(), messages.last().unwrap().content);
        let length = options.max_tokens.unwrap_or(usize::MAX);
        let mut text = String::new();
        for (i, c) in whole.chars().enumerate().take(length) {
            stop.fetch_or(stop_after == Some(i), Ordering::Relaxed);
            if stop.load(Ordering::Relaxed) {
                break;
            }
            piece(&c.to_string())?;
            text.push(c);
        }
        let generated = text.chars().count();
        let cut = generated == length;
        Ok(Answer {
            text,
            finish_reason: if cut { "length" } else { "stop" }.to_owned(),
            usage: Usage {
                prompt_tokens: tokens,
                cached_tokens: 0,
                completion_tokens: generated,
                total_tokens: tokens + generated,
            },
            context_limit: self.limit,
            ..sample()
        })
    }

    fn context_limit(&self) -> usize {
        self.limit
    }
    fn name(&self) -> String {
        self.name.clone()
    }
    fn info(&self) -> Result<String, Failure> {
        Ok("all about echo".to_owned())
    }
    fn template(&self) -> Result<String, Failure> {
        Ok("{{ messages }}".to_owned())
    }
    fn adapter(&self) -> String {
        self.adapter.clone()
    }
    fn load(&mut self, reference: &str) -> Result<SamplingDefaults, Failure> {
        if reference == "nothing" {
            return Err(Failure::Model("nothing: no such model".to_owned()));
        }
        self.name = reference.to_owned();
        Ok(SamplingDefaults {
            temperature: Some(0.25),
            ..SamplingDefaults::default()
        })
    }
    fn move_to(&mut self, adapter: &str) -> Result<(), Failure> {
        self.adapter = format!("card {adapter}");
        Ok(())
    }
}

/// What a person does, and what the editor gives back.
struct Script(VecDeque<Heard>);

impl Input for Script {
    fn next(&mut self) -> Result<Heard, Failure> {
        Ok(self.0.pop_front().unwrap_or(Heard::End))
    }
    fn keep_history(&mut self, _: bool) -> Result<(), Failure> {
        Ok(())
    }
    fn compose(&mut self, text: &str) -> Result<String, Failure> {
        Ok(format!("{text}composed"))
    }
}

/// What a conversation left behind.
struct Talked {
    result: Result<(), Failure>,
    out: String,
    err: String,
    conversation: Conversation,
    settings: Settings,
}

fn settings() -> Settings {
    let cli = Cli::try_parse_from(["nelumbo", "run", "m"]).unwrap();
    let Command::Run(args) = cli.command else {
        panic!("not run")
    };
    Settings::new(
        RunOptions::new(&args).unwrap(),
        None,
        SamplingDefaults::default(),
    )
}

fn talk_with(partner: &mut Echo, input: &mut dyn Input, terminal: bool) -> Talked {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let interrupts = Interrupts::default();
    let mut screen = Screen::new(&mut out, &mut err);
    screen.terminal = terminal;
    let mut repl = Repl::new(partner, input, screen, &interrupts, settings());
    let result = repl.run();
    let (conversation, settings) = (repl.conversation.clone(), repl.settings.clone());
    Talked {
        result,
        out: String::from_utf8(out).unwrap(),
        err: String::from_utf8(err).unwrap(),
        conversation,
        settings,
    }
}

/// A person types these.
fn typed(partner: &mut Echo, lines: &[&str]) -> Talked {
    let lines = lines.iter().map(|&line| Heard::Text(line.to_owned()));
    talk_with(partner, &mut Script(lines.collect()), true)
}

/// A pipe holds these.
fn piped(partner: &mut Echo, text: &str) -> Talked {
    talk_with(partner, &mut Piped::new(text.as_bytes()), false)
}

#[test]
fn each_turn_sees_all_before_it() {
    let mut echo = Echo::new();
    let talked = piped(&mut echo, "one\n\n두울\n");
    talked.result.unwrap();
    assert_eq!(talked.out, "1: one\n3: 두울\n");
    let contents: Vec<&str> = echo.heard[1].iter().map(|m| m.content.as_str()).collect();
    assert_eq!(contents, ["one", "1: one", "두울"]);
    assert_eq!(talked.err.lines().count(), 2, "{}", talked.err);
    assert!(talked.err.contains("context 16/1000"), "{}", talked.err);
    assert_ne!(echo.seeds[0], echo.seeds[1]);
}

#[test]
fn turns_are_taken_back_answered_again_and_forgotten() {
    let mut echo = Echo::new();
    let lines = [
        "/regen", "a", "b", "/undo", "c", "/regen", "/undo 9", "/clear", "d",
    ];
    let talked = typed(&mut echo, &lines);
    talked.result.unwrap();
    assert_eq!(talked.out, "1: a\n3: b\n3: c\n3: c\n1: d\n");
    assert_eq!(talked.conversation.turns().len(), 1);
    for part in [
        "nothing was asked yet",
        "1 turn taken back, 1 left",
        "2 turns taken back, 0 left",
        "0 turns forgotten",
    ] {
        assert!(talked.err.contains(part), "{part}: {}", talked.err);
    }
}

#[test]
fn blocks_and_slashes_arrive_as_they_are_meant() {
    let mut echo = Echo::new();
    let lines = [
        "\"\"\"\n/clear\nb\n\"\"\"",
        "a\\\nb",
        "//x",
        "/usr/bin",
        "\"\"\"\"\"\"",
    ];
    let talked = typed(&mut echo, &lines);
    talked.result.unwrap();
    assert_eq!(talked.out, "1: /clear\nb\n3: a\nb\n5: /x\n7: /usr/bin\n");
}

#[test]
fn a_stopped_answer_stays_and_the_conversation_goes_on() {
    let mut echo = Echo::with([Plan::Stop(4)]);
    let talked = typed(&mut echo, &["hello", "more"]);
    talked.result.unwrap();
    assert_eq!(talked.out, "1: h\n3: more\n");
    assert_eq!(talked.conversation.turns()[0].assistant, "1: h");
    assert!(
        talked.err.contains("stays in the conversation"),
        "{}",
        talked.err
    );
}

#[test]
fn an_answer_stopped_before_it_began_leaves_nothing() {
    let mut echo = Echo::with([Plan::Stop(0)]);
    let talked = typed(&mut echo, &["hello", "more"]);
    assert_eq!(talked.out, "1: more\n");
    assert_eq!(talked.conversation.turns().len(), 1);
    // and the answer that was to be replaced is not lost
    for plan in [Plan::Stop(0), Plan::Fail(Failure::Model("gone".to_owned()))] {
        let mut echo = Echo::with([Plan::Whole, plan]);
        let talked = typed(&mut echo, &["a", "/regen", "b"]);
        talked.result.unwrap();
        assert_eq!(talked.out, "1: a\n3: b\n");
    }
}

#[test]
fn a_pipe_ends_with_the_first_error_and_an_interrupt() {
    let mut echo = Echo::with([Plan::Stop(2)]);
    let talked = piped(&mut echo, "hello\nmore\n");
    assert!(matches!(talked.result, Err(Failure::Interrupted)));
    assert_eq!(talked.out, "1:\n");
    let talked = piped(&mut Echo::new(), "/clera\nmore\n");
    let failure = talked.result.unwrap_err();
    assert_eq!((failure.code(), talked.out.as_str()), (2, ""));
    assert!(
        failure.to_string().contains("did you mean /clear"),
        "{failure}"
    );
    for line in ["/edit", "/copy", "/set nohistory"] {
        let failure = piped(&mut Echo::new(), line).result.unwrap_err();
        assert_eq!(failure.code(), 2, "{line}");
    }
}

#[test]
fn a_person_goes_on_after_an_error() {
    let mut echo = Echo::with([Plan::Fail(Failure::Model("the device is gone".to_owned()))]);
    let talked = typed(&mut echo, &["a", "/nonsense", "/load nothing", "b"]);
    talked.result.unwrap();
    assert_eq!(talked.out, "1: b\n");
    for part in ["the device is gone", "/nonsense", "no such model"] {
        assert!(talked.err.contains(part), "{part}: {}", talked.err);
    }
    assert!(!talked.err.contains("COMMAND --help"), "{}", talked.err);
}

#[test]
fn ctrl_c_twice_at_the_prompt_leaves() {
    let mut echo = Echo::new();
    let mut script = Script([Heard::Interrupt, Heard::Interrupt, Heard::Text("a".into())].into());
    let talked = talk_with(&mut echo, &mut script, true);
    assert!(matches!(talked.result, Err(Failure::Interrupted)));
    assert!(talked.err.contains("Ctrl-C again") && echo.heard.is_empty());
}

#[test]
fn l10_a_context_that_is_full_is_told_with_both_numbers_and_never_cut() {
    let mut echo = Echo::new();
    echo.limit = 30;
    let long = "x".repeat(40);
    let talked = typed(&mut echo, &["hello", &long, "/undo", "bye"]);
    talked.result.unwrap();
    assert_eq!(talked.out, "1: hello\n1: bye\n");
    for part in [
        "53 tokens",
        "30 tokens",
        "/undo",
        "/clear",
        "--ctx-size",
        "nothing was cut",
    ] {
        assert!(talked.err.contains(part), "{part}: {}", talked.err);
    }
    let mut echo = Echo::new();
    echo.limit = 30;
    let talked = piped(&mut echo, &long);
    assert_eq!(talked.result.unwrap_err().code(), 2);
}

#[test]
fn l10_a_hundred_thousand_messages_are_refused_without_being_rendered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.json");
    let mut conversation = Conversation::default();
    for i in 0..50_000 {
        conversation.push(format!("question {i}"), format!("answer {i}"));
    }
    fs::write(&path, conversation.to_json("m").to_string()).unwrap();
    let mut echo = Echo::new();
    let load = format!("/load {}", path.display());
    let talked = typed(&mut echo, &[&load, "hello", "/undo 49900", "hello"]);
    talked.result.unwrap();
    for part in ["50000 turns", "100001 messages", "1000 tokens", "100 left"] {
        assert!(talked.err.contains(part), "{part}: {}", talked.err);
    }
    // what is left does not fit either, which the model itself says
    assert!(
        echo.heard.is_empty() && talked.out.is_empty(),
        "{}",
        talked.out
    );
    let talked = typed(&mut echo, &[&load, "/undo 49999", "hello"]);
    assert_eq!(talked.out, "3: hello\n");
}

#[test]
fn a_reader_that_leaves_ends_the_conversation() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut err = Vec::new();
    let interrupts = Interrupts::default();
    let mut screen = Screen::new(&mut writer, &mut err);
    screen.terminal = true;
    let mut echo = Echo::new();
    let mut script = Script(["a", "b"].map(|l| Heard::Text(l.to_owned())).into());
    let mut repl = Repl::new(&mut echo, &mut script, screen, &interrupts, settings());
    assert!(matches!(repl.run(), Err(Failure::OutputClosed)));
    assert_eq!(echo.heard.len(), 1);
}
