//! The forward pass: a step's spans through embedding, layers and head, recorded as dispatches.
//!
//! ```text
//! embed, L x [ norm, qkv, rope + KV write, attention (+ merge), o + residual,
//!              norm, gate/up + SwiGLU, down + residual ], gather, norm, head
//! ```

use super::config::Config;
use super::rope::RopeTable;
use super::scratch::{Scratch, attention_shape, most_tokens};
use super::step::{AttentionRound, Span, Step};
use super::weights::{LayerWeights, ModelWeights};
use crate::error::{Error, Result};
use crate::gpu::{Gpu, Recorder, Tensor};
use crate::kernels::attention::{self, AttentionShape};
use crate::kernels::attention_output::Output;
use crate::kernels::attention_plan::PlanLimits;
use crate::kernels::matmul::{self, Epilogue};
use crate::kernels::{Tuning, attention_merge, embedding, gather_rows, rms_norm, rope};
use crate::kv::{KvCache, KvFormat, KvSlab, pages_for};
use std::sync::Arc;

/// Steps of more tokens than this are submitted in parts, so that no submit holds the device long.
const WHOLE_SUBMIT_TOKENS: usize = 64;
/// Layers of a part.
const LAYERS_PER_SUBMIT: usize = 4;

/// Sizes that are fixed when a model is loaded.
#[derive(Clone, Copy, Debug)]
pub struct DecoderOptions {
    /// The longest sequence, prompt and answer, in tokens.
    pub max_model_len: usize,
    /// Tokens a step may compute.
    pub max_batched_tokens: usize,
    /// How keys and values are kept.
    pub kv_format: KvFormat,
    /// Choices that are part of the numerics.
    pub tuning: Tuning,
}

/// A model on the device, with its KV cache and everything a step needs.
pub struct Decoder {
    config: Config,
    options: DecoderOptions,
    weights: ModelWeights,
    kv: KvCache,
    scratch: Scratch,
    rope_table: RopeTable,
    recorder: Recorder,
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
    ) -> Result<Decoder> {
        let options = DecoderOptions {
            max_batched_tokens: options.max_batched_tokens.min(most_tokens(gpu, &config)?),
            ..options
        };
        let scratch = Scratch::new(gpu, &config, &options)?;
        let kv = KvCache::allocate(
            gpu,
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            options.kv_format,
            pages_for(options.max_model_len),
        )?;
        let rope_table = RopeTable::new(&config.rope, config.head_dim);
        let recorder = Recorder::new(gpu)?;
        Ok(Decoder {
            config,
            options,
            weights,
            kv,
            scratch,
            rope_table,
            recorder,
        })
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
        &self.options.tuning
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

    /// Bytes of activations and metadata.
    pub fn scratch_bytes(&self) -> u64 {
        self.scratch.all().iter().map(|t| t.size_bytes()).sum()
    }

    /// A step's metadata for `spans`; callers may append sections of their own before it is recorded.
    pub fn step(&self, spans: &[Span]) -> Step {
        let shape = attention_shape(&self.config);
        let limits = PlanLimits {
            geometry: self.kv.geometry(),
            tile_tokens: shape.tile_tokens(),
            item_teams: shape.item_teams(),
            wanted_teams: if self.gpu().is_software() { 4 } else { 2048 },
            partial_slots: self.scratch.partials.shape()[0],
        };
        Step::new(spans, &self.rope_table, &limits)
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
        let (n, tuning, eps) = (step.num_tokens, &options.tuning, config.rms_norm_eps);
        let shape = attention_shape(config);
        rec.write(&s.meta, bytemuck::cast_slice(&step.words));

        embedding::record(rec, &weights.embedding, &s.meta, step.ids_at, n, &s.hidden);
        for (index, layer) in weights.layers.iter().enumerate() {
            record_layer(rec, tuning, eps, &shape, layer, kv.layer(index), step, s);
            if n > WHOLE_SUBMIT_TOKENS && (index + 1) % LAYERS_PER_SUBMIT == 0 {
                rec.submit()?;
            }
        }
        if step.head_rows > 0 {
            gather_rows::record(
                rec,
                &s.hidden,
                &s.meta,
                step.head_rows_at,
                step.head_rows,
                &s.head_hidden,
            );
            rms_norm::record(
                rec,
                &s.head_hidden,
                &weights.final_norm,
                eps,
                step.head_rows,
                &s.head_normed,
            );
            let head = weights.head();
            matmul::record(
                rec,
                tuning,
                head,
                &s.head_normed,
                step.head_rows,
                Epilogue::Store,
                &s.logits,
            );
        }
        Ok(())
    }

    /// `[max_head_rows, vocab_size]`.
    pub fn logits(&self) -> &Tensor {
        &self.scratch.logits
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

#[expect(
    clippy::too_many_arguments,
    reason = "a layer reads the whole state of a step"
)]
fn record_layer(
    rec: &mut Recorder,
    tuning: &Tuning,
    eps: f32,
    shape: &AttentionShape,
    layer: &LayerWeights,
    slabs: &[KvSlab],
    step: &Step,
    s: &Scratch,
) {
    let n = step.num_tokens;
    rms_norm::record(rec, &s.hidden, &layer.attn_norm, eps, n, &s.normed);
    matmul::record(
        rec,
        tuning,
        &layer.qkv,
        &s.normed,
        n,
        Epilogue::Store,
        &s.qkv,
    );
    rope::record(rec, slabs, &s.qkv, n, &s.meta, step.rope_rows, &s.q);
    for round in &step.attention {
        record_attention(rec, tuning, shape, slabs, round, s);
    }
    matmul::record(
        rec,
        tuning,
        &layer.o,
        &s.attended,
        n,
        Epilogue::Add,
        &s.hidden,
    );

    rms_norm::record(rec, &s.hidden, &layer.mlp_norm, eps, n, &s.normed);
    matmul::record(
        rec,
        tuning,
        &layer.gate_up,
        &s.normed,
        n,
        Epilogue::SwiGlu,
        &s.gated,
    );
    matmul::record(
        rec,
        tuning,
        &layer.down,
        &s.gated,
        n,
        Epilogue::Add,
        &s.hidden,
    );
}

fn record_attention(
    rec: &mut Recorder,
    tuning: &Tuning,
    shape: &AttentionShape,
    slabs: &[KvSlab],
    round: &AttentionRound,
    s: &Scratch,
) {
    for (slab, &items) in slabs.iter().zip(&round.slabs) {
        attention::record(
            rec,
            tuning,
            shape,
            slab,
            &s.q,
            &s.meta,
            items,
            &s.partials,
            Output::Rows,
            &s.attended,
        );
    }
    attention_merge::record(
        rec,
        tuning,
        shape,
        &s.meta,
        round.merge_at,
        round.merge_rows,
        &s.partials,
        Output::Rows,
        &s.attended,
    );
}
