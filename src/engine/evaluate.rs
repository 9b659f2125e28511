//! Logits of given texts: for perplexity, comparisons and tests, beside the queue of requests.

use super::EngineCore;
use crate::error::{Error, Result};
use crate::kv::Tables;
use crate::model::step::{HeadRows, Span};

impl EngineCore {
    /// Feeds `tokens` in steps of at most `chunk` and calls `each(position, logits)` for the
    /// positions `from..`, in order; the logits at a position are those of the token after it.
    ///
    /// # Errors
    /// [`Error::RequestTooLong`] when they do not fit the context, [`Error::Request`] while requests
    /// are in flight, and what the device reports.
    pub fn evaluate(
        &mut self,
        tokens: &[u32],
        chunk: usize,
        from: usize,
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        if tokens.len() > self.servable_len() {
            return Err(Error::RequestTooLong {
                tokens: tokens.len(),
                limit: self.servable_len(),
            });
        }
        if !self.is_idle() {
            return Err(Error::request("evaluate", "requests are in flight"));
        }
        let mut pages = Tables::new();
        let result = self.feed(tokens, &mut pages, chunk, from, &mut each);
        self.scheduler.pages().release(&pages);
        result
    }

    fn feed(
        &mut self,
        tokens: &[u32],
        pages: &mut Tables,
        chunk: usize,
        from: usize,
        each: &mut impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let (max_tokens, max_rows) = (
            self.decoder().max_batched_tokens(),
            self.decoder().max_head_rows(),
        );
        let mut start = 0;
        while start < tokens.len() {
            // positions before `from` need no logits, so they are not bound by how many rows there are
            let wanted = if start < from {
                (from - start).min(max_tokens)
            } else {
                max_rows.min(max_tokens)
            };
            let len = chunk.min(wanted).min(tokens.len() - start);
            let head_rows = if start < from {
                HeadRows::None
            } else {
                HeadRows::All
            };
            let grown = self.scheduler.pages().provide(pages, start, tokens.len());
            assert!(grown, "an idle pool holds any sequence of servable length");
            let span = Span {
                tokens: &tokens[start..start + len],
                first_position: start,
                pages,
                head_rows,
            };
            let logits = self.runner.logits(&[span])?;
            for (row, logits) in logits
                .chunks(self.decoder().config().vocab_size)
                .enumerate()
            {
                each(start + row, logits);
            }
            start += len;
            self.scheduler.pages().pass(pages, start);
        }
        Ok(())
    }
}
