//! What may not change a bit: how a text is cut into steps, how tensors are cut into shards, what
//! is in pages of others, what the adapter can do beyond the baseline, who was served before.
//!
//! The models are synthetic: their weights are random, so that any wrong read shows.

#[path = "../common/mod.rs"]
mod common;

mod chunks;
mod requests;
mod surroundings;

use nelumbo::LoadOptions;
use nelumbo::kernels::Activations;
use nelumbo::kv::{KvFormat, PageId};
use nelumbo::model::{Config, Decoder, synthetic};
use nelumbo::quant::Format;

/// The longest text.
const LONGEST: usize = 600;
/// Two f16 NaNs, one f32 NaN.
const NAN: u32 = 0x7fff_7fff;

fn options(weights: &str, kv_format: KvFormat) -> LoadOptions {
    LoadOptions {
        weights: Format::from_name(weights).unwrap(),
        activations: Some(Activations::F32),
        kv_format,
        ctx_size: Some(LONGEST + 40),
        batch_size: Some(LONGEST),
        ..LoadOptions::default()
    }
}

/// Widths that fill no group of 32 and no quad of groups.
fn ragged() -> Config {
    Config {
        hidden_size: 100,
        num_heads: 4,
        num_kv_heads: 1,
        head_dim: 40,
        intermediate_size: 132,
        vocab_size: 203,
        ..synthetic::tiny()
    }
}

/// Writes `word` all over the KV cache, or over the pages that `pages` does not hold.
fn fill_pages(decoder: &Decoder, word: u32, but: &[PageId]) {
    let (gpu, kv) = (decoder.gpu(), decoder.kv());
    for slab in (0..decoder.config().num_layers).flat_map(|layer| kv.layer(layer)) {
        for tensor in [&slab.k, &slab.v] {
            let page_bytes = tensor.size_bytes() / slab.num_pages as u64;
            let words = vec![word; page_bytes as usize / 4];
            for page in 0..slab.num_pages {
                if !but.contains(&(slab.first_page + page as PageId)) {
                    let at = page as u64 * page_bytes;
                    let bytes = bytemuck::cast_slice(&words);
                    gpu.upload(tensor, at, bytes).unwrap();
                }
            }
        }
    }
    gpu.flush_uploads().unwrap();
}
