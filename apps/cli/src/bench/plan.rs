//! Which tests are run, and whether the context holds them.

use super::args::{BenchArgs, Output};
use crate::exit::Failure;

/// What is timed: a prompt, or steps of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// So many tokens at once, until the first token of the answer is there.
    Prompt(usize),
    /// So many tokens, one after another.
    Generation(usize),
}

/// A test: work with so many tokens in the context before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    pub work: Work,
    pub depth: usize,
}

impl Test {
    /// `pp512`, `tg64 @ d512`.
    pub fn name(&self) -> String {
        let (word, count) = match self.work {
            Work::Prompt(count) => ("pp", count),
            Work::Generation(count) => ("tg", count),
        };
        match self.depth {
            0 => format!("{word}{count}"),
            depth => format!("{word}{count} @ d{depth}"),
        }
    }

    /// Tokens that are timed.
    pub fn tokens(&self) -> usize {
        match self.work {
            Work::Prompt(count) | Work::Generation(count) => count,
        }
    }

    /// Tokens of context that it takes.
    pub fn room(&self) -> usize {
        self.depth + self.tokens()
    }
}

/// The tests of these arguments: for each depth the prompts, then the generations.
pub fn tests(args: &BenchArgs) -> Result<Vec<Test>, Failure> {
    refuse_trace(args)?;
    if args.parallel > 1 {
        return Err(Failure::Usage(format!(
            "--parallel (-np) {}: bench times one sequence at a time so far",
            args.parallel
        )));
    }
    let mut tests = Vec::new();
    for &depth in &args.n_depth.0 {
        let prompts = args.n_prompt.0.iter().map(|&n| Work::Prompt(n));
        let generations = args.n_gen.0.iter().map(|&n| Work::Generation(n));
        let all = prompts.chain(generations).map(|work| Test { work, depth });
        tests.extend(all.filter(|test| test.tokens() > 0));
    }
    if tests.is_empty() {
        return Err(Failure::Usage(
            "--n-prompt and --n-gen are both 0: there is nothing to time".to_owned(),
        ));
    }
    Ok(tests)
}

/// Only a profile has dispatches to show.
pub fn refuse_trace(args: &BenchArgs) -> Result<(), Failure> {
    if args.output == Output::Trace {
        let problem = "--output trace needs --profile";
        return Err(Failure::Usage(problem.to_owned()));
    }
    Ok(())
}

/// What `--profile` watches: the first prompt, and a step after it.
pub fn profiled(args: &BenchArgs) -> Result<Vec<Test>, Failure> {
    let problem = if !matches!(args.output, Output::Md | Output::Json | Output::Trace) {
        "--profile prints --output md, json or trace"
    } else if args.against.is_some() {
        "--profile and --against: a profile has no samples to compare"
    } else {
        ""
    };
    if !problem.is_empty() {
        return Err(Failure::Usage(problem.to_owned()));
    }
    let tokens = args.n_prompt.0[0];
    if tokens == 0 {
        let problem = "--profile: --n-prompt is 0, there is no prompt to watch";
        return Err(Failure::Usage(problem.to_owned()));
    }
    let prompt = Test {
        work: Work::Prompt(tokens),
        depth: 0,
    };
    let step = Test {
        work: Work::Generation(1),
        depth: tokens,
    };
    Ok(vec![prompt, step])
}

/// Refuses tests that a context of `limit` tokens does not hold.
pub fn check_context(tests: &[Test], limit: usize) -> Result<(), Failure> {
    match tests.iter().find(|test| test.room() > limit) {
        None => Ok(()),
        Some(test) => Err(Failure::Usage(format!(
            "{} takes {} tokens of context, there are {limit}: ask for less, or raise --ctx-size",
            test.name(),
            test.room()
        ))),
    }
}

#[cfg(test)]
pub mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};
    use crate::argv::normalise;

    /// The arguments of a line, as clap sees them.
    pub fn parse(line: &str) -> Result<BenchArgs, clap::Error> {
        let line = format!("nelumbo bench m {line}");
        let argv = normalise(line.split_whitespace().map(Into::into));
        match Cli::try_parse_from(argv)?.command {
            Command::Bench(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    fn names(line: &str) -> Vec<String> {
        let tests = tests(&parse(line).unwrap()).unwrap();
        tests.iter().map(Test::name).collect()
    }

    #[test]
    fn each_depth_has_each_test() {
        assert_eq!(names(""), ["pp512", "tg64"]);
        assert_eq!(
            names("-p 8,16 -n 2 -d 0-4+4"),
            ["pp8", "pp16", "tg2", "pp8 @ d4", "pp16 @ d4", "tg2 @ d4"]
        );
        assert_eq!(names("-p 0 -n 4 -np 1"), ["tg4"]);
        assert_eq!(names("-p 4 -n 0"), ["pp4"]);
    }

    #[test]
    fn what_cannot_be_timed_is_refused_by_name() {
        for (line, part) in [
            ("-np 2", "--parallel"),
            ("-p 0 -n 0", "--n-gen"),
            ("-o trace", "--profile"),
        ] {
            let failure = tests(&parse(line).unwrap()).unwrap_err();
            assert_eq!(failure.code(), 2);
            assert!(failure.to_string().contains(part), "{failure}");
        }
        for line in [
            "-p abc",
            "-n -1",
            "-d 1,,2",
            "-r 0",
            "-o xml",
            "--parallel 0",
            "-b 0",
            "-c 1",
            "-p 9-1",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            let flag = line.split(' ').next().unwrap();
            assert!(error.to_string().contains(flag), "{line}: {error}");
        }
    }

    #[test]
    fn a_profile_is_of_the_first_prompt_and_a_step_after_it() {
        let watched = profiled(&parse("--profile -p 16,32").unwrap()).unwrap();
        let names: Vec<String> = watched.iter().map(Test::name).collect();
        assert_eq!(names, ["pp16", "tg1 @ d16"]);
        for line in [
            "--profile -p 0",
            "--profile -o jsonl",
            "--profile --against old.json",
        ] {
            let failure = profiled(&parse(line).unwrap()).unwrap_err();
            assert_eq!(failure.code(), 2);
            assert!(failure.to_string().contains("--profile"), "{failure}");
        }
    }

    #[test]
    fn the_context_holds_what_is_before_and_what_is_timed() {
        let at = |work, depth| Test { work, depth };
        let tests = [at(Work::Prompt(8), 0), at(Work::Generation(2), 7)];
        assert!(check_context(&tests, 9).is_ok());
        let failure = check_context(&tests, 8).unwrap_err();
        assert_eq!(failure.code(), 2);
        assert!(
            failure.to_string().contains("tg2 @ d7 takes 9"),
            "{failure}"
        );
    }
}
