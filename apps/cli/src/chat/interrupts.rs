//! Ctrl-C: the first stops an answer, a second one soon after it leaves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::exit::{self, Failure};

/// A second one within this time leaves.
const TWICE: Duration = Duration::from_secs(1);

/// What was pressed, from whichever side it is told: a signal during an answer, a key at the prompt.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// The answer shall stop.
    pub stop: AtomicBool,
    /// Another program has the terminal: what is pressed is meant for that.
    is_aside: AtomicBool,
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

    /// Lets another program have the terminal. Ctrl-C reaches all programs there, but should not end
    /// this one behind the other's back.
    pub fn step_aside<T>(&self, other: impl FnOnce() -> T) -> T {
        self.is_aside.store(true, Ordering::Relaxed);
        let result = other();
        self.is_aside.store(false, Ordering::Relaxed);
        result
    }

    /// A signal at this time; tells whether it ends the program.
    fn signal(&self, now: Instant) -> bool {
        !self.is_aside.load(Ordering::Relaxed) && self.press(now)
    }

    /// Listens to the signal from now on; the second one ends the program.
    pub fn listen(self: &Arc<Self>) -> Result<(), Failure> {
        let interrupts = Arc::clone(self);
        exit::on_ctrl_c(move || interrupts.signal(Instant::now()))
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

    #[test]
    fn what_is_pressed_in_another_program_is_not_ours() {
        let interrupts = Interrupts::default();
        let now = Instant::now();
        let pressed = interrupts.step_aside(|| (interrupts.signal(now), interrupts.signal(now)));
        assert_eq!(pressed, (false, false));
        assert!(!interrupts.came());
        assert!(!interrupts.signal(now) && interrupts.signal(now));
    }
}
