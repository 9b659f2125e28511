//! A small model that guesses for a large one with the same tokens.
//!
//! ```text
//! text        [ known                          ]
//! computed    [ known, as far as it was ][ proposed last time ]
//!                                       |<- taken back: what the text did not go on with
//! this call   1. [ what is missing, of all texts in a step ]          a long prompt in pieces, call by call
//!             2.   [ x1 ] [ x2 ] ..     one token of each text in a step, drawn from the draft
//! ```
//!
//! It has a runner, pages and a prefix cache of its own, and computes by the steps that requests get. Nothing
//! that goes wrong with pages is an error: who finds no room proposes nothing. Where the request draws, so does
//! the draft, on the host, and tells what it chose among (`draft/choices.rs`).

mod choices;
mod held;

use super::{CLASSES, DraftDraws, MOST_PROPOSED, Proposal, Proposer, Text};
use crate::engine::batch::{Batch, Row};
use crate::engine::request::{RequestId, Sampling};
use crate::engine::runner::Runner;
use crate::engine::scheduler::Sampled;
use crate::error::Result;
use crate::kernels::sample::{MOST_CHOICES, draw_alike, draw_from};
use crate::model::Decoder;
use crate::model::step::{HeadRows, Span};
use choices::choices;
use held::Held;

/// Tokens that a text may lack to be computed at once, whoever else lacks some: what may be proposed, and the
/// token that was drawn instead.
const SHORT: usize = MOST_PROPOSED + 1;
/// Tokens in a call of texts that lack more, all of them together: the next tokens of others wait for them.
const PIECE: usize = 256;
/// The class of tokens that are the draft's likeliest.
const LIKELIEST: usize = CLASSES - 1;
/// The class of tokens that were drawn.
const DRAWN: usize = CLASSES - 2;

/// A model that proposes what it would say itself.
pub struct DraftModel {
    runner: Runner,
    held: Held,
    /// Tokens that the other model knows.
    vocab_size: usize,
    draws: DraftDraws,
    greedy: Sampling,
}

/// What becomes of a text in a call.
struct Work<'a> {
    text: Text<'a>,
    /// Where its place among the texts is.
    at: usize,
    /// Tokens of the text to compute up to in this call.
    end: usize,
    /// Tokens to propose, at least 1.
    most: usize,
    proposal: Proposal,
    /// Nothing more is computed of it.
    is_over: bool,
}

/// Tokens of a text in a step.
struct Piece {
    work: usize,
    start: usize,
    len: usize,
}

impl DraftModel {
    /// Around a decoder, whose kernels are compiled and which computes a token, for a model with `vocab_size`
    /// tokens; where requests draw, so does it as `draws` says.
    ///
    /// # Errors
    /// As [`Runner::warm`].
    pub fn new(decoder: Decoder, vocab_size: usize, draws: DraftDraws) -> Result<DraftModel> {
        let held = Held::new(decoder.kv().groups(), decoder.max_batched_tokens());
        Ok(DraftModel {
            runner: Runner::warm(decoder)?,
            held,
            vocab_size,
            draws,
            greedy: Sampling::default(),
        })
    }

    /// The decoder, for its sizes and its device.
    pub fn decoder(&self) -> &Decoder {
        self.runner.decoder()
    }

    /// Bytes on the device: weights, cache, scratch and the rest.
    pub fn size_bytes(&mut self) -> u64 {
        let decoder = self.runner.decoder();
        let decoder = [
            decoder.weights().size_bytes(),
            decoder.kv().size_bytes(),
            decoder.scratch_bytes(),
        ];
        decoder.iter().sum::<u64>() + self.runner.size_bytes()
    }

    /// Everything that was computed is given up, and computed anew where it is asked for.
    pub fn forget_all(&mut self) {
        self.held.forget_all();
    }

    /// Asserts the invariants that hold between calls.
    pub fn check(&self) {
        self.held.check();
    }

    /// The same draft on a new device, where its own has a fault: nothing of what was computed is there.
    fn replace_faulty(&mut self) -> Result<()> {
        let Err(fault) = self.decoder().gpu().check() else {
            return Ok(());
        };
        log::warn!("the draft's device is opened again after a fault: {fault}");
        let recipe = self.decoder().recipe();
        // others may hold the device, but nothing of what is on it
        self.decoder().gpu().release();
        self.runner = Runner::warm(recipe.make()?)?;
        let decoder = self.runner.decoder();
        self.held = Held::new(decoder.kv().groups(), decoder.max_batched_tokens());
        Ok(())
    }

    /// Tokens that can be proposed for a text of so many tokens: what is computed of it and of them fits the
    /// context and the pages.
    fn room(&self, len: usize) -> usize {
        let longest = self.decoder().max_model_len().min(self.held.longest());
        (longest + 1).saturating_sub(len) // the last one that is proposed is not computed
    }

    /// Whether the draft knows all of its tokens.
    fn knows(&self, text: &[u32]) -> bool {
        let known = self.decoder().config().vocab_size;
        text.iter().all(|&token| (token as usize) < known)
    }

    /// What is to be done for each text that something comes of, with pages for it.
    fn begin<'a>(&mut self, texts: &[Text<'a>]) -> Vec<Work<'a>> {
        self.held.ask(texts.iter().map(|t| (t.id, t.cache_salt)));
        let mut left = PIECE;
        let mut works = Vec::with_capacity(texts.len());
        for (at, text) in texts.iter().enumerate() {
            let (id, len) = (text.id, text.tokens.len());
            let room = self.room(len);
            let most = room.min(text.most).min(MOST_PROPOSED);
            if room == 0 {
                self.held.release(id); // it only becomes longer
            }
            if most == 0 || len == 0 || !self.knows(text.tokens) {
                continue;
            }
            let Some(computed) = self.held.resume(id, text.tokens) else {
                continue;
            };
            let gap = len - computed;
            let piece = if gap <= SHORT { gap } else { gap.min(left) };
            let (end, last) = (computed + piece, len + most - 1);
            let needed = if end == len { last } else { end };
            if piece == 0 || !self.held.secure(id, needed, last) {
                continue;
            }
            left -= if gap <= SHORT { 0 } else { piece };
            let proposal = Proposal {
                class: if text.sampling.is_greedy() {
                    LIKELIEST
                } else {
                    DRAWN
                },
                ..Proposal::default()
            };
            works.push(Work {
                text: *text,
                at,
                end,
                most,
                proposal,
                is_over: false,
            });
        }
        works
    }

    /// As much of what is left to do as a step holds.
    fn pieces(&self, works: &[Work]) -> Vec<Piece> {
        let decoder = self.decoder();
        let mut budget = decoder.max_batched_tokens();
        let mut pieces = Vec::new();
        for (work, todo) in works.iter().enumerate() {
            let start = self.held.len(todo.text.id);
            let len = todo.left(start).min(budget);
            if len > 0 && pieces.len() < decoder.max_running() {
                budget -= len;
                pieces.push(Piece { work, start, len });
            }
        }
        pieces
    }

    /// Computes `pieces`, and draws the next token where nothing more of a text is left.
    fn step(&mut self, works: &mut [Work], pieces: &[Piece]) -> Result<()> {
        let mut batch = Batch {
            copies: &[],
            spans: Vec::with_capacity(pieces.len()),
            rows: Vec::new(),
            expected_seconds: None,
        };
        let draws = |piece: &Piece| works[piece.work].draws(piece.start + piece.len);
        for piece in pieces {
            let (work, position) = (&works[piece.work], piece.start + piece.len);
            let does_draw = draws(piece);
            batch.spans.push(Span {
                tokens: work.tokens(piece),
                first_position: piece.start,
                pages: self.held.tables(work.text.id),
                head_rows: match does_draw {
                    true => HeadRows::Last(1),
                    false => HeadRows::None,
                },
            });
            if does_draw {
                batch.rows.push(Row {
                    sampling: &self.greedy,
                    seed: 0,
                    window: &[],
                    position,
                    drafted: None,
                    logprobs: match work.text.sampling.is_greedy() {
                        true => 0,
                        false => MOST_CHOICES,
                    },
                });
            }
        }
        let mut drawn = self.runner.execute(&batch)?.into_iter();
        for piece in pieces {
            let (work, end) = (&mut works[piece.work], piece.start + piece.len);
            let id = work.text.id;
            let are_known = end <= work.text.tokens.len();
            self.held.advance(id, work.tokens(piece), are_known);
            if !work.draws(end) {
                continue;
            }
            match drawn.next().expect("a token for everyone who draws") {
                Some(drawn) => work.take(&drawn, self.vocab_size, self.draws),
                None => {
                    // no numbers: nothing of this draft is of use for this text
                    self.held.bar(id);
                    work.proposal = Proposal::default();
                    work.is_over = true;
                }
            }
        }
        Ok(())
    }
}

impl Work<'_> {
    /// Tokens that are left to compute before the next is drawn, `computed` being there.
    fn left(&self, computed: usize) -> usize {
        let proposed = self.proposal.tokens.len();
        if self.is_over || proposed >= self.most {
            return 0;
        }
        self.end + proposed - computed
    }

    /// Whether a token is drawn once so many are computed.
    fn draws(&self, computed: usize) -> bool {
        computed == self.text.tokens.len() + self.proposal.tokens.len()
    }

    /// Those of a piece, which are known or proposed, all of them.
    fn tokens(&self, piece: &Piece) -> &[u32] {
        let known = self.text.tokens.len();
        match piece.start.checked_sub(known) {
            None => &self.text.tokens[piece.start..piece.start + piece.len],
            Some(at) => &self.proposal.tokens[at..at + piece.len],
        }
    }

    /// The next token that is proposed: the likeliest, or one that is drawn.
    fn take(&mut self, drawn: &Sampled, vocab_size: usize, draws: DraftDraws) {
        let sampling = self.text.sampling;
        let position = self.text.tokens.len() + self.proposal.tokens.len();
        if sampling.is_greedy() {
            self.is_over = drawn.token as usize >= vocab_size;
            if !self.is_over {
                self.proposal.tokens.push(drawn.token);
            }
            return;
        }
        match choices(&drawn.top_logprobs, sampling, vocab_size) {
            Some(choices) => {
                let (seed, position) = (sampling.seed, position as u32);
                let drawn = match draws {
                    DraftDraws::Alike => draw_alike(&choices, seed, position),
                    DraftDraws::Apart => draw_from(&choices, seed, position),
                };
                self.proposal.tokens.push(choices[drawn].0);
                if draws == DraftDraws::Apart {
                    self.proposal.choices.push(choices);
                }
            }
            None => self.is_over = true,
        }
    }
}

impl Proposer for DraftModel {
    /// # Errors
    /// What the device reports; a device with a fault is opened again in the next call. Everything is computed
    /// anew then.
    fn propose(&mut self, texts: &[Text<'_>]) -> Result<Vec<Proposal>> {
        self.replace_faulty()?;
        let mut proposals = vec![Proposal::default(); texts.len()];
        let mut works = self.begin(texts);
        loop {
            let pieces = self.pieces(&works);
            if pieces.is_empty() {
                break;
            }
            if let Err(error) = self.step(&mut works, &pieces) {
                self.forget_all(); // nobody knows how far the step came
                return Err(error);
            }
        }
        for work in works {
            proposals[work.at] = work.proposal;
        }
        Ok(proposals)
    }

    fn end(&mut self, id: RequestId, _: &[u32], _: &[u8]) {
        self.held.release(id);
    }

    fn is_free(&self) -> bool {
        false
    }

    fn tells_choices(&self) -> bool {
        self.draws == DraftDraws::Apart
    }
}
