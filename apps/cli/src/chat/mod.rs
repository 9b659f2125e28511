//! `nelumbo chat`: a conversation with a model that stays loaded.
//!
//! ```text
//! editor (reedline) --+
//!                     +-- Input --> repl --> command, multiline       (pure)
//! piped lines --------+              |   --> conversation, settings   (pure)
//!                                    |   --> screen, files, clipboard
//!                                    +-- Partner --> loaded --> session --> the engine's thread
//! ```
//!
//! Each turn encodes the whole conversation by the model's template; what does not fit the context is
//! refused with both numbers, never cut.

pub mod args;
mod clipboard;
mod command;
mod compose;
mod conversation;
mod editor;
mod execute;
mod files;
mod input;
mod interrupts;
mod loaded;
mod multiline;
mod repl;
mod screen;
mod settings;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;

use crate::args::{GlobalArgs, RunArgs};
use crate::devices;
use crate::exit::{Failure, say};
use crate::models::{self, cache};
use crate::options::{self, RunOptions};
use crate::output::is_colourful;
use crate::prompt::Given;
use crate::speculation;
use args::ChatArgs;
use editor::Editor;
use files::StateFolder;
use input::{Input, Piped};
use interrupts::Interrupts;
use loaded::Loaded;
use repl::{Partner, Repl};
use screen::Screen;
use settings::Settings;

/// Whether a person sits at both ends.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// `nelumbo chat`.
pub fn chat(args: ChatArgs, global: &GlobalArgs, given: Given) -> Result<(), Failure> {
    let given = given.with_model(args.reference.as_ref())?;
    let mut args = args.into_run();
    if args.device.list_devices {
        return devices::devices(false, options::backend(&args.device.backend));
    }
    options::explain(&args.device);
    speculation::explain(&args.speculate);
    let options = RunOptions::new(&args)?;
    args.model = models::from_flags(&args.device, args.model.take(), given)?;
    talk(args, options, global)
}

/// A conversation with the model of `args`, or the one used last. `options` are those of `args`.
pub fn talk(
    mut args: RunArgs,
    mut options: RunOptions,
    global: &GlobalArgs,
) -> Result<(), Failure> {
    let keep_history = !args.talk.nohistory;
    let interactive = is_interactive();
    let state = match StateFolder::open() {
        Ok(state) => Some(state),
        Err(problem) => {
            if interactive && keep_history {
                say(&format!(
                    "warning: nothing is kept for the next time: {problem}"
                ));
            }
            None
        }
    };
    let reference = reference(args.model.take(), state.as_ref())?;
    options.speculation.resolve(global)?;
    let pipelines = cache::pipelines(global);
    let mut loaded = Loaded::open(
        &reference,
        options.clone(),
        pipelines,
        global,
        state.clone(),
    )?;

    let asked = options::asked_for(&args.sampling);
    let mut settings = Settings::new(options, args.sampling.seed.0, asked);
    settings.suit(&loaded.advice());
    let interrupts = Arc::new(Interrupts::default());
    interrupts.listen()?;
    let (mut stdout, mut stderr) = (io::stdout().lock(), io::stderr());
    let mut screen = Screen::new(&mut stdout, &mut stderr);
    screen.terminal = interactive;
    screen.colour = is_colourful(&io::stderr());
    screen.quiet = global.quiet;
    let mut input: Box<dyn Input> = if interactive {
        if !global.quiet {
            greet(&loaded, &mut screen);
        }
        let interrupts = Arc::clone(&interrupts);
        Box::new(editor(state.as_ref(), keep_history, interrupts))
    } else {
        Box::new(Piped::new(io::stdin().lock()))
    };
    Repl::new(&mut loaded, input.as_mut(), screen, &interrupts, settings).run()
}

/// The model to talk to: the one given, else the one before.
fn reference(given: Option<OsString>, state: Option<&StateFolder>) -> Result<OsString, Failure> {
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return Ok(given);
    }
    let last = state.and_then(StateFolder::last_model);
    last.map(OsString::from).ok_or_else(|| {
        Failure::Usage(
            "no model: give MODEL, -m MODEL or NELUMBO_MODEL; none was used before".to_owned(),
        )
    })
}

fn editor(state: Option<&StateFolder>, keep_history: bool, interrupts: Arc<Interrupts>) -> Editor {
    let history = state.and_then(|state| {
        let made = state.history();
        made.inspect_err(|problem| say(&format!("warning: no history: {problem}")))
            .ok()
    });
    let folder = state.map_or_else(std::env::temp_dir, |state| state.path().to_owned());
    let colour = is_colourful(&io::stderr());
    Editor::new(history, keep_history, &folder, colour, interrupts)
}

fn greet(loaded: &Loaded, screen: &mut Screen) {
    let name = loaded.name();
    let file = Path::new(&name)
        .file_name()
        .map(|file| file.to_string_lossy());
    screen.remark(&format!(
        "{}, context {} tokens, on {}\n/help lists the commands, Ctrl-D leaves",
        file.unwrap_or_default(),
        loaded.context_limit(),
        loaded.adapter(),
    ));
}
