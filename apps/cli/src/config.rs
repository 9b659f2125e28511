//! `nelumbo.toml`: what a user would otherwise type every time.
//!
//! ```toml
//! quiet = true               # for every command that has the option
//! [chat]
//! temp = 0.5
//! system = "Be brief."
//! ```
//!
//! Keys are the long names of options. Each value is held against its option's own parser and then
//! becomes the option's default, so that the environment and the command line win over it.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};
use etcetera::BaseStrategy;
use toml::{Table, Value};

use crate::exit::Failure;
use crate::{reading, suggest};

/// Commands that may have a section of their own.
pub const SECTIONS: [&str; 9] = [
    "run",
    "chat",
    "bench",
    "perplexity",
    "quantize",
    "plan",
    "compare",
    "simulate",
    "doctor",
];

/// Options that are actions, consents or lead to this file: nothing to be kept in it.
const NOT_KEYS: [&str; 6] = [
    "cache-list",
    "config",
    "force",
    "list-devices",
    "help",
    "version",
];

/// No such file is longer.
const MAX_BYTES: u64 = 1 << 20;

/// A default for one option, from the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Default {
    /// clap's name for the option.
    id: String,
    values: Vec<String>,
}

/// The options' defaults for one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    defaults: Vec<Default>,
}

impl Config {
    /// Reads the file that `given` names, else the one in the configuration folder, which need not be
    /// there. An empty name means no file. Everything in it is checked, and what concerns `subcommand`
    /// is kept.
    pub fn load(
        given: Option<&Path>,
        command: &Command,
        subcommand: &str,
    ) -> Result<Config, Failure> {
        let empty = Config {
            defaults: Vec::new(),
        };
        let path = match given {
            Some(path) if path.as_os_str().is_empty() => return Ok(empty),
            Some(path) => path.to_owned(),
            None => match usual_path() {
                Some(path) => path,
                None => return Ok(empty),
            },
        };
        match read(&path) {
            Ok(text) => parse(&path, &text, command, subcommand).map_err(Failure::Usage),
            Err(Failure::Io { source, .. }) if given.is_none() && is_absent(source.kind()) => {
                Ok(empty)
            }
            Err(failure) => Err(failure),
        }
    }

    /// The command with these defaults.
    pub fn apply(self, command: Command, subcommand: &str) -> Command {
        let is_own =
            |command: &Command, id: &str| command.get_arguments().any(|a| a.get_id() == id);
        self.defaults.into_iter().fold(command, |command, default| {
            let Default { id, values } = default;
            if is_own(&command, &id) {
                command.mut_arg(id, |arg| arg.default_values(values))
            } else {
                command.mut_subcommand(subcommand, |sub| {
                    sub.mut_arg(id, |arg| arg.default_values(values))
                })
            }
        })
    }
}

/// Also where the folder that it would be in is none.
fn is_absent(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn usual_path() -> Option<PathBuf> {
    let folders = etcetera::choose_base_strategy().ok()?;
    Some(folders.config_dir().join("nelumbo").join("nelumbo.toml"))
}

fn read(path: &Path) -> Result<String, Failure> {
    let file = File::open(path).map_err(Failure::io(path))?;
    reading::read_text(file, path, MAX_BYTES)
}

/// All of it is checked; defaults are those for `subcommand`, its section after what is for all.
fn parse(path: &Path, text: &str, command: &Command, subcommand: &str) -> Result<Config, String> {
    let shown = path.display();
    let table: Table = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| {
            1 + text[..span.start].bytes().filter(|&b| b == b'\n').count()
        });
        format!("{shown}: line {line}: {}", error.message())
    })?;
    let mut general = Vec::new();
    let mut own = Vec::new();
    for (key, value) in &table {
        if let (Value::Table(section), true) = (value, SECTIONS.contains(&key.as_str())) {
            for (name, value) in section {
                let place = format!("{shown}: [{key}] {name}");
                let arg = find(command, &[key], name)
                    .ok_or_else(|| unknown(command, &[key], &place, name))?;
                let default = checked(&arg, value, &place)?;
                if key == subcommand {
                    own.push(default);
                }
            }
            continue;
        }
        let place = format!("{shown}: {key}");
        if value.is_table() {
            let near = suggest::nearest(key, SECTIONS);
            let near = near.map_or(String::new(), |near| format!("; did you mean [{near}]?"));
            return Err(format!(
                "{place}: no such section{near} (there are {})",
                SECTIONS.join(", ")
            ));
        }
        let arg = find(command, &SECTIONS, key)
            .ok_or_else(|| unknown(command, &SECTIONS, &place, key))?;
        let default = checked(&arg, value, &place)?;
        // the same option may take other values in other commands: each checks its own
        if let Some(arg) = find(command, &[subcommand], key) {
            checked(&arg, value, &place)?;
            general.push(Default {
                id: arg.get_id().to_string(),
                ..default
            });
        }
    }
    general.retain(|default| !own.iter().any(|o| o.id == default.id));
    general.extend(own);
    Ok(Config { defaults: general })
}

/// Options of these commands and of all commands.
fn options<'a>(command: &'a Command, sections: &'a [&str]) -> impl Iterator<Item = &'a Arg> {
    let subs = sections
        .iter()
        .filter_map(|name| command.find_subcommand(name));
    subs.flat_map(Command::get_arguments)
        .chain(command.get_arguments())
        .filter(|arg| arg.get_long().is_some_and(|long| !NOT_KEYS.contains(&long)))
}

fn find(command: &Command, sections: &[&str], name: &str) -> Option<Arg> {
    let is_it = |arg: &&Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    };
    options(command, sections).find(is_it).cloned()
}

fn unknown(command: &Command, sections: &[&str], place: &str, name: &str) -> String {
    let known = options(command, sections).filter_map(Arg::get_long);
    let near = suggest::nearest(name, known);
    let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
    format!("{place}: there is no such option{near}")
}

/// The values as the command line would have them, accepted by the option's own parser.
fn checked(arg: &Arg, value: &Value, place: &str) -> Result<Default, String> {
    let values = match value {
        Value::Array(items) if matches!(arg.get_action(), ArgAction::Append) => {
            let items: Option<Vec<String>> = items.iter().map(text).collect();
            items.ok_or_else(|| format!("{place}: a list of texts and numbers is expected"))?
        }
        single => {
            let text = text(single).ok_or_else(|| {
                format!(
                    "{place}: a {} where one value is expected",
                    single.type_str()
                )
            })?;
            vec![text]
        }
    };
    let wrong = |problem: String| format!("{place}: {problem}");
    match arg.get_action() {
        ArgAction::SetTrue if !value.is_bool() => {
            return Err(wrong(format!("is {value}, expected true or false")));
        }
        ArgAction::SetTrue => {}
        ArgAction::Count => {
            if values[0].parse::<u8>().is_err() {
                return Err(wrong(format!("is {value}, expected 0 to 255")));
            }
        }
        _ => {
            let long = arg.get_long().expect("only options are found");
            let words = values.iter().map(|value| format!("--{long}={value}"));
            let argv = std::iter::once("nelumbo".to_owned()).chain(words);
            Command::new("nelumbo")
                .arg(arg.clone())
                .try_get_matches_from(argv)
                .map_err(|error| {
                    let text = error.to_string();
                    let lines: Vec<&str> = text
                        .lines()
                        .map(str::trim)
                        .take_while(|l| !l.starts_with("For more"))
                        .filter(|l| !l.is_empty())
                        .collect();
                    let line = lines.join(" ");
                    wrong(line.trim_start_matches("error: ").to_owned())
                })?;
        }
    }
    Ok(Default {
        id: arg.get_id().to_string(),
        values,
    })
}

/// A value as a word of the command line; `None` for what no option takes.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(switch) => Some(switch.to_string()),
        Value::Array(_) | Value::Table(_) | Value::Datetime(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn defaults(text: &str, subcommand: &str) -> Result<Vec<(String, Vec<String>)>, String> {
        let config = parse(Path::new("n.toml"), text, &Cli::command(), subcommand)?;
        Ok(config
            .defaults
            .into_iter()
            .map(|d| (d.id, d.values))
            .collect())
    }

    #[test]
    fn a_section_wins_over_what_is_for_all() {
        let text = "temp = 0.5\nquiet = true\n[chat]\ntemp = 1\nstop = [\"a\", \"b\"]\n[bench]\nrepetitions = 5\n";
        let word = |id: &str, values: &[&str]| {
            (
                id.to_owned(),
                values.iter().map(|&v| v.to_owned()).collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            defaults(text, "chat").unwrap(),
            [
                word("quiet", &["true"]),
                word("reverse_prompt", &["a", "b"]),
                word("temp", &["1"])
            ]
        );
        assert_eq!(
            defaults(text, "run").unwrap(),
            [word("quiet", &["true"]), word("temp", &["0.5"])]
        );
        assert_eq!(
            defaults(text, "bench").unwrap(),
            [word("quiet", &["true"]), word("repetitions", &["5"])]
        );
        // one name, of a switch there and of a file here
        let check = "[plan]\ncheck = true\n[quantize]\ncheck = \"t.txt\"\n";
        assert_eq!(
            defaults(check, "quantize").unwrap(),
            [word("check_text", &["t.txt"])]
        );
        // a conversation may begin with `run` as well
        for subcommand in ["run", "chat"] {
            let kept = defaults("nohistory = true", subcommand).unwrap();
            assert_eq!(kept, [word("nohistory", &["true"])], "{subcommand}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_by_file_and_key() {
        for (text, parts) in [
            ("tmep = 1", &["n.toml: tmep", "did you mean temp?"][..]),
            (
                "[chat]\nctx_size = 1",
                &["[chat] ctx_size", "did you mean ctx-size?"],
            ),
            (
                "[chat]\nlogprobs = 1",
                &["[chat] logprobs", "no such option"],
            ),
            ("[caht]\ntemp = 1", &["caht", "did you mean [chat]?"]),
            ("temp = 1000", &["n.toml: temp", "1000", "0..=100"]),
            ("temp = true", &["n.toml: temp", "not a number"]),
            ("ctx-size = 0", &["ctx-size", "2..=16777216"]),
            ("weights = \"q4\"", &["weights", "q4", "q8"]),
            ("quiet = 1", &["quiet", "true or false"]),
            ("top-k = [1]", &["top-k", "array"]),
            ("verbose = -1", &["verbose", "0 to 255"]),
            ("config = \"x\"", &["config", "no such option"]),
            ("cache-list = true", &["cache-list", "no such option"]),
            (
                "[quantize]\nforce = true",
                &["[quantize] force", "no such option"],
            ),
            ("a\nb = 1", &["n.toml: line 1"]),
            ("temp = 1\ntop-k = = 2", &["n.toml: line 2"]),
        ] {
            let problem = defaults(text, "chat").expect_err(text);
            assert!(
                parts.iter().all(|p| problem.contains(p)),
                "{text}: {problem}"
            );
        }
    }
}
