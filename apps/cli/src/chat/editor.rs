//! Lines typed at a terminal, by reedline: nothing else knows that it is reedline.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reedline::{
    Color, EditCommand, Emacs, FileBackedHistory, KeyCode, KeyModifiers, Prompt, PromptEditMode,
    PromptHistorySearch, PromptHistorySearchStatus, Reedline, ReedlineEvent, Signal,
    ValidationResult, Validator, default_emacs_keybindings,
};

use super::compose;
use super::input::{Heard, Input};
use super::interrupts::Interrupts;
use super::multiline;
use crate::exit::{Failure, say};

/// Lines that are kept.
const HISTORY_LINES: usize = 1000;

/// What is in front of the first line, and of those that follow.
const MARK: &str = ">>> ";
const NEXT_MARK: &str = "... ";

/// What Ctrl-G means to whoever reads the editor's signals.
const COMPOSE: &str = "compose";

/// The keys, for `/? shortcuts`.
pub const SHORTCUTS: &[[&str; 2]] = &[
    [
        "Enter",
        "send; in a \"\"\" block, or after a \\ at the end, a new line",
    ],
    ["Alt-Enter", "a new line"],
    ["Ctrl-G", "go on writing in $EDITOR"],
    ["Up, Down", "earlier lines; Ctrl-R searches them"],
    ["Ctrl-A, Ctrl-E", "to the begin or the end of the line"],
    ["Alt-B, Alt-F", "a word back or forth"],
    [
        "Ctrl-W, Ctrl-U, Ctrl-K",
        "erase a word, to the begin, to the end; Ctrl-Y puts it back",
    ],
    ["Ctrl-L", "clear the screen"],
    [
        "Ctrl-C",
        "stop the answer, or drop the line; twice within a second leaves",
    ],
    ["Ctrl-D", "leave"],
];

/// A terminal with a person.
pub struct Editor {
    line: Reedline,
    /// The file of typed lines, where there is a place for it.
    history: Option<PathBuf>,
    /// For files of a moment.
    folder: PathBuf,
    colour: bool,
    interrupts: Arc<Interrupts>,
}

impl Editor {
    /// `history` is the file of earlier lines; `keep` says whether it is read and written.
    pub fn new(
        history: Option<PathBuf>,
        keep: bool,
        folder: &Path,
        colour: bool,
        interrupts: Arc<Interrupts>,
    ) -> Editor {
        let used = history.as_deref().filter(|_| keep);
        let line = build(used, colour).unwrap_or_else(|problem| {
            say(&format!("warning: no history: {problem}"));
            build(None, colour).expect("a history in memory needs no file")
        });
        Editor {
            line,
            history,
            folder: folder.to_owned(),
            colour,
            interrupts,
        }
    }
}

fn build(history: Option<&Path>, colour: bool) -> Result<Reedline, String> {
    let history = match history {
        Some(path) => FileBackedHistory::with_file(HISTORY_LINES, path.to_owned())
            .map_err(|e| format!("{}: {e}", path.display()))?,
        None => FileBackedHistory::new(HISTORY_LINES).map_err(|e| e.to_string())?,
    };
    let mut keys = default_emacs_keybindings();
    keys.add_binding(
        KeyModifiers::CONTROL,
        KeyCode::Char('g'),
        ReedlineEvent::ExecuteHostCommand(COMPOSE.to_owned()),
    );
    Ok(Reedline::create()
        .with_history(Box::new(history))
        .with_edit_mode(Box::new(Emacs::new(keys)))
        .with_validator(Box::new(WholeMessages))
        .with_ansi_colors(colour)
        .use_bracketed_paste(true))
}

impl Input for Editor {
    fn next(&mut self) -> Result<Heard, Failure> {
        loop {
            match self.line.read_line(&Marks).map_err(terminal)? {
                Signal::Success(text) => {
                    // now, since a second Ctrl-C ends the program without asking anybody
                    if let Err(error) = self.line.sync_history() {
                        log::debug!("history: {error}");
                    }
                    return Ok(Heard::Text(text));
                }
                Signal::CtrlC => return Ok(Heard::Interrupt),
                Signal::CtrlD => return Ok(Heard::End),
                Signal::HostCommand(_) => {
                    let begun = self.line.current_buffer_contents().to_owned();
                    match self.compose(&begun) {
                        Ok(text) => self.line.run_edit_commands(&[
                            EditCommand::Clear,
                            EditCommand::InsertString(text),
                        ]),
                        Err(failure) => say(&format!("error: {failure}")),
                    }
                }
                _ => {}
            }
        }
    }

    fn keep_history(&mut self, keep: bool) -> Result<(), Failure> {
        if keep && self.history.is_none() {
            let problem =
                "there is no folder to keep a history in: HOME or XDG_STATE_HOME names it";
            return Err(Failure::Usage(problem.to_owned()));
        }
        let used = self.history.as_deref().filter(|_| keep);
        self.line = build(used, self.colour).map_err(Failure::Usage)?;
        Ok(())
    }

    fn compose(&mut self, text: &str) -> Result<String, Failure> {
        let folder = &self.folder;
        self.interrupts
            .step_aside(|| compose::compose(folder, text))
    }
}

fn terminal(source: std::io::Error) -> Failure {
    Failure::Io {
        path: "terminal".into(),
        source,
    }
}

/// Enter sends only what is complete.
struct WholeMessages;

impl Validator for WholeMessages {
    fn validate(&self, text: &str) -> ValidationResult {
        if multiline::is_open(text) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Complete
        }
    }
}

/// What stands in front of lines.
struct Marks;

impl Prompt for Marks {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        MARK.into()
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        "".into()
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        "".into()
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        NEXT_MARK.into()
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        let found = match search.status {
            PromptHistorySearchStatus::Passing => "",
            PromptHistorySearchStatus::Failing => "nothing like ",
        };
        format!("(search: {found}{}) ", search.term).into()
    }

    fn get_prompt_color(&self) -> Color {
        Color::Cyan
    }
}
