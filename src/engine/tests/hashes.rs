//! A model that is a hash of its text, and numbers from a seed.

use crate::engine::Request;

/// A cell that nobody may read.
pub const POISON: u64 = 0;

/// Numbers from a seed (Steele et al., "Fast splittable pseudorandom number generators", 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn range(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

pub fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The hash of one more token; never [`POISON`].
pub fn extended(hash: u64, token: u32) -> u64 {
    mixed(hash ^ (u64::from(token) << 17 | 1)) | 1
}

pub fn begin(salt: &[u8]) -> u64 {
    salt.iter()
        .fold(3, |hash, &byte| extended(hash, byte.into()))
}

/// What the "model" draws after a text with this hash.
pub fn drawn(hash: u64, seed: u64, vocab: u32) -> u32 {
    (mixed(hash ^ mixed(seed)) % u64::from(vocab)) as u32
}

/// A request's answer when nobody else is there.
pub fn alone(request: &Request, servable_len: usize, vocab: u32) -> Vec<u32> {
    let prompt = request.tokens.iter();
    let mut hash = prompt.fold(begin(&request.cache_salt), |hash, &t| extended(hash, t));
    let mut answer = Vec::new();
    loop {
        let token = drawn(hash, request.sampling.seed, vocab);
        answer.push(token);
        hash = extended(hash, token);
        let len = request.tokens.len() + answer.len();
        if request.end_tokens.contains(&token)
            || answer.len() >= request.max_tokens
            || len >= servable_len
        {
            return answer;
        }
    }
}
