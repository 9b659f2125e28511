//! What the commands do.

use std::path::Path;

use super::clipboard;
use super::command::{self, COMMANDS, Command, Topic};
use super::conversation::Conversation;
use super::editor::SHORTCUTS;
use super::files;
use super::repl::Repl;
use crate::exit::Failure;
use crate::models::human_bytes;
use crate::output::{Answer, stats_line, table};

impl Repl<'_> {
    /// Does what a command says; leaving is the loop's matter.
    pub fn execute(&mut self, command: Command) -> Result<(), Failure> {
        match command {
            Command::Exit => {}
            Command::Help(about) => {
                let text = help(about.as_deref()).map_err(Failure::Usage)?;
                self.screen.show(&text)?;
            }
            Command::Clear => {
                let gone = self.conversation.clear();
                self.attached.clear();
                self.saved_as = None;
                self.screen.remark(&format!("{} forgotten", turns(gone)));
            }
            Command::Undo(count) => {
                let gone = self.conversation.undo(count);
                let left = self.conversation.turns().len();
                self.screen
                    .remark(&format!("{} taken back, {left} left", turns(gone)));
            }
            Command::Regen => self.regenerate()?,
            Command::Edit => self.edit()?,
            Command::System(text) => self.system(text)?,
            Command::Set(what) => self.set(what)?,
            Command::Show(topic) => self.show(topic)?,
            Command::Load(what) => self.load(&what)?,
            Command::Save { file, replace } => self.save(&file, replace)?,
            Command::Read(file) => {
                let path = files::typed_path(&file);
                let text = files::read(&path)?;
                let size = human_bytes(text.len() as u64);
                self.attached.push(text.trim_end().to_owned());
                let name = path.display();
                self.screen
                    .remark(&format!("{name}: {size}, in front of the next message"));
            }
            Command::Stats => {
                let text = self.stats();
                self.screen.show(&text)?;
            }
            Command::Backend(None) => {
                let text = self.partner.adapter();
                self.screen.show(&text)?;
            }
            Command::Backend(Some(adapter)) => {
                let partner = &mut self.partner;
                self.interrupts
                    .while_loading(|| partner.move_to(&adapter))?;
                let text = self.partner.adapter();
                self.screen
                    .remark(&format!("now on {text}; the conversation goes on"));
            }
            Command::Copy => self.copy()?,
        }
        Ok(())
    }

    /// Another answer to the last message; the old one comes back if there is none.
    fn regenerate(&mut self) -> Result<(), Failure> {
        let Some(old) = self.conversation.pop() else {
            return Err(Failure::Usage("/regen: nothing was asked yet".to_owned()));
        };
        let answered = self.ask(&old.user);
        if !matches!(answered, Ok(true)) && !matches!(answered, Err(Failure::Interrupted)) {
            self.conversation.push(old.user, old.assistant);
        }
        answered.map(drop)
    }

    fn edit(&mut self) -> Result<(), Failure> {
        let text = self.input.compose("")?;
        if text.trim().is_empty() {
            self.screen.remark("nothing was written");
            return Ok(());
        }
        self.screen.remark(&text);
        self.say(text)
    }

    fn system(&mut self, text: Option<String>) -> Result<(), Failure> {
        match text {
            None => match self.conversation.system.clone() {
                Some(text) => self.screen.show(&text)?,
                None => self.screen.remark("there is no system message"),
            },
            Some(text) if text.is_empty() => {
                self.conversation.system = None;
                self.screen.remark("no system message from now on");
            }
            Some(text) => {
                self.conversation.system = Some(text);
                self.screen
                    .remark("the system message is set, for what was said as well");
            }
        }
        Ok(())
    }

    fn set(&mut self, what: Option<(String, Option<String>)>) -> Result<(), Failure> {
        match what {
            None => self.show(Topic::Settings),
            Some((name, None)) if name == "history" || name == "nohistory" => {
                let keep = name == "history";
                self.input.keep_history(keep)?;
                self.screen.remark(if keep {
                    "lines are kept for the next time"
                } else {
                    "lines are not kept from now on"
                });
                Ok(())
            }
            Some((name, None)) => {
                let text = self.settings.tell(&name).map_err(Failure::Usage)?;
                self.screen.show(&text)
            }
            Some((name, Some(value))) => {
                let text = self.settings.set(&name, &value).map_err(Failure::Usage)?;
                self.screen.remark(&text);
                Ok(())
            }
        }
    }

    fn show(&mut self, topic: Topic) -> Result<(), Failure> {
        let text = match topic {
            Topic::Info => self.partner.info()?,
            Topic::Template => self.partner.template()?,
            Topic::Settings => {
                let header = ["NAME", "VALUE", "RANGE", "WHAT IT IS"].map(str::to_owned);
                let rows = std::iter::once(header).chain(self.settings.rows());
                format!(
                    "{}history, nohistory: whether typed lines are kept",
                    table(rows)
                )
            }
            Topic::Conversation => transcript(&self.conversation),
        };
        self.screen.show(&text)
    }

    fn load(&mut self, what: &str) -> Result<(), Failure> {
        let path = files::typed_path(what);
        if files::is_conversation(&path) {
            let text = files::read(&path)?;
            let text = text.trim_start_matches('\u{feff}');
            self.conversation = Conversation::from_json(text)
                .map_err(|problem| Failure::Usage(format!("{}: {problem}", path.display())))?;
            let count = turns(self.conversation.turns().len());
            self.screen
                .remark(&format!("{count} from {}", path.display()));
            self.saved_as = Some(path);
            return Ok(());
        }
        let partner = &mut self.partner;
        let suited = self
            .interrupts
            .while_loading(|| partner.load(&path.to_string_lossy()))?;
        self.settings.suit(&suited);
        let name = self.partner.name();
        self.screen.remark(&format!(
            "now {name} on {}; the conversation goes on, /clear begins anew",
            self.partner.adapter()
        ));
        Ok(())
    }

    fn save(&mut self, file: &str, replace: bool) -> Result<(), Failure> {
        let path = files::typed_path(file);
        let value = self.conversation.to_json(&self.partner.name());
        let text = format!("{value:#}\n");
        let is_ours = self.saved_as.as_deref() == Some(Path::new(&path));
        files::save(&path, text.as_bytes(), replace || is_ours)?;
        let count = turns(self.conversation.turns().len());
        self.screen.remark(&format!(
            "{count} in {}; /load {file} brings them back",
            path.display()
        ));
        self.saved_as = Some(path);
        Ok(())
    }

    fn stats(&self) -> String {
        let Some(answer) = &self.last else {
            return "no answer yet".to_owned();
        };
        let totals = &self.totals;
        format!(
            "last answer   {}\nso far        {} answers, {} tokens of prompts, {} generated\n\
             conversation  {}, {} of {} tokens of context after the last answer\n{}",
            stats_line(answer),
            totals.answers,
            totals.prompt_tokens,
            totals.generated_tokens,
            turns(self.conversation.turns().len()),
            answer.usage.total_tokens,
            answer.context_limit,
            machine(answer),
        )
    }

    fn copy(&mut self) -> Result<(), Failure> {
        if !self.screen.terminal {
            let problem = "/copy needs a terminal, whose clipboard it is".to_owned();
            return Err(Failure::Usage(problem));
        }
        let Some(turn) = self.conversation.turns().last() else {
            return Err(Failure::Usage("/copy: there is no answer yet".to_owned()));
        };
        let text = turn.assistant.clone();
        let sequence = clipboard::sequence(&text)
            .map_err(|problem| Failure::Usage(format!("/copy: {problem}")))?;
        self.screen
            .out
            .write_all(sequence.as_bytes())
            .and_then(|()| self.screen.out.flush())
            .map_err(Failure::stdout)?;
        let count = text.chars().count();
        self.screen.remark(&format!(
            "{count} characters sent to the terminal's clipboard, if it has one (OSC 52)"
        ));
        Ok(())
    }
}

/// Where the answer was computed, and with what.
fn machine(answer: &Answer) -> String {
    let (memory, numerics, tuning) = (&answer.memory, &answer.numerics, &answer.tuning);
    format!(
        "memory        weights {}, cache {}, activations {}, other {}\n\
         numerics      {}: {} weights, {} activations, {} cache, {} lanes; tuning {}\n\
         loading       {:.1} s, compiling so far {:.1} s",
        human_bytes(memory.weights_bytes),
        human_bytes(memory.kv_bytes),
        human_bytes(memory.scratch_bytes),
        human_bytes(memory.other_bytes),
        numerics.mode,
        numerics.weights,
        numerics.activations,
        numerics.kv,
        numerics.lanes,
        tuning.source,
        answer.timings.load_ms / 1e3,
        answer.timings.compile_ms / 1e3,
    )
}

fn turns(count: usize) -> String {
    match count {
        1 => "1 turn".to_owned(),
        count => format!("{count} turns"),
    }
}

fn transcript(conversation: &Conversation) -> String {
    let mut text = String::new();
    if let Some(system) = &conversation.system {
        text.push_str(&format!("[system]\n{system}\n"));
    }
    for turn in conversation.turns() {
        text.push_str(&format!(
            "[user]\n{}\n[assistant]\n{}\n",
            turn.user, turn.assistant
        ));
    }
    if text.is_empty() {
        text.push_str("nothing was said yet");
    }
    text
}

/// All commands, the keys, or one command.
fn help(about: Option<&str>) -> Result<String, String> {
    let left = |entry: &command::Entry| {
        let names: Vec<String> = entry.names.iter().map(|name| format!("/{name}")).collect();
        format!("{} {}", names.join(", "), entry.arguments)
    };
    match about {
        None => {
            let rows = COMMANDS.iter().map(|entry| {
                let about = entry.about.to_owned();
                [left(entry).trim_end().to_owned(), about]
            });
            let tail = "A line that begins with // is a message that begins with /. \
                        Messages of several lines: between \"\"\" and \"\"\", or with \\ at line ends.";
            Ok(format!("{}{tail}", table(rows)))
        }
        Some("shortcuts" | "keys") => Ok(table(SHORTCUTS.iter().map(|row| row.map(str::to_owned)))),
        Some(name) => match command::find(name) {
            Some(entry) => Ok(format!("{}: {}", left(entry).trim_end(), entry.about)),
            None => Err(format!("/help: no command \"{name}\"; /help lists them")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_command() {
        let text = help(None).unwrap();
        for entry in COMMANDS {
            for name in entry.names {
                assert!(text.contains(&format!("/{name}")), "/{name}");
                assert!(help(Some(name)).unwrap().contains(entry.about));
            }
        }
        assert!(help(Some("shortcuts")).unwrap().contains("Ctrl-G"));
        assert!(help(Some("zzz")).unwrap_err().contains("zzz"));
    }
}
