//! The forward pass: a step's spans through embedding, layers and head, recorded as dispatches.
//!
//! ```text
//! embed, L x [ norm + qkv + rope + KV write, attention (+ merge), o + residual,
//!              norm + gate/up + SwiGLU, down + residual ], (gather), norm + head
//! ```
//!
//! A norm is no dispatch: who writes the residual stream leaves it, times the norm's weight, as
//! activation records with sums of squares, and the matmul that reads them divides by the root.

use super::budget::{self, PoolSize};
use super::config::{Config, NormKind};
use super::layer_pass::LayerPass;
use super::layout::make_room;
use super::numerics::Numerics;
use super::origin::{Origin, Recipe};
use super::room::wanted_teams;
use super::rope::RopeTable;
use super::scratch::{Scratch, attention_shape, most_tokens};
use super::self_check::Safety;
use super::step::{Span, Step};
use super::submits;
use super::tune::Tuned;
use super::weights::ModelWeights;
use crate::error::{Error, Result};
use crate::gpu::{Coop, Gpu, Recorder, Tensor};
use crate::kernels::attention_plan::PlanLimits;
use crate::kernels::matmul::{self, Norm};
use crate::kernels::matmul_coop::MOST_CANONICAL_TOKENS;
use crate::kernels::matmul_output::Out;
use crate::kernels::{
    Tuning, add_positions, attention_coop, embedding, finish_logits, gather_rows,
};
use crate::kv::{KvCache, KvFormat, PageGroup};
use std::sync::Arc;

/// Sizes that are fixed when a model is loaded.
#[derive(Clone, Copy, Debug)]
pub struct DecoderOptions {
    /// The longest sequence, prompt and answer, in tokens.
    pub max_model_len: usize,
    /// Tokens a step may compute.
    pub max_batched_tokens: usize,
    /// Sequences that may run at a time.
    pub max_running: usize,
    /// Pages of the KV cache; where layers see a window they have as many at most.
    pub num_pages: usize,
    /// Where the device has less memory than was thought, the longest sequence may become as short as
    /// this, in tokens.
    pub least_model_len: usize,
    /// How keys and values are kept.
    pub kv_format: KvFormat,
    /// How kernels divide their work, and who chose it.
    pub tuned: Tuned,
    /// What multiplies long steps, in the fast mode alone; of the device that the model is on.
    pub coop: Option<Coop>,
}

impl DecoderOptions {
    /// The same with another context and another number of pages.
    pub fn with_pool(self, size: PoolSize) -> DecoderOptions {
        DecoderOptions {
            max_model_len: size.context,
            num_pages: size.pages,
            max_batched_tokens: self.max_batched_tokens.min(size.context),
            ..self
        }
    }
}

/// A model on the device, with its KV cache and everything a step needs.
pub struct Decoder {
    pub(super) config: Config,
    pub(super) options: DecoderOptions,
    origin: Arc<Origin>,
    weights: ModelWeights,
    pub(super) kv: KvCache,
    pub(super) scratch: Scratch,
    /// By rotary embedding.
    rope_tables: Vec<RopeTable>,
    pub(super) safety: Arc<Safety>,
    pub(super) recorder: Recorder,
}

impl Decoder {
    /// Room for steps and the KV cache, beside weights that are there already.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::DoesNotFit`] naming what.
    pub fn new(
        gpu: &Arc<Gpu>,
        config: Config,
        weights: ModelWeights,
        options: DecoderOptions,
        origin: &Arc<Origin>,
    ) -> Result<Decoder> {
        let options = DecoderOptions {
            max_batched_tokens: options.max_batched_tokens.min(most_tokens(
                gpu.max_binding_bytes(),
                &config,
                &options,
            )?),
            ..options
        };
        let size = PoolSize {
            context: options.max_model_len,
            pages: options.num_pages,
        };
        let (options, kv, scratch) =
            budget::until_it_fits(size, options.least_model_len, |size| {
                let options = options.with_pool(size);
                let made = make_room(gpu, &config, &options);
                if matches!(made, Err(Error::OutOfMemory { .. })) {
                    gpu.wait()?; // what was made before is given back only now
                }
                made.map(|(kv, scratch)| (options, kv, scratch))
            })?;
        let config = config.for_context(options.max_model_len);
        let ropes = config.ropes.iter();
        let rope_tables = ropes.map(|rope| RopeTable::new(rope, config.head_dim));
        let rope_tables = rope_tables.collect();
        let recorder = Recorder::new(gpu)?;
        Ok(Decoder {
            config,
            options,
            origin: Arc::clone(origin),
            weights,
            kv,
            scratch,
            rope_tables,
            safety: Arc::default(),
            recorder,
        })
    }

    /// How to make it again when its device is lost.
    pub fn recipe(&self) -> Recipe {
        Recipe {
            origin: Arc::clone(&self.origin),
            sizes: self.options,
            open: self.gpu().options().clone(),
            report: self.gpu().report().clone(),
            safety: Arc::clone(&self.safety),
        }
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The KV cache.
    pub fn kv(&self) -> &KvCache {
        &self.kv
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.recorder.gpu()
    }

    /// The weights.
    pub fn weights(&self) -> &ModelWeights {
        &self.weights
    }

    /// Choices that are part of the numerics.
    pub fn tuning(&self) -> &Tuning {
        &self.options.tuned.tuning
    }

    /// The same, with where they come from.
    pub fn tuned(&self) -> &Tuned {
        &self.options.tuned
    }

    /// Which rules results keep.
    pub fn numerics(&self) -> Numerics {
        match self.options.coop {
            None => Numerics::Canonical,
            Some(_) => Numerics::Fast,
        }
    }

    /// The longest sequence, in tokens.
    pub fn max_model_len(&self) -> usize {
        self.options.max_model_len
    }

    /// Tokens a step may compute.
    pub fn max_batched_tokens(&self) -> usize {
        self.options.max_batched_tokens
    }

    /// Rows of logits a step can have.
    pub fn max_head_rows(&self) -> usize {
        self.scratch.logits.shape()[0]
    }

    /// Rows of logits of a step that verifies proposed tokens: where long steps are computed by other matrices
    /// no more than are computed as single tokens are, so that proposals change no number.
    pub fn most_verified_rows(&self) -> usize {
        match self.options.coop {
            Some(_) => self.max_head_rows().min(MOST_CANONICAL_TOKENS),
            None => self.max_head_rows(),
        }
    }

    /// Sequences that a step can hold: each may need a row of logits, a token, and a page table.
    pub fn max_running(&self) -> usize {
        let most = self.options.max_running.min(self.max_head_rows());
        most.min(self.max_batched_tokens())
    }

    /// Bytes of activations and metadata.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch.all().map(|t| t.size_bytes()).sum()
    }

    /// A step's metadata for `spans`; callers may append sections of their own before it is recorded.
    pub fn step(&self, spans: &[Span]) -> Step {
        let shape = attention_shape(&self.config);
        let num_tokens = spans.iter().map(|span| span.tokens.len()).sum();
        let tiling = match coop_of(&self.options, num_tokens) {
            Some(_) => attention_coop::tiling(&shape),
            None => shape.tiling(),
        };
        let limits = |group: &PageGroup| PlanLimits {
            geometry: group.geometry,
            tiling,
            wanted_teams: wanted_teams(self.gpu().is_software()),
            partial_slots: self.scratch.partials.shape()[0],
        };
        let groups = self.kv.groups().iter();
        let groups: Vec<_> = groups.map(|group| (group.window, limits(group))).collect();
        let with_positions = self.config.learned_positions;
        Step::new(spans, &self.rope_tables, &groups, with_positions)
    }

    /// Records the forward pass of `step`. Afterwards the first `step.head_rows` rows of
    /// [`Decoder::logits`] are the logits of its head rows. Long steps are submitted in parts.
    ///
    /// # Errors
    /// [`Error::Request`] when the metadata does not fit; what the device reports.
    ///
    /// # Panics
    /// When the step has more tokens or head rows than there is room for.
    pub fn record(&mut self, step: &Step) -> Result<()> {
        assert!(
            step.num_tokens <= self.max_batched_tokens(),
            "{} tokens in a step",
            step.num_tokens
        );
        assert!(
            step.head_rows <= self.max_head_rows(),
            "{} rows of logits in a step",
            step.head_rows
        );
        let room = self.scratch.meta.shape()[0];
        if step.words.len() > room {
            let problem = format!(
                "the step's metadata has {} words, {room} fit",
                step.words.len()
            );
            return Err(Error::request("batch", problem));
        }
        let Decoder {
            config,
            options,
            weights,
            kv,
            scratch: s,
            recorder: rec,
            ..
        } = self;
        let (n, tuning) = (step.num_tokens, &options.tuned.tuning);
        rec.write(&s.meta, bytemuck::cast_slice(&step.words));

        rec.at(None, "embedding");
        let gamma = weights.first_norm();
        let table = &weights.embedding;
        embedding::record(
            rec,
            tuning,
            table,
            &s.meta,
            step.ids_at,
            n,
            config.embedding_scale,
            &s.hidden,
            gamma,
            &s.act,
        );
        if let (Some(table), Some(at)) = (&weights.positions, step.positions_at) {
            add_positions::record(rec, table, &s.meta, at, n, &s.hidden);
        }
        let mut pass = LayerPass {
            rec,
            config,
            tuning,
            coop: coop_of(options, n),
            shape: attention_shape(config),
            step,
            s,
        };
        let layers_per_submit = submits::layers_per_submit(config.num_layers, step);
        for (index, layer) in weights.layers.iter().enumerate() {
            let next_norm = weights.norm_after(index);
            pass.rec.at(Some(index), "");
            pass.record(index, layer, kv.group_of(index), kv.layer(index), next_norm);
            if (index + 1) % layers_per_submit == 0 && index + 1 < config.num_layers {
                pass.rec.submit()?;
            }
        }
        pass.rec.at(None, "head");
        if step.head_rows > 0 {
            pass.normalise(&weights.final_norm, weights.final_norm_bias.as_ref());
            // where every token gets logits its rows are in order already
            let act = if step.head_in_order {
                &s.act
            } else {
                let (at, rows) = (step.head_rows_at, step.head_rows);
                gather_rows::record(rec, &s.act, &s.meta, at, rows, &s.act_head);
                &s.act_head
            };
            let (head, out) = (weights.head(), Out::Store { y: &s.logits });
            let rows = step.head_rows;
            // without norms before, the last one is before the head all the same
            let norm = (config.norm == NormKind::Rms).then_some(Norm {
                eps: config.norm_eps,
            });
            matmul::record(rec, tuning, head, act, rows, norm, None, out);
            if config.finishes_logits() {
                let (scale, cap) = (config.logit_scale, config.logit_cap);
                finish_logits::record(rec, &s.logits, rows, scale, cap);
            }
        }
        Ok(())
    }

    /// `[max_head_rows, vocab_size]`.
    pub fn logits(&self) -> &Tensor {
        &self.scratch.logits
    }

    /// The residual stream after the last layer, before the final norm: `[max_batched_tokens,
    /// hidden_size]` f32, a row for each token of the step.
    pub fn hidden(&self) -> &Tensor {
        &self.scratch.hidden
    }

    /// The step's metadata on the device.
    pub fn meta(&self) -> &Tensor {
        &self.scratch.meta
    }

    /// For those who record what follows the forward pass.
    pub fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }
}

/// The matrices that a step of `num_tokens` is computed by; none where it is short.
fn coop_of(options: &DecoderOptions, num_tokens: usize) -> Option<Coop> {
    options.coop.filter(|_| num_tokens > MOST_CANONICAL_TOKENS)
}
