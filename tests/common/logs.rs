//! What is logged while something runs, for tests of warnings.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    /// Messages of this thread, where somebody listens.
    static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            HEARD.with_borrow_mut(|heard| {
                if let Some(heard) = heard {
                    heard.push(record.args().to_string());
                }
            });
        }
    }

    fn flush(&self) {}
}

/// A result, and the warnings that this thread gave on the way.
pub fn warnings<T>(run: impl FnOnce() -> T) -> (T, Vec<String>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Listener).expect("no other logger in tests");
        log::set_max_level(log::LevelFilter::Warn);
    });
    HEARD.set(Some(Vec::new()));
    let result = run();
    (result, HEARD.take().unwrap_or_default())
}

/// The only warning with all of these parts.
#[track_caller]
pub fn told(warnings: &[String], parts: &[&str]) {
    let fits = |w: &&String| parts.iter().all(|part| w.contains(part));
    let found = warnings.iter().filter(fits).count();
    assert_eq!(found, 1, "{parts:?} in {warnings:#?}");
}
