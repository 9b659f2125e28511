//! What a run of tokens cannot do without, whatever kernels do it: bytes and operations that measured
//! times are held against. What the kernels here take, padded rows and tiles included, is in
//! [`step`](super::step).

use super::sizes::ModelShape;

/// The least that a run of tokens takes, whatever kernels do it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Bytes between memory and kernels: each step reads the weights once, and the keys and values
    /// of its context once; those of new tokens are written. Activations stay in caches.
    pub bytes: f64,
    /// Multiplications and additions: of the matrices, and of attention up to each token itself.
    pub flops: f64,
}

/// A run of tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Tokens before it, in the cache.
    pub depth: usize,
    /// Tokens of it.
    pub tokens: usize,
    /// Tokens of a step at most.
    pub step_tokens: usize,
    /// Tokens that get logits, no two in one step.
    pub head_rows: usize,
}

impl Run {
    /// Steps that it takes.
    pub fn steps(&self) -> usize {
        self.tokens.div_ceil(self.step_tokens)
    }

    /// Over all steps, how many tokens attention looks back at through a window, each step reading them once.
    fn context_of_steps(&self, window: Option<usize>) -> f64 {
        let seen = |step: usize| {
            let end = ((step + 1) * self.step_tokens).min(self.tokens);
            let own = end - step * self.step_tokens;
            let most = window.map_or(usize::MAX, |window| window - 1 + own);
            (self.depth + end).min(most) as f64
        };
        (0..self.steps()).map(seen).sum()
    }

    /// Over all tokens, how many tokens each attends to through a window.
    fn context_of_tokens(&self, window: Option<usize>) -> f64 {
        // those that a window does not bound, and the others
        let free = window.map_or(self.tokens, |window| {
            window.saturating_sub(self.depth).min(self.tokens)
        });
        let (n, depth) = (free as f64, self.depth as f64);
        let bounded = (self.tokens - free) as f64 * window.unwrap_or(0) as f64;
        n * depth + n * (n + 1.0) / 2.0 + bounded
    }
}

impl ModelShape {
    /// The least that `run` takes.
    pub fn least_work(&self, run: &Run) -> Work {
        let c = &self.config;
        let size = |rows: usize, columns: usize| {
            let (weights, scales) = self.weights.matrix_bytes(rows, columns);
            (weights + scales) as f64
        };
        let sizes = c
            .layer_matrices()
            .map(|(rows, columns)| size(rows, columns));
        let layers = c.num_layers as f64 * sizes.iter().sum::<f64>();
        let head = size(c.vocab_size, c.hidden_size);
        let token = self.kv_bytes_per_token() as f64;
        Work {
            bytes: run.steps() as f64 * layers
                + run.head_rows as f64 * head
                + token * (self.mean_over_layers(|w| run.context_of_steps(w)) + run.tokens as f64),
            flops: self.flops(run),
        }
    }

    /// Operations of `run`.
    fn flops(&self, run: &Run) -> f64 {
        let c = &self.config;
        let layers = (c.num_layers * c.layer_params()) as f64 * run.tokens as f64;
        let head = (c.vocab_size * c.hidden_size) as f64 * run.head_rows as f64;
        // a product with each key, and one with each value
        let seen = self.mean_over_layers(|window| run.context_of_tokens(window));
        let attention = (c.num_layers * c.q_width()) as f64 * 2.0 * seen;
        2.0 * (layers + head + attention)
    }

    /// The mean of what is told of each layer's window.
    fn mean_over_layers(&self, of: impl Fn(Option<usize>) -> f64) -> f64 {
        let c = &self.config;
        let share = |window: Option<usize>| {
            let own = (0..c.num_layers).filter(|&layer| c.layer_kind(layer).window == window);
            own.count() as f64 / c.num_layers as f64
        };
        let windows = c.windows().into_iter();
        windows.map(|window| share(window) * of(window)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sizes::tests::tiny;
    use super::super::step::{Division, KernelWork, StepShape};
    use super::*;
    use crate::model::config::LayerKind;

    #[test]
    fn contexts_are_counted_by_step_and_by_token() {
        let run = Run {
            depth: 10,
            tokens: 5,
            step_tokens: 2,
            head_rows: 1,
        };
        assert_eq!(run.steps(), 3);
        assert_eq!(run.context_of_steps(None), (12 + 14 + 15) as f64);
        assert_eq!(run.context_of_tokens(None), (11 + 12 + 13 + 14 + 15) as f64);
        // a step's tokens see one more between them than each of them
        let window = Some(12);
        assert_eq!(run.context_of_steps(window), (12 + 13 + 12) as f64);
        assert_eq!(run.context_of_tokens(window), (11 + 4 * 12) as f64);
    }

    #[test]
    fn a_token_costs_two_operations_a_weight_and_its_attention() {
        let shape = tiny();
        let config = &shape.config;
        let run = Run {
            depth: 0,
            tokens: 1,
            step_tokens: 1,
            head_rows: 1,
        };
        let norms = (2 * config.num_layers + 1) * config.hidden_size;
        let tables = if config.tied_head { 1 } else { 2 };
        let multiplied = config.num_params() as usize
            - norms
            - (tables - 1) * config.vocab_size * config.hidden_size;
        let attention = 4 * config.num_layers * config.q_width();
        let least = shape.least_work(&run);
        assert_eq!(least.flops, (2 * multiplied + attention) as f64);
        // every matrix is read once, and a token written and read
        let weights = shape.weight_bytes().all - 4 * norms as u64;
        assert_eq!(tables, 1, "the head is all that is read of the tables");
        let cache = 2 * shape.kv_bytes_per_token();
        assert_eq!(least.bytes, (weights + cache) as f64);
    }

    #[test]
    fn kernels_never_take_less() {
        let mut shape = tiny();
        let kind = |window| LayerKind { window, rope: 0 };
        for window in [None, Some(30)] {
            shape.config.layer_kinds = vec![kind(window), kind(None)];
            kernels_take_no_less(&shape);
        }
    }

    fn kernels_take_no_less(shape: &ModelShape) {
        let division = Division {
            tile_tokens: 8,
            wanted_teams: 2,
        };
        for (depth, tokens) in [(0, 1), (100, 1), (0, 40), (64, 100)] {
            let run = Run {
                depth,
                tokens,
                step_tokens: tokens,
                head_rows: 1,
            };
            let least = shape.least_work(&run);
            let kernels = shape.kernels(&StepShape::chunk(depth, tokens, true), &division);
            let sum = |of: fn(&KernelWork) -> f64| -> f64 {
                kernels.iter().map(|k| k.times as f64 * of(k)).sum()
            };
            let (bytes, ops) = (sum(|k| k.bytes), sum(|k| k.ops));
            assert!(bytes >= least.bytes && ops >= least.flops, "{tokens}");
        }
    }
}
