//! `--sweep chunk=64,256,whole,pool=16384,65536`: which runs there are.

use nelumbo::engine::simulate::Chunking;

use super::args::SimulateArgs;
use crate::exit::Failure;

/// More runs than this in one call are a slip of the fingers.
const MOST_RUNS: usize = 64;

/// Tokens of prompts in a step beside those who decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    Tokens(usize),
    Whole,
    /// What `--max-itl` allows.
    Auto,
}

/// Values to go through; none where an axis is not swept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Axes {
    pub chunk: Vec<Chunk>,
    pub pool: Vec<usize>,
    pub parallel: Vec<usize>,
    pub batch: Vec<usize>,
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    pub batch: usize,
    pub parallel: usize,
    pub pool: usize,
    pub chunk: Chunk,
    pub chunking: Chunking,
}

/// Reads a sweep: what follows `NAME=`, up to the next one, is its list.
pub fn axes(text: &str) -> Result<Axes, String> {
    let mut axes = Axes::default();
    let mut name = "";
    for item in text.split([',', ' ']).filter(|item| !item.is_empty()) {
        let value = match item.split_once('=') {
            Some((axis, value)) => {
                name = axis;
                value
            }
            None => item,
        };
        let number = || {
            let number = value
                .parse()
                .ok()
                .filter(|n| (1..=1usize << 40).contains(n));
            number.ok_or_else(|| {
                format!("\"{item}\": \"{value}\" is not a number of tokens or requests")
            })
        };
        match name {
            "chunk" => axes.chunk.push(match value {
                "whole" => Chunk::Whole,
                "auto" => Chunk::Auto,
                _ => Chunk::Tokens(number()?),
            }),
            "pool" => axes.pool.push(number()?),
            "parallel" => axes.parallel.push(number()?),
            "batch" => axes.batch.push(number()?),
            _ => {
                return Err(format!(
                    "\"{item}\" is not chunk=, pool=, parallel= or batch= with a list"
                ));
            }
        }
    }
    match axes == Axes::default() {
        true => {
            Err("no axis to go along: chunk=, pool=, parallel= or batch= with a list".to_owned())
        }
        false => Ok(axes),
    }
}

impl Chunk {
    /// As it is typed.
    pub fn name(self) -> String {
        match self {
            Chunk::Tokens(tokens) => tokens.to_string(),
            Chunk::Whole => "whole".to_owned(),
            Chunk::Auto => "auto".to_owned(),
        }
    }
}

impl Run {
    /// What it is on each axis, as that is typed.
    pub fn settings(&self) -> [(&'static str, String); 4] {
        [
            ("chunk", self.chunk.name()),
            ("pool", self.pool.to_string()),
            ("parallel", self.parallel.to_string()),
            ("batch", self.batch.to_string()),
        ]
    }
}

/// Every combination, with `pool` tokens of memory where nothing else is said.
pub fn runs(args: &SimulateArgs, pool: usize) -> Result<Vec<Run>, Failure> {
    let axes = args.sweep.clone().unwrap_or_default();
    let or = |swept: &[usize], else_: Vec<usize>| match swept {
        [] => else_,
        swept => swept.to_vec(),
    };
    let of = |values: &[u32]| values.iter().map(|&n| n as usize).collect::<Vec<_>>();
    let chunks = match (&axes.chunk[..], args.max_itl) {
        ([], Some(_)) => vec![Chunk::Auto],
        ([], None) => vec![Chunk::Whole],
        (swept, _) => swept.to_vec(),
    };
    let mut runs = Vec::new();
    for &pool in &or(&axes.pool, vec![pool]) {
        for &parallel in &or(&axes.parallel, of(&args.parallel)) {
            for &batch in &or(&axes.batch, of(&args.batch_size)) {
                for &chunk in &chunks {
                    let chunking = match (chunk, args.max_itl) {
                        (Chunk::Tokens(tokens), _) => Chunking::Fixed(tokens),
                        (Chunk::Whole, _) => Chunking::Whole,
                        (Chunk::Auto, Some(ms)) => Chunking::MaxItl(ms / 1e3),
                        (Chunk::Auto, None) => {
                            let problem =
                                "--sweep chunk=auto needs --max-itl MS: that is what it keeps to";
                            return Err(Failure::Usage(problem.to_owned()));
                        }
                    };
                    runs.push(Run {
                        batch,
                        parallel,
                        pool,
                        chunk,
                        chunking,
                    });
                }
            }
        }
    }
    if runs.len() > MOST_RUNS {
        let problem = format!("--sweep: {} runs, at most {MOST_RUNS}", runs.len());
        return Err(Failure::Usage(problem));
    }
    match runs.iter().find(|run| run.batch < run.parallel) {
        Some(run) => Err(Failure::Usage(format!(
            "--batch-size {} and --parallel {}: a step has a token for everybody who runs",
            run.batch, run.parallel
        ))),
        None => Ok(runs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_belong_to_the_name_before_them() {
        let read = axes("chunk=64,256,whole,auto,pool=1024,2048 parallel=8").unwrap();
        let chunks = [
            Chunk::Tokens(64),
            Chunk::Tokens(256),
            Chunk::Whole,
            Chunk::Auto,
        ];
        assert_eq!(read.chunk, chunks);
        assert_eq!(
            (&read.pool[..], &read.parallel[..]),
            (&[1024, 2048][..], &[8][..])
        );
        assert!(read.batch.is_empty());
        for (bad, part) in [
            ("", "no axis"),
            ("64", "\"64\""),
            ("chunk=x", "\"x\""),
            ("chunk=0", "\"0\""),
            ("chunk=1,pool=", "\"\""),
            ("pool=whole", "\"whole\""),
            ("size=5", "\"size=5\""),
            ("pool=-5", "\"-5\""),
        ] {
            let problem = axes(bad).unwrap_err();
            assert!(problem.contains(part), "{bad}: {problem}");
        }
    }
}
