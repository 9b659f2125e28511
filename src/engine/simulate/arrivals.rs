//! Who asks when, and for how much.

use super::lengths::{LONGEST_TEXT, Lengths, Random};
use crate::error::{Error, Result};

/// Requests of a simulation at most.
pub const MOST_REQUESTS: usize = 1_000_000;
/// Tokens of all prompts and answers at most.
pub const MOST_TOKENS: usize = 1 << 26;
/// Seconds from the first request to the last at most: a year.
const LONGEST: f64 = 366.0 * 86_400.0;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Seconds since the beginning.
    pub at: f64,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: usize,
    /// Tokens of the answer, at least 1; the end of the context ends it sooner.
    pub output_tokens: usize,
    /// What the prompt has in common with others.
    pub prefix: Option<Prefix>,
}

impl Arrival {
    /// What is out of range, if something is: the field, and what is wrong with it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if !(0.0..=LONGEST).contains(&self.at) {
            let problem = format!("is {}, expected 0 to {LONGEST}", self.at);
            return Some(("arrival_s", problem));
        }
        for (field, value) in [
            ("prompt_tokens", self.prompt_tokens),
            ("output_tokens", self.output_tokens),
        ] {
            if !(1..=LONGEST_TEXT).contains(&value) {
                return Some((field, format!("is {value}, expected 1 to {LONGEST_TEXT}")));
            }
        }
        let shared = self.prefix.filter(|p| p.tokens > self.prompt_tokens)?;
        let problem = format!("is {}, more than the prompt has", shared.tokens);
        Some(("prefix_tokens", problem))
    }
}

/// The beginning of a prompt that others of a group begin with as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Which group.
    pub group: u64,
    /// Tokens in common.
    pub tokens: usize,
}

/// Requests that are made up.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// How many.
    pub requests: usize,
    /// How many a second come on average, with gaps as between independent users; `None`: all at once.
    pub rate: Option<f64>,
    /// Of prompts.
    pub prompt: Lengths,
    /// Of answers.
    pub output: Lengths,
    /// Prompts are cut to so many tokens less one, and answers to what is left.
    pub longest: usize,
    /// The same seed, the same requests.
    pub seed: u64,
}

impl Workload {
    /// The requests, in order of time.
    ///
    /// # Errors
    /// [`Error::Request`] for numbers out of range.
    pub fn arrivals(&self) -> Result<Vec<Arrival>> {
        if !(1..=MOST_REQUESTS).contains(&self.requests) {
            let problem = format!("is {}, expected 1 to {MOST_REQUESTS}", self.requests);
            return Err(Error::request("requests", problem));
        }
        if let Some(rate) = self.rate.filter(|rate| !(1e-6..=1e9).contains(rate)) {
            let problem = format!("is {rate}, expected 0.000001 to 1000000000 a second");
            return Err(Error::request("rate", problem));
        }
        if self.longest < 2 {
            let problem = format!("is {}, expected at least 2 tokens", self.longest);
            return Err(Error::request("context", problem));
        }
        let mut random = Random(self.seed);
        let mut at = 0.0;
        let arrivals: Vec<Arrival> = (0..self.requests)
            .map(|index| {
                if let Some(rate) = self.rate.filter(|_| index > 0) {
                    at -= (1.0 - random.unit()).ln() / rate;
                }
                let prompt_tokens = self.prompt.draw(&mut random, self.longest - 1);
                let left = self.longest - prompt_tokens;
                Arrival {
                    at,
                    prompt_tokens,
                    output_tokens: self.output.draw(&mut random, left),
                    prefix: None,
                }
            })
            .collect();
        check(&arrivals)?;
        Ok(arrivals)
    }
}

/// Refuses what no simulation should take.
///
/// # Errors
/// [`Error::Request`] that names the request, from 1, and its field.
pub fn check(arrivals: &[Arrival]) -> Result<()> {
    if arrivals.is_empty() || arrivals.len() > MOST_REQUESTS {
        let problem = format!("are {}, expected 1 to {MOST_REQUESTS}", arrivals.len());
        return Err(Error::request("requests", problem));
    }
    let (mut before, mut tokens) = (0.0, 0usize);
    for (arrival, number) in arrivals.iter().zip(1..) {
        let late = || {
            let problem = format!("is {}, before that of the one before, {before}", arrival.at);
            (arrival.at < before).then_some(("arrival_s", problem))
        };
        if let Some((field, problem)) = arrival.problem().or_else(late) {
            return Err(Error::request(
                field,
                format!("of request {number} {problem}"),
            ));
        }
        before = arrival.at;
        tokens += arrival.prompt_tokens + arrival.output_tokens;
    }
    if tokens > MOST_TOKENS {
        let problem = format!("have {tokens} tokens, expected at most {MOST_TOKENS}");
        return Err(Error::request("requests", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_its_seed_and_its_rate() {
        let workload = Workload {
            requests: 5000,
            rate: Some(4.0),
            prompt: Lengths::Uniform(10, 3000),
            output: Lengths::Fixed(500),
            longest: 2048,
            seed: 9,
        };
        let arrivals = workload.arrivals().unwrap();
        assert_eq!(arrivals, workload.arrivals().unwrap());
        assert_ne!(
            arrivals,
            Workload {
                seed: 8,
                ..workload.clone()
            }
            .arrivals()
            .unwrap()
        );
        let seconds = arrivals[4999].at;
        assert!((seconds / 1250.0 - 1.0).abs() < 0.05, "{seconds}");
        let fits = |a: &Arrival| a.prompt_tokens + a.output_tokens <= 2048;
        assert!(arrivals.iter().all(fits));
        let at_once = Workload {
            rate: None,
            ..workload.clone()
        }
        .arrivals()
        .unwrap();
        assert!(at_once.iter().all(|a| a.at == 0.0));
        for (wrong, field) in [
            (
                Workload {
                    requests: 0,
                    ..workload.clone()
                },
                "requests",
            ),
            (
                Workload {
                    requests: 2_000_000,
                    ..workload.clone()
                },
                "requests",
            ),
            (
                Workload {
                    rate: Some(0.0),
                    ..workload.clone()
                },
                "rate",
            ),
            (
                Workload {
                    rate: Some(f64::NAN),
                    ..workload.clone()
                },
                "rate",
            ),
            (
                Workload {
                    longest: 1,
                    ..workload.clone()
                },
                "context",
            ),
        ] {
            let error = wrong.arrivals().unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn arrivals_out_of_range_are_told_by_number_and_field() {
        let right = Arrival {
            at: 1.0,
            prompt_tokens: 5,
            output_tokens: 5,
            prefix: None,
        };
        let prefix = Some(Prefix {
            group: 1,
            tokens: 6,
        });
        assert!(check(std::slice::from_ref(&right)).is_ok());
        for (wrong, field) in [
            (
                Arrival {
                    at: 0.5,
                    ..right.clone()
                },
                "arrival_s",
            ),
            (
                Arrival {
                    at: f64::NAN,
                    ..right.clone()
                },
                "arrival_s",
            ),
            (
                Arrival {
                    at: 1e12,
                    ..right.clone()
                },
                "arrival_s",
            ),
            (
                Arrival {
                    prompt_tokens: 0,
                    ..right.clone()
                },
                "prompt_tokens",
            ),
            (
                Arrival {
                    output_tokens: 1 << 40,
                    ..right.clone()
                },
                "output_tokens",
            ),
            (
                Arrival {
                    prefix,
                    ..right.clone()
                },
                "prefix_tokens",
            ),
        ] {
            let error = check(&[right.clone(), wrong]).unwrap_err().to_string();
            assert!(
                error.contains(field) && error.contains("request 2"),
                "{error}"
            );
        }
        assert!(check(&[]).is_err());
        let long = Arrival {
            prompt_tokens: 1 << 20,
            ..right
        };
        assert!(
            check(&vec![long; 65])
                .unwrap_err()
                .to_string()
                .contains("tokens")
        );
    }
}
