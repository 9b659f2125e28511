//! The program in a terminal: a real pseudo-terminal, and a screen that is drawn as a terminal would.

use std::io::{Read, Write};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::LIMIT;
use pty_process::Size;
use pty_process::blocking::{self, Pty};
use vt100::{Callbacks, Parser, Screen};

/// A window with a program in it.
pub struct Terminal {
    pty: Arc<Pty>,
    seen: Arc<Mutex<Seen>>,
    child: Child,
    /// Where in the output the next wait begins.
    mark: usize,
}

/// What came out so far.
struct Seen {
    bytes: Vec<u8>,
    window: Parser<Answers>,
}

/// What the terminal has to say back: line editors ask where the cursor is.
#[derive(Default)]
struct Answers(Vec<u8>);

impl Callbacks for Answers {
    fn unhandled_csi(
        &mut self,
        screen: &mut Screen,
        _: Option<u8>,
        _: Option<u8>,
        params: &[&[u16]],
        c: char,
    ) {
        if c == 'n' && params == [[6]] {
            let (row, column) = screen.cursor_position();
            self.0
                .extend(format!("\x1b[{};{}R", row + 1, column + 1).as_bytes());
        }
    }
}

impl Terminal {
    /// Starts the program in a window of so many rows and columns.
    pub fn start(command: Command, rows: u16, columns: u16) -> Terminal {
        let (pty, pts) = blocking::open().unwrap();
        pty.resize(Size::new(rows, columns)).unwrap();
        let child = blocking::Command::from(command).spawn(pts).unwrap();
        let pty = Arc::new(pty);
        let seen = Arc::new(Mutex::new(Seen {
            bytes: Vec::new(),
            window: Parser::new_with_callbacks(rows, columns, 0, Answers::default()),
        }));
        let (from, to) = (Arc::clone(&pty), Arc::clone(&seen));
        std::thread::spawn(move || watch(&from, &to));
        Terminal {
            pty,
            seen,
            child,
            mark: 0,
        }
    }

    /// Presses keys.
    pub fn press(&self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the program has printed this, after what was waited for before.
    pub fn wait_for(&mut self, text: &str) {
        let mark = self.mark;
        self.wait(text, |seen| {
            let found = seen.bytes[mark..]
                .windows(text.len())
                .position(|window| window == text.as_bytes());
            found.map(|at| mark + at + text.len())
        });
    }

    /// Waits until the window shows this, wherever the cursor was moved meanwhile.
    pub fn wait_to_see(&mut self, text: &str) {
        self.wait(text, |seen| {
            let contents = seen.window.screen().contents();
            contents.contains(text).then_some(seen.bytes.len())
        });
    }

    fn wait(&mut self, what: &str, found: impl Fn(&Seen) -> Option<usize>) {
        let start = Instant::now();
        loop {
            if let Some(mark) = found(&self.seen.lock().unwrap()) {
                self.mark = mark;
                return;
            }
            if start.elapsed() > LIMIT {
                self.child.kill().unwrap();
                panic!("{what:?} did not come; the window:\n{}", self.contents());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The window as a person sees it.
    pub fn contents(&self) -> String {
        self.seen.lock().unwrap().window.screen().contents()
    }

    /// Everything that was printed, escape sequences included.
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap().bytes).into_owned()
    }

    /// Makes the window another size.
    pub fn resize(&self, rows: u16, columns: u16) {
        let mut seen = self.seen.lock().unwrap();
        seen.window.screen_mut().set_size(rows, columns);
        self.pty.resize(Size::new(rows, columns)).unwrap();
    }

    /// Waits for the program's end; its exit code.
    pub fn end(mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            if start.elapsed() > LIMIT {
                self.child.kill().unwrap();
                panic!("still running; the window:\n{}", self.contents());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Draws what comes, and answers questions, until the program has gone.
fn watch(mut pty: &Pty, seen: &Mutex<Seen>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = pty.read(&mut buffer) {
        let mut seen = seen.lock().unwrap();
        seen.bytes.extend(&buffer[..count]);
        seen.window.process(&buffer[..count]);
        let answers = std::mem::take(&mut seen.window.callbacks_mut().0);
        drop(seen);
        if !answers.is_empty() && pty.write_all(&answers).is_err() {
            return; // it has gone meanwhile
        }
    }
}
