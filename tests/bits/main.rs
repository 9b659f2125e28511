//! What may not change a bit: how a text is cut into steps, how tensors are cut into shards, what
//! is in pages of others, what the adapter can do beyond the baseline, who was served before.
//!
//! The models are synthetic: their weights are random, so that any wrong read shows.

#[path = "../common/mod.rs"]
mod common;

mod chunks;
mod requests;
mod rows;
mod surroundings;

use nelumbo::LoadOptions;
use nelumbo::kernels::Activations;
use nelumbo::kv::KvFormat;
use nelumbo::model::{Config, synthetic};
use nelumbo::quant::Format;

/// The longest text.
const LONGEST: usize = 600;

fn options(weights: &str, kv_format: KvFormat) -> LoadOptions {
    LoadOptions {
        weights: Format::from_name(weights).unwrap(),
        activations: Some(Activations::F32),
        kv_format,
        ctx_size: Some(LONGEST + 40),
        batch_size: Some(LONGEST),
        max_running: 1,
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
