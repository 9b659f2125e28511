//! Who proposes tokens that the model then verifies: the flags, and what they mean together.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use nelumbo::Model;
use nelumbo::engine::speculate::{
    DraftDraws, DraftModel, MOST_PROPOSED, Speculate, SpeculateOptions,
};
use nelumbo::model::Beside;

use crate::args::GlobalArgs;
use crate::exit::{Failure, say};
use crate::models::{self, Progress};

/// What guesses the next tokens.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speculation")]
pub struct SpeculateArgs {
    /// Have the next tokens guessed, and verify several in one step: from the text itself, by a draft model,
    /// or by either where it pays
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Mode::Auto, env = "NELUMBO_SPECULATE")]
    pub speculate: Mode,
    /// A smaller model with the same tokens, to guess: whatever MODEL can be
    #[arg(long, value_name = "MODEL", env = "NELUMBO_DRAFT_MODEL")]
    pub draft_model: Option<OsString>,
    /// Tokens that are guessed at a time, at most
    #[arg(long, value_name = "N", default_value_t = MOST_PROPOSED as u32, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=MOST_PROPOSED as i64),
          env = "NELUMBO_DRAFT_MAX")]
    pub draft_max: u32,
    /// How the draft model's tokens are drawn at temperatures above 0. Both ways give what the model would
    /// say, as often as it would say it
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Draws::Alike, env = "NELUMBO_DRAFT_DRAWS")]
    pub draft_draws: Draws,
}

/// How a draft model draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Draws {
    /// As the model does: a seed gives the same text with and without a draft
    Alike,
    /// By rejection sampling, always --draft-max tokens: more of them are right, and a seed gives another text
    Rejection,
}

/// Who guesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Nobody: a step for each token
    #[value(alias = "0")]
    Off,
    /// Whatever followed the same tokens before, in the prompt and in answers
    Ngram,
    /// The model that --draft-model names
    Draft,
    /// Both, the draft model if there is one, and as much as pays
    Auto,
}

/// What was asked for.
#[derive(Debug, Clone)]
pub struct Speculation {
    pub options: SpeculateOptions,
    /// The draft model as the user calls it; `None` where nobody would ask it.
    reference: Option<OsString>,
    /// Where it is, once that was looked for.
    pub draft: Option<PathBuf>,
}

impl Speculation {
    /// Refuses a draft without a model for it.
    pub fn new(args: &SpeculateArgs) -> Result<Speculation, Failure> {
        let (mode, asks) = match args.speculate {
            Mode::Off => (Speculate::Off, false),
            Mode::Ngram => (Speculate::NGram, false),
            Mode::Draft => (Speculate::Draft, true),
            Mode::Auto => (Speculate::Auto, true),
        };
        let reference = named(args).filter(|_| asks).cloned();
        if mode == Speculate::Draft && reference.is_none() {
            return Err(Failure::Usage(
                "--speculate draft: which model? Name a smaller one with the same tokens by --draft-model; \
                 --speculate ngram needs none"
                    .to_owned(),
            ));
        }
        Ok(Speculation {
            options: options(mode, args, reference.is_some()),
            reference,
            draft: None,
        })
    }

    /// Finds the draft model, and downloads it if it has to.
    pub fn resolve(&mut self, global: &GlobalArgs) -> Result<(), Failure> {
        if let Some(reference) = &self.reference {
            self.draft = Some(models::resolve(reference, global)?.path);
        }
        Ok(())
    }
}

fn options(mode: Speculate, args: &SpeculateArgs, drafts: bool) -> SpeculateOptions {
    let most = args.draft_max as usize;
    let apart = drafts && args.draft_draws == Draws::Rejection;
    SpeculateOptions {
        mode,
        most,
        // what is drawn depends on where drafts begin, and times must not decide about that
        fixed: apart.then_some(most),
        draws: if apart {
            DraftDraws::Apart
        } else {
            DraftDraws::Alike
        },
    }
}

/// A variable that is set to nothing counts as not set.
fn named(args: &SpeculateArgs) -> Option<&OsString> {
    args.draft_model.as_ref().filter(|model| !model.is_empty())
}

/// A draft model that nobody will ask is told once.
pub fn explain(args: &SpeculateArgs) {
    let how = match args.speculate {
        Mode::Off => "off",
        Mode::Ngram => "ngram",
        Mode::Draft | Mode::Auto => return,
    };
    if named(args).is_some() {
        say(&format!(
            "note: --draft-model has no effect with --speculate {how}"
        ));
    }
}

/// The model at `path`, to guess for another that is loaded.
pub fn load_draft(
    path: &Path,
    target: Beside<'_>,
    draws: DraftDraws,
    quiet: bool,
) -> nelumbo::Result<DraftModel> {
    let mut bar = None;
    let mut progress = |done: u64, all: u64| {
        let start = || Progress::on_terminal("loading the draft model", all, quiet);
        bar.get_or_insert_with(start).at(done);
    };
    let vocab_size = target.decoder.config().vocab_size;
    let model = Model::load_draft(path, target, &mut progress)?;
    DraftModel::new(model.decoder, vocab_size, draws)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn of(line: &str) -> Result<Speculation, Failure> {
        let line = format!("nelumbo run m p {line}");
        match Cli::try_parse_from(line.split_whitespace())
            .unwrap()
            .command
        {
            Command::Run(args) => Speculation::new(&args.speculate),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_way_of_guessing_has_its_name() {
        let mode = |line: &str| of(line).unwrap().options.mode;
        assert_eq!(mode(""), Speculate::Auto);
        assert_eq!(mode("--speculate off"), Speculate::Off);
        assert_eq!(mode("--speculate ngram"), Speculate::NGram);
        assert_eq!(mode("--speculate draft --draft-model d"), Speculate::Draft);
        assert_eq!(mode("--speculate auto --draft-model d"), Speculate::Auto);
        let most = |line: &str| of(line).unwrap().options.most;
        assert_eq!((most(""), most("--draft-max 3")), (16, 3));
        let draws = |line: &str| {
            let options = of(line).unwrap().options;
            (options.draws, options.fixed)
        };
        assert_eq!(draws("--draft-model d"), (DraftDraws::Alike, None));
        let rejection = draws("--draft-model d --draft-draws rejection --draft-max 4");
        assert_eq!(rejection, (DraftDraws::Apart, Some(4)));
        assert_eq!(draws("--draft-draws rejection"), (DraftDraws::Alike, None));
        let unasked = draws("--speculate ngram --draft-model d --draft-draws rejection");
        assert_eq!(unasked, (DraftDraws::Alike, None));
    }

    #[test]
    fn a_draft_model_is_loaded_where_somebody_asks_it() {
        let reference = |line: &str| of(line).unwrap().reference;
        assert_eq!(reference("--draft-model d"), Some("d".into()));
        assert_eq!(reference(""), None);
        for how in ["off", "ngram"] {
            let line = format!("--speculate {how} --draft-model d");
            assert_eq!(reference(&line), None, "{how}");
        }
        let failure = of("--speculate draft").unwrap_err();
        let told = failure.to_string();
        assert_eq!(failure.code(), 2);
        assert!(
            told.contains("--draft-model") && told.contains("ngram"),
            "{told}"
        );
    }

    #[test]
    fn so_many_tokens_can_be_guessed_and_no_more() {
        for wrong in ["0", "17", "-1", "many"] {
            let line = ["nelumbo", "run", "m", "p", "--draft-max", wrong];
            let error = Cli::try_parse_from(line).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains("--draft-max"), "{error}");
        }
    }
}
