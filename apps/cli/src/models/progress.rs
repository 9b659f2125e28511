//! How far a download is: a bar on a terminal, a line every tenth elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::say;

/// Bytes between two lines about a file whose size nobody knows.
const UNKNOWN_STEP: u64 = 20_000_000;

/// Shows the progress of one file. What it shows never goes back.
pub struct Progress {
    what: String,
    size: u64,
    shown: u64,
    style: Style,
}

enum Style {
    Silent,
    Bar(ProgressBar),
    /// The last tenth that was printed.
    Lines(u64),
}

impl Progress {
    /// Starts showing `what`, which will have `size` bytes; 0 while nobody knows.
    pub fn start(what: &str, size: u64, quiet: bool) -> Progress {
        let style = if quiet {
            Style::Silent
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(size).with_message(what.to_owned());
            bar.set_style(bar_style());
            bar.enable_steady_tick(Duration::from_millis(200));
            Style::Bar(bar)
        } else {
            Style::Lines(0)
        };
        Progress {
            what: what.to_owned(),
            size,
            shown: 0,
            style,
        }
    }

    /// A bar on a terminal, nothing elsewhere: for what is over in a moment.
    pub fn on_terminal(what: &str, size: u64, quiet: bool) -> Progress {
        Progress::start(what, size, quiet || !std::io::stderr().is_terminal())
    }

    /// Tells the size, where it was not known at the start.
    pub fn set_size(&mut self, size: u64) {
        self.size = size;
        if let Style::Bar(bar) = &self.style {
            bar.set_length(size);
        }
    }

    /// `bytes` of the file are there.
    pub fn at(&mut self, bytes: u64) {
        if bytes <= self.shown {
            return;
        }
        self.shown = bytes.min(self.size);
        match &mut self.style {
            Style::Silent => {}
            Style::Bar(bar) => bar.set_position(self.shown),
            Style::Lines(last) => {
                let tenth = self.shown * 10 / self.size.max(1);
                if tenth > *last {
                    *last = tenth;
                    say(&format!(
                        "{}: {} % of {}",
                        self.what,
                        tenth * 10,
                        human_bytes(self.size)
                    ));
                }
            }
        }
    }

    /// Another tool has `bytes` so far, of a size that nobody knows.
    pub fn elsewhere(&mut self, tool: &str, bytes: u64) {
        let text = format!("{tool}: {} so far", human_bytes(bytes));
        match &mut self.style {
            Style::Silent => {}
            Style::Bar(bar) => {
                bar.set_style(ProgressStyle::default_spinner());
                bar.set_message(text);
            }
            Style::Lines(last) => {
                let step = match self.size {
                    0 => UNKNOWN_STEP,
                    size => size.div_ceil(10),
                };
                if bytes / step > *last {
                    *last = bytes / step;
                    say(&text);
                }
            }
        }
    }

    /// The tool is done; from here on the file itself counts.
    pub fn back(&mut self) {
        match &mut self.style {
            Style::Silent => {}
            Style::Bar(bar) => {
                bar.set_style(bar_style());
                bar.set_message(self.what.clone());
            }
            Style::Lines(last) => *last = self.shown * 10 / self.size.max(1),
        }
    }

    /// A remark that does not tear the bar.
    pub fn remark(&self, line: &str) {
        match &self.style {
            Style::Silent => {}
            Style::Bar(bar) => bar.suspend(|| say(line)),
            Style::Lines(_) => say(line),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Style::Bar(bar) = &self.style {
            bar.finish_and_clear();
        }
    }
}

fn bar_style() -> ProgressStyle {
    let sizes = "{decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
    ProgressStyle::with_template(&format!("{{msg}} [{{bar:30}}] {sizes}"))
        .expect("the template is ours")
        .progress_chars("=> ")
}

/// `98.4 MB`: decimal, as file sizes are usually told.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (98_362_432, "98.4 MB"),
            (999_950_000, "1.0 GB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn progress_never_goes_back() {
        let mut progress = Progress::start("m", 100, true);
        progress.at(50);
        progress.at(10);
        assert_eq!(progress.shown, 50);
        progress.at(1000);
        assert_eq!(progress.shown, 100);
    }
}
