//! The groups of a model's layers, each with pages of its own in the cache: who sees as much of a text shares
//! a page table.

use super::config::Config;
use super::decoder::DecoderOptions;
use super::scratch::Scratch;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kv::{KvCache, PageGroup, group_pages};

impl DecoderOptions {
    /// The groups of its layers, whose pages are spread over slabs of at most `max_binding` bytes.
    ///
    /// # Errors
    /// As [`KvCache::geometry_for`].
    pub fn groups(&self, config: &Config, max_binding: u64) -> Result<Vec<PageGroup>> {
        let (heads, dim) = (config.num_kv_heads, config.head_dim);
        let group = |(window, _)| {
            let (pages, format) = (self.pages_of(window), self.kv_format);
            let geometry = KvCache::geometry_for(max_binding, heads, dim, format, pages)?;
            Ok(PageGroup { geometry, window })
        };
        let groups = config.layer_groups(self.max_model_len).into_iter();
        groups.map(group).collect()
    }

    /// Bytes of the keys and values of all its layers.
    pub fn cache_bytes(&self, config: &Config) -> u64 {
        let (heads, dim) = (config.num_kv_heads, config.head_dim);
        let groups = config.layer_groups(self.max_model_len).into_iter();
        let bytes = groups.map(|(window, layers)| {
            let page = KvCache::page_bytes(layers, heads, dim, self.kv_format);
            page.saturating_mul(self.pages_of(window) as u64)
        });
        bytes.fold(0, u64::saturating_add)
    }

    fn pages_of(&self, window: Option<usize>) -> usize {
        let (sequences, chunk) = (self.max_running, self.max_batched_tokens);
        group_pages(window, self.num_pages, sequences, chunk)
    }
}

/// Everything whose size can give way. The cache is last: what is small has to fit in any case.
pub(super) fn make_room(
    gpu: &Gpu,
    config: &Config,
    options: &DecoderOptions,
) -> Result<(KvCache, Scratch)> {
    let max_binding = gpu.max_binding_bytes();
    let groups = options.groups(config, max_binding)?;
    let several_slabs = groups.iter().any(|g| g.geometry.num_slabs() > 1);
    let scratch = Scratch::plan(max_binding, config, options, several_slabs).allocate(gpu)?;
    let config = config.clone().for_context(options.max_model_len);
    let group_of = |layer| {
        let window = config.layer_kind(layer).window;
        let group = groups.iter().position(|group| group.window == window);
        group.expect("a group for each window")
    };
    let group_of = (0..config.num_layers).map(group_of).collect();
    let (heads, dim, format) = (config.num_kv_heads, config.head_dim, options.kv_format);
    let kv = KvCache::allocate(gpu, groups, group_of, heads, dim, format)?;
    Ok((kv, scratch))
}
