//! From the engine's events to an answer: text as it comes, and numbers when it is over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use nelumbo::engine::{Event, FinishReason, TokenLogprob};
use nelumbo::text::TextStream;
use nelumbo::{Error, Result};

use crate::exit::Failure;
use crate::output::TopLogprob;
use crate::stopwatch::Stopwatch;

/// What tokens look like.
pub trait Vocabulary {
    /// What a token adds to the answer, possibly part of a character.
    fn bytes(&self, id: u32) -> &[u8];
    /// The token for people.
    fn name(&self, id: u32) -> String;
}

/// One request that is under way.
pub trait Stream {
    /// The next event, `None` after the last one; pending when a moment brought none, so that the
    /// caller can look at what else goes on.
    fn next(&mut self) -> Poll<Option<Result<Event>>>;
    /// Asks for an end; the finish event still comes.
    fn cancel(&self);
}

/// What came of a request.
#[derive(Debug)]
pub struct Generated {
    pub token_ids: Vec<u32>,
    pub text: String,
    pub finish_reason: FinishReason,
    pub top_logprobs: Vec<Vec<TopLogprob>>,
    /// From `start` to the first token: what the user waited.
    pub ttft: Duration,
    /// The same without the compilation of kernels, which happens once.
    pub prefill: Duration,
    /// From the first token to the last, without compilation as well.
    pub decode: Duration,
}

/// Follows a request to its end and gives its text to `piece`, in whole characters and
/// never beyond a stop string. Cancels it when `stop` turns true or `piece` fails.
pub fn follow(
    stream: &mut dyn Stream,
    vocabulary: &dyn Vocabulary,
    stops: &[String],
    stopwatch: &Stopwatch,
    piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
    stop: &AtomicBool,
) -> Result<Generated, Failure> {
    let mut text = TextStream::new(stops.to_vec());
    let mut generated = Generated {
        token_ids: Vec::new(),
        text: String::new(),
        finish_reason: FinishReason::Cancelled,
        top_logprobs: Vec::new(),
        ttft: Duration::ZERO,
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
    };
    let mut stopped = false;
    let mut cancelled = false;
    loop {
        match stream.next() {
            // After a cancel, tokens that were under way already belong to nobody.
            Poll::Pending => {}
            Poll::Ready(Some(Ok(Event::Token { .. }))) if stopped || cancelled => {}
            Poll::Ready(Some(Ok(Event::Token {
                token,
                top_logprobs,
                ..
            }))) => {
                generated.take(token, &top_logprobs, vocabulary, stopwatch);
                let shown = text.push(vocabulary.bytes(token));
                stopped = shown.stopped.is_some();
                generated.show(&shown.text, stream, piece)?;
            }
            Poll::Ready(Some(Ok(Event::Finished { reason, .. }))) => {
                let rest = text.finish();
                generated.show(&rest, stream, piece)?;
                generated.finish_reason = if stopped { FinishReason::Stop } else { reason };
                return Ok(generated);
            }
            Poll::Ready(Some(Ok(Event::Failed { failure, .. }))) => {
                return Err(Error::from(failure).into());
            }
            Poll::Ready(Some(Err(error))) => return Err(error.into()),
            Poll::Ready(None) => {
                let message = "the engine ended before its answer".to_owned();
                return Err(Error::Device { message }.into());
            }
        }
        if !cancelled && (stopped || stop.load(Ordering::Relaxed)) {
            cancelled = true;
            stream.cancel();
        }
    }
}

impl Generated {
    fn take(
        &mut self,
        token: u32,
        top: &[TokenLogprob],
        vocabulary: &dyn Vocabulary,
        stopwatch: &Stopwatch,
    ) {
        let (elapsed, working) = stopwatch.read();
        if self.token_ids.is_empty() {
            self.ttft = elapsed;
            self.prefill = working;
        }
        self.decode = working.saturating_sub(self.prefill);
        self.token_ids.push(token);
        if !top.is_empty() {
            let named = top.iter().map(|&TokenLogprob { token, logprob }| {
                let name = vocabulary.name(token);
                TopLogprob {
                    id: token,
                    token: name,
                    logprob,
                }
            });
            self.top_logprobs.push(named.collect());
        }
    }

    fn show(
        &mut self,
        text: &str,
        stream: &dyn Stream,
        piece: &mut dyn FnMut(&str) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        self.text.push_str(text);
        piece(text).inspect_err(|_| stream.cancel())
    }

    /// Tokens a second of the prompt, those that had to be computed: before the first token comes.
    pub fn prefill_tok_s(&self, computed_tokens: usize) -> f64 {
        rate(computed_tokens, self.prefill)
    }

    /// Tokens a second after the first one.
    pub fn decode_tok_s(&self) -> f64 {
        rate(self.token_ids.len().saturating_sub(1), self.decode)
    }
}

/// 0 where nothing was measured.
fn rate(count: usize, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        count as f64 / time.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;

    use nelumbo::engine::RequestId;

    use super::*;

    const ID: RequestId = RequestId(1);

    fn watch() -> Stopwatch<'static> {
        Stopwatch::start(&|| Duration::ZERO)
    }

    /// Token 0 is "é" cut in two with token 1; the others are letters from `a` at 10.
    struct Letters;

    impl Vocabulary for Letters {
        fn bytes(&self, id: u32) -> &[u8] {
            match id {
                0 => &[0xc3],
                1 => &[0xa9],
                _ => &b"abcdefgh"[id as usize - 10..id as usize - 9],
            }
        }
        fn name(&self, id: u32) -> String {
            format!("<{id}>")
        }
    }

    /// Tokens, then an end; after a cancel one more token that was under way.
    struct Script {
        tokens: VecDeque<u32>,
        cancelled: Cell<bool>,
        late: bool,
        over: bool,
        /// Pending before the next event.
        busy: bool,
    }

    impl Script {
        fn new(tokens: impl IntoIterator<Item = u32>) -> Script {
            Script {
                tokens: tokens.into_iter().collect(),
                cancelled: Cell::new(false),
                late: false,
                over: false,
                busy: false,
            }
        }
    }

    impl Stream for Script {
        fn next(&mut self) -> Poll<Option<Result<Event>>> {
            if self.over {
                return Poll::Ready(None);
            }
            if std::mem::replace(&mut self.busy, false) {
                return Poll::Pending;
            }
            let late = std::mem::replace(&mut self.late, self.cancelled.get());
            let token = self.tokens.pop_front().filter(|_| !late);
            self.over = token.is_none();
            let reason = if self.cancelled.get() {
                FinishReason::Cancelled
            } else {
                FinishReason::Length
            };
            Poll::Ready(Some(Ok(match token {
                Some(token) => {
                    let top_logprobs = vec![TokenLogprob {
                        token,
                        logprob: -1.0,
                    }];
                    Event::Token {
                        id: ID,
                        token,
                        top_logprobs,
                    }
                }
                None => Event::Finished { id: ID, reason },
            })))
        }
        fn cancel(&self) {
            self.cancelled.set(true);
        }
    }

    #[test]
    fn an_interrupt_is_seen_before_the_first_token() {
        let mut script = Script {
            busy: true,
            ..Script::new([1, 2, 3])
        };
        let generated = follow(
            &mut script,
            &Letters,
            &[],
            &watch(),
            &mut |_| Ok(()),
            &AtomicBool::new(true),
        )
        .unwrap();
        assert!(generated.token_ids.is_empty());
        assert_eq!(generated.finish_reason, FinishReason::Cancelled);
    }

    fn answer(script: &mut Script, stops: &[&str]) -> (Generated, Vec<String>) {
        let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
        let mut pieces = Vec::new();
        let mut piece = |text: &str| {
            pieces.push(text.to_owned());
            Ok(())
        };
        let stop = AtomicBool::new(false);
        let generated = follow(script, &Letters, &stops, &watch(), &mut piece, &stop).unwrap();
        (generated, pieces)
    }

    #[test]
    fn characters_come_whole_and_nothing_is_lost() {
        let (generated, pieces) = answer(&mut Script::new([10, 0, 1, 11]), &[]);
        assert_eq!(pieces, ["a", "é", "b"]);
        assert_eq!(
            (generated.text.as_str(), generated.finish_reason),
            ("aéb", FinishReason::Length)
        );
        assert_eq!(generated.token_ids, [10, 0, 1, 11]);
        let first = TopLogprob {
            id: 10,
            token: "<10>".to_owned(),
            logprob: -1.0,
        };
        assert_eq!(
            (generated.top_logprobs.len(), &generated.top_logprobs[0]),
            (4, &vec![first])
        );
        let (generated, _) = answer(&mut Script::new([10, 0]), &[]);
        assert_eq!(generated.text, "a\u{fffd}");
    }

    #[test]
    fn a_stop_string_over_tokens_ends_the_answer() {
        let mut script = Script::new([10, 11, 12, 13, 14, 15]);
        let (generated, pieces) = answer(&mut script, &["cd"]);
        assert_eq!(
            (generated.text.as_str(), pieces.concat().as_str()),
            ("ab", "ab")
        );
        assert_eq!(generated.finish_reason, FinishReason::Stop);
        assert_eq!(generated.token_ids, [10, 11, 12, 13]);
        assert!(script.cancelled.get());

        let (generated, pieces) = answer(&mut Script::new([10, 12]), &["cd"]);
        assert_eq!((generated.text.as_str(), pieces.len()), ("ac", 2));
    }

    #[test]
    fn an_interrupt_keeps_what_there_is() {
        let mut script = Script::new(10..18);
        let stop = AtomicBool::new(false);
        let mut piece = |text: &str| {
            stop.store(text == "c", Ordering::Relaxed);
            Ok(())
        };
        let generated = follow(&mut script, &Letters, &[], &watch(), &mut piece, &stop).unwrap();
        assert_eq!(
            (generated.text.as_str(), generated.finish_reason),
            ("abc", FinishReason::Cancelled)
        );
        assert_eq!(generated.token_ids, [10, 11, 12]);
    }

    #[test]
    fn a_reader_that_leaves_cancels_the_request() {
        let mut script = Script::new(10..18);
        let stop = AtomicBool::new(false);
        let mut piece = |_: &str| Err(Failure::OutputClosed);
        let failure = follow(&mut script, &Letters, &[], &watch(), &mut piece, &stop).unwrap_err();
        assert!(matches!(failure, Failure::OutputClosed) && script.cancelled.get());
    }

    #[test]
    fn e16_an_engine_that_vanishes_is_an_error() {
        let mut script = Script::new([]);
        script.over = true;
        let stop = AtomicBool::new(false);
        let failure =
            follow(&mut script, &Letters, &[], &watch(), &mut |_| Ok(()), &stop).unwrap_err();
        assert_eq!(failure.code(), 1);
    }

    #[test]
    fn rates_count_what_was_timed() {
        let (mut generated, _) = answer(&mut Script::new([10, 11, 12]), &[]);
        generated.prefill = Duration::from_millis(500);
        generated.decode = Duration::from_secs(4);
        assert_eq!(
            (generated.prefill_tok_s(100), generated.decode_tok_s()),
            (200.0, 0.5)
        );
        generated.decode = Duration::ZERO;
        assert_eq!(generated.decode_tok_s(), 0.0);
    }
}
