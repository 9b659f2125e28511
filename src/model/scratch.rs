//! Everything a step writes beside the KV cache: allocated once, sized by what the model and the
//! adapter allow.

use super::config::Config;
use super::decoder::DecoderOptions;
use crate::error::{Error, Result};
use crate::gpu::{DType, Gpu, Tensor};
use crate::kernels::attention::AttentionShape;
use crate::kernels::attention_output::Output;
use crate::kernels::attention_plan::splits_for;
use crate::kernels::halve;
use crate::kv::{PAGE_SIZE, pages_for};

/// Rows of logits a step can have at most; fewer where the binding limit asks for it.
const MAX_HEAD_ROWS: usize = 64;

/// Words of metadata beside those that grow with tokens and context: penalties, sampling, items.
const SPARE_META_WORDS: usize = 96 * 1024;

/// One buffer for each activation: a shared one would put a barrier between any two dispatches.
pub(super) struct Scratch {
    pub meta: Tensor,
    /// The residual stream, f32.
    pub hidden: Tensor,
    /// Its records, times the weight of the norm that follows.
    pub act: Tensor,
    /// Queries, keys and values before rotation, where the cache has several slabs.
    pub qkv: Option<Tensor>,
    pub q: Tensor,
    /// The result of attention as f32, where a head's dims do not fill records.
    pub attended: Option<Tensor>,
    /// Its records.
    pub act_attended: Tensor,
    pub partials: Tensor,
    /// Records of the gated MLP.
    pub act_gated: Tensor,
    /// The input of a matmul as f16 rows, in the fast mode.
    pub halves: Option<Tensor>,
    /// Rows of `act` that get logits, where not all do.
    pub act_head: Tensor,
    pub logits: Tensor,
    /// A page of keys or values on its way from one place to another.
    pub copied_page: Tensor,
}

pub(super) fn attention_shape(config: &Config) -> AttentionShape {
    AttentionShape {
        num_heads: config.num_heads,
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        scale: (1.0 / (config.head_dim as f64).sqrt()) as f32,
    }
}

/// Tokens for which every activation fits a binding.
pub(super) fn most_tokens(gpu: &Gpu, config: &Config, options: &DecoderOptions) -> Result<usize> {
    let widest = config.qkv_rows().max(config.hidden_size);
    let records = |columns| options.tuned.tuning.activations.dims(1, columns)[1];
    let widest = widest
        .max(records(config.hidden_size.max(config.q_width())))
        .max(records(config.intermediate_size)) as u64
        * 4;
    let tokens = (gpu.max_binding_bytes() / widest) as usize;
    let row = config.vocab_size as u64 * 4;
    if tokens == 0 || row > gpu.max_binding_bytes() {
        return Err(Error::DoesNotFit {
            what: "the activations of one token".to_owned(),
            needed_bytes: widest.max(row),
            available_bytes: gpu.max_binding_bytes(),
            advice: "the largest storage binding of this adapter is too small for the model"
                .to_owned(),
        });
    }
    Ok(tokens)
}

impl Scratch {
    pub fn new(
        gpu: &Gpu,
        config: &Config,
        options: &DecoderOptions,
        several_slabs: bool,
    ) -> Result<Scratch> {
        let n = options.max_batched_tokens;
        let f32 = |label: &str, rows: usize, columns: usize| {
            gpu.tensor(label, DType::F32, &[rows, columns])
        };
        let act = |label: &str, rows: usize, columns: usize| {
            let dims = options.tuned.tuning.activations.dims(rows, columns);
            gpu.tensor(label, DType::U32, &dims)
        };
        let head_rows = (gpu.max_binding_bytes() / (config.vocab_size as u64 * 4)) as usize;
        let head_rows = head_rows.clamp(1, MAX_HEAD_ROWS);
        // up to 32 MiB of partial results, within a binding; at least what one token at the end of
        // the longest sequence needs, at most what a step could use
        let (last, shape) = (options.max_model_len - 1, attention_shape(config));
        let room = |bytes: u64| gpu.max_binding_bytes().min(bytes);
        let slot_bytes = Tensor::bytes_for(DType::F32, &shape.partials_dims(1));
        let token_slots = splits_for(last);
        let slots = ((room(32 << 20) / slot_bytes) as usize)
            .min(n * token_slots)
            .max(token_slots);
        // its page table, and the different tokens that penalties look back at
        let different = options.max_model_len.min(config.vocab_size);
        let of_sequence = pages_for(options.max_model_len) + 3 * different;
        let meta_words =
            n * (16 + config.head_dim) + options.max_running * of_sequence + 16 * slots;
        Ok(Scratch {
            meta: gpu.tensor(
                "step metadata",
                DType::U32,
                &[meta_words + SPARE_META_WORDS],
            )?,
            hidden: f32("hidden", n, config.hidden_size)?,
            act: act("activations", n, config.hidden_size)?,
            qkv: several_slabs
                .then(|| f32("qkv", n, config.qkv_rows()))
                .transpose()?,
            q: f32("q", n, config.q_width())?,
            attended: (!Output::of(&shape).records())
                .then(|| f32("attended", n, config.q_width()))
                .transpose()?,
            act_attended: act("attended activations", n, config.q_width())?,
            partials: gpu.tensor(
                "attention partials",
                DType::F32,
                &shape.partials_dims(slots),
            )?,
            act_gated: act("gated activations", n, config.intermediate_size)?,
            halves: options
                .coop
                .map(|_| {
                    let widest = config.hidden_size.max(config.q_width());
                    let dims = halve::dims(n, widest.max(config.intermediate_size));
                    gpu.tensor("halved activations", DType::U32, &dims)
                })
                .transpose()?,
            act_head: act("head activations", head_rows, config.hidden_size)?,
            logits: f32("logits", head_rows, config.vocab_size)?,
            copied_page: gpu.tensor(
                "copied page",
                options.kv_format.dtype(),
                &[config.num_kv_heads, PAGE_SIZE, config.head_dim],
            )?,
        })
    }

    pub fn all(&self) -> impl Iterator<Item = &Tensor> {
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
        let perhaps = [&self.qkv, &self.attended, &self.halves];
        always.into_iter().chain(perhaps.into_iter().flatten())
    }
}
