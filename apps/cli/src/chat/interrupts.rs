//! Ctrl-C: the first stops an answer, a second one soon after it leaves. What cannot be stopped says
//! so, and the second one leaves however long it was waited for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::exit::{self, Failure, say};

/// A second one within this time leaves.
const TWICE: Duration = Duration::from_secs(1);

/// What was pressed, from whichever side it is told: a signal during an answer, a key at the prompt.
#[derive(Debug, Default)]
pub struct Interrupts {
    /// The answer shall stop.
    pub stop: AtomicBool,
    /// Another program has the terminal: what is pressed is meant for that.
    is_aside: AtomicBool,
    /// A model is being loaded, which nothing stops halfway: how often it was pressed since, and one.
    /// 0 where nothing is loaded.
    loading: AtomicUsize,
    last: Mutex<Option<Instant>>,
}

/// What becomes of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signal {
    /// Nothing, or nothing more than that an answer stops.
    None,
    /// It is said that nothing stops.
    Tell,
    /// The program ends.
    Leave,
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

    /// Loads a model. One press is told that it stops nothing, another one leaves.
    pub fn while_loading<T>(&self, load: impl FnOnce() -> T) -> T {
        self.loading.store(1, Ordering::Relaxed);
        let result = load();
        self.loading.store(0, Ordering::Relaxed);
        result
    }

    /// A signal at this time, and what becomes of it.
    fn signal(&self, now: Instant) -> Signal {
        if self.is_aside.load(Ordering::Relaxed) {
            return Signal::None;
        }
        let is_second = self.press(now);
        let counted = self
            .loading
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count > 0).then_some(count + 1)
            });
        match counted {
            Ok(1) if !is_second => Signal::Tell,
            Ok(_) => Signal::Leave,
            Err(_) if is_second => Signal::Leave,
            Err(_) => Signal::None,
        }
    }

    /// Listens to the signal from now on; the second one ends the program.
    pub fn listen(self: &Arc<Self>) -> Result<(), Failure> {
        let interrupts = Arc::clone(self);
        exit::on_ctrl_c(move || {
            let signal = interrupts.signal(Instant::now());
            if signal == Signal::Tell {
                say("\nloading goes on; Ctrl-C again ends the program");
            }
            signal == Signal::Leave
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

    #[test]
    fn what_is_pressed_in_another_program_is_not_ours() {
        let interrupts = Interrupts::default();
        let now = Instant::now();
        let pressed = interrupts.step_aside(|| (interrupts.signal(now), interrupts.signal(now)));
        assert_eq!(pressed, (Signal::None, Signal::None));
        assert!(!interrupts.came());
        assert_eq!(interrupts.signal(now), Signal::None);
        assert_eq!(interrupts.signal(now), Signal::Leave);
    }

    #[test]
    fn the_first_during_a_load_is_answered_and_the_second_leaves_however_late() {
        let interrupts = Interrupts::default();
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let told = interrupts.while_loading(|| [0, 5, 10].map(|s| interrupts.signal(at(s))));
        assert_eq!(told, [Signal::Tell, Signal::Leave, Signal::Leave]);
        assert_eq!(interrupts.signal(at(20)), Signal::None);
        // each load counts for itself; twice within a second leaves as ever
        let told = interrupts.while_loading(|| [30, 30].map(|s| interrupts.signal(at(s))));
        assert_eq!(told, [Signal::Tell, Signal::Leave]);
        let told = interrupts.while_loading(|| interrupts.signal(at(30)));
        assert_eq!(told, Signal::Leave);
    }
}
