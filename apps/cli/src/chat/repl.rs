//! The conversation's loop: lines in, answers and the effects of commands out.
//!
//! It knows the model, the terminal and the engine by traits alone, so tests run it on scripts.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use nelumbo::Error;
use nelumbo::model::SamplingDefaults;
use nelumbo::text::Message;

use super::command::{self, Command, Line};
use super::conversation::Conversation;
use super::input::{Heard, Input};
use super::interrupts::Interrupts;
use super::multiline;
use super::screen::Screen;
use super::settings::Settings;
use crate::exit::Failure;
use crate::options::RunOptions;
use crate::output::{Answer, stats_line};

/// A model that talks, and what can be done with it.
pub trait Partner {
    /// Answers the last of `messages`: see [`crate::run::Answers::answer`].
    fn answer(
        &mut self,
        messages: &[Message],
        options: &RunOptions,
        piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stop: &AtomicBool,
    ) -> Result<Answer, Failure>;

    /// The longest sequence, in tokens; 0 while no model is loaded.
    fn context_limit(&self) -> usize;
    /// What the user calls the model.
    fn name(&self) -> String;
    /// The model for people, in several lines.
    fn info(&self) -> Result<String, Failure>;
    /// The source of its chat template.
    fn template(&self) -> Result<String, Failure>;
    /// The adapter it runs on.
    fn adapter(&self) -> String;
    /// Takes another model; tells how to draw from it. The one before stays if it fails.
    fn load(&mut self, reference: &str) -> Result<SamplingDefaults, Failure>;
    /// Loads the model on another adapter: an interface's name or an index.
    fn move_to(&mut self, adapter: &str) -> Result<(), Failure>;
}

/// Whether the conversation goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    On,
    Leave,
}

/// All answers so far, added up: also those that were taken back, and of models before this one.
#[derive(Debug, Default)]
pub struct Totals {
    pub answers: usize,
    pub prompt_tokens: usize,
    pub generated_tokens: usize,
}

/// A conversation under way.
pub struct Repl<'a> {
    pub partner: &'a mut dyn Partner,
    pub input: &'a mut dyn Input,
    pub screen: Screen<'a>,
    pub interrupts: &'a Interrupts,
    pub conversation: Conversation,
    pub settings: Settings,
    /// A person types: after an error the conversation goes on.
    pub interactive: bool,
    /// Texts that go in front of the next message.
    pub attached: Vec<String>,
    pub last: Option<Answer>,
    pub totals: Totals,
    /// The file that holds this conversation, which may be replaced without asking.
    pub saved_as: Option<PathBuf>,
}

impl<'a> Repl<'a> {
    pub fn new(
        partner: &'a mut dyn Partner,
        input: &'a mut dyn Input,
        screen: Screen<'a>,
        interrupts: &'a Interrupts,
        settings: Settings,
    ) -> Repl<'a> {
        let conversation = Conversation::new(settings.options.system.clone());
        let interactive = screen.terminal;
        Repl {
            partner,
            input,
            screen,
            interrupts,
            conversation,
            settings,
            interactive,
            attached: Vec::new(),
            last: None,
            totals: Totals::default(),
            saved_as: None,
        }
    }

    /// Talks until the lines end or one says so.
    pub fn run(&mut self) -> Result<(), Failure> {
        loop {
            let flow = match self.input.next()? {
                Heard::End => Flow::Leave,
                Heard::Interrupt if self.interrupts.press(Instant::now()) => {
                    return Err(Failure::Interrupted);
                }
                Heard::Interrupt => {
                    self.screen
                        .remark("Ctrl-C again, or Ctrl-D, leaves; /help lists the commands");
                    Flow::On
                }
                Heard::Text(text) => match self.obey(&text) {
                    Ok(flow) => flow,
                    Err(failure) if self.interactive && is_survived(&failure) => {
                        self.screen.problem(&failure);
                        Flow::On
                    }
                    Err(failure) => return Err(failure),
                },
            };
            if flow == Flow::Leave {
                return Ok(());
            }
        }
    }

    fn obey(&mut self, text: &str) -> Result<Flow, Failure> {
        let message = multiline::message(text);
        let line = if multiline::is_block(text) && !message.is_empty() {
            Line::Say(message)
        } else {
            command::parse(&message).map_err(Failure::Usage)?
        };
        match line {
            Line::Empty => {}
            Line::Say(message) => self.say(message)?,
            Line::Do(Command::Exit) => return Ok(Flow::Leave),
            Line::Do(command) => self.execute(command)?,
        }
        Ok(Flow::On)
    }

    /// A message of the user's, behind the files that were read for it.
    pub fn say(&mut self, message: String) -> Result<(), Failure> {
        let mut parts = self.attached.clone();
        parts.push(message);
        let asked = self.ask(&parts.join("\n\n"));
        let is_full = matches!(asked, Err(Failure::ContextFull { .. }));
        if is_full && !self.attached.is_empty() {
            // kept, they would make every message too long until all is forgotten
            self.screen
                .remark("what was read is dropped again; /read brings it back where there is room");
        }
        if is_full || matches!(asked, Ok(true)) {
            self.attached.clear();
        }
        asked.map(drop)
    }

    /// Lets the model answer, and keeps message and answer. Whether there was one: nothing is kept of
    /// an answer that was stopped before its first token.
    pub fn ask(&mut self, message: &str) -> Result<bool, Failure> {
        let limit = self.partner.context_limit();
        let count = self.conversation.num_messages_with_next();
        if limit > 0 && count > limit {
            // each message takes a token at least, so that nothing needs to be rendered to know
            let size = format!("{count} messages");
            return Err(Failure::ContextFull { size, limit });
        }
        self.interrupts.begin();
        let messages = self.conversation.messages_with(message);
        let options = self.settings.for_an_answer();
        let waiting = self.screen.waiting();
        let screen = &mut self.screen;
        let mut piece = |text: &str| {
            waiting.finish_and_clear();
            screen.piece(text)
        };
        let stop = &self.interrupts.stop;
        let answered = self.partner.answer(&messages, &options, &mut piece, stop);
        waiting.finish_and_clear();
        let answer = answered.map_err(|failure| match failure {
            Failure::Engine(Error::RequestTooLong { tokens, limit }) => Failure::ContextFull {
                size: format!("{tokens} tokens"),
                limit,
            },
            other => other,
        })?;
        let interrupted = self.interrupts.came();
        let nothing = interrupted && answer.text.is_empty();
        if !nothing {
            self.screen.end_answer(answer.text.is_empty())?;
            self.conversation
                .push(message.to_owned(), answer.text.clone());
        }
        self.count(answer, interrupted);
        if interrupted && !self.interactive {
            return Err(Failure::Interrupted);
        }
        Ok(!nothing)
    }

    /// The line of numbers, and why the answer ended, where that was not the model's choice.
    fn count(&mut self, answer: Answer, interrupted: bool) {
        self.totals.answers += 1;
        self.totals.prompt_tokens += answer.usage.prompt_tokens;
        self.totals.generated_tokens += answer.usage.completion_tokens;
        self.screen.remark(&stats_line(&answer));
        if interrupted {
            let kept = if answer.text.is_empty() {
                "stopped before the first token; the message is not part of the conversation"
            } else {
                "stopped; what there is stays in the conversation"
            };
            self.screen.remark(kept);
        } else if answer.finish_reason == "length" {
            let full = answer.usage.total_tokens >= answer.context_limit;
            self.screen.remark(if full {
                "the context is full, so the answer ends here: /undo or /clear makes room"
            } else {
                "the answer ends at the limit of --predict: /set predict -1 lets the model end it"
            });
        }
        self.last = Some(answer);
    }
}

/// Whether the conversation can go on after it.
fn is_survived(failure: &Failure) -> bool {
    !matches!(failure, Failure::OutputClosed | Failure::Interrupted)
        && !matches!(failure, Failure::Io { path, .. } if path.as_os_str() == "stdout")
}
