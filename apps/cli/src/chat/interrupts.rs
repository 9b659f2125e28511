//! Ctrl-C: the first stops an answer, a second one soon after it leaves.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::exit::{Failure, INTERRUPTED};

/// A second one within this time leaves.
const TWICE: Duration = Duration::from_secs(1);

/// What was pressed, from whichever side it is told: a signal during an answer, a key at the prompt.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// The answer shall stop.
    pub stop: AtomicBool,
    last: Mutex<Option<Instant>>,
}

impl Interrupts {
    /// Notes one; tells whether it is the second within a second.
    pub fn press(&self, now: Instant) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.replace(now);
        before.is_some_and(|before| now.saturating_duration_since(before) <= TWICE)
    }

    /// Before an answer: earlier ones were about something else.
    pub fn begin(&self) {
        self.stop.store(false, Ordering::Relaxed);
    }

    /// Whether one came since then.
    pub fn came(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Listens to the signal from now on; the second one ends the program.
    pub fn listen(self: &Arc<Self>) -> Result<(), Failure> {
        let interrupts = Arc::clone(self);
        ctrlc::set_handler(move || {
            if interrupts.press(Instant::now()) {
                std::process::exit(i32::from(INTERRUPTED));
            }
        })
        .map_err(|error| Failure::Io {
            path: "Ctrl-C handler".into(),
            source: io::Error::other(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_second_one_soon_leaves() {
        let interrupts = Interrupts::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!interrupts.came());
        assert!(!interrupts.press(at(0)));
        assert!(interrupts.came());
        interrupts.begin();
        assert!(!interrupts.came());
        assert!(!interrupts.press(at(1500)));
        assert!(interrupts.press(at(2400)));
    }
}
