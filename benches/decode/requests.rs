//! Requests that nothing ends, and those who decode.

use nelumbo::Error;
use nelumbo::engine::{EngineCore, Event, Request, RequestId};
use nelumbo::kernels::case::Data;

/// A request that nothing but `max_tokens` ends; other tokens for another seed.
pub fn request(seed: u64, len: usize, max_tokens: usize, vocab: usize) -> Request {
    let mut data = Data::new(seed);
    Request {
        tokens: (0..len).map(|_| data.below(vocab) as u32).collect(),
        max_tokens,
        ..Request::default()
    }
}

/// `count` requests that decode.
pub fn streams(engine: &mut EngineCore, count: usize, seed: u64) -> Result<Vec<RequestId>, Error> {
    let vocab = engine.decoder().config().vocab_size;
    let mut ids = Vec::new();
    for i in 0..count as u64 {
        ids.push(engine.submit(request(seed + i, 32, 512, vocab))?);
    }
    while tokens_of(&engine.step()?).count() < count {}
    Ok(ids)
}

pub fn end(engine: &mut EngineCore, ids: Vec<RequestId>) {
    for id in ids {
        engine.cancel(id);
    }
    assert!(engine.is_idle(), "everybody has left");
}

pub fn tokens_of(events: &[Event]) -> impl Iterator<Item = RequestId> {
    events.iter().filter_map(|event| match event {
        Event::Token { id, .. } => Some(*id),
        Event::Finished { .. } | Event::Failed { .. } => None,
    })
}
