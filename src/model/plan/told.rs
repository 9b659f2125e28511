//! What a plan tells, by the names that `nelumbo plan -o json` has.

use crate::model::roofline::WeightForm;
use serde::Serialize;

/// What came of it, by the names of `nelumbo plan -o json`. Bytes are bytes, speeds tokens a second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// What the model is called.
    pub model: String,
    /// As its files call it.
    pub architecture: String,
    /// Whether such a model can be run here, not only planned with.
    pub runs_here: bool,
    /// All parameters.
    pub params: u64,
    /// `mha` where every query head has keys of its own, else `gqa`.
    pub attention: &'static str,
    /// Tokens of each user's context.
    pub ctx_size: usize,
    /// Tokens that the model was made for.
    pub trained_ctx_size: usize,
    /// Users at a time.
    pub users: usize,
    /// `f32`, `f16`, `q8` or `int8`.
    pub weights_format: &'static str,
    /// Weights as they are kept, scales and padding included.
    pub weight_bytes: u64,
    /// Scales among them.
    pub weight_scale_bytes: u64,
    /// The same for every format.
    pub weight_bytes_by_format: ByFormat<u64>,
    /// Scales among those.
    pub weight_scale_bytes_by_format: ByFormat<u64>,
    /// `f32`, `f16` or `int8`.
    pub kv_dtype: &'static str,
    /// Keys and values of a token, over all layers.
    pub kv_bytes_per_token: u64,
    /// Of exactly `ctx_size` tokens, or of those that are seen.
    pub kv_bytes_per_user: u64,
    /// The same of every user.
    pub kv_bytes: u64,
    /// Pages of 16 tokens that hold `ctx_size` tokens of every user.
    pub pages: u64,
    /// Bytes of a page, over all layers.
    pub page_bytes: u64,
    /// Layers by how much of a text they see: what the cache is made of.
    pub kv_groups: Vec<KvGroup>,
    /// Bytes of all pages: what the cache takes.
    pub pages_bytes: u64,
    /// Activations and metadata.
    pub scratch_bytes: u64,
    /// Parameters, and what results are read back from.
    pub other_bytes: u64,
    /// Weights, pages, scratch and other.
    pub total_bytes: u64,
    /// The largest window of a buffer that a kernel binds.
    pub binding_bytes: u64,
    /// Pieces that a layer's keys, or values, are in.
    pub kv_slabs_per_layer: Option<usize>,
    /// Pieces of the matrix that has most.
    pub weight_shards: usize,
    /// Bytes for everything; `None` where nobody tells.
    pub memory_bytes: Option<u64>,
    /// `given`, `adapter` or `host`.
    pub memory_source: Option<&'static str>,
    /// Whether all of it fits; `None` where nobody tells how much there is.
    pub fits: Option<bool>,
    /// Why, in a sentence.
    pub reason: String,
    /// The longest context for these users, in tokens; 0 where none fits.
    pub max_ctx_size: Option<usize>,
    /// The most users with this context; 0 where not even one fits.
    pub max_users: Option<usize>,
    /// What bounds the speed, where something is known of the adapter.
    #[serde(flatten)]
    pub speed: Speed,
}

/// The cache of those layers that see as much as one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvGroup {
    /// Tokens that a token sees; `None` where it sees all.
    pub window: Option<usize>,
    /// How many layers.
    pub layers: usize,
    /// Pages of 16 tokens: as many as hold every context, or windows and what a step adds to them.
    pub pages: u64,
    /// Bytes of all of them, over these layers.
    pub bytes: u64,
}

/// A value for every format of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByFormat<T> {
    /// 4 bytes a weight.
    pub f32: T,
    /// 2 bytes a weight.
    pub f16: T,
    /// 1 byte a weight, a scale for 32.
    pub q8: T,
    /// 1 byte a weight, a scale a row.
    pub int8: T,
}

/// Tokens a second and seconds; `None` where nothing, or not enough, is known of the adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Speed {
    /// Bytes a second that are read from memory.
    pub bandwidth_bytes_s: Option<f64>,
    /// Tokens a second of one user after `prompt_tokens`, were weights and cache read at that rate and
    /// nothing else done: no kernel is faster.
    pub decode_tok_s_bound: Option<f64>,
    /// The same as kernels here should do it.
    pub decode_tok_s: Option<f64>,
    /// Of one user at the end of the context.
    pub decode_tok_s_full: Option<f64>,
    /// Of all users together, each at the end of the context.
    pub decode_tok_s_all: Option<f64>,
    /// Seconds from a prompt to its first token.
    pub ttft_s: Option<f64>,
    /// Tokens of that prompt.
    pub prompt_tokens: usize,
}

impl<T> ByFormat<T> {
    /// Of each form what `of` says.
    pub fn from_fn(of: impl Fn(WeightForm) -> T) -> ByFormat<T> {
        ByFormat {
            f32: of(WeightForm::F32),
            f16: of(WeightForm::F16),
            q8: of(WeightForm::Q8),
            int8: of(WeightForm::Int8),
        }
    }
}
