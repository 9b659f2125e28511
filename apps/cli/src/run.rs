//! `nelumbo run`: one prompt, one answer.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::args::{Format, GlobalArgs, RunArgs};
use crate::exit::{self, Failure, say};
use crate::models::cache;
use crate::options::{self, RunOptions};
use crate::output::{Answer, JsonOutput, Output, TextOutput, print_stats};
use crate::prompt::{self, Given, is_on_line};
use crate::{chat, devices, inspect, models, session, speculation};

/// A loaded model, as far as this command knows it.
pub trait Answers {
    /// Generates until the model ends, a limit is reached, `stop` turns true (seen once
    /// a token at the latest), or `piece` fails. Each text given to `piece` is whole characters.
    fn answer(
        &mut self,
        prompt: &str,
        options: &RunOptions,
        piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
        stop: &AtomicBool,
    ) -> Result<Answer, Failure>;
}

/// Everything from the arguments to the last line on stderr.
pub fn run(mut args: RunArgs, global: &GlobalArgs, given: Given) -> Result<(), Failure> {
    if args.device.list_devices {
        return devices::devices(false, options::backend(&args.device.backend));
    }
    options::explain(&args.device);
    speculation::explain(&args.speculate);
    let mut options = RunOptions::new(&args)?;
    let model = models::from_flags(&args.device, args.model.take(), given)?;
    let is_untyped = model.as_ref().is_some_and(|model| !model.is_empty())
        && !is_on_line(given.model)
        && !is_on_line(given.hub);
    let (reference, words) = prompt::split_model(model, std::mem::take(&mut args.words))?;
    if is_untyped && words.len() > 1 && Path::new(&words[0]).exists() {
        let (model, word) = (
            Path::new(&reference).display(),
            Path::new(&words[0]).display(),
        );
        say(&format!(
            "note: the environment or the file of settings names the model ({model}), so {word} is \
             part of the prompt; -m overrides it"
        ));
    }
    if chat::is_interactive() && is_talk(&args, &words, given) {
        args.model = Some(reference);
        return chat::talk(args, options, global);
    }
    let prompt = prompt::gather(&words, &args.prompt, given)?;
    let model = models::resolve(&reference, global)?;
    log::info!("seed {}", options.sampling.seed);

    let pipelines = cache::pipelines(global);
    if args.inspect.is_asked() {
        let (path, asked) = (&model.path, &args.inspect);
        return inspect::inspect(path, &prompt, &options, asked, pipelines, global.quiet);
    }
    options.speculation.resolve(global)?;
    let mut engine = session::open(&model.path, &options, pipelines, global.quiet)?;
    let asked = options::asked_for(&args.sampling);
    options::suit(
        &mut options.sampling,
        &asked,
        &model.advice(engine.advice()),
    );
    let stop = stop_on_interrupt()?;
    let stdout = io::stdout().lock();
    let mut output: Box<dyn Output> = match options.format {
        Format::Text => {
            let terminal = stdout.is_terminal();
            Box::new(TextOutput::new(stdout, terminal))
        }
        Format::Json => Box::new(JsonOutput::new(stdout)),
    };
    let answer = stream(&mut engine, &prompt, &options, output.as_mut(), &stop)?;
    if !global.quiet {
        print_stats(&answer);
    }
    if stop.load(Ordering::Relaxed) {
        Err(Failure::Interrupted)
    } else {
        Ok(())
    }
}

/// Whether there is no prompt, and nothing that a conversation could not honour.
fn is_talk(args: &RunArgs, words: &[OsString], given: Given) -> bool {
    words.is_empty()
        && prompt::is_absent(&args.prompt, given)
        && !args.prompt.raw
        && !args.inspect.is_asked()
        && args.output.format == Format::Text
}

/// Lets the answer flow into the output.
fn stream(
    engine: &mut dyn Answers,
    prompt: &str,
    options: &RunOptions,
    output: &mut dyn Output,
    stop: &AtomicBool,
) -> Result<Answer, Failure> {
    let answer = engine.answer(prompt, options, &mut |text| output.piece(text), stop)?;
    output.finish(&answer)?;
    Ok(answer)
}

/// The first Ctrl-C asks the answer to stop and keeps what there is; a second one leaves.
///
/// Installed only once the model is loaded: before that, Ctrl-C should just end the program.
fn stop_on_interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    exit::on_ctrl_c(move || flag.swap(true, Ordering::Relaxed))?;
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::output::tests::sample;

    /// Says its pieces until it is stopped; counts those it was allowed to say.
    struct Parrot {
        said: usize,
        stop_after: usize,
    }

    impl Answers for Parrot {
        fn answer(
            &mut self,
            _: &str,
            _: &RunOptions,
            piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
            stop: &AtomicBool,
        ) -> Result<Answer, Failure> {
            while !stop.load(Ordering::Relaxed) {
                piece("ab ")?;
                self.said += 1;
                stop.store(self.said == self.stop_after, Ordering::Relaxed);
            }
            Ok(sample())
        }
    }

    fn options() -> RunOptions {
        let cli = Cli::try_parse_from(["nelumbo", "run", "m"]).unwrap();
        let Command::Run(args) = cli.command else {
            panic!("not run")
        };
        RunOptions::new(&args).unwrap()
    }

    #[test]
    fn text_arrives_and_a_stop_keeps_it() {
        let (mut parrot, stop) = (
            Parrot {
                said: 0,
                stop_after: 2,
            },
            AtomicBool::new(false),
        );
        let mut bytes = Vec::new();
        let answer = stream(
            &mut parrot,
            "",
            &options(),
            &mut TextOutput::new(&mut bytes, false),
            &stop,
        );
        assert_eq!(answer.unwrap(), sample());
        assert_eq!(String::from_utf8(bytes).unwrap(), "ab ab \n");
    }

    #[test]
    fn a_reader_that_leaves_stops_the_engine() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let (mut parrot, stop) = (
            Parrot {
                said: 0,
                stop_after: 99,
            },
            AtomicBool::new(false),
        );
        let failure = stream(
            &mut parrot,
            "",
            &options(),
            &mut TextOutput::new(writer, false),
            &stop,
        );
        assert!(matches!(failure, Err(Failure::OutputClosed)));
        assert_eq!(parrot.said, 0);
    }
}
