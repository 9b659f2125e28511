//! Residual streams, taken out of a running forward pass.

use crate::engine::EngineCore;
use crate::error::Result;
use crate::gpu::{Call, Interpreter};
use std::sync::{Arc, Mutex, PoisonError};

/// The residual stream after each layer: `[tokens, hidden_size]` each, the tokens in the order in which
/// they were computed.
pub type Streams = Vec<Vec<f32>>;

/// Computes `tokens`, and takes every layer's residual stream on the way; `each` is told the logits of
/// each position. Everything is computed as ever, but waited for after each layer.
///
/// # Errors
/// As [`EngineCore::evaluate`].
pub fn residual_streams(
    engine: &mut EngineCore,
    tokens: &[u32],
    each: &mut dyn FnMut(usize, &[f32]),
) -> Result<Streams> {
    let config = engine.decoder().config();
    let streams = Arc::new(Mutex::new(vec![Vec::new(); config.num_layers]));
    let tap = Tap {
        streams: Arc::clone(&streams),
        hidden_size: config.hidden_size,
    };
    engine.recorder().interpret(Some(Box::new(tap)));
    let done = engine.evaluate(tokens, usize::MAX, 0, each);
    engine.recorder().interpret(None);
    done?;
    let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut streams))
}

struct Tap {
    streams: Arc<Mutex<Streams>>,
    hidden_size: usize,
}

impl Interpreter for Tap {
    fn dispatch(&mut self, call: &mut Call<'_>) -> Result<()> {
        call.on_device();
        let (Some(layer), "down") = (call.place.layer, call.place.op) else {
            return Ok(());
        };
        // a matrix in shards is a dispatch for each; the last one completes the stream
        if call.find("hidden").is_none() || !is_last_shard(call, self.hidden_size) {
            return Ok(());
        }
        let tokens = call.param("num_tokens").map_or(0, |n| n as usize);
        let range = 0..tokens * self.hidden_size;
        let words = call.read_ranges("hidden", std::slice::from_ref(&range))?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams[layer].extend(words.iter().map(|&word| f32::from_bits(word)));
        Ok(())
    }
}

/// Whether a matmul writes the last of `rows` rows.
fn is_last_shard(call: &Call<'_>, rows: usize) -> bool {
    let end = call.param("first_row").unwrap_or(0) + call.param("num_rows").unwrap_or(0);
    end as usize >= rows
}
