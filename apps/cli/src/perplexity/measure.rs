//! All windows of a text, one after another, with the running figure on stderr.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use nelumbo::engine::EngineCore;
use nelumbo::engine::perplexity::base::Header;
use nelumbo::engine::perplexity::{Divergence, LogSoftmax, Perplexity, Windows};

use super::base_file::{Reader, Writer};
use super::report::{Compared, Report, about};
use crate::exit::{Failure, say};
use crate::output::{Device, Numerics};

/// What becomes of predictions, beside the perplexity.
pub enum Base {
    /// Nothing.
    None,
    /// They are kept in this file.
    Write(PathBuf),
    /// They are held against those of this one.
    Compare(Box<Reader>),
}

/// The same, under way.
enum Sink {
    None,
    Write(Box<Writer>),
    Compare(Box<Reader>, Box<Divergence>),
}

impl Sink {
    fn take(&mut self, soft: &LogSoftmax, logits: &[f32], target: u32) -> Result<(), Failure> {
        match self {
            Sink::None => Ok(()),
            Sink::Write(writer) => writer.put(soft, logits, target),
            Sink::Compare(reader, divergence) => {
                reader.next(|row| divergence.add(row, soft, logits, target))
            }
        }
    }
}

/// Evaluates all windows. `name` is the model's, for the report.
pub fn measure(
    engine: &mut EngineCore,
    windows: &Windows,
    base: Base,
    name: &str,
    quiet: bool,
) -> Result<Report, Failure> {
    let numerics = Numerics::of(engine.decoder());
    let mut sink = match base {
        Base::None => Sink::None,
        Base::Write(path) => {
            let vocab_size = engine.decoder().config().vocab_size;
            let text = format!("{name}: {}", about(&numerics));
            // a name may be long, what is kept of it need not be
            let text = text.chars().take(1000).collect();
            let header = Header::new(vocab_size, windows, text);
            Sink::Write(Box::new(Writer::create(&path, &header, quiet)?))
        }
        Base::Compare(reader) => Sink::Compare(reader, Box::default()),
    };
    let mut all = Perplexity::default();
    let mut watch = Watch::new(windows.count(), quiet);
    for index in 0..windows.count() {
        let mut failed = None;
        engine.score(&windows.window(index), windows.first(), |logits, target| {
            let soft = LogSoftmax::of(logits)?;
            all.add(soft.logprob(logits[target as usize]));
            if failed.is_none() {
                failed = sink.take(&soft, logits, target).err();
            }
            Ok(())
        })?;
        if let Some(failure) = failed {
            return Err(failure);
        }
        all.end_window();
        watch.at(index + 1, all.ppl());
    }
    let seconds = watch.start.elapsed().as_secs_f64();
    drop(watch);
    let divergence = match sink {
        Sink::None => None,
        Sink::Write(writer) => {
            writer.finish()?;
            None
        }
        Sink::Compare(reader, divergence) => {
            Some(Compared::new(&divergence, reader.header.about.clone()))
        }
    };
    let device = Device::of(engine.decoder().gpu());
    let about = (numerics, device);
    Ok(Report::new(
        name.to_owned(),
        &all,
        windows,
        divergence,
        about,
        seconds,
    ))
}

/// How far it is: on a terminal one line that changes, elsewhere a line every tenth.
struct Watch {
    windows: usize,
    start: Instant,
    quiet: bool,
    terminal: bool,
    /// The last tenth that was told.
    told: usize,
}

impl Watch {
    fn new(windows: usize, quiet: bool) -> Watch {
        Watch {
            windows,
            start: Instant::now(),
            quiet,
            terminal: std::io::stderr().is_terminal(),
            told: 0,
        }
    }

    /// So many windows are done, and this is their perplexity.
    fn at(&mut self, done: usize, ppl: f64) {
        let tenth = done * 10 / self.windows;
        if self.quiet || !self.terminal && tenth == self.told {
            return;
        }
        self.told = tenth;
        let elapsed = self.start.elapsed().as_secs_f64();
        let left = elapsed / done as f64 * (self.windows - done) as f64;
        let text = format!(
            "perplexity: {done} of {} windows, {ppl:.4} so far, {left:.0} s left",
            self.windows
        );
        if self.terminal {
            // over the last line, whose rest is erased
            let _ = write!(std::io::stderr(), "\r{text}\x1b[K");
        } else {
            say(&text);
        }
    }
}

/// Takes the line away, also where an error is told next.
impl Drop for Watch {
    fn drop(&mut self) {
        if !self.quiet && self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
