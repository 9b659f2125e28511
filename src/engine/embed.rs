//! A text as one vector: what the model's last layer makes of its tokens.
//!
//! ```text
//! h[t] = x[t] * w / sqrt(mean(x[t]^2) + eps)      x: the residual stream after the last layer, f32;
//!                                                 w, eps: those of the final norm
//! v    = mean over t of h[t], or h[last]
//! out  = v / |v|                                  zeros, where v is
//! ```
//!
//! The stream is read back from the device; the rest is f64 on the host, rounded to f32 in the end. The
//! text is computed in steps of its own, in pages of its own, which nobody finds afterwards.

use super::EngineCore;
use super::scheduler::MAX_LOSSES;
use crate::error::{Error, Result};
use crate::gpu::{DType, Gpu};
use crate::kv::{PagePool, Tables};
use crate::model::config::NormKind;
use crate::model::step::{HeadRows, Span};
use std::sync::Arc;

/// Tokens of a step while requests wait for theirs, or fewer where they shall not wait long.
const STEP_BESIDE_REQUESTS: usize = 64;

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The last one, which alone has seen them all.
    Last,
}

/// A text on its way. Its pages are its own until [`EngineCore::end_embedding`].
pub(super) struct Embedding {
    tokens: Vec<u32>,
    pooling: Pooling,
    pages: Tables,
    num_computed: usize,
    /// `[hidden_size]`, of the tokens that were computed.
    sum: Vec<f64>,
    /// `[hidden_size]`, the weight of the final norm.
    norm: Vec<f32>,
    norm_bias: Vec<f32>,
    /// What was computed lies there, and is gone with it; `None` before the first step.
    gpu: Option<Arc<Gpu>>,
    losses: usize,
}

impl Embedding {
    /// Whether it goes on after the device was lost under it once more.
    pub fn survives_loss(&mut self) -> bool {
        self.losses += 1;
        self.losses <= MAX_LOSSES
    }
}

impl EngineCore {
    /// The vector of `tokens`: `[hidden_size]`, of length 1. Equal tokens give equal bits, in however
    /// many steps, in canonical mode.
    ///
    /// # Errors
    /// [`Error::Request`] without tokens, with one outside of the vocabulary, and where requests in
    /// flight leave too few pages; [`Error::RequestTooLong`]; what the device reports.
    pub fn embed(&mut self, tokens: &[u32], pooling: Pooling) -> Result<Vec<f32>> {
        let mut work = self.begin_embedding(tokens.to_vec(), pooling)?;
        let result = loop {
            if let Some(result) = self.go_on_embedding(&mut work).transpose() {
                break result;
            }
        };
        self.end_embedding(work);
        result
    }

    /// Takes pages for all of it, or none and an error.
    pub(super) fn begin_embedding(
        &mut self,
        tokens: Vec<u32>,
        pooling: Pooling,
    ) -> Result<Embedding> {
        let config = self.decoder().config();
        let (hidden_size, vocab_size) = (config.hidden_size, config.vocab_size);
        if tokens.is_empty() {
            return Err(Error::request("input", "is empty: it has no token"));
        }
        if let Some(token) = tokens.iter().find(|&&t| t as usize >= vocab_size) {
            let problem = format!("token {token} is outside of the vocabulary of {vocab_size}");
            return Err(Error::request("input", problem));
        }
        if tokens.len() > self.servable_len() {
            return Err(Error::RequestTooLong {
                tokens: tokens.len(),
                limit: self.servable_len(),
            });
        }
        let mut pages = Tables::new();
        self.provide_embedding(&mut pages, 0, tokens.len())?;
        Ok(Embedding {
            tokens,
            pooling,
            pages,
            num_computed: 0,
            sum: vec![0.0; hidden_size],
            norm: Vec::new(),
            norm_bias: Vec::new(),
            gpu: None,
            losses: 0,
        })
    }

    /// Pages for the next step at least.
    fn provide_embedding(&mut self, pages: &mut Tables, computed: usize, len: usize) -> Result<()> {
        let all = self.scheduler.pages();
        if all.provide(pages, computed, len) {
            return Ok(());
        }
        // of the group that comes nearest to having none
        let lack = |(group, pool): (usize, &PagePool)| {
            let wanted = all.wanted(group, computed, len);
            let more = wanted.saturating_sub(pages[group].len());
            (more, pool.num_free() + pool.num_idle())
        };
        let lacks = all.pools().enumerate().map(lack);
        let (more, left) = lacks
            .min_by_key(|&(more, left)| left as i64 - more as i64)
            .expect("a model has layers");
        let problem = format!(
            "needs {more} pages of the cache, {left} are not in use: requests in flight have the others"
        );
        Err(Error::request("input", problem))
    }

    /// Computes the next tokens. The result, once these were the last.
    ///
    /// # Errors
    /// What the device reports.
    pub(super) fn go_on_embedding(&mut self, work: &mut Embedding) -> Result<Option<Vec<f32>>> {
        let gpu = self.decoder().gpu();
        if !work.gpu.as_ref().is_some_and(|own| Arc::ptr_eq(own, gpu)) {
            let weights = self.decoder().weights();
            work.norm = gpu.download_as(&weights.final_norm)?;
            work.norm_bias = match &weights.final_norm_bias {
                Some(bias) => gpu.download_as(bias)?,
                None => vec![0.0; work.norm.len()],
            };
            work.gpu = Some(Arc::clone(gpu));
            work.sum.fill(0.0);
            if std::mem::take(&mut work.num_computed) > 0 {
                // from the beginning again, of which a window has left nothing
                let mut pages = std::mem::take(&mut work.pages);
                self.scheduler.pages().release(&pages);
                pages.clear();
                let provided = self.provide_embedding(&mut pages, 0, work.tokens.len());
                work.pages = pages;
                provided?;
            }
        }
        let mut most = self.decoder().max_batched_tokens();
        if !self.is_idle() {
            most = most.min(STEP_BESIDE_REQUESTS);
        }
        let start = work.num_computed;
        most = self.pacer.beside(&self.scheduler, start, most);
        let end = work.tokens.len().min(start + most);
        let rows = self.hidden_rows(work, start, end)?;
        let config = self.decoder().config();
        let (eps, kind) = (f64::from(config.norm_eps), config.norm);
        for row in rows.chunks_exact(work.norm.len()) {
            let mean = match kind {
                NormKind::Rms => 0.0,
                NormKind::Layer => {
                    row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64
                }
            };
            let squares: f64 = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
            let scale = 1.0 / (squares / row.len() as f64 + eps).sqrt();
            let weights = work.norm.iter().zip(&work.norm_bias);
            for ((sum, &x), (&w, &b)) in work.sum.iter_mut().zip(row).zip(weights) {
                *sum += (f64::from(x) - mean) * scale * f64::from(w) + f64::from(b);
            }
        }
        work.num_computed = end;
        self.scheduler.pages().pass(&mut work.pages, end);
        // at once: nobody else gets what was just given back
        self.provide_embedding(&mut work.pages, end, work.tokens.len())?;
        if end < work.tokens.len() {
            return Ok(None);
        }
        // the mean is the sum but for its length
        unit(&work.sum).map(Some)
    }

    /// The residual stream after tokens `start..end`: all rows that count for the result, `[.., hidden_size]`.
    fn hidden_rows(&mut self, work: &Embedding, start: usize, end: usize) -> Result<Vec<f32>> {
        let span = Span {
            tokens: &work.tokens[start..end],
            first_position: start,
            pages: &work.pages,
            head_rows: HeadRows::None,
        };
        let decoder = self.runner.decoder_mut();
        let step = decoder.step(&[span]);
        decoder.record(&step)?;
        decoder.recorder().submit()?;
        let is_last = end == work.tokens.len();
        if work.pooling == Pooling::Last && !is_last {
            decoder.gpu().wait()?;
            return Ok(Vec::new());
        }
        let columns = work.norm.len();
        let hidden = decoder
            .hidden()
            .window(0, DType::F32, &[end - start, columns]);
        let mut rows: Vec<f32> = decoder.gpu().download_as(&hidden)?;
        if work.pooling == Pooling::Last {
            rows.drain(..(end - start - 1) * columns);
        }
        Ok(rows)
    }

    /// Gives the pages back.
    pub(super) fn end_embedding(&mut self, work: Embedding) {
        self.scheduler.pages().release(&work.pages);
    }
}

/// `v / |v|`.
fn unit(v: &[f64]) -> Result<Vec<f32>> {
    let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(Error::Device {
            message: "the model's hidden states are not numbers: its weights are damaged, or this \
                      adapter computes wrongly"
                .to_owned(),
        });
    }
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    Ok(v.iter().map(|x| (x * scale) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_one_or_are_nothing() {
        assert_eq!(unit(&[3.0, -4.0]).unwrap(), [0.6, -0.8]);
        assert_eq!(unit(&[0.0, 0.0]).unwrap(), [0.0, 0.0]);
        assert!(unit(&[1.0, f64::NAN]).is_err());
    }
}
