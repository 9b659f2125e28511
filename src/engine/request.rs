//! What is asked of the engine, and what it answers.

use crate::engine::scheduler::MAX_LOSSES;
use crate::error::{Error, Result};

/// Identifies a request for as long as the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Tokens with a bias that a request may have: for those of everybody in a step there is room in it.
pub const MOST_BIASES: usize = 320;

/// How the next token is drawn from the logits. Applied in this order: penalties, logit bias,
/// temperature, top-k, top-p, min-p, draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the best token always.
    pub temperature: f32,
    /// Keep the k best tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest best tokens whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens of at least this share of the best one's probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits, and multiplies negative ones, of tokens seen in the window; 1 is off.
    pub repeat_penalty: f32,
    /// The window of the three penalties, in tokens.
    pub repeat_last_n: usize,
    /// Subtracted once from the logits of tokens seen in the window.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens seen in the window, once for each time.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens, [`MOST_BIASES`] at most.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same tokens on the same device.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy, nothing else on.
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether the best token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature < 1e-4
    }

    /// Whether logits change before the draw.
    pub fn has_penalties(&self) -> bool {
        self.repeat_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
    }

    /// Refuses values out of range.
    ///
    /// # Errors
    /// [`Error::Request`] naming the field and its range.
    pub fn check(&self, vocab_size: usize) -> Result<()> {
        let ranges = [
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repeat_penalty", self.repeat_penalty, 0.01, 100.0),
            ("presence_penalty", self.presence_penalty, -100.0, 100.0),
            ("frequency_penalty", self.frequency_penalty, -100.0, 100.0),
        ];
        for (field, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return Err(Error::request(
                    field,
                    format!("is {value}, expected {low} to {high}"),
                ));
            }
        }
        let count = self.logit_bias.len();
        if count > MOST_BIASES {
            let problem = format!("has {count} tokens, expected at most {MOST_BIASES}");
            return Err(Error::request("logit_bias", problem));
        }
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocab_size {
                let problem = format!("token {token} is outside of the vocabulary of {vocab_size}");
                return Err(Error::request("logit_bias", problem));
            }
            if !(-1e6..=1e6).contains(&bias) {
                return Err(Error::request(
                    "logit_bias",
                    format!("is {bias} for token {token}, expected -1e6 to 1e6"),
                ));
            }
        }
        Ok(())
    }
}

/// A prompt, and what is wanted of it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt, at least one token.
    pub tokens: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// The most tokens to generate; the context ends it too.
    pub max_tokens: usize,
    /// Tokens after which the answer is over.
    pub end_tokens: Vec<u32>,
    /// How many of the largest log-probabilities to report for each token.
    pub logprobs: usize,
    /// The higher goes first, and may take the place of a lower one.
    pub priority: i32,
    /// Whose it is: only requests with the same salt find each other's prefixes in the cache.
    pub cache_salt: Vec<u8>,
}

impl Default for Request {
    /// The likeliest tokens up to the end of the context, of a prompt that has to be given.
    fn default() -> Request {
        Request {
            tokens: Vec::new(),
            sampling: Sampling::default(),
            max_tokens: usize::MAX,
            end_tokens: Vec::new(),
            logprobs: 0,
            priority: 0,
            cache_salt: Vec::new(),
        }
    }
}

/// A token and the logarithm of its probability before temperature and penalties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// At most 0.
    pub logprob: f32,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, or a stop string found by the caller.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
    /// The caller did not want more.
    Cancelled,
}

impl FinishReason {
    /// The word used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// Why a request ended without an answer, while others go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The device was lost more than [`MAX_LOSSES`] times in steps that computed it, the last time in one
    /// that computed nobody else.
    DeviceLost,
    /// Its logits are not numbers.
    NotNumbers,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::DeviceLost => Error::DeviceLost {
                reason: format!("more than {MAX_LOSSES} times while it computed this request"),
            },
            Failure::NotNumbers => Error::Device {
                message: "the model's logits are not numbers: its weights are damaged, or this \
                          adapter computes wrongly"
                    .to_owned(),
            },
        }
    }
}

/// What a step brought.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A token was generated.
    Token {
        /// Whose.
        id: RequestId,
        /// Which.
        token: u32,
        /// The largest log-probabilities, best first; empty unless asked for.
        top_logprobs: Vec<TokenLogprob>,
    },
    /// The request is over; nothing follows for it.
    Finished {
        /// Which.
        id: RequestId,
        /// Why.
        reason: FinishReason,
    },
    /// The request is over without an answer; nothing follows for it.
    Failed {
        /// Which.
        id: RequestId,
        /// Why.
        failure: Failure,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let check = |sampling: Sampling| sampling.check(10).map_err(|e| e.to_string());
        assert!(check(Sampling::default()).is_ok());
        let wrong: [(&str, Sampling); 7] = [
            (
                "temperature",
                Sampling {
                    temperature: -1.0,
                    ..Sampling::default()
                },
            ),
            (
                "temperature",
                Sampling {
                    temperature: f32::NAN,
                    ..Sampling::default()
                },
            ),
            (
                "top_p",
                Sampling {
                    top_p: 1.5,
                    ..Sampling::default()
                },
            ),
            (
                "min_p",
                Sampling {
                    min_p: 2.0,
                    ..Sampling::default()
                },
            ),
            (
                "logit_bias",
                Sampling {
                    logit_bias: vec![(10, 0.0)],
                    ..Sampling::default()
                },
            ),
            (
                "logit_bias",
                Sampling {
                    logit_bias: vec![(3, f32::INFINITY)],
                    ..Sampling::default()
                },
            ),
            (
                "logit_bias",
                Sampling {
                    logit_bias: vec![(3, 1.0); MOST_BIASES + 1],
                    ..Sampling::default()
                },
            ),
        ];
        for (field, sampling) in wrong {
            let error = check(sampling).unwrap_err();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
