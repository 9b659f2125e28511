//! Work of the host on all of its cores.

use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `f` of `0..count`, each once, in order of the numbers. They are taken in turn by as many threads as
/// there are cores; where there are no threads, as in a browser, they are done one after another.
pub(crate) fn map<T: Send>(count: usize, f: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let threads = cores().min(count);
    if threads <= 1 {
        return (0..count).map(f).collect();
    }
    let next = AtomicUsize::new(0);
    let take = || {
        let turns = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        let own = turns.take_while(|&i| i < count);
        own.map(|i| (i, f(i))).collect::<Vec<(usize, T)>>()
    };
    let mut all = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(take)).collect();
        let mut all = take();
        for other in others {
            match other.join() {
                Ok(found) => all.extend(found),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_unstable_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, value)| value).collect()
}

/// How many there are, asked once: the answer takes the operating system a while.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZero::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_none_is_missing() {
        for count in [0, 1, 2, 1000] {
            let squares = map(count, |i| i * i);
            assert_eq!(squares, (0..count).map(|i| i * i).collect::<Vec<_>>());
        }
    }

    #[test]
    #[should_panic(expected = "number 7")]
    fn a_panic_of_any_thread_is_the_caller_s() {
        map(100, |i| assert!(i != 7, "number {i}"));
    }
}
