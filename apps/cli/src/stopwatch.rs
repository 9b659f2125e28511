//! How long a request takes, with and without the compilation of kernels.

use std::time::{Duration, Instant};

/// Measures a request. `compiled` tells the time spent on compilation so far.
pub struct Stopwatch<'a> {
    start: Instant,
    compiled: &'a dyn Fn() -> Duration,
    compiled_at_start: Duration,
}

impl Stopwatch<'_> {
    pub fn start(compiled: &dyn Fn() -> Duration) -> Stopwatch<'_> {
        Stopwatch {
            start: Instant::now(),
            compiled,
            compiled_at_start: compiled(),
        }
    }

    /// Since the start: all of it, and without compilation.
    pub fn read(&self) -> (Duration, Duration) {
        let all = self.start.elapsed();
        let compiled = (self.compiled)().saturating_sub(self.compiled_at_start);
        (all, all.saturating_sub(compiled))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn compilation_is_waiting_and_not_working() {
        let compiled = Cell::new(Duration::ZERO);
        let read = || compiled.get();
        let stopwatch = Stopwatch::start(&read);
        std::thread::sleep(Duration::from_millis(20));
        compiled.set(Duration::from_millis(15));
        let (all, working) = stopwatch.read();
        assert!(all >= Duration::from_millis(20));
        assert_eq!(all - working, Duration::from_millis(15));
    }
}
