//! Everything a step writes beside the KV cache: sized by what the model and the adapter allow, counted
//! before anything is allocated, and then allocated once.

use super::config::Config;
use super::decoder::DecoderOptions;
use super::step::PROPOSAL_WORDS;
use crate::error::{Error, Result};
use crate::gpu::{DType, Gpu, Tensor};
use crate::kernels::attention::AttentionShape;
use crate::kernels::attention_output::Output;
use crate::kernels::attention_plan::splits_for;
use crate::kernels::{argmax, halve};
use crate::kv::{PAGE_SIZE, pages_for};

/// Rows of logits a step can have at most; fewer where the binding limit asks for it.
pub(super) const MAX_HEAD_ROWS: usize = 64;

/// Words of metadata beside those that grow with tokens and context: sampling, items, and the biases of
/// as many requests as there can be rows of logits, of which a request may have a few hundred.
const SPARE_META_WORDS: usize = 96 * 1024;

/// Room for the parameters of a step's dispatches, token ids and what these are read back from.
const PARAMETER_BYTES: u64 = 2 << 20;

/// A tensor that is to be.
pub(super) struct Spec {
    label: &'static str,
    dtype: DType,
    dims: Vec<usize>,
}

/// One buffer for each activation: a shared one would put a barrier between any two dispatches.
/// First as specifications, then as tensors.
pub(super) struct Scratch<T = Tensor> {
    pub meta: T,
    /// The residual stream, f32.
    pub hidden: T,
    /// Its records, times the weight of the norm that follows.
    pub act: T,
    /// Queries, keys and values before rotation, where the cache has several slabs or they are normalised.
    pub qkv: Option<T>,
    /// What is normalised before it is added to the residual stream, f32.
    pub added: Option<T>,
    pub q: T,
    /// The result of attention as f32, where a head's dims do not fill records.
    pub attended: Option<T>,
    /// Its records.
    pub act_attended: T,
    pub partials: T,
    /// Records of the gated MLP.
    pub act_gated: T,
    /// The input of a matmul as f16 rows, in the fast mode.
    pub halves: Option<T>,
    /// Rows of `act` that get logits, where not all do.
    pub act_head: T,
    pub logits: T,
    /// A page of keys or values on its way from one place to another.
    pub copied_page: T,
}

pub(super) fn attention_shape(config: &Config) -> AttentionShape {
    AttentionShape {
        num_heads: config.num_heads,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        scale: config.score_scale() as f32,
        score_cap: config.score_cap,
    }
}

/// Tokens for which every activation fits a binding of `max_binding` bytes.
pub(super) fn most_tokens(
    max_binding: u64,
    config: &Config,
    options: &DecoderOptions,
) -> Result<usize> {
    let widest = config.qkv_rows().max(config.hidden_size);
    let records = |columns| options.tuned.tuning.activations.dims(1, columns)[1];
    let widest = widest
        .max(records(config.hidden_size.max(config.q_width())))
        .max(records(config.intermediate_size)) as u64
        * 4;
    let tokens = (max_binding / widest) as usize;
    let row = config.vocab_size as u64 * 4;
    if tokens == 0 || row > max_binding {
        return Err(Error::DoesNotFit {
            what: "the activations of one token".to_owned(),
            needed_bytes: widest.max(row),
            available_bytes: max_binding,
            advice: "the largest storage binding of this adapter is too small for the model"
                .to_owned(),
        });
    }
    Ok(tokens)
}

impl Scratch<Spec> {
    /// What `options` ask for, no tensor over `max_binding` bytes where that can be helped.
    pub fn plan(
        max_binding: u64,
        config: &Config,
        options: &DecoderOptions,
        several_slabs: bool,
    ) -> Scratch<Spec> {
        let n = options.max_batched_tokens;
        let spec = |label, dtype, dims: &[usize]| Spec {
            label,
            dtype,
            dims: dims.to_vec(),
        };
        let f32 = |label, rows: usize, columns: usize| spec(label, DType::F32, &[rows, columns]);
        let act = |label, rows: usize, columns: usize| {
            let dims = options.tuned.tuning.activations.dims(rows, columns);
            spec(label, DType::U32, &dims)
        };
        let head_rows = (max_binding / (config.vocab_size as u64 * 4)) as usize;
        let head_rows = head_rows.clamp(1, MAX_HEAD_ROWS);
        // up to 32 MiB of partial results, within a binding; at least what one token at the end of
        // the longest sequence needs, at most what a step could use
        let (last, shape) = (options.max_model_len - 1, attention_shape(config));
        let slot_bytes = Tensor::bytes_for(DType::F32, &shape.partials_dims(1));
        let token_slots = splits_for(last);
        let slots = ((max_binding.min(32 << 20) / slot_bytes) as usize)
            .min(n * token_slots)
            .max(token_slots);
        // its page tables, and the different tokens that penalties look back at
        let different = options.max_model_len.min(config.vocab_size);
        let (ropes, groups) = (config.ropes.len(), config.windows().len());
        let of_sequence = pages_for(options.max_model_len) * groups + 3 * different;
        // of a token its id, position and row of logits, its angles, its slots, and its items and merge rows
        let of_token = 3 + config.head_dim * ropes + 13 * groups;
        let meta_words = n * of_token + options.max_running * of_sequence + 16 * slots * groups;
        let halved = config.hidden_size.max(config.q_width());
        let halved = halve::dims(n, halved.max(config.intermediate_size));
        let page = [config.num_kv_heads, PAGE_SIZE, config.head_dim];
        Scratch {
            meta: spec(
                "step metadata",
                DType::U32,
                &[meta_words + SPARE_META_WORDS + PROPOSAL_WORDS],
            ),
            hidden: f32("hidden", n, config.hidden_size),
            act: act("activations", n, config.hidden_size),
            qkv: (several_slabs || config.qk_norm.is_some())
                .then(|| f32("qkv", n, config.qkv_rows())),
            added: (config.norm_places.after).then(|| f32("added", n, config.hidden_size)),
            q: f32("q", n, config.q_width()),
            attended: (!Output::of(&shape).records()).then(|| f32("attended", n, config.q_width())),
            act_attended: act("attended activations", n, config.q_width()),
            partials: spec(
                "attention partials",
                DType::F32,
                &shape.partials_dims(slots),
            ),
            act_gated: act("gated activations", n, config.intermediate_size),
            halves: options
                .coop
                .map(|_| spec("halved activations", DType::U32, &halved)),
            act_head: act("head activations", head_rows, config.hidden_size),
            logits: f32("logits", head_rows, config.vocab_size),
            copied_page: spec("copied page", options.kv_format.dtype(), &page),
        }
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        self.all().map(Spec::bytes).sum()
    }

    /// What is allocated beside it to draw tokens from the logits and to read results back, a copy of
    /// the logits included, which only some requests need.
    pub fn bytes_beside(&self) -> u64 {
        let (rows, vocab_size) = (self.logits.dims[0], self.logits.dims[1]);
        let candidates = argmax::scratch_words(rows, vocab_size) as u64 * 4;
        self.logits.bytes() + candidates + PARAMETER_BYTES
    }

    /// Makes the tensors.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::DoesNotFit`] naming which.
    pub fn allocate(&self, gpu: &Gpu) -> Result<Scratch> {
        let make = |spec: &Spec| gpu.tensor(spec.label, spec.dtype, &spec.dims);
        let perhaps = |spec: &Option<Spec>| spec.as_ref().map(make).transpose();
        Ok(Scratch {
            meta: make(&self.meta)?,
            hidden: make(&self.hidden)?,
            act: make(&self.act)?,
            qkv: perhaps(&self.qkv)?,
            added: perhaps(&self.added)?,
            q: make(&self.q)?,
            attended: perhaps(&self.attended)?,
            act_attended: make(&self.act_attended)?,
            partials: make(&self.partials)?,
            act_gated: make(&self.act_gated)?,
            halves: perhaps(&self.halves)?,
            act_head: make(&self.act_head)?,
            logits: make(&self.logits)?,
            copied_page: make(&self.copied_page)?,
        })
    }
}

impl Spec {
    fn bytes(&self) -> u64 {
        Tensor::bytes_for(self.dtype, &self.dims)
    }
}

impl<T> Scratch<T> {
    pub fn all(&self) -> impl Iterator<Item = &T> {
        let always = [
            &self.meta,
            &self.hidden,
            &self.act,
            &self.q,
            &self.act_attended,
            &self.partials,
            &self.act_gated,
            &self.act_head,
            &self.logits,
            &self.copied_page,
        ];
        let perhaps = [&self.qkv, &self.added, &self.attended, &self.halves];
        always.into_iter().chain(perhaps.into_iter().flatten())
    }
}
