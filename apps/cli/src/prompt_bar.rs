//! How far a long prompt is: a bar for people at a terminal, until the first token.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A prompt that is computed sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Appears when it takes long, and leaves nothing behind.
pub struct PromptBar {
    tokens: u64,
    begun: Instant,
    shows: bool,
    bar: Option<ProgressBar>,
}

impl PromptBar {
    /// Of a prompt of `tokens` tokens; one that nobody sees is never shown.
    pub fn new(tokens: usize, quiet: bool) -> PromptBar {
        PromptBar {
            tokens: tokens as u64,
            begun: Instant::now(),
            shows: !quiet && std::io::stderr().is_terminal(),
            bar: None,
        }
    }

    /// `done` of its tokens are computed, or were in the cache.
    pub fn at(&mut self, done: u64) {
        if !self.shows || self.begun.elapsed() < PATIENCE {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(self.tokens).with_message("prompt");
            let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} tokens");
            bar.set_style(style.expect("the template is ours"));
            bar
        });
        bar.set_position(done.min(self.tokens));
    }

    /// There is an answer, or an end.
    pub fn end(&mut self) {
        self.shows = false;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_comes_late_and_goes() {
        let mut bar = PromptBar::new(100, false);
        bar.shows = true;
        bar.at(10);
        assert!(bar.bar.is_none(), "too early");
        bar.begun = Instant::now().checked_sub(PATIENCE).unwrap();
        bar.at(20);
        assert_eq!(bar.bar.as_ref().map(ProgressBar::position), Some(20));
        bar.at(200);
        assert_eq!(bar.bar.as_ref().map(ProgressBar::position), Some(100));
        bar.end();
        bar.at(100);
        assert!(bar.bar.is_none());
    }
}
