//! What a line of the conversation means: a message, or a command that begins with a slash.
//!
//! Pure: a text goes in, a value or a sentence about what is wrong comes out.

use crate::suggest;

/// One line, understood.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// Nothing but blanks.
    Empty,
    /// A message to the model.
    Say(String),
    Do(Command),
}

/// Everything that a slash can ask for.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// All commands; keys, where `shortcuts` is asked for; or one command.
    Help(Option<String>),
    Exit,
    Clear,
    Regen,
    /// Takes so many turns back.
    Undo(usize),
    Edit,
    /// Shows the system message, or sets it; an empty one removes it.
    System(Option<String>),
    /// Shows the settings, or one of them (`name`, nothing), or changes it.
    Set(Option<(String, Option<String>)>),
    Show(Topic),
    /// A model's name or path, or a file with a conversation.
    Load(String),
    Save {
        file: String,
        /// A file of that name may be replaced.
        replace: bool,
    },
    Read(String),
    Stats,
    /// Which adapter, or another one: an interface's name or an index.
    Backend(Option<String>),
    Copy,
}

/// What `/show` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    Info,
    Template,
    Settings,
    Conversation,
}

/// A command as `/help` tells it.
pub struct Entry {
    /// Without the slash; the first is what `/help` prints.
    pub names: &'static [&'static str],
    pub arguments: &'static str,
    pub about: &'static str,
}

const fn entry(
    names: &'static [&'static str],
    arguments: &'static str,
    about: &'static str,
) -> Entry {
    Entry {
        names,
        arguments,
        about,
    }
}

/// All commands, in the order of the help.
pub const COMMANDS: &[Entry] = &[
    entry(
        &["help", "?"],
        "[COMMAND]",
        "this list, or one command; /? shortcuts lists the keys",
    ),
    entry(&["exit", "bye", "quit"], "", "leave; so does Ctrl-D"),
    entry(
        &["clear"],
        "",
        "forget the conversation, keep the system message and the settings",
    ),
    entry(&["regen"], "", "answer the last message again"),
    entry(
        &["undo"],
        "[N]",
        "take the last turn back, or the last N: message and answer",
    ),
    entry(
        &["edit"],
        "",
        "write the next message in $EDITOR; so does Ctrl-G",
    ),
    entry(
        &["system"],
        "[TEXT]",
        "show the system message, or set it; \"\" removes it",
    ),
    entry(
        &["set"],
        "[NAME [VALUE]]",
        "show all settings with their ranges, or change one",
    ),
    entry(
        &["show"],
        "[WHAT]",
        "the model: info, template, settings or conversation",
    ),
    entry(
        &["load"],
        "MODEL|FILE",
        "another model, or a conversation that was saved",
    ),
    entry(
        &["save"],
        "[-f] FILE",
        "write the conversation as JSON; -f replaces a file",
    ),
    entry(
        &["read"],
        "FILE",
        "put a text file in front of the next message",
    ),
    entry(
        &["stats"],
        "",
        "numbers of the last answer and of all so far, and the memory in use",
    ),
    entry(
        &["backend"],
        "[NAME|N]",
        "which adapter; or load the model on another one",
    ),
    entry(
        &["copy"],
        "",
        "put the last answer on the terminal's clipboard",
    ),
];

/// Reads a line, which may be a message of several lines.
///
/// A slash makes a command only where a plain word follows: `/usr/bin/env` is a message. Two slashes
/// stand for one that begins a message.
pub fn parse(text: &str) -> Result<Line, String> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Ok(Line::Empty);
    }
    let Some(rest) = trimmed.strip_prefix('/') else {
        return Ok(Line::Say(text.to_owned()));
    };
    if rest.starts_with('/') {
        return Ok(Line::Say(rest.to_owned()));
    }
    let (name, argument) = match rest.split_once(char::is_whitespace) {
        Some((name, argument)) => (name, argument.trim()),
        None => (rest, ""),
    };
    let is_word = |c: char| c.is_ascii_alphabetic() || c == '?' || c == '-' || c == '_';
    if name.is_empty() || !name.chars().all(is_word) {
        return Ok(Line::Say(text.to_owned()));
    }
    let Some(entry) = find(name) else {
        return Err(unknown(name));
    };
    command(entry, argument).map(Line::Do)
}

/// The command of that name, with or without its slash.
pub fn find(name: &str) -> Option<&'static Entry> {
    let name = name.trim_start_matches('/');
    COMMANDS.iter().find(|entry| entry.names.contains(&name))
}

fn unknown(name: &str) -> String {
    let names = COMMANDS.iter().flat_map(|entry| entry.names).copied();
    match suggest::nearest(name, names) {
        Some(near) => format!("/{name}: no such command; did you mean /{near}?"),
        None => format!(
            "/{name}: no such command; /help lists them, //{name} begins a message with a slash"
        ),
    }
}

fn command(entry: &Entry, argument: &str) -> Result<Command, String> {
    let name = entry.names[0];
    let given = || (!argument.is_empty()).then(|| argument.to_owned());
    let needed = |what: &str| given().ok_or_else(|| format!("/{name}: {what} is missing"));
    if entry.arguments.is_empty() && !argument.is_empty() {
        return Err(format!(
            "/{name} takes nothing after it, found \"{argument}\""
        ));
    }
    Ok(match name {
        "help" => Command::Help(given()),
        "exit" => Command::Exit,
        "clear" => Command::Clear,
        "regen" => Command::Regen,
        "undo" => Command::Undo(match argument {
            "" => 1,
            number => match number.parse() {
                Ok(turns) if turns >= 1 => turns,
                _ => {
                    return Err(format!(
                        "/undo: \"{number}\" is no number of turns from 1 on"
                    ));
                }
            },
        }),
        "edit" => Command::Edit,
        "system" => Command::System(given().map(|text| unquoted(&text).to_owned())),
        "set" => Command::Set(given().map(|text| match text.split_once([' ', '=', '\t']) {
            Some((name, value)) => (name.to_owned(), Some(value.trim().to_owned())),
            None => (text, None),
        })),
        "show" => Command::Show(topic(argument)?),
        "load" => Command::Load(unquoted(&needed("a model or a file")?).to_owned()),
        "save" => {
            let replace = argument
                .strip_prefix("-f")
                .filter(|rest| rest.starts_with(' '));
            let file = unquoted(replace.unwrap_or(argument).trim());
            if file.is_empty() || file == "-f" {
                return Err("/save: the name of a file is missing".to_owned());
            }
            Command::Save {
                file: file.to_owned(),
                replace: replace.is_some(),
            }
        }
        "read" => Command::Read(unquoted(&needed("the name of a file")?).to_owned()),
        "stats" => Command::Stats,
        "backend" => Command::Backend(given()),
        "copy" => Command::Copy,
        other => unreachable!("/{other} is in the table and not in the match"),
    })
}

fn topic(argument: &str) -> Result<Topic, String> {
    const TOPICS: [(&str, Topic); 4] = [
        ("info", Topic::Info),
        ("template", Topic::Template),
        ("settings", Topic::Settings),
        ("conversation", Topic::Conversation),
    ];
    if argument.is_empty() {
        return Ok(Topic::Info);
    }
    let found = TOPICS.iter().find(|(name, _)| *name == argument);
    found.map(|(_, topic)| *topic).ok_or_else(|| {
        let names = TOPICS.map(|(name, _)| name);
        let near = suggest::nearest(argument, names);
        let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
        format!(
            "/show: \"{argument}\" is none of {}{near}",
            names.join(", ")
        )
    })
}

/// Without the quotes around the whole of it.
fn unquoted(text: &str) -> &str {
    for quote in ['"', '\''] {
        let inner = text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote));
        if let Some(inner) = inner {
            return inner;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(text: &str) -> Command {
        match parse(text) {
            Ok(Line::Do(command)) => command,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn every_entry_of_the_table_is_understood_by_each_of_its_names() {
        for entry in COMMANDS {
            for name in entry.names {
                let argument = match entry.names[0] {
                    "undo" => "2",
                    "show" => "template",
                    _ if entry.arguments.is_empty() => "",
                    _ => "x",
                };
                assert!(parse(&format!("/{name} {argument}")).is_ok(), "/{name}");
            }
        }
    }

    #[test]
    fn messages_and_commands_are_told_apart() {
        let say = |text: &str| Ok(Line::Say(text.to_owned()));
        assert_eq!(parse("  \n "), Ok(Line::Empty));
        assert_eq!(parse(" hello /clear"), say(" hello /clear"));
        assert_eq!(parse("/usr/bin/env python"), say("/usr/bin/env python"));
        assert_eq!(parse("/"), say("/"));
        assert_eq!(parse("/ 2"), say("/ 2"));
        assert_eq!(parse("//clear it"), say("/clear it"));
        assert_eq!(done(" /clear "), Command::Clear);
        assert_eq!(done("/?"), Command::Help(None));
        assert_eq!(
            done("/? shortcuts"),
            Command::Help(Some("shortcuts".to_owned()))
        );
        assert_eq!(done("/bye"), Command::Exit);
    }

    #[test]
    fn arguments_in_every_spelling() {
        assert_eq!(done("/undo"), Command::Undo(1));
        assert_eq!(done("/undo 12"), Command::Undo(12));
        assert_eq!(done("/set"), Command::Set(None));
        let set = |name: &str, value: Option<&str>| {
            Command::Set(Some((name.to_owned(), value.map(str::to_owned))))
        };
        assert_eq!(done("/set temp"), set("temp", None));
        assert_eq!(done("/set temp  0.5"), set("temp", Some("0.5")));
        assert_eq!(done("/set temp=0.5"), set("temp", Some("0.5")));
        assert_eq!(done("/system"), Command::System(None));
        assert_eq!(done("/system \"\""), Command::System(Some(String::new())));
        assert_eq!(
            done("/system Be brief.\nAnd kind."),
            Command::System(Some("Be brief.\nAnd kind.".to_owned()))
        );
        assert_eq!(done("/show"), Command::Show(Topic::Info));
        let save = |file: &str, replace| Command::Save {
            file: file.to_owned(),
            replace,
        };
        assert_eq!(done("/save my chat.json"), save("my chat.json", false));
        assert_eq!(done("/save -f 'a b.json'"), save("a b.json", true));
        assert_eq!(done("/save -file"), save("-file", false));
        assert_eq!(done("/backend"), Command::Backend(None));
        assert_eq!(done("/backend 1"), Command::Backend(Some("1".to_owned())));
    }

    #[test]
    fn what_is_wrong_is_told_by_name() {
        for (text, parts) in [
            ("/clera", ["/clera", "/clear"]),
            ("/rege", ["/rege", "/regen"]),
            ("/zzzzzz", ["/zzzzzz", "/help"]),
            ("/undo 0", ["/undo", "\"0\""]),
            ("/undo all", ["/undo", "all"]),
            ("/exit now", ["/exit", "now"]),
            ("/show temlate", ["temlate", "did you mean template"]),
            ("/load", ["/load", "missing"]),
            ("/save -f", ["/save", "missing"]),
            ("/read", ["/read", "missing"]),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(
                parts.iter().all(|part| problem.contains(part)),
                "{text}: {problem}"
            );
        }
    }
}
