//! How the program ends: one table from error to exit code, one way to print an error.

use std::io::{IsTerminal, Write};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;

use nelumbo::Error;

use crate::output::harmless_on;

/// Interrupted by the user, as shells report it: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

/// Everything that ends a command early. The message says what is wrong, `hint` what to do.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
    /// A conversation that the context does not hold any more.
    #[error(
        "the conversation has {size} with this message, the context holds {limit} tokens; nothing was \
         cut: /undo N takes turns back, /clear begins anew, and --ctx-size makes room for more"
    )]
    ContextFull {
        /// What there is of it, with its unit.
        size: String,
        limit: usize,
    },
    /// No such model, or its bytes are not the ones they should be.
    #[error("{0}")]
    Model(String),
    /// No source could be reached.
    #[error("{0}")]
    Network(String),
    /// It would not fit on the disk.
    #[error("{0}")]
    Disk(String),
    /// A file of our own could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A comparison or a check found something wrong; the results have been printed.
    #[error("{0}")]
    Wrong(String),
    /// Whatever the library reports.
    #[error(transparent)]
    Engine(#[from] Error),
    /// Ctrl-C: what there was has been printed.
    #[error("interrupted")]
    Interrupted,
    /// Whoever read our output has left. Not worth a word.
    #[error("the output was closed")]
    OutputClosed,
}

impl Failure {
    /// [`Failure::Io`], to be used in `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Failure + '_ {
        move |source| Failure::Io {
            path: path.to_owned(),
            source,
        }
    }

    /// A failed write to stdout: quiet if the reader has left.
    pub fn stdout(source: std::io::Error) -> Failure {
        match source.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Io {
                path: "stdout".into(),
                source,
            },
        }
    }

    /// 0 ok, 1 failure, 2 usage, 3 model, 4 adapter, 5 does not fit, 6 I/O or network, 7 wrong results,
    /// 130 interrupted.
    pub fn code(&self) -> u8 {
        match self {
            Failure::OutputClosed => 0,
            Failure::Usage(_) | Failure::ContextFull { .. } => 2,
            Failure::Model(_) => 3,
            Failure::Network(_) | Failure::Disk(_) | Failure::Io { .. } => 6,
            Failure::Wrong(_) => 7,
            Failure::Interrupted => INTERRUPTED,
            Failure::Engine(error) => library_code(error),
        }
    }

    /// What the user can do next, where the message does not say it already.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Failure::Usage(_) => {
                Some("`nelumbo --help` and `nelumbo COMMAND --help` list the options")
            }
            Failure::Engine(Error::ModelNotFound { .. }) => Some(
                "`nelumbo ls` lists local models, `nelumbo pull smollm2-135m` downloads a small one",
            ),
            Failure::Engine(Error::File { .. } | Error::Field { .. } | Error::Tensor { .. }) => {
                Some("the file looks damaged or unfinished: download it again")
            }
            Failure::Engine(Error::Template { .. }) => {
                Some("`nelumbo run --raw` gives a text to the model without its chat template")
            }
            Failure::Engine(Error::AdapterLacks { .. }) => Some(
                "leave --numerics out to take what every adapter can do; `nelumbo devices` lists what each can",
            ),
            Failure::Engine(Error::AdapterLimit { .. }) => {
                Some("`nelumbo devices` lists the other adapters, `--device N` picks one")
            }
            Failure::Engine(Error::OutOfMemory { .. }) => {
                Some("a smaller --ctx-size, --parallel or --gpu-memory takes less")
            }
            Failure::Engine(Error::DeviceLost { .. }) => Some(
                "the driver reset or removed the device: try again, or pick another with --device N",
            ),
            _ => None,
        }
    }
}

/// The code for a library error. Reading a model is all the I/O the library does, so
/// a file that is absent or locked counts as a missing model, not as a disk failure.
fn library_code(error: &Error) -> u8 {
    use std::io::ErrorKind;
    match error {
        Error::Request { .. } | Error::RequestTooLong { .. } => 2,
        Error::ModelNotFound { .. }
        | Error::File { .. }
        | Error::Field { .. }
        | Error::Tensor { .. }
        | Error::WeightShape { .. }
        | Error::Unsupported { .. }
        | Error::Template { .. } => 3,
        Error::Io { source, .. } => match source.kind() {
            ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::UnexpectedEof => 3,
            _ => 6,
        },
        Error::NoAdapter { .. }
        | Error::AdapterLimit { .. }
        | Error::AdapterLacks { .. }
        | Error::DeviceLost { .. } => 4,
        Error::DoesNotFit { .. } | Error::OutOfMemory { .. } => 5,
        _ => 1,
    }
}

/// Prints the error on stderr, unless there is nothing to say or nobody to say it to.
pub fn report(failure: &Failure) {
    if matches!(failure, Failure::OutputClosed | Failure::Interrupted) {
        return;
    }
    let text = failure.to_string();
    let text = harmless_on(std::io::stderr().is_terminal(), &text);
    say(&format!("error: {text}"));
    if let Some(hint) = failure.hint() {
        say(&format!("hint: {hint}"));
    }
}

/// One line on stderr. A closed stderr is no reason to fail.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Calls this at each Ctrl-C from now on; once it says so, the program ends as interrupted.
pub fn on_ctrl_c(mut is_enough: impl FnMut() -> bool + Send + 'static) -> Result<(), Failure> {
    ctrlc::set_handler(move || {
        if is_enough() {
            std::process::exit(i32::from(INTERRUPTED));
        }
    })
    .map_err(|error| Failure::Io {
        path: "Ctrl-C handler".into(),
        source: std::io::Error::other(error),
    })
}

/// Where and why the last panic happened, for [`run_guarded`].
static LAST_PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Takes it.
pub fn last_panic() -> Option<String> {
    LAST_PANIC.lock().ok().and_then(|mut last| last.take())
}

/// Runs a command and turns its end, even a panic, into an exit code.
///
/// The hook itself stays silent: a panic that the library catches and reports as an
/// error must not be printed twice.
pub fn run_guarded(command: impl FnOnce() -> Result<(), Failure>) -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let message = info
            .payload_as_str()
            .unwrap_or("no message")
            .replace('\n', " ");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        log::debug!("panic at {place}: {message}");
        if let Ok(mut last) = LAST_PANIC.lock() {
            *last = Some(format!("{message} ({place})"));
        }
    }));
    match panic::catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            report(&failure);
            // The device's thread can only be missed; why it went is known here alone.
            if let Failure::Engine(Error::Device { .. }) = failure
                && let Some(what) = last_panic()
            {
                say(&format!("hint: a bug in nelumbo: {what}"));
            }
            ExitCode::from(failure.code())
        }
        Err(_) => {
            let what = last_panic().unwrap_or_default();
            say(&format!("error: a bug in nelumbo: {what}"));
            ExitCode::from(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_kind_has_its_code() {
        let path = PathBuf::from("m.gguf");
        let io = |kind| {
            Failure::from(Error::Io {
                path: "m".into(),
                source: io::Error::from(kind),
            })
            .code()
        };
        assert_eq!(Failure::Usage("x".into()).code(), 2);
        assert_eq!(Failure::Model("x".into()).code(), 3);
        assert_eq!(Failure::Network("x".into()).code(), 6);
        assert_eq!(Failure::Wrong("x".into()).code(), 7);
        assert_eq!(Failure::Interrupted.code(), 130);
        assert_eq!(Failure::from(Error::request("--top-k", "x")).code(), 2);
        assert_eq!(
            Failure::from(Error::RequestTooLong {
                tokens: 9,
                limit: 8
            })
            .code(),
            2
        );
        assert_eq!(Failure::from(Error::field(&path, "a.b", "x")).code(), 3);
        assert_eq!(io(io::ErrorKind::NotFound), 3);
        assert_eq!(io(io::ErrorKind::PermissionDenied), 3);
        assert_eq!(io(io::ErrorKind::StorageFull), 6);
        let none = Error::NoAdapter {
            tried: String::new(),
            advice: String::new(),
        };
        assert_eq!(Failure::from(none).code(), 4);
        let lacks = Error::AdapterLacks {
            adapter: "a".into(),
            what: "--numerics fast".into(),
            needed: "matrices".into(),
        };
        assert_eq!(Failure::from(lacks).code(), 4);
        assert_eq!(
            Failure::from(Error::OutOfMemory {
                what: "kv".into(),
                bytes: 1
            })
            .code(),
            5
        );
        assert_eq!(
            Failure::from(Error::Device {
                message: "x".into()
            })
            .code(),
            1
        );
    }

    #[test]
    fn a_closed_pipe_is_quiet_and_a_full_disk_is_not() {
        assert_eq!(Failure::stdout(io::ErrorKind::BrokenPipe.into()).code(), 0);
        assert_eq!(Failure::stdout(io::ErrorKind::StorageFull.into()).code(), 6);
    }
}
