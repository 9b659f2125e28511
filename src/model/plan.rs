//! Whether a model fits, and how fast it would be: told before anything is loaded, from sizes alone.
//! Values in, values out; no device is opened here and no file read.
//!
//! What is planned is what loading allocates, by the same arithmetic: packed weights, whole pages for
//! every user at the full context, activations, and what results are read back from.

mod told;

use super::budget::{PoolSize, largest};
use super::decoder::DecoderOptions;
use super::roofline::{ModelShape, Roofline, StepShape, WeightForm};
use super::room::{Bounds, MAX_CONTEXT, MOST_RUNNING};
use super::tune::{Source, Tuned};
use super::{LoadOptions, shapes};
use crate::error::Result;
use crate::kernels::{Activations, Tuning};
use crate::kv::{MAX_PAGES, PAGE_SIZE, SPLIT_PAGES, group_pages, pages_for};
pub use told::{ByFormat, KvGroup, Plan, Speed};

/// More users are not looked for.
const MOST_USERS: usize = 1 << 16;

/// Where an amount of memory is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySource {
    /// Somebody said so.
    Given,
    /// The adapter, less what is left to others.
    Adapter,
    /// The host, less what is left to others.
    Host,
}

impl MemorySource {
    /// The word of `memory_source`.
    pub fn name(self) -> &'static str {
        match self {
            MemorySource::Given => "given",
            MemorySource::Adapter => "adapter",
            MemorySource::Host => "host",
        }
    }
}

/// What is to be planned.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What the model is called.
    pub model: String,
    /// Its sizes, and how weights and cache are kept.
    pub shape: ModelShape,
    /// Tokens of each user's context; `None` takes what loading would.
    pub ctx_size: Option<usize>,
    /// Users at a time, each with a context of his own.
    pub users: usize,
    /// How activations are passed on.
    pub activations: Activations,
    /// Of the adapter.
    pub bounds: Bounds,
    /// Bytes for everything, and who said so.
    pub memory: Option<(u64, MemorySource)>,
    /// Tokens of the prompt whose first token is waited for.
    pub prompt: usize,
    /// What the adapter does, where it is known.
    pub roofline: Option<Roofline>,
}

impl Wanted {
    /// Counts it.
    ///
    /// # Errors
    /// [`crate::Error::Request`] for a context out of range, [`crate::Error::DoesNotFit`] where the
    /// activations of one token do not fit a binding.
    pub fn plan(&self) -> Result<Plan> {
        let shape = &self.shape;
        let c = &shape.config;
        let options = self.decoder_options()?;
        let (context, users) = (options.max_model_len, self.users.max(1));
        let sum = self.sum(&options, context, users);
        let weights = shape.weight_bytes();
        let kv_bytes_per_user = shape.kv_bytes(context as u64, 1);
        let total = sum.total();
        let verdict = self.verdict(&options, context, users, total);
        let shards = c.layer_matrices().into_iter();
        let shards = shards.chain([(c.vocab_size, c.hidden_size)]);
        let shards = shards.map(|(rows, columns)| shape.shards(rows, columns));
        Ok(Plan {
            model: self.model.clone(),
            architecture: c.architecture.clone(),
            runs_here: shapes::is_run(&c.architecture)
                && shape.weights.format().is_some()
                && shape.kv.format().is_some(),
            params: shape.params(),
            attention: match shape.cached_kv_heads == c.num_heads {
                true => "mha",
                false => "gqa",
            },
            ctx_size: context,
            trained_ctx_size: c.max_position_embeddings,
            users,
            weights_format: shape.weights.name(),
            weight_bytes: weights.all,
            weight_scale_bytes: weights.scales,
            weight_bytes_by_format: ByFormat::from_fn(|form| shape.weight_bytes_as(form).all),
            weight_scale_bytes_by_format: ByFormat::from_fn(|form| {
                shape.weight_bytes_as(form).scales
            }),
            kv_dtype: shape.kv.name(),
            kv_bytes_per_token: shape.kv_bytes_per_token(),
            kv_bytes_per_user,
            kv_bytes: shape.kv_bytes(context as u64, users as u64),
            pages: shape.pages(context, users),
            page_bytes: shape.page_bytes(),
            pages_bytes: sum.pages,
            scratch_bytes: sum.scratch,
            other_bytes: sum.other,
            total_bytes: total,
            binding_bytes: shape.max_binding,
            kv_slabs_per_layer: self.slabs(&sum.groups),
            kv_groups: sum.groups,
            weight_shards: shards.max().unwrap_or(1),
            memory_bytes: self.memory.map(|(bytes, _)| bytes),
            memory_source: self.memory.map(|(_, source)| source.name()),
            fits: verdict.fits,
            reason: verdict.reason,
            max_ctx_size: verdict.max_ctx_size,
            max_users: verdict.max_users,
            speed: self.speed(context, users, options.max_batched_tokens),
        })
    }

    /// The sizes that loading would choose, were there memory for all of it.
    fn decoder_options(&self) -> Result<DecoderOptions> {
        let options = LoadOptions {
            ctx_size: self.ctx_size,
            max_running: self.users,
            // only sizes of scratch depend on it: what is read by no kernel is near to what is
            kv_format: self.shape.kv.format().unwrap_or_default(),
            ..LoadOptions::default()
        };
        let tuning = Tuning {
            activations: self.activations,
            lanes: 1,
            workgroup: 8,
            tile_tokens: 8,
            subgroups: false,
            wide: false,
        };
        let tuned = Tuned {
            tuning,
            source: Source::Default,
            ms: 0.0,
        };
        let (_, wanted) = self
            .bounds
            .wanted(&self.shape.config, &options, tuned, None)?;
        Ok(wanted)
    }

    fn sum(&self, options: &DecoderOptions, context: usize, users: usize) -> Sum {
        let pages = self.shape.pages(context, users);
        let options = DecoderOptions {
            max_running: users.min(MOST_RUNNING),
            ..options.with_pool(PoolSize {
                context,
                pages: pages.min(MAX_PAGES as u64) as usize,
            })
        };
        let config = &self.shape.config;
        let group = |(window, layers)| {
            let all = usize::try_from(pages).unwrap_or(usize::MAX);
            let pages = group_pages(window, all, users, options.max_batched_tokens) as u64;
            let bytes = self.shape.page_bytes_of(layers).saturating_mul(pages);
            KvGroup {
                window,
                layers,
                pages,
                bytes,
            }
        };
        let groups = config.layer_groups(context).into_iter();
        let groups: Vec<KvGroup> = groups.map(group).collect();
        let several_slabs = self.slabs(&groups).is_none_or(|slabs| slabs > 1);
        let (scratch, other) = self.bounds.scratch_bytes(config, &options, several_slabs);
        let bytes = groups.iter().map(|group| group.bytes);
        Sum {
            weights: self.shape.weight_bytes().all,
            pages: bytes.fold(0, u64::saturating_add),
            groups,
            scratch,
            other,
        }
    }

    /// Into how many slabs the pages of a layer go that has most; `None` where a binding does not hold a
    /// split.
    fn slabs(&self, groups: &[KvGroup]) -> Option<usize> {
        let fitting = self.shape.max_binding / (self.shape.page_bytes_of(1) / 2).max(1);
        let split = SPLIT_PAGES as u64;
        let slab = fitting / split * split;
        let most = groups.iter().map(|group| group.pages).max()?;
        (slab > 0).then(|| most.div_ceil(slab) as usize)
    }

    fn verdict(
        &self,
        options: &DecoderOptions,
        context: usize,
        users: usize,
        total: u64,
    ) -> Verdict {
        let Some((memory, _)) = self.memory else {
            return Verdict {
                fits: None,
                reason: format!(
                    "it takes {}; nobody tells how much memory there is",
                    gigabytes(total)
                ),
                max_ctx_size: None,
                max_users: None,
            };
        };
        let fits = |context: usize, users: usize| {
            let sum = self.sum(options, context, users);
            let pages = sum.groups.iter().map(|group| group.pages).max();
            pages.is_none_or(|pages| pages <= MAX_PAGES as u64)
                && self.slabs(&sum.groups).is_some()
                && sum.total() <= memory
        };
        // whole pages: less would leave room that nobody can use
        let longest = |users| {
            let at = |pages: usize| fits(pages * PAGE_SIZE, users);
            let most = MAX_CONTEXT / PAGE_SIZE;
            if at(1) {
                PAGE_SIZE * largest(1, most, at)
            } else {
                0
            }
        };
        let at = |users: usize| fits(context, users);
        let max_users = if at(1) { largest(1, MOST_USERS, at) } else { 0 };
        let max_ctx_size = longest(users);
        let sizes = format!(
            "it takes {}, {} are there",
            gigabytes(total),
            gigabytes(memory)
        );
        let fits = fits(context, users);
        let weights = self.shape.weight_bytes().all;
        let reason = if fits {
            sizes
        } else if self
            .slabs(&self.sum(options, context, users).groups)
            .is_none()
        {
            format!("{SPLIT_PAGES} pages of a layer are over the largest binding of this adapter")
        } else if pages_for(context) as u64 * users as u64 > MAX_PAGES as u64 {
            format!("a cache has at most {MAX_PAGES} pages")
        } else if weights > memory {
            let smaller = WeightForm::ALL
                .into_iter()
                .find(|form| self.shape.weight_bytes_as(*form).all < memory.min(weights));
            let advice = match smaller {
                Some(form) => format!("; as {} they would fit", form.name()),
                None => String::new(),
            };
            format!(
                "{sizes}: the weights alone are {}{advice}",
                gigabytes(weights)
            )
        } else if max_ctx_size > 0 {
            format!("{sizes}: a context of {max_ctx_size} tokens would fit")
        } else if longest(1) > 0 {
            format!("{sizes}: one user with {} tokens would fit", longest(1))
        } else {
            format!("{sizes}: weights and activations leave no room for a page")
        };
        Verdict {
            fits: Some(fits),
            reason,
            max_ctx_size: Some(max_ctx_size),
            max_users: Some(max_users),
        }
    }

    fn speed(&self, context: usize, users: usize, step_tokens: usize) -> Speed {
        let prompt = self.prompt.clamp(1, context.saturating_sub(1).max(1));
        let Some(roofline) = &self.roofline else {
            return Speed {
                prompt_tokens: prompt,
                ..Speed::default()
            };
        };
        let shape = &self.shape;
        let bytes = roofline.peaks.stream_bytes_s;
        let last = context - 1;
        // weights that are read for a token: all but the rows of the embedding that are not its own
        let c = &shape.config;
        let (table, scales) = shape.weights.matrix_bytes(c.vocab_size, c.hidden_size);
        let unread = if c.tied_head { 0 } else { table + scales };
        let read = shape.weight_bytes().all - unread + shape.kv_bytes(prompt as u64, 1);
        let one = |depth| 1.0 / roofline.step_seconds(shape, &StepShape::decode(depth));
        let together = users.min(MOST_RUNNING);
        let all = StepShape {
            decodes: vec![last; together],
            chunks: Vec::new(),
            head_rows: together,
        };
        let known = |value: f64| (value.is_finite() && value > 0.0).then_some(value);
        Speed {
            bandwidth_bytes_s: known(bytes),
            decode_tok_s_bound: known(bytes / read as f64),
            decode_tok_s: known(one(prompt)),
            decode_tok_s_full: known(one(last)),
            decode_tok_s_all: known(together as f64 / roofline.step_seconds(shape, &all)),
            // without a rate of operations no prompt has a time
            ttft_s: roofline
                .matmul_ops_s
                .is_finite()
                .then(|| roofline.prompt_seconds(shape, 0, prompt, step_tokens)),
            prompt_tokens: prompt,
        }
    }
}

/// What things take, in bytes.
struct Sum {
    weights: u64,
    groups: Vec<KvGroup>,
    /// Of all groups.
    pages: u64,
    scratch: u64,
    other: u64,
}

impl Sum {
    fn total(&self) -> u64 {
        let rest = self.weights.saturating_add(self.scratch + self.other);
        self.pages.saturating_add(rest)
    }
}

struct Verdict {
    fits: Option<bool>,
    reason: String,
    max_ctx_size: Option<usize>,
    max_users: Option<usize>,
}

/// `12.3 GB`, or MB where that is less than one.
fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
