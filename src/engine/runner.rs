//! One step on the device: forward pass, sampling, and the read-back of a few token ids.

use super::batch::{Batch, Row};
use super::drawing::{SamplingPlan, draw, top_logprobs};
use super::request::{Failure, Sampling};
use super::scheduler::Sampled;
use crate::error::Result;
use crate::gpu::{DType, Readback, Tensor};
use crate::kernels::argmax;
use crate::kernels::sample::Drafted;
use crate::model::Decoder;
use crate::model::step::{HeadRows, Span};
use crate::model::warm::warm_up;
use std::sync::Arc;

/// A decoder and what it takes to draw tokens from its logits. Everything is allocated up front.
pub struct Runner {
    decoder: Decoder,
    ids: Tensor,
    argmax_scratch: Tensor,
    ids_readback: Readback,
    logits_readback: Option<Readback>,
}

impl Runner {
    /// Room for the decoder's head rows.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub fn new(decoder: Decoder) -> Result<Runner> {
        let (gpu, rows) = (decoder.gpu(), decoder.max_head_rows());
        let scratch_words = argmax::scratch_words(rows, decoder.config().vocab_size);
        let ids = gpu.tensor("token ids", DType::U32, &[rows])?;
        let argmax_scratch = gpu.tensor("argmax candidates", DType::U32, &[scratch_words])?;
        let ids_readback = Readback::new(gpu, ids.size_bytes())?;
        Ok(Runner {
            ids,
            argmax_scratch,
            ids_readback,
            logits_readback: None,
            decoder,
        })
    }

    /// The same, warmed up.
    ///
    /// # Errors
    /// As [`Runner::new`] and [`Runner::warm_up`].
    pub fn warm(decoder: Decoder) -> Result<Runner> {
        let gpu = Arc::clone(decoder.gpu());
        let mut runner = Runner::compiled(decoder)?;
        gpu.count_as_compilation(|| runner.first_token())?;
        Ok(runner)
    }

    /// [`Runner::warm`], whatever the model computes.
    ///
    /// # Errors
    /// As [`Runner::new`], and what the device reports.
    pub(super) fn compiled(decoder: Decoder) -> Result<Runner> {
        let gpu = Arc::clone(decoder.gpu());
        let mut runner = Runner::new(decoder)?;
        gpu.count_as_compilation(|| runner.compile())?;
        gpu.save_pipelines();
        Ok(runner)
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The decoder, for its recorder.
    pub(super) fn decoder_mut(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// Bytes on the device beside weights, cache and activations: parameters, token ids, what
    /// drawing needs, and what results are read back from.
    pub fn size_bytes(&mut self) -> u64 {
        let readbacks = [Some(&self.ids_readback), self.logits_readback.as_ref()];
        let readbacks: u64 = readbacks
            .into_iter()
            .flatten()
            .map(Readback::size_bytes)
            .sum();
        let tensors = self.ids.size_bytes() + self.argmax_scratch.size_bytes();
        readbacks + tensors + self.decoder.recorder().size_bytes()
    }

    /// Compiles what the first steps need, the kernels that draw tokens included, so that nothing is
    /// left to the first request. What loading has compiled already is not touched again. Then a
    /// token is computed: a model that computes no numbers is refused here, not at the first request.
    /// Its keys and values go to the first page, which nobody owns yet.
    ///
    /// # Errors
    /// What the device reports, or [`crate::Error::Device`] for such a model.
    pub fn warm_up(&mut self) -> Result<()> {
        self.compile()?;
        self.first_token()
    }

    /// Compiles what a step dispatches beside that where proposals are accepted by rejection sampling.
    ///
    /// # Errors
    /// What the device reports.
    pub(super) fn compile_rejection(&mut self) -> Result<()> {
        let gpu = Arc::clone(self.decoder.gpu());
        let drafted = Drafted {
            token: 0,
            choices: vec![(0, 1.0)],
        };
        gpu.count_as_compilation(|| self.compile_rows(&drawn(), Some(&drafted)))?;
        gpu.save_pipelines();
        Ok(())
    }

    fn compile(&mut self) -> Result<()> {
        self.compile_rows(&Sampling::default(), None)?;
        self.compile_rows(&drawn(), None)
    }

    /// Compiles what steps dispatch whose tokens are drawn by `sampling`, and were `drafted`.
    fn compile_rows(&mut self, sampling: &Sampling, drafted: Option<&Drafted>) -> Result<()> {
        let Runner {
            decoder,
            ids,
            argmax_scratch,
            ..
        } = self;
        warm_up(decoder, |decoder, mut step| {
            let row = Row {
                sampling,
                seed: 0,
                window: &[],
                position: step.num_tokens,
                drafted: drafted.cloned(),
                logprobs: 0,
            };
            let vocab_size = decoder.config().vocab_size;
            let plan = SamplingPlan::new(&[row], &mut step, vocab_size);
            decoder.record(&step)?;
            draw(decoder, &plan, 1, argmax_scratch, ids);
            Ok(())
        })
    }

    fn first_token(&mut self) -> Result<()> {
        let pages = vec![vec![0]; self.decoder.kv().groups().len()];
        let span = Span {
            tokens: &[0],
            first_position: 0,
            pages: &pages,
            head_rows: HeadRows::Last(1),
        };
        let row = Row {
            sampling: &Sampling::default(),
            seed: 0,
            window: &[],
            position: 1,
            drafted: None,
            logprobs: 0,
        };
        let batch = Batch {
            copies: &[],
            spans: vec![span],
            rows: vec![row],
            expected_seconds: None,
        };
        match self.execute(&batch)?[..] {
            [None] => Err(Failure::NotNumbers.into()),
            _ => Ok(()),
        }
    }

    /// Computes a batch and draws a token for each of its rows: one submit unless the step is long,
    /// and only ids come back unless log-probabilities are asked for. `None` where the logits are not
    /// numbers.
    ///
    /// # Errors
    /// What the device reports.
    pub fn execute(&mut self, batch: &Batch) -> Result<Vec<Option<Sampled>>> {
        let mut step = self.decoder.step(&batch.spans);
        assert_eq!(
            step.head_rows,
            batch.rows.len(),
            "a row of logits for each token that is drawn"
        );
        step.expected_seconds = batch.expected_seconds;
        let vocab_size = self.decoder.config().vocab_size;
        let plan = SamplingPlan::new(&batch.rows, &mut step, vocab_size);
        for &copy in batch.copies {
            self.decoder.copy_page(copy);
        }
        self.decoder.record(&step)?;
        if batch.rows.is_empty() {
            self.decoder.recorder().submit()?;
            // the next step waits for this one anyway: waiting here bounds what is in flight
            self.decoder.gpu().wait()?;
            return Ok(Vec::new());
        }
        let wants_logits = batch.rows.iter().any(|row| row.logprobs > 0);
        if wants_logits {
            self.copy_logits(batch.rows.len())?; // before penalties touch them
        }
        let num_rows = batch.rows.len();
        let (scratch, ids) = (&self.argmax_scratch, &self.ids);
        draw(&mut self.decoder, &plan, num_rows, scratch, ids);
        let recorder = self.decoder.recorder();
        recorder.read_back(ids, &self.ids_readback);
        recorder.submit()?;
        let ids = self.ids_readback.wait(self.decoder.gpu(), |bytes| {
            bytemuck::pod_collect_to_vec::<u8, u32>(&bytes[..4 * num_rows])
        })?;
        let logits = if wants_logits {
            self.copied_logits(num_rows)?
        } else {
            Vec::new()
        };
        let not_numbers = if ids.contains(&0) {
            self.rows_of_nan(&ids)?
        } else {
            vec![false; num_rows]
        };
        let sampled = ids
            .into_iter()
            .zip(&batch.rows)
            .enumerate()
            .map(|(i, (token, row))| {
                let top_logprobs = match row.logprobs {
                    _ if not_numbers[i] => return None,
                    0 => Vec::new(),
                    count => top_logprobs(&logits[i * vocab_size..(i + 1) * vocab_size], count),
                };
                Some(Sampled {
                    token,
                    top_logprobs,
                })
            });
        Ok(sampled.collect())
    }

    /// A row of nothing but NaN draws id 0: where that id was drawn, its logits are looked at.
    fn rows_of_nan(&mut self, ids: &[u32]) -> Result<Vec<bool>> {
        self.copy_logits(ids.len())?;
        self.decoder.recorder().submit()?;
        let logits = self.copied_logits(ids.len())?;
        let rows = logits.chunks(self.decoder.config().vocab_size).zip(ids);
        Ok(rows.map(|(row, id)| *id == 0 && row[0].is_nan()).collect())
    }

    /// The logits of all head rows of `spans`, one row after another; empty when there are none.
    ///
    /// # Errors
    /// What the device reports.
    pub fn logits(&mut self, spans: &[Span]) -> Result<Vec<f32>> {
        let step = self.decoder.step(spans);
        self.decoder.record(&step)?;
        if step.head_rows == 0 {
            self.decoder.recorder().submit()?;
            self.decoder.gpu().wait()?;
            return Ok(Vec::new());
        }
        self.copy_logits(step.head_rows)?;
        self.decoder.recorder().submit()?;
        self.copied_logits(step.head_rows)
    }

    /// Only the rows that there are: the tensor has room for many.
    fn copy_logits(&mut self, num_rows: usize) -> Result<()> {
        let logits = self.decoder.logits().clone();
        if self.logits_readback.is_none() {
            self.logits_readback = Some(Readback::new(self.decoder.gpu(), logits.size_bytes())?);
        }
        let readback = self.logits_readback.as_ref().expect("made above");
        let rows = logits.window(0, DType::F32, &[num_rows, logits.shape()[1]]);
        self.decoder.recorder().read_back(&rows, readback);
        Ok(())
    }

    fn copied_logits(&self, num_rows: usize) -> Result<Vec<f32>> {
        let readback = self.logits_readback.as_ref().expect("a copy was recorded");
        let bytes = num_rows * self.decoder.config().vocab_size * 4;
        readback.wait(self.decoder.gpu(), |all| {
            bytemuck::pod_collect_to_vec(&all[..bytes])
        })
    }
}

/// Draws at all.
fn drawn() -> Sampling {
    Sampling {
        temperature: 1.0,
        ..Sampling::default()
    }
}
