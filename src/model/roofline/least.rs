//! What a model cannot do without: its parameters, and the bytes and operations of a run of tokens.
//! Measured times are held against it.

use super::config::Config;
use super::decoder::Decoder;
use super::weights::LayerWeights;
use crate::kv::KvCache;
use crate::quant::Weights;

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

    /// Over all steps, how many tokens attention looks back at, each step reading them once.
    fn context_of_steps(&self) -> f64 {
        let end = |step: usize| self.depth + ((step + 1) * self.step_tokens).min(self.tokens);
        (0..self.steps()).map(|step| end(step) as f64).sum()
    }

    /// Over all tokens, how many tokens each attends to.
    fn context_of_tokens(&self) -> f64 {
        let (n, depth) = (self.tokens as f64, self.depth as f64);
        n * depth + n * (n + 1.0) / 2.0
    }
}

impl Config {
    /// Weights of the matrices of one layer.
    pub(super) fn layer_params(&self) -> usize {
        let attention = (self.qkv_rows() + self.q_width()) * self.hidden_size;
        attention + 3 * self.intermediate_size * self.hidden_size
    }

    /// Weights of the head.
    fn head_params(&self) -> usize {
        self.vocab_size * self.hidden_size
    }

    /// All weights; an embedding that is the head as well counts once.
    pub fn num_params(&self) -> u64 {
        let layers = self.num_layers * (self.layer_params() + 2 * self.hidden_size);
        let tables = if self.tied_head { 1 } else { 2 };
        (layers + self.hidden_size + tables * self.head_params()) as u64
    }

    /// Operations of `run`.
    fn flops(&self, run: &Run) -> f64 {
        let layers = (self.num_layers * self.layer_params()) as f64 * run.tokens as f64;
        let head = self.head_params() as f64 * run.head_rows as f64;
        // a product with each key, and one with each value
        let attention = (self.num_layers * self.q_width()) as f64 * 2.0 * run.context_of_tokens();
        2.0 * (layers + head + attention)
    }
}

impl Decoder {
    /// The least that `run` takes.
    pub fn least_work(&self, run: &Run) -> Work {
        let matrices = |l: &LayerWeights| -> u64 {
            [&l.qkv, &l.o, &l.gate_up, &l.down]
                .into_iter()
                .map(Weights::size_bytes)
                .sum()
        };
        let layers: u64 = self.weights().layers.iter().map(matrices).sum();
        let head = self.weights().head().size_bytes();
        let config = self.config();
        let page = KvCache::page_bytes(
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            self.kv().format(),
        );
        let token = page as f64 / crate::kv::PAGE_SIZE as f64;
        Work {
            bytes: run.steps() as f64 * layers as f64
                + run.head_rows as f64 * head as f64
                + token * (run.context_of_steps() + run.tokens as f64),
            flops: config.flops(run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::synthetic;

    #[test]
    fn contexts_are_counted_by_step_and_by_token() {
        let run = Run {
            depth: 10,
            tokens: 5,
            step_tokens: 2,
            head_rows: 1,
        };
        assert_eq!(run.steps(), 3);
        assert_eq!(run.context_of_steps(), (12 + 14 + 15) as f64);
        assert_eq!(run.context_of_tokens(), (11 + 12 + 13 + 14 + 15) as f64);
    }

    #[test]
    fn a_token_costs_two_operations_a_weight_and_its_attention() {
        let config = synthetic::tiny();
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
        assert_eq!(config.flops(&run), (2 * multiplied + attention) as f64);
    }
}
