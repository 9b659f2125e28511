//! A sequence that is fed by hand, beside the queue of requests: what benches time.
//!
//! The steps are those that requests get: the same batches through the same runner, the token drawn
//! on the device and read back. What is left out is the queue, which costs microseconds. A trial can
//! be taken back to an earlier length, so that a context is computed once and gone on from often.

use super::EngineCore;
use super::batch::{Batch, Row};
use super::request::{Failure, Sampling};
use crate::error::{Error, Result};
use crate::gpu::Profile;
use crate::kv::{GONE, SPLIT_SIZE, Tables, pages_gone};
use crate::model::step::{HeadRows, Span};

/// Tokens whose keys and values are in the cache, and pages for more. Ends when dropped.
pub struct Trial<'a> {
    engine: &'a mut EngineCore,
    pages: Tables,
    /// What was fed.
    tokens: Vec<u32>,
    /// Tokens there are room for.
    room: usize,
}

impl EngineCore {
    /// An empty sequence with room for `room` tokens.
    ///
    /// # Errors
    /// [`Error::RequestTooLong`] when the context does not hold them, [`Error::Request`] while
    /// requests are in flight.
    pub fn trial(&mut self, room: usize) -> Result<Trial<'_>> {
        if room > self.servable_len() {
            return Err(Error::RequestTooLong {
                tokens: room,
                limit: self.servable_len(),
            });
        }
        if !self.is_idle() {
            return Err(Error::request("trial", "requests are in flight"));
        }
        let pages = vec![Vec::new(); self.decoder().kv().groups().len()];
        Ok(Trial {
            engine: self,
            pages,
            tokens: Vec::new(),
            room,
        })
    }
}

impl Trial<'_> {
    /// Tokens fed so far.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Forgets all tokens from `len` on. Where layers see a window and what it held there is gone, the
    /// tokens before are computed again.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn rewind(&mut self, len: usize) -> Result<()> {
        assert!(len <= self.len(), "{len} of {} tokens", self.len());
        let windows = self.engine.scheduler.pages().windows();
        let sees_gone = |(window, table): (Option<usize>, &Vec<_>)| {
            table.get(pages_gone(len, window)) == Some(&GONE)
        };
        if !windows.zip(&self.pages).any(sees_gone) {
            self.tokens.truncate(len);
            return Ok(());
        }
        self.engine.scheduler.pages().release(&self.pages);
        self.pages.iter_mut().for_each(Vec::clear);
        let tokens = std::mem::take(&mut self.tokens);
        match &tokens[..len] {
            [] => Ok(()),
            tokens => self.feed(tokens).map(|_| ()),
        }
    }

    /// Computes `tokens` in as few steps as a request would, and returns the likeliest token after
    /// the last one.
    ///
    /// # Errors
    /// What the device reports.
    ///
    /// # Panics
    /// Without tokens, and when they do not fit.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<u32> {
        let room = self.room - self.len();
        assert!(
            (1..=room).contains(&tokens.len()),
            "{} tokens, room for {room}",
            tokens.len()
        );
        let end = self.len() + tokens.len();
        let greedy = Sampling::default();
        let longest = self.engine.decoder().max_batched_tokens();
        let mut drawn = None;
        for chunk in tokens.chunks(longest) {
            self.recorder().mark_step();
            let start = self.len();
            let is_last = start + chunk.len() == end;
            self.make_room(start, start + chunk.len());
            let span = Span {
                tokens: chunk,
                first_position: start,
                pages: &self.pages,
                head_rows: if is_last {
                    HeadRows::Last(1)
                } else {
                    HeadRows::None
                },
            };
            let row = Row {
                sampling: &greedy,
                seed: 0,
                window: &[],
                position: end,
                drafted: None,
                logprobs: 0,
            };
            let batch = Batch {
                copies: &[],
                spans: vec![span],
                rows: is_last.then_some(row).into_iter().collect(),
                expected_seconds: None,
            };
            drawn = self.engine.runner.execute(&batch)?.pop();
            self.tokens.extend(chunk);
        }
        let drawn = drawn.expect("the last step draws a token");
        drawn
            .map(|drawn| drawn.token)
            .ok_or_else(|| Failure::NotNumbers.into())
    }

    /// Pages for tokens `start..end`. What lies behind windows is kept as long as there is room, for those who
    /// go back. A split is begun with all the pages that it will have: one that is begun in what is left of a
    /// slab might find no more of them there when others are given back.
    fn make_room(&mut self, start: usize, end: usize) {
        let whole = end.next_multiple_of(SPLIT_SIZE).min(self.room);
        let all = self.engine.scheduler.pages();
        let mut copies = Vec::new();
        if all
            .reserve(&mut self.pages, start, whole, &mut copies)
            .is_err()
        {
            all.pass(&mut self.pages, start);
            let grown = all.reserve(&mut self.pages, start, whole, &mut copies);
            assert_eq!(
                grown,
                Ok(()),
                "an idle pool holds any sequence of servable length"
            );
        }
        assert!(copies.is_empty(), "nobody else has these pages");
    }

    /// Where the time of `work` goes, by kernel. It takes longer than it would unwatched.
    ///
    /// # Errors
    /// What `work` and the device report.
    pub fn profile(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<Profile> {
        self.recorder().start_profile()?;
        let done = work(self);
        let profile = self.recorder().take_profile()?;
        done?;
        Ok(profile.expect("started above"))
    }

    fn recorder(&mut self) -> &mut crate::gpu::Recorder {
        self.engine.runner.decoder_mut().recorder()
    }
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.engine.scheduler.pages().release(&self.pages);
    }
}
