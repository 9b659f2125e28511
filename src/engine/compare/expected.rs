//! What the CPU says of a text.

use crate::engine::perplexity::LogSoftmax;
use crate::model::reference::{Past, Reference};

/// A text, how the reference goes on with it, and what it computes on the way.
pub struct Expected {
    /// The text that was given, then the tokens the reference goes on with, but for the last: those whose
    /// residual streams and logits are known.
    pub tokens: Vec<u32>,
    /// How many of them were given.
    pub num_given: usize,
    /// What the reference goes on with, always taking the likeliest token.
    pub greedy: Vec<u32>,
    /// The residual stream after each layer: `[tokens, hidden_size]`.
    pub layers: Vec<Vec<f32>>,
    /// Logits of each of `tokens`, of as many ids as can be drawn.
    pub logits: Vec<Vec<f32>>,
}

impl Expected {
    /// Computes `given`, then `num_greedy` tokens one after another. Ids from `vocab_size` on cannot be
    /// drawn. `progress` is told how many tokens are done.
    ///
    /// # Panics
    /// When no token is given.
    pub fn compute(
        reference: &Reference,
        vocab_size: usize,
        given: &[u32],
        num_greedy: usize,
        progress: &mut dyn FnMut(usize),
    ) -> Expected {
        assert!(!given.is_empty(), "a text has a token");
        let mut past = vec![Past::default(); reference.num_layers()];
        let mut expected = Expected {
            tokens: Vec::new(),
            num_given: given.len(),
            greedy: Vec::new(),
            layers: vec![Vec::new(); reference.num_layers()],
            logits: Vec::new(),
        };
        expected.extend(reference, &mut past, vocab_size, given);
        progress(expected.tokens.len());
        while expected.greedy.len() < num_greedy {
            let last = expected.logits.last().expect("one for each token");
            // any will do where none is: everything after it is NaN as well
            let token = LogSoftmax::of(last).map_or(0, |soft| soft.best);
            expected.greedy.push(token);
            if expected.greedy.len() < num_greedy {
                expected.extend(reference, &mut past, vocab_size, &[token]);
            }
            progress(expected.num_given + expected.greedy.len());
        }
        expected
    }

    fn extend(&mut self, reference: &Reference, past: &mut [Past], vocab: usize, tokens: &[u32]) {
        let layers = &mut self.layers;
        let hidden = reference.forward(past, tokens, &mut |layer, stream| {
            layers[layer].extend(stream.iter().flatten().map(|&v| v as f32));
        });
        // a few rows at a time: all of them in f64 would be the largest thing in memory
        for row in hidden.chunks(8) {
            let logits = reference.head(row);
            let rows = logits
                .iter()
                .map(|row| row[..vocab].iter().map(|&v| v as f32).collect());
            self.logits.extend(rows);
        }
        self.tokens.extend(tokens);
    }
}
